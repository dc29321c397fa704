//! The steering tag (RFC 5041 section 4.2): the 32-bit name of a registration. The STag of a region is both
//! its local key and its remote key (lkey and rkey).

use std::fmt;

/// A steering tag: 24 unpredictable bits that the table chooses, then 8 bits that the consumer chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stag(pub u32);

impl Stag {
    /// Number of indices.
    pub const INDICES: u32 = 1 << 24;

    /// The STag of an index below [`Stag::INDICES`] and a key.
    pub const fn new(index: u32, key: u8) -> Self {
        Self(index << 8 | key as u32)
    }

    /// The 24 bits that the table chose.
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The 8 bits that the consumer chose.
    pub const fn key(self) -> u8 {
        self.0 as u8
    }
}

impl From<u32> for Stag {
    fn from(value: u32) -> Self {
        Self(value)
    }
}

impl From<Stag> for u32 {
    fn from(stag: Stag) -> Self {
        stag.0
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
