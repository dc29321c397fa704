//! Marks: Sends on a data connection by which two iwperfs confirm Writes.
//!
//! In the stream, a mark follows the Writes that it covers. So these Writes are placed when the receive of
//! the mark completes. The target checks the Writes, if validation is on, and answers. The layout is
//! big-endian: `mark`, 1 byte 0 (question) or 1 (answer), 1 byte 1 (correct) or 0 (wrong), 2 reserved bytes,
//! size (4), 4 reserved bytes, first message (8), count (8).

use crate::errors::Error;

/// One mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Whether the target sent this mark as an answer.
    pub is_answer: bool,
    /// Whether all messages checked so far are correct.
    pub good: bool,
    /// Number of bytes of each message.
    pub size: u32,
    /// Number of the first message that the mark covers.
    pub first: u64,
    /// Number of messages that the mark covers.
    pub count: u64,
}

const MAGIC: &[u8; 4] = b"mark";

impl Mark {
    /// Number of bytes of a mark on the wire.
    pub const BYTES: usize = 32;

    /// Encodes the mark.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(MAGIC);
        (out[4], out[5]) = (u8::from(self.is_answer), u8::from(self.good));
        out[8..12].copy_from_slice(&self.size.to_be_bytes());
        out[16..24].copy_from_slice(&self.first.to_be_bytes());
        out[24..].copy_from_slice(&self.count.to_be_bytes());
        out
    }

    /// Decodes a mark.
    ///
    /// # Errors
    /// Returns [`Error::Exchange`] if `bytes` are not a mark.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::BYTES] = crate::perftest::wire::exactly(bytes, "a mark")?;
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (first, count) = (long(16), long(24));
        if !bytes.starts_with(MAGIC) || bytes[4] > 1 || bytes[5] > 1 || first.checked_add(count).is_none() {
            return Err(Error::Exchange("a malformed mark".into()));
        }
        Ok(Self {
            is_answer: bytes[4] == 1,
            good: bytes[5] == 1,
            size: u32::from_be_bytes(std::array::from_fn(|i| bytes[8 + i])),
            first,
            count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_as_it_was() {
        let mark = Mark { is_answer: true, good: false, size: 65536, first: 1 << 40, count: 128 };
        assert_eq!(Mark::decode(&mark.encode()).unwrap(), mark);
    }

    #[test]
    fn anything_else_is_refused() {
        let good = Mark { is_answer: false, good: true, size: 1, first: u64::MAX - 1, count: 1 }.encode();
        assert!(Mark::decode(&good).is_ok());
        for (at, value) in [(0, 0), (4, 2), (5, 9), (31, 2)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Mark::decode(&bad).is_err(), "{at}");
        }
        assert!(Mark::decode(&good[..31]).is_err());
    }
}
