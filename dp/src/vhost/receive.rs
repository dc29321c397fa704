//! Frames from the driver, which are copied once: to buffers of the port's pools.

use super::chain::{self, Malformed, Pieces, Writer};
use super::control::notify;
use super::device::{Device, FROM_DRIVER};
use super::header;
use super::memory::{Cursor, GuestMemory};
use super::ring::Broken;
use crate::{Burst, Mbuf, Mempool, PortCounters};

/// Maximum number of bytes of one received burst. The last frame of a burst may exceed this limit. With the
/// limit, the bytes are usually still in the core's cache when they are placed.
const RX_BYTES: usize = 256 << 10;

/// Minimum number of bytes of a frame: an Ethernet header.
const MIN_FRAME_BYTES: usize = 14;

/// Maximum number of bytes of a frame: an Ethernet header with two VLAN tags, and the longest IP packet.
pub(super) const MAX_FRAME_BYTES: usize = 22 + 65_535;

/// The memory that is needed to receive a frame.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) pieces: Pieces,
    pub(super) hint: usize,
}

/// Moves waiting frames into the free elements of `frames`. Frames that fit a buffer of `pool` are in such a
/// buffer, and longer frames are in a buffer of `superframes` if one is free.
///
/// # Errors
/// [`Broken`] if the ring is broken.
pub(super) fn receive(
    device: &mut Device,
    (pool, superframes): (&Mempool, &Mempool),
    counters: &mut PortCounters,
    scratch: &mut Scratch,
    frames: &mut Burst,
) -> Result<(), Broken> {
    let header_bytes = header::bytes(device.features());
    let (memory, queue) = device.parts(FROM_DRIVER);
    let Some(ring) = &mut queue.ring else { return Ok(()) };
    let (mut waiting, mut left) = (ring.waiting()?, RX_BYTES);
    while waiting > 0 && left > 0 && !frames.is_full() {
        let head = ring.head(0)?;
        scratch.pieces.clear();
        let chain = (head, Writer::Driver);
        let walked = chain::walk(ring, memory, chain, &mut scratch.hint, &mut scratch.pieces);
        let bytes = walked.and_then(|bytes| frame_bytes(bytes, header_bytes));
        if let Ok(bytes) = bytes {
            let Some(frame) = take(memory, &scratch.pieces, header_bytes, bytes, (pool, superframes)) else {
                // No buffer is free, so the frame stays in the ring.
                counters.rx_no_mbuf += 1;
                break;
            };
            left = left.saturating_sub(bytes);
            counters.rx_frames += 1;
            counters.rx_bytes += bytes as u64;
            frames.push(frame);
        } else {
            counters.rx_dropped += 1;
            counters.rx_errors += 1;
        }
        ring.finish(head, 0);
        waiting -= 1;
    }
    if ring.publish()
        && let Some(call) = &queue.call
    {
        notify(call);
    }
    Ok(())
}

/// Number of bytes of the frame in a chain of `bytes` bytes.
fn frame_bytes(bytes: usize, header_bytes: usize) -> Result<usize, Malformed> {
    let frame = bytes.checked_sub(header_bytes).ok_or(Malformed)?;
    if (MIN_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&frame) { Ok(frame) } else { Err(Malformed) }
}

/// Copies a frame to buffers. Returns `None` if too few buffers are free.
#[inline]
fn take(
    memory: &GuestMemory,
    pieces: &Pieces,
    header_bytes: usize,
    bytes: usize,
    (pool, superframes): (&Mempool, &Mempool),
) -> Option<Mbuf> {
    let mut header = [0; header::MAX_BYTES];
    let mut cursor = Cursor::default();
    cursor.copy_out(memory, pieces, &mut header[..header_bytes]);
    let mut filled = |pool: &Mempool, bytes: usize| {
        let mut frame = pool.alloc_filled(0, bytes)?;
        // A new buffer has no other view, so `head_mut` succeeds. The pieces have these bytes.
        cursor.copy_out(memory, pieces, frame.head_mut()?);
        Some(frame)
    };
    let mut frame = if bytes <= pool.data_bytes() {
        filled(pool, bytes)?
    } else if superframes.available() > 0 {
        filled(superframes, bytes)?
    } else {
        let part = |left: usize| left.min(pool.data_bytes());
        let mut frame = filled(pool, part(bytes))?;
        while frame.len() < bytes {
            // Buffers have at least 2 KiB, so a chain has enough segments for any frame.
            frame.chain(filled(pool, part(bytes - frame.len()))?).ok()?;
        }
        frame
    };
    frame.set_rx_checksum(header::checksum(&header));
    Some(frame)
}
