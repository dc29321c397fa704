//! Sequence numbers (RFC 9293 section 3.4) as 64-bit positions.
//!
//! The halves of a connection use positions instead of sequence numbers: 0 is the SYN, 1 is the first byte of
//! the stream, and the FIN follows the last byte. Positions never wrap, so they compare as integers. Headers
//! have 32-bit sequence numbers.

use crate::facade::TcpSeqNumber;

/// The numbering of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeqSpace {
    isn: i32,
}

impl SeqSpace {
    /// The numbering that begins with this initial sequence number.
    pub(super) fn new(isn: TcpSeqNumber) -> Self {
        Self { isn: isn.0 }
    }

    /// The sequence number of a position.
    pub(super) fn seq(self, pos: u64) -> TcpSeqNumber {
        TcpSeqNumber(self.isn.wrapping_add(pos as i32))
    }

    /// The position nearest to `near` that has this sequence number. A position before the SYN is negative.
    pub(super) fn pos(self, seq: TcpSeqNumber, near: u64) -> i64 {
        // RFC 5044 section 4.3 (MPA-062): MPA counts bytes with these positions, so the wrap of 32-bit
        // numbers does not matter to MPA. The id in parentheses is that of a row of CONFORMANCE.md.
        near as i64 + i64::from(seq.0.wrapping_sub(self.seq(near).0))
    }
}

/// The stream offset of the byte at a position.
#[inline]
pub(super) fn offset_of(pos: u64) -> u64 {
    pos - 1
}

/// The position of the byte at a stream offset.
#[inline]
pub(super) fn pos_of(offset: u64) -> u64 {
    offset + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    // Proves MPA-062, MPA-066.
    #[test]
    fn positions_survive_any_number_of_wraps() {
        let space = SeqSpace::new(TcpSeqNumber(-2));
        assert_eq!(space.seq(3), TcpSeqNumber(1));
        for near in [0_u64, 1, 0x7fff_ffff, 0x1_0000_0001, 0x123_4567_89ab] {
            for delta in [-0x7fff_ffff_i64, -5, 0, 5, 0x7fff_ffff] {
                let pos = near as i64 + delta;
                assert_eq!(space.pos(space.seq(pos as u64), near), pos);
            }
        }
    }
}
