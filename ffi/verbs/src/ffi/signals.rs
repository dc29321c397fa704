//! Signals: the program's signals are not delivered to threads of this library, and a write of this library
//! to a closed socket does not end the program.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `start`, which makes threads, with all signals blocked, so that no signal of the program is delivered
/// to the new threads. The signals of faults, such as SIGSEGV, are not blocked: the kernel delivers them to
/// the thread that causes them.
pub(crate) fn with_blocked<T>(start: impl FnOnce() -> T) -> T {
    let before = block_all();
    let result = start();
    restore(&before);
    result
}

/// The signals that the kernel delivers to the thread that causes them.
const FAULTS: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Blocks all signals except those of faults, and returns the signal mask of before.
pub(crate) fn block_all() -> libc::sigset_t {
    let mut all = empty();
    // SAFETY: `all` is a writable `sigset_t`.
    unsafe { libc::sigfillset(&raw mut all) };
    for fault in FAULTS {
        // SAFETY: `sigfillset` has initialized `all`.
        unsafe { libc::sigdelset(&raw mut all, fault) };
    }
    mask(libc::SIG_BLOCK, &all)
}

/// Sets the signal mask of this thread.
pub(crate) fn restore(before: &libc::sigset_t) {
    mask(libc::SIG_SETMASK, before);
}

/// Which of the program's handlers have the flag `SA_RESTART`. After such a handler, the kernel continues a
/// `read(2)`. Other handlers end the `read` with `EINTR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// All, or the program has no handlers.
    All,
    None,
    Some,
}

/// Looks at the handlers of all signals except those of faults.
pub(crate) fn restart() -> Restart {
    let mut found = [false; 2];
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `action` is writable, and NULL changes nothing. The call refuses the signals of libc.
        if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
            continue;
        }
        // SAFETY: the call has initialized `action`.
        let action = unsafe { action.assume_init() };
        if ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
            found[usize::from(action.sa_flags & libc::SA_RESTART != 0)] = true;
        }
    }
    match found {
        [false, _] => Restart::All,
        [true, false] => Restart::None,
        [true, true] => Restart::Some,
    }
}

/// Runs `write`, which may write to a socket without a reader, and suppresses the SIGPIPE that would end the
/// program.
pub(crate) fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    let mut pipe = empty();
    // SAFETY: `pipe` was initialized by `empty`.
    unsafe { libc::sigaddset(&raw mut pipe, libc::SIGPIPE) };
    let was_pending = is_sigpipe_pending();
    let before = mask(libc::SIG_BLOCK, &pipe);
    let result = write();
    if !was_pending && is_sigpipe_pending() {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `pipe` and `now` are valid, and the pointer for the signal's data may be NULL. The call
        // consumes the pending SIGPIPE, which this thread has blocked.
        unsafe { libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const now) };
    }
    mask(libc::SIG_SETMASK, &before);
    result
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` is writable memory for a `sigset_t`.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: `sigemptyset` has initialized `set`.
    unsafe { set.assume_init() }
}

/// Changes the signal mask of this thread, and returns the previous mask.
fn mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: `set` is readable and `before` is writable.
    unsafe { libc::pthread_sigmask(how, ptr::from_ref(set), &raw mut before) };
    before
}

fn is_sigpipe_pending() -> bool {
    let mut pending = empty();
    // SAFETY: `pending` is a writable `sigset_t`.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: `sigpending` has filled `pending`.
    unsafe { libc::sigismember(&raw const pending, libc::SIGPIPE) == 1 }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Whether the calling thread blocks the signal.
    fn blocked(signal: libc::c_int) -> bool {
        let now = mask(libc::SIG_BLOCK, &empty());
        // SAFETY: `now` was initialized by `mask`.
        unsafe { libc::sigismember(&raw const now, signal) == 1 }
    }

    /// Rust's test harness ignores SIGPIPE, and C programs do not. So this test installs a handler while it
    /// runs.
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
        // `UnixStream` suppresses the signal itself. So this closure writes to the descriptor, as DPDK does.
        let write_plainly = || {
            let (left, right) = UnixStream::pair().unwrap();
            drop(right);
            // SAFETY: the descriptor is open, and one byte is readable.
            let done =
                unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&left), b"x".as_ptr().cast(), 1) };
            assert_eq!(done, -1);
        };
        let handler = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler is a function that only changes an atomic counter.
        let before = unsafe { libc::signal(libc::SIGPIPE, handler) };
        write();
        write_plainly();
        assert_eq!(TAKEN.load(Ordering::Relaxed), 1, "the test raises the signal");
        without_sigpipe(write_plainly);
        assert_eq!(TAKEN.load(Ordering::Relaxed), 1);
        assert!(!blocked(libc::SIGPIPE) && !is_sigpipe_pending());
        // SAFETY: `before` is the handler that the first call returned.
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
