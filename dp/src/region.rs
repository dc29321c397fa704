//! Page-aligned zeroed memory for registered buffers: hugepages where there are any, ordinary pages where not.

use std::ptr::NonNull;

/// A block of memory with a stable address, given back on drop.
pub struct Region {}

/// Why a region could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Zero octets asked for.
    #[error("a region needs at least one octet")]
    Empty,
    /// The system refused.
    #[error("no memory for a region of {octets} octets: {source}")]
    NoMemory {
        /// Octets asked for.
        octets: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Region {
    /// Zeroed memory of at least `octets`: from 2 MiB hugepages when some are free, else ordinary pages.
    ///
    /// # Errors
    /// [`RegionError`] when `octets` is 0 or the system has no memory.
    pub fn new(octets: usize) -> Result<Self, RegionError> {
        let _ = octets;
        todo!()
    }

    /// Its first octet.
    pub fn as_ptr(&self) -> NonNull<u8> {
        todo!()
    }

    /// Octets asked for.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Never: a region has at least one octet.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether hugepages back it.
    pub fn is_huge(&self) -> bool {
        todo!()
    }
}
