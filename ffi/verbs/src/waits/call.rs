//! The steps that `epoll.rs`, `poll.rs` and `select.rs` share: they pass a call on to libc, or serve the
//! engine.

use std::ffi::c_int;
use std::time::Duration;

use iwarp::engine::SharedEngine;
use libc::{sigset_t, timespec};

use crate::ffi::abi;
use crate::ffi::waits::{self, Served, Wait};
use crate::process;

/// Calls libc's function with the arguments of the caller. Without such a function, the result is -1, and
/// `errno` is `ENOSYS`.
///
/// The conditions are those of libc's function.
macro_rules! pass_on {
    ($next:ident($($argument:expr),*)) => {
        match $next.get() {
            Ok(next) => next($($argument),*),
            Err(error) => {
                $crate::ffi::abi::set_errno(error);
                -1
            }
        }
    };
}
pub(super) use pass_on;

/// As [`pass_on`], for a call that waits. libc's function does not find events that are not counted.
macro_rules! wait_in_libc {
    ($next:ident($($argument:expr),*)) => {{
        $crate::ffi::unwritten::write_all();
        $crate::waits::call::pass_on!($next($($argument),*))
    }};
}
pub(super) use wait_in_libc;

/// The engine, if a waiting thread of the program may serve it.
#[inline(never)]
fn engine() -> Option<&'static SharedEngine> {
    let engine = &process::started()?.engine;
    if engine.has_thread() { Some(engine) } else { None }
}

/// Waits as the program's call does, and serves the engine meanwhile. Returns `None` if callers cannot serve.
/// Otherwise the call's result, and `errno` is set if the result is -1.
pub(super) fn wait(call: impl Wait, timeout: Option<Duration>, mask: Option<sigset_t>) -> Option<c_int> {
    let engine = engine()?;
    // Like libc's calls, the call is a cancellation point even if a descriptor is ready.
    // SAFETY: no function of this library on this thread's stack owns anything: the argument can be copied.
    unsafe { waits::pthread_testcancel() };
    match waits::serve(engine, call, timeout, mask) {
        Served::NotServed => None,
        Served::Result(found @ 0..) => Some(found),
        Served::Result(error) => {
            abi::set_errno(abi::Errno(-error));
            Some(-1)
        }
    }
}

/// The time of an argument in milliseconds. A negative number is no limit.
pub(super) fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// The time of a `timespec`. `Err` if it is not valid, which the kernel refuses.
pub(super) fn time_of(time: timespec) -> Result<Duration, ()> {
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos @ 0..1_000_000_000)) => Ok(Duration::new(seconds, nanos)),
        _ => Err(()),
    }
}

/// Reads a value through an argument that may be NULL.
///
/// # Safety
/// The pointer is NULL or points to a value.
pub(super) unsafe fn value_of<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: the caller's promise.
    if pointer.is_null() { None } else { Some(unsafe { pointer.read_unaligned() }) }
}
