//! Atomic operations of a peer on registered memory (RFC 7306 sections 5.1 and 5.3).
//!
//! Carried out by the CPU's own atomics, so they are atomic against those of every stream of every engine of
//! the process, and against the application's own atomics on the same word. Nothing is promised against plain
//! copies, a Write or Read of a peer for one: each of their aligned words is still whole.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::access::{Access, Accessor};
use crate::memory::fault::Fault;
use crate::memory::quiescence::EpochGuard;
use crate::memory::stag::Stag;
use crate::memory::transfer::Target;

/// Bytes of the word that an atomic works on, and what its address is a multiple of.
const WORD: u64 = 8;

/// Eight bytes that may be changed atomically, until the turn ends or the registration is revoked.
pub struct Word<'t> {
    bytes: Target<'t>,
}

impl EpochGuard {
    /// The word that an Atomic Request works on (RFC 7306 section 8.2; rights and range as RFC 5040 section
    /// 7.2 has them for Reads). It takes [`Access::REMOTE_ATOMIC`], or the rights to read and to write that
    /// amount to it. Aligned has to be the address behind the tagged offset, whatever the offset itself is.
    ///
    /// # Errors
    /// The first check that fails;
    /// [`TerminateError::of_read_fault`](crate::rdmap::TerminateError::of_read_fault) has its codes.
    /// Misalignment is looked at last.
    pub fn check_atomic(&self, stag: Stag, to: u64, by: Accessor) -> Result<Word<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        let need = if record.access.contains(Access::REMOTE_ATOMIC) {
            Access::REMOTE_ATOMIC
        } else {
            Access::REMOTE_READ | Access::REMOTE_WRITE
        };
        record.admit_remote(by, need)?;
        let ptr = record.locate(to, WORD)?;
        if !(ptr.addr() as u64).is_multiple_of(WORD) {
            return Err(Fault::Misaligned);
        }
        Ok(Word { bytes: Target::new(self, lease, &record, ptr, WORD as usize) })
    }
}

impl Word<'_> {
    /// Replaces the word by `change` of it in one step; returns what it held. Both are numbers of this
    /// machine's byte order. `change` may be called several times while others change the word too.
    ///
    /// What this stream placed before is visible to whoever sees the new value by an acquire load.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when the registration has been revoked, or memory of the caller is not there
    /// any more; nothing has changed then.
    pub fn update(&self, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let mut original = 0;
        let exchange = |ptr: *mut u8| {
            // SAFETY: `access` found the registration valid just now and the eight bytes inside it;
            // `check_atomic` found them writable and aligned to 8. The turn is open on this thread, so
            // whoever has revoked it since waits for the turn to end before the memory may go. Others access
            // the bytes by atomics and raw copies only.
            let word = unsafe { AtomicU64::from_ptr(ptr.cast()) };
            original = word.load(Ordering::Relaxed);
            // The exchange also where the value stays: an atomic that changes nothing takes its place among
            // the others.
            while let Err(now) =
                word.compare_exchange_weak(original, change(original), Ordering::AcqRel, Ordering::Relaxed)
            {
                original = now;
            }
        };
        // SAFETY: `exchange` owns nothing, and `change` is arithmetic; left at the load or the exchange, the
        // word is whole.
        unsafe { self.bytes.access(exchange)? };
        Ok(original)
    }
}
