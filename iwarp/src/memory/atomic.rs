//! Atomic operations of a peer on registered memory (RFC 7306 sections 5.1 and 5.3).
//!
//! Each operation changes the word by one atomic instruction of the CPU. So the operation is atomic with
//! respect to the operations of every stream of every engine in the process, and to the application's own
//! atomics on the same word.
//!
//! An operation is not atomic with respect to plain copies, such as those of a peer's Write or Read: only
//! each aligned word of a copy is read or written as a whole.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::access::{Access, Accessor};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::stag::Stag;
use crate::memory::transfer::Target;

/// Size and alignment, in bytes, of the word that an atomic changes.
const WORD: u64 = 8;

/// Eight bytes that may be changed atomically until the epoch ends or the registration is revoked.
pub struct Word<'t> {
    bytes: Target<'t>,
}

impl EpochGuard<'_> {
    /// Returns the word that an Atomic Request changes (RFC 7306 section 8.2). Rights and range are checked
    /// in the same way as RFC 5040 section 7.2 requires for Reads. The registration must have
    /// [`Access::REMOTE_ATOMIC`], or both the remote read and the remote write right. The address of the word
    /// must be aligned; its tagged offset need not be.
    ///
    /// # Errors
    /// The [`Fault`] of the first check that fails.
    /// [`TerminateError::of_read_fault`](crate::rdmap::TerminateError::of_read_fault) maps each fault to the
    /// codes of a Terminate. Alignment is checked last.
    pub fn check_atomic(&self, stag: Stag, to: u64, by: Accessor) -> Result<Word<'_>, Fault> {
        self.check_word(stag, to, by, Access::REMOTE_READ | Access::REMOTE_WRITE)
    }

    /// Does what [`check_atomic`](Self::check_atomic) does, with InfiniBand's rules: only
    /// [`Access::REMOTE_ATOMIC`] gives the right, and the tagged offset, too, must be aligned. The alignment
    /// of the tagged offset is checked first.
    ///
    /// # Errors
    /// The errors of [`check_atomic`](Self::check_atomic).
    pub fn check_ib_atomic(&self, stag: Stag, to: u64, by: Accessor) -> Result<Word<'_>, Fault> {
        if !to.is_multiple_of(WORD) {
            return Err(Fault::Misaligned);
        }
        self.check_word(stag, to, by, Access::REMOTE_ATOMIC)
    }

    /// Returns the word that an Atomic Request changes. A registration without [`Access::REMOTE_ATOMIC`] must
    /// have the rights `otherwise`. Fails with the [`Fault`] of the first check that fails.
    fn check_word(&self, stag: Stag, to: u64, by: Accessor, otherwise: Access) -> Result<Word<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        let has_right = record.access.contains(Access::REMOTE_ATOMIC);
        let need = if has_right { Access::REMOTE_ATOMIC } else { otherwise };
        record.admit_remote(by, need)?;
        let ptr = record.locate(to, WORD)?;
        // RFC 7306 sections 5.1.1, 5.1.2, 5.2.1 and 8.2 (EXT-179, EXT-182, EXT-183, EXT-189, EXT-202): the
        // memory at the tagged offset must be aligned to eight bytes. Otherwise the atomic is not performed,
        // and nothing changes.
        if !(ptr.addr() as u64).is_multiple_of(WORD) {
            return Err(Fault::Misaligned);
        }
        Ok(Word { bytes: Target::new(self, lease, &record, ptr, WORD as usize) })
    }
}

impl Word<'_> {
    /// Atomically replaces the word by `change(word)`, and returns the old value. Both values are in this
    /// machine's byte order. If other threads change the word at the same time, `change` may be called
    /// several times.
    ///
    /// `change` may end the registration: then nothing is written.
    ///
    /// A thread that reads the new value by an acquire load also sees the bytes that this stream placed
    /// before the atomic.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] if the registration has been revoked, or if the caller's memory is no longer
    /// mapped. In both cases nothing has changed.
    pub fn update(&self, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let mut original = self.access(|word| word.load(Ordering::Relaxed))?;
        loop {
            // The caller's code in `change` may revoke this very registration and free its memory. So
            // `change` runs between two accesses, and never during an access.
            let changed = change(original);
            // RFC 7306 sections 5, 5.3 and 5.4 (EXT-103, EXT-170, EXT-193): one atomic instruction of the CPU
            // changes the word, so no atomic of another stream can interfere. The exchange is executed even
            // if the value stays the same, so that this atomic has a position in the order of all atomics on
            // the word.
            let exchange = |word: &AtomicU64| {
                word.compare_exchange_weak(original, changed, Ordering::AcqRel, Ordering::Relaxed)
            };
            match self.access(exchange)? {
                Ok(before) => return Ok(before),
                Err(now) => original = now,
            }
        }
    }

    /// Runs `access` on the word. `access` makes one atomic access, and calls no code of the user. Fails with
    /// [`Fault::InvalidStag`] if the registration is not valid, or if the memory is no longer mapped.
    fn access<T: Copy>(&self, access: impl Fn(&AtomicU64) -> T) -> Result<T, Fault> {
        let mut result = None;
        let run = |ptr: *mut u8| {
            // SAFETY: `Target::access` has just checked that the registration is valid and that the eight
            // bytes are inside it. `check_word` checked that the address is a multiple of 8 and that the
            // registration has a right that only writable memory has. The epoch is open on this thread. Since
            // the check, this thread has run only `access`, an atomic access, so this thread has not revoked
            // the registration. Another thread that has revoked the registration since the check waits for
            // the end of the epoch before the memory may be freed (`quiescence` has the proof). Other threads
            // access the bytes only by atomics and raw copies (`RawBytes`).
            let word = unsafe { AtomicU64::from_ptr(ptr.cast()) };
            result = Some(access(word));
        };
        // SAFETY: `run` owns nothing, takes no lock and does not panic. If `run` is abandoned at its one
        // access, the word is whole and `result` is empty.
        unsafe { self.bytes.access(run)? };
        result.ok_or(Fault::InvalidStag)
    }
}
