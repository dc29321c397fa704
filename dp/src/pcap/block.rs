//! Writes the three kinds of pcapng blocks of a capture (draft-ietf-opsawg-pcapng) to the end of a buffer, in
//! little-endian byte order.
//!
//! This crate has its own encoder, since the encoder must not allocate memory for each frame. This crate has
//! no decoder.

use crate::{Mbuf, PortInfo};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

const OPTION_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_MACADDR: u16 = 6;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// The direction of a frame, with the values of `epb_flags` (section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// Writes the block that starts a file: the header of a section of unknown length.
pub(super) fn section_header(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend(1_u16.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        out.extend(u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, b"uwarp");
        option(out, OPTION_END, &[]);
    });
}

/// Writes the description of the only interface, which has number 0. Frames are not truncated. Times are in
/// microseconds.
pub(super) fn interface_description(out: &mut Vec<u8>, port: &PortInfo) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(LINKTYPE_ETHERNET.to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        option(out, IF_NAME, port.name.as_bytes());
        option(out, IF_MACADDR, &port.mac);
        option(out, IF_TSRESOL, &[6]);
        option(out, OPTION_END, &[]);
    });
}

/// Writes one frame. `patch` may change the copy that is written.
pub(super) fn enhanced_packet(
    out: &mut Vec<u8>,
    time_us: u64,
    direction: Direction,
    frame: &Mbuf,
    patch: impl FnOnce(&mut [u8]),
) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend(0_u32.to_le_bytes());
        out.extend(((time_us >> 32) as u32).to_le_bytes());
        out.extend((time_us as u32).to_le_bytes());
        let lengths_at = out.len();
        out.extend([0; 8]);
        let frame_at = out.len();
        out.resize(frame_at + frame.len(), 0);
        frame.copy_to(0, &mut out[frame_at..]);
        patch(&mut out[frame_at..]);
        let bytes = ((out.len() - frame_at) as u32).to_le_bytes();
        out[lengths_at..lengths_at + 4].copy_from_slice(&bytes);
        out[lengths_at + 4..frame_at].copy_from_slice(&bytes);
        pad(out, frame_at);
        option(out, EPB_FLAGS, &(direction as u32).to_le_bytes());
        option(out, OPTION_END, &[]);
    });
}

/// Writes a block: the block's type, the total length, the bytes that `body` writes, and the total length
/// again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let bytes = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&bytes);
    out.extend(bytes);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    let start = out.len();
    out.extend_from_slice(value);
    pad(out, start);
}

/// Pads the bytes from `start` on with zeros to a multiple of four bytes.
fn pad(out: &mut Vec<u8>, start: usize) {
    let bytes = (out.len() - start).next_multiple_of(4);
    out.resize(start + bytes, 0);
}
