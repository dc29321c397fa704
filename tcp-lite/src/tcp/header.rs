//! The TCP header: conversion of bytes to [`TcpHeader`] and back (RFC 9293 section 3.1, RFC 7323, RFC 2018).
//!
//! Parsing is total: every byte string gives a header or [`Malformed`]. Unknown options, and options whose
//! length does not fit their kind, are skipped. The checksum, which includes a pseudo-header, is not computed
//! in this module.

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::facade::TcpSeqNumber;

/// Number of bytes of a header without options.
pub(crate) const MIN_HEADER_BYTES: usize = 20;
/// Number of bytes of the largest header.
pub(crate) const MAX_HEADER_BYTES: usize = 60;
/// Maximum number of SACK blocks that a header can have.
pub(crate) const MAX_SACK_BLOCKS: usize = 4;

/// The bytes are not a TCP header, because there are too few bytes, or because the data offset is less than 5
/// words or points outside the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed TCP header")]
pub(crate) struct Malformed;

bitflags! {
    /// Control bits except ACK. The ACK bit is represented by [`TcpHeader::ack`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u8 {
        const FIN = 0x01;
        const SYN = 0x02;
        const RST = 0x04;
        const PSH = 0x08;
        const URG = 0x20;
        const ECE = 0x40;
        const CWR = 0x80;
    }
}

/// A SACK block: its first sequence number, and the sequence number after its last byte (RFC 2018 section 3).
pub(crate) type SackBlock = (TcpSeqNumber, TcpSeqNumber);

/// The options that are implemented.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// MSS (RFC 6691): the MTU less the fixed IP and TCP headers. Options make the payload smaller than the
    /// MSS.
    pub(crate) mss: Option<u16>,
    /// The window scale. The value is at most 14.
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    /// SACK blocks in wire order.
    pub(crate) sack: ArrayVec<SackBlock, MAX_SACK_BLOCKS>,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
}

/// A TCP header, without the checksum and the urgent pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpHeader {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: TcpSeqNumber,
    /// The acknowledgement number; `None` if the ACK bit is not set.
    pub(crate) ack: Option<TcpSeqNumber>,
    pub(crate) flags: Flags,
    /// The window field of the header, not scaled.
    pub(crate) window: u16,
    pub(crate) options: Options,
}

// Option kinds (IANA, "TCP Option Kind Numbers").
const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The four bytes in front of the values of the timestamps option, if this option is the only option of a
/// header.
pub(crate) const TIMESTAMPS_WORD: u32 = u32::from_be_bytes([NOP, NOP, TIMESTAMPS, 10]);

/// The ACK bit, which [`Flags`] does not contain.
pub(crate) const ACK_BIT: u8 = 0x10;
/// The largest window scale (RFC 7323 section 2.3).
const MAX_WINDOW_SCALE: u8 = 14;

impl TcpHeader {
    /// The header at the front of `bytes`, and its length.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let fixed: &[u8; MIN_HEADER_BYTES] = bytes.first_chunk().ok_or(Malformed)?;
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, bits, w0, w1, ..] = *fixed;
        let len = usize::from(offset >> 4) * 4;
        let options = bytes.get(MIN_HEADER_BYTES..len).ok_or(Malformed)?;
        let ack = TcpSeqNumber(i32::from_be_bytes([a0, a1, a2, a3]));
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            seq: TcpSeqNumber(i32::from_be_bytes([q0, q1, q2, q3])),
            ack: (bits & ACK_BIT != 0).then_some(ack),
            flags: Flags::from_bits_truncate(bits),
            window: u16::from_be_bytes([w0, w1]),
            options: Options::parse(options),
        };
        Ok((header, len))
    }

    /// Number of bytes that [`emit`](Self::emit) writes: a multiple of 4, at most [`MAX_HEADER_BYTES`].
    pub(crate) fn emitted_len(&self) -> usize {
        MIN_HEADER_BYTES + self.options.emitted_len()
    }

    /// Writes the header to the front of `out`, with 0 in the checksum field.
    ///
    /// # Panics
    /// If `out` is shorter than [`emitted_len`](Self::emitted_len).
    pub(crate) fn emit(&self, out: &mut [u8]) {
        let len = self.emitted_len();
        let (fixed, options) = out[..len].split_at_mut(MIN_HEADER_BYTES);
        fixed[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.map_or(0, |ack| ack.0).to_be_bytes());
        fixed[12] = (len as u8 / 4) << 4;
        fixed[13] = self.control_bits();
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        // The stack or the port fills in the checksum. The urgent pointer is 0, because we send no urgent
        // data.
        fixed[16..20].fill(0);
        self.options.emit(options);
    }

    /// All control bits, as on the wire.
    #[inline]
    pub(crate) fn control_bits(&self) -> u8 {
        self.flags.bits() | if self.ack.is_some() { ACK_BIT } else { 0 }
    }

    /// Number of sequence numbers that the segment occupies with its payload, SYN and FIN.
    pub(crate) fn segment_len(&self, payload_bytes: usize) -> usize {
        payload_bytes
            + usize::from(self.flags.contains(Flags::SYN))
            + usize::from(self.flags.contains(Flags::FIN))
    }

    /// The RST that answers this segment if it belongs to no connection; `None` if the segment is an RST (RFC
    /// 9293 section 3.10.7.1).
    pub(crate) fn rst_reply(&self, payload_bytes: usize) -> Option<Self> {
        if self.flags.contains(Flags::RST) {
            return None;
        }
        let (seq, ack) = match self.ack {
            Some(ack) => (ack, None),
            None => (TcpSeqNumber(0), Some(self.seq + self.segment_len(payload_bytes))),
        };
        Some(Self {
            src_port: self.dst_port,
            dst_port: self.src_port,
            seq,
            ack,
            flags: Flags::RST,
            window: 0,
            options: Options::default(),
        })
    }
}

impl Options {
    /// Parses the known options in `bytes`, and skips other options. If the list of options is malformed,
    /// parsing stops there.
    fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOP => bytes = rest,
                kind => {
                    // The length includes the kind and length bytes.
                    let Some(&len) = rest.first() else { break };
                    let Some(body) = bytes.get(2..usize::from(len)) else { break };
                    options.learn(kind, body);
                    bytes = &bytes[usize::from(len)..];
                }
            }
        }
        options
    }

    fn learn(&mut self, kind: u8, body: &[u8]) {
        let word = |at: usize| body.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        match (kind, body) {
            (MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, body) if body.len() == 8 => self.timestamps = word(0).zip(word(4)),
            (SACK, body) if body.len() % 8 == 0 => {
                self.sack.clear();
                for at in (0..body.len()).step_by(8).take(MAX_SACK_BLOCKS) {
                    if let Some((start, end)) = word(at).zip(word(at + 4)) {
                        self.sack.push((TcpSeqNumber(start as i32), TcpSeqNumber(end as i32)));
                    }
                }
            }
            _ => {}
        }
    }

    /// Number of bytes of all options except SACK blocks, a multiple of 4.
    fn fixed_len(&self) -> usize {
        4 * usize::from(self.mss.is_some())
            + 4 * usize::from(self.window_scale.is_some())
            // SACK permitted replaces the two NOPs in front of timestamps.
            + match (self.sack_permitted, self.timestamps.is_some()) {
                (_, true) => 12,
                (true, false) => 4,
                (false, false) => 0,
            }
    }

    /// Number of SACK blocks that [`emit`](Self::emit) writes: all blocks that fit into the header.
    fn emitted_blocks(&self) -> usize {
        self.sack.len().min(sack_room(MAX_HEADER_BYTES - MIN_HEADER_BYTES - self.fixed_len()))
    }

    fn emitted_len(&self) -> usize {
        self.fixed_len()
            + match self.emitted_blocks() {
                0 => 0,
                blocks => sack_bytes(blocks),
            }
    }

    fn emit(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[MSS, 4]);
            put(&mss.to_be_bytes());
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (true, true) => put(&[SACK_PERMITTED, 2]),
            (true, false) => put(&[NOP, NOP, SACK_PERMITTED, 2]),
            (false, true) => put(&[NOP, NOP]),
            (false, false) => {}
        }
        if let Some((value, echo)) = self.timestamps {
            put(&[TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[NOP, WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.emitted_blocks();
        if blocks > 0 {
            put(&[NOP, NOP, SACK, 2 + 8 * blocks as u8]);
            for (start, end) in &self.sack[..blocks] {
                put(&start.0.to_be_bytes());
                put(&end.0.to_be_bytes());
            }
        }
    }
}

/// Number of bytes of the SACK option with `blocks` blocks, including the two NOPs before it (RFC 2018
/// section 3).
pub(crate) const fn sack_bytes(blocks: usize) -> usize {
    4 + 8 * blocks
}

/// Number of SACK blocks that fit into `bytes` bytes of options.
pub(crate) const fn sack_room(bytes: usize) -> usize {
    bytes.saturating_sub(4) / 8
}

#[cfg(test)]
mod tests;
