//! The pages of a port in memory that other processes can read, so that frames need not be copied into a
//! ring.
//!
//! A port has one such memory, and each peer of the port maps it read-only. Before the port sends the
//! descriptor of the memory to any process, the port seals the file against writing (`F_SEAL_FUTURE_WRITE`).
//! From then on nobody can write to the file except through the mapping of the port, so the port may use
//! slices of its own pages. A peer may not: the port changes its pages at any time. So a peer only makes raw
//! copies ([`ExtBuf`](crate::ExtBuf)).

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use super::memory::{self, FIXED_SIZE, Mapping};
use crate::mempool::slab::Backing;

/// Maximum number of bytes of the memory. A reference to a page has an offset of 32 bits.
pub(super) const MAX_POOL_BYTES: usize = u32::MAX as usize;

/// The memory for the pages of this process's port.
#[derive(Debug)]
pub(super) struct PoolMemory {
    mapping: Mapping,
    memfd: OwnedFd,
}

impl PoolMemory {
    /// Makes zeroed memory of `bytes` bytes.
    ///
    /// # Errors
    /// The error of the system. With Linux before 5.1, which has no seal against writing, the error is
    /// `EINVAL`.
    pub(super) fn create(bytes: usize) -> Result<Self, Errno> {
        if bytes > MAX_POOL_BYTES {
            return Err(Errno::FBIG);
        }
        let memfd = memory::memfd("uwarp-pages", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, bytes as u64)?;
        let mapping = Mapping::new(&memfd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        fcntl_add_seals(&memfd, FIXED_SIZE | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        if !memory::takes_later() {
            rustix::fs::fallocate(&memfd, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        }
        Ok(Self { mapping, memfd })
    }

    pub(super) fn memfd(&self) -> &OwnedFd {
        &self.memfd
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The offset of these bytes in the memory. `None` if they are not in the memory.
    #[inline]
    pub(super) fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.mapping.start().addr().get())?;
        (offset < self.len() && bytes.len() <= self.len() - offset).then_some(offset)
    }
}

impl Backing for PoolMemory {
    fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn take(&self, offset: usize, bytes: usize) -> bool {
        let start = offset / memory::PAGE_BYTES * memory::PAGE_BYTES;
        let end = (offset + bytes).next_multiple_of(memory::PAGE_BYTES).min(self.mapping.len());
        self.mapping.take(start..end).is_ok()
    }
}

/// The pages of another process's port, which this process can only read.
#[derive(Debug)]
pub(super) struct PeerPool {
    mapping: Mapping,
}

impl PeerPool {
    /// Maps the `bytes` bytes of a file that a [`PoolMemory`] has made.
    ///
    /// # Errors
    /// `EINVAL` if the file is no such file, or the error of the system.
    pub(super) fn map(memfd: impl AsFd, bytes: u64) -> Result<Self, Errno> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| (1..=MAX_POOL_BYTES).contains(bytes));
        let bytes = bytes.filter(|bytes| memory::is_fit(&memfd, *bytes)).ok_or(Errno::INVAL)?;
        Ok(Self { mapping: Mapping::new(memfd, bytes, ProtFlags::READ)? })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }
}
