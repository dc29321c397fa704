//! The TCP header: octets to [`TcpHeader`] and back (RFC 9293 section 3.1, RFC 7323, RFC 2018).
//!
//! Parsing is total: every byte string gives a header or [`Malformed`]. Options that are unknown or have a wrong
//! length are skipped. Not here: the checksum's pseudo header, which is the stack's.

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::facade::TcpSeqNumber;

/// Octets of a header without options.
pub(crate) const HEADER_OCTETS: usize = 20;
/// Octets of the largest header.
pub(crate) const MAX_HEADER_OCTETS: usize = 60;
/// SACK blocks that a header has room for.
pub(crate) const MAX_SACK_BLOCKS: usize = 4;

/// Not a TCP header: too short, or the data offset points outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed TCP header")]
pub(crate) struct Malformed;

bitflags! {
    /// Control bits but for ACK, which is [`TcpHeader::ack`]'s presence.
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

/// A SACK block: first sequence number in, first one not in (RFC 2018 section 3).
pub(crate) type SackBlock = (TcpSeqNumber, TcpSeqNumber);

/// The options we know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Maximum segment size, octets, options not counted (RFC 6691).
    pub(crate) mss: Option<u16>,
    /// Window scale, at most 14.
    pub(crate) window_scale: Option<u8>,
    /// SACK permitted.
    pub(crate) sack_permitted: bool,
    /// SACK blocks in the order on the wire.
    pub(crate) sack: ArrayVec<SackBlock, MAX_SACK_BLOCKS>,
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
}

/// A parsed TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpHeader {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: TcpSeqNumber,
    /// Present if the ACK bit is set.
    pub(crate) ack: Option<TcpSeqNumber>,
    pub(crate) flags: Flags,
    /// As on the wire, not scaled.
    pub(crate) window: u16,
    pub(crate) options: Options,
}

impl TcpHeader {
    /// The header at the front of `octets`, and its length.
    pub(crate) fn parse(octets: &[u8]) -> Result<(Self, usize), Malformed> {
        let _ = octets;
        todo!()
    }

    /// Octets that [`emit`](Self::emit) writes: a multiple of 4, at most [`MAX_HEADER_OCTETS`].
    pub(crate) fn emitted_len(&self) -> usize {
        todo!()
    }

    /// Writes the header to the front of `out`, checksum field zero.
    ///
    /// # Panics
    /// When `out` is shorter than [`emitted_len`](Self::emitted_len).
    pub(crate) fn emit(&self, out: &mut [u8]) {
        let _ = out;
        todo!()
    }

    /// The RST that answers this segment when no connection takes it; `None` for a RST
    /// (RFC 9293 section 3.10.7.1).
    pub(crate) fn reset(&self, payload_octets: usize) -> Option<Self> {
        let _ = payload_octets;
        todo!()
    }
}
