//! Prevents DPDK's devices from using real-time signals.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `open` while no real-time signal is free.
///
/// DPDK's tap devices use a free real-time signal, which the kernel then raises for each frame. These signals
/// would interrupt the program's system calls. If no signal is free, the tap devices poll.
pub(crate) fn with_real_time_signals_taken<T>(open: impl FnOnce() -> T) -> T {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let mut taken = Vec::new();
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `before` is valid for the write of a `sigaction`, and the call does not set an action.
        if unsafe { libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) } != 0 {
            continue;
        }
        // SAFETY: the successful call above has filled in `before`.
        let before = unsafe { before.assume_init() };
        if before.sa_sigaction != libc::SIG_DFL {
            continue;
        }
        let mut action = before;
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: all fields of the action are set, and its handler, which does nothing, is never unloaded.
        unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        taken.push((signal, before));
    }
    let result = open();
    for (signal, before) in taken {
        // SAFETY: the action is the value that the system returned above.
        unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
    }
    result
}
