//! The cost of copying bytes from one buffer to another and of computing their CRC. `memcpy` copies a block
//! of 8 KiB, and `crc-fast` then reads the copy. The loop copies and reads each block once for the sending
//! side and once for the receiving side.

use std::hint::black_box;

use benches::errors::Error;
use crc_fast::CrcAlgorithm;

use crate::pattern;

/// Number of bytes that are copied before their CRC is computed.
const BLOCK_BYTES: usize = 8 << 10;

/// Two buffers. The first buffer is copied to the second.
pub(crate) struct CopyCrc {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl CopyCrc {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { from: pattern::bytes(1, bytes), to: vec![0; bytes] }
    }

    /// Does the work of both sides for a message as long as the buffers. Returns the number of bytes of the
    /// message.
    pub(crate) fn message(&mut self) -> u64 {
        for _end in ["sender", "receiver"] {
            black_box(self.pass());
        }
        self.from.len() as u64
    }

    /// Copies all blocks, and returns the CRCs of the copies, combined by exclusive or.
    fn pass(&mut self) -> u64 {
        let mut crcs = 0;
        for (to, from) in self.to.chunks_mut(BLOCK_BYTES).zip(self.from.chunks(BLOCK_BYTES)) {
            to.copy_from_slice(black_box(from));
            crcs ^= crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, black_box(&*to));
        }
        crcs
    }

    /// Checks that a pass copies the bytes, and computes the CRCs of the copy.
    ///
    /// # Errors
    /// Returns [`Error::Validation`] if a byte or a CRC is wrong.
    pub(crate) fn validate(&mut self) -> Result<(), Error> {
        self.to.fill(0);
        let crcs = self.pass();
        let expected = self.from.chunks(BLOCK_BYTES).map(|block| u64::from(crc32c::crc32c(block)));
        if self.to != self.from || crcs != expected.fold(0, |crcs, crc| crcs ^ crc) {
            return Err(Error::Validation("the copy + CRC loop".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_copies_and_computes_crcs() {
        let mut copy = CopyCrc::new(20_000);
        assert_eq!(copy.message(), 20_000);
        copy.validate().unwrap();
    }
}
