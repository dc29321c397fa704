//! Atomic operations of a peer on registered memory (RFC 7306 sections 5.1 and 5.3).
//!
//! Atomic instructions of the CPU execute them. So they are atomic with respect to the atomics of every
//! stream of every engine of the process, and to the application's own atomics on the same word.
//!
//! Nothing is promised against plain copies, such as a Write or Read of a peer, except that each of their
//! aligned words is whole.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::access::{Access, Accessor};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::stag::Stag;
use crate::memory::transfer::Target;

/// Bytes of the word that an atomic changes, and its alignment.
const WORD: u64 = 8;

/// Eight bytes that may be changed atomically, until the epoch ends or the registration is revoked.
pub struct Word<'t> {
    bytes: Target<'t>,
}

impl EpochGuard<'_> {
    /// The word of an Atomic Request (RFC 7306 section 8.2). Rights and range are checked as RFC 5040 section
    /// 7.2 asks for Reads. The right is [`Access::REMOTE_ATOMIC`], or remote read and write together. The
    /// address has to be aligned, not the tagged offset.
    ///
    /// # Errors
    /// The first check that fails;
    /// [`TerminateError::of_read_fault`](crate::rdmap::TerminateError::of_read_fault) has its codes.
    /// Alignment is checked last.
    pub fn check_atomic(&self, stag: Stag, to: u64, by: Accessor) -> Result<Word<'_>, Fault> {
        self.check_word(stag, to, by, Access::REMOTE_READ | Access::REMOTE_WRITE)
    }

    /// The same with InfiniBand's rules: [`Access::REMOTE_ATOMIC`] alone gives the right, and the tagged
    /// offset has to be aligned too, which is checked first.
    ///
    /// # Errors
    /// As [`check_atomic`](Self::check_atomic).
    pub fn check_ib_atomic(&self, stag: Stag, to: u64, by: Accessor) -> Result<Word<'_>, Fault> {
        if !to.is_multiple_of(WORD) {
            return Err(Fault::Misaligned);
        }
        self.check_word(stag, to, by, Access::REMOTE_ATOMIC)
    }

    /// The word of an Atomic Request. Without [`Access::REMOTE_ATOMIC`] it needs the rights `otherwise`.
    fn check_word(&self, stag: Stag, to: u64, by: Accessor, otherwise: Access) -> Result<Word<'_>, Fault> {
        let (lease, record) = self.shared().lookup(stag)?;
        let has_right = record.access.contains(Access::REMOTE_ATOMIC);
        let need = if has_right { Access::REMOTE_ATOMIC } else { otherwise };
        record.admit_remote(by, need)?;
        let ptr = record.locate(to, WORD)?;
        // RFC 7306 sections 5.1.1, 5.1.2, 5.2.1 and 8.2 (EXT-179, EXT-182, EXT-183, EXT-189, EXT-202): the
        // memory behind the tagged offset has to be aligned to eight bytes, else the atomic is not performed
        // and nothing changes.
        if !(ptr.addr() as u64).is_multiple_of(WORD) {
            return Err(Fault::Misaligned);
        }
        Ok(Word { bytes: Target::new(self, lease, &record, ptr, WORD as usize) })
    }
}

impl Word<'_> {
    /// Atomically replaces the word by `change(word)` and returns the old value. Both are numbers in this
    /// machine's byte order. `change` may be called several times while others change the word too.
    ///
    /// `change` may do anything. The word is checked again after each call of it: where `change` has ended
    /// the registration, nothing is written.
    ///
    /// A thread that sees the new value by an acquire load also sees what this stream placed before.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when the registration has been revoked, or memory of the caller is no longer
    /// mapped. Nothing has changed then.
    pub fn update(&self, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let mut original = self.access(|word| word.load(Ordering::Relaxed))?;
        loop {
            // `change` is code of the caller, which may revoke this very registration and free its memory. So
            // `change` runs between two accesses, and never within one.
            let changed = change(original);
            // RFC 7306 sections 5, 5.3 and 5.4 (EXT-103, EXT-170, EXT-193): one atomic instruction of the CPU
            // changes the word, so no atomic of another stream comes in between. The exchange happens even if
            // the value stays the same, so that the atomic is ordered among the others.
            let exchange = |word: &AtomicU64| {
                word.compare_exchange_weak(original, changed, Ordering::AcqRel, Ordering::Relaxed)
            };
            match self.access(exchange)? {
                Ok(before) => return Ok(before),
                Err(now) => original = now,
            }
        }
    }

    /// Runs `access` on the word, if the registration is valid now. `access` is one atomic access and nothing
    /// else: it calls no code of users.
    fn access<T: Copy>(&self, access: impl Fn(&AtomicU64) -> T) -> Result<T, Fault> {
        let mut result = None;
        let run = |ptr: *mut u8| {
            // SAFETY: `Target::access` found the registration valid just now and the eight bytes inside it.
            // `check_word` found a right that only writable memory has, and found the address to be a
            // multiple of 8. The epoch is open on this thread, and since that check this thread has only run
            // `access`, an atomic access, so this thread has revoked nothing. Another thread that has revoked
            // the registration since then waits for the end of the epoch before the memory may be freed
            // (`quiescence` has the proof). Other threads access the bytes only by atomics and raw copies
            // (`RawBytes`).
            let word = unsafe { AtomicU64::from_ptr(ptr.cast()) };
            result = Some(access(word));
        };
        // SAFETY: `run` owns nothing, takes no lock and does not panic. If `run` is abandoned at its one
        // access, the word is whole and `result` is empty.
        unsafe { self.bytes.access(run)? };
        result.ok_or(Fault::InvalidStag)
    }
}
