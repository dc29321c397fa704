//! What a passed check admits: a range to write or to read, within one turn.
//!
//! Both check before every copy that the registration is still in the generation that was checked. A copy that
//! has begun ends within the turn, for which whoever revokes waits.

use crate::memory::copy;
use crate::memory::fault::Fault;
use crate::memory::quiescence::Turn;
use crate::memory::slot::{Lease, Record};

/// A range that may be written, until the turn ends or the registration is revoked.
pub struct Target<'t> {
    range: Range<'t>,
}

/// A range that may be read, until the turn ends or the registration is revoked.
pub struct Source<'t> {
    range: Range<'t>,
}

struct Range<'t> {
    /// Holds the turn open and the value on its thread.
    _turn: &'t Turn,
    lease: Lease<'t>,
    ptr: *mut u8,
    len: usize,
}

impl<'t> Target<'t> {
    pub(super) fn new(turn: &'t Turn, lease: Lease<'t>, _record: &Record, ptr: *mut u8, len: usize) -> Self {
        Self { range: Range { _turn: turn, lease, ptr, len } }
    }

    /// Octets of the range.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Where the range begins, for an access within the turn.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when the registration has been revoked.
    pub(super) fn address(&self) -> Result<*mut u8, Fault> {
        self.range.at(0, self.range.len)
    }

    /// Copies `octets` to `offset` of the range. They become visible to other threads by increasing offset, each
    /// after all that was written before: so when pieces are placed in order, the last octet is the last to be seen.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when the registration has been revoked, [`Fault::Bounds`] outside the range; nothing
    /// is copied then.
    pub fn place(&self, offset: usize, octets: &[u8]) -> Result<(), Fault> {
        let ptr = self.range.at(offset, octets.len())?;
        // SAFETY: `at` found the registration valid just now and the range inside it, and the check that made
        // this target found it writable. The turn is open on this thread, so whoever has revoked it since waits for
        // the turn to end before the memory may go (see `quiescence`).
        unsafe { copy::place(ptr, octets) };
        Ok(())
    }
}

impl<'t> Source<'t> {
    pub(super) fn new(turn: &'t Turn, lease: Lease<'t>, _record: &Record, ptr: *mut u8, len: usize) -> Self {
        Self { range: Range { _turn: turn, lease, ptr, len } }
    }

    /// Octets of the range.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Copies `out.len()` octets from `offset` of the range on.
    ///
    /// # Errors
    /// As [`Target::place`].
    pub fn fetch(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        let ptr = self.range.at(offset, out.len())?;
        // SAFETY: as in `Target::place`; every registration is readable.
        unsafe { copy::fetch(ptr, out) };
        Ok(())
    }
}

impl Range<'_> {
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        if !self.lease.is_current() {
            return Err(Fault::InvalidStag);
        }
        match self.len.checked_sub(offset) {
            Some(room) if len <= room => Ok(self.ptr.wrapping_add(offset)),
            _ => Err(Fault::Bounds),
        }
    }
}
