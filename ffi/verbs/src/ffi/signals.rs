//! Signals: threads of this library handle none, and writing to a closed socket does not end the program.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `start`, which makes threads, with all signals blocked, so that the new threads handle no signal of
/// the program. Faults are not blocked: they are delivered to the thread that causes them.
pub(crate) fn with_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = empty();
    // SAFETY: the set is a valid place.
    unsafe { libc::sigfillset(&raw mut all) };
    for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: the set was filled above.
        unsafe { libc::sigdelset(&raw mut all, fault) };
    }
    let before = mask(libc::SIG_BLOCK, &all);
    let result = start();
    mask(libc::SIG_SETMASK, &before);
    result
}

/// Runs `write`, which may write to a socket without a reader, and suppresses the SIGPIPE that would end the
/// program.
pub(crate) fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    let mut pipe = empty();
    // SAFETY: the set was emptied.
    unsafe { libc::sigaddset(&raw mut pipe, libc::SIGPIPE) };
    let was_pending = is_sigpipe_pending();
    let before = mask(libc::SIG_BLOCK, &pipe);
    let result = write();
    if !was_pending && is_sigpipe_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are valid places, and no place for the signal's data is allowed. The
        // signal is blocked by this thread, which takes it here.
        unsafe { libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const now) };
    }
    mask(libc::SIG_SETMASK, &before);
    result
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call writes the whole set, whose place is valid.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was written above.
    unsafe { set.assume_init() }
}

/// Changes the signal mask of this thread, and returns the previous mask.
fn mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: both sets are valid places.
    unsafe { libc::pthread_sigmask(how, ptr::from_ref(set), &raw mut before) };
    before
}

fn is_sigpipe_pending() -> bool {
    let mut pending = empty();
    // SAFETY: the set is a valid place.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: the set was filled above.
    unsafe { libc::sigismember(&raw const pending, libc::SIGPIPE) == 1 }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The calling thread's mask.
    fn blocked(signal: libc::c_int) -> bool {
        let now = mask(libc::SIG_BLOCK, &empty());
        // SAFETY: the set is a valid place that was filled.
        unsafe { libc::sigismember(&raw const now, signal) == 1 }
    }

    /// Rust's test harness ignores SIGPIPE, while C programs do not: so this test installs a handler for a
    /// moment.
    #[test]
    fn a_write_without_a_reader_raises_nothing_and_the_mask_is_as_before() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(_signal: libc::c_int) {
            TAKEN.fetch_add(1, Ordering::Relaxed);
        }
        let write = || {
            let (mut left, right) = UnixStream::pair().unwrap();
            drop(right);
            let error = left.write(b"x").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        };
        // `UnixStream` suppresses the signal itself: write to the descriptor as DPDK does.
        let write_plainly = || {
            let (left, right) = UnixStream::pair().unwrap();
            drop(right);
            // SAFETY: the descriptor is open, and the byte is readable.
            let done =
                unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&left), b"x".as_ptr().cast(), 1) };
            assert_eq!(done, -1);
        };
        let handler = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler stays, and only counts.
        let before = unsafe { libc::signal(libc::SIGPIPE, handler) };
        write();
        write_plainly();
        assert_eq!(TAKEN.load(Ordering::Relaxed), 1, "the test raises the signal");
        without_sigpipe(write_plainly);
        assert_eq!(TAKEN.load(Ordering::Relaxed), 1);
        assert!(!blocked(libc::SIGPIPE) && !is_sigpipe_pending());
        // SAFETY: the value is what the first call returned.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }

    #[test]
    fn threads_start_with_all_signals_blocked_but_faults() {
        let of_thread = with_blocked(|| {
            std::thread::spawn(|| [libc::SIGTERM, libc::SIGUSR1, libc::SIGSEGV].map(blocked)).join().unwrap()
        });
        assert_eq!(of_thread, [true, true, false]);
        assert!(!blocked(libc::SIGUSR1));
    }
}
