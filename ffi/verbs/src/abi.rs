//! The border to C: error numbers, and panics that do not cross it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use iwarp::verbs::VerbsError;
use libc::c_int;

use crate::fork;
use crate::settings::{self, Key};

/// An error number of the system (`errno`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Outcome<T> = Result<T, Errno>;

pub(crate) const ENOENT: Errno = Errno(libc::ENOENT);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const EBUSY: Errno = Errno(libc::EBUSY);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

impl From<VerbsError> for Errno {
    /// The number that a program expects of the call that was refused.
    fn from(error: VerbsError) -> Self {
        log(|| format!("refused: {error}"));
        match error {
            VerbsError::QueueFull(_) | VerbsError::Limit { .. } | VerbsError::Region(_) => ENOMEM,
            VerbsError::InvalidState(_)
            | VerbsError::TooManySge { .. }
            | VerbsError::AtomicLength { .. }
            | VerbsError::TooLong { .. }
            | VerbsError::LocalProtection(_)
            | VerbsError::CqTooSmall { .. }
            | VerbsError::CqOverflowed
            | VerbsError::Invalid(_) => EINVAL,
            VerbsError::Inaccessible(_) => Errno(libc::EFAULT),
            VerbsError::PortInUse(_) => Errno(libc::EADDRINUSE),
            VerbsError::System(error) => error.into(),
            // Also an error that is newer than this function.
            _ => EIO,
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(EIO, Self)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Refuses an object whose `handle` is not the one that it was made with, as the kernel does.
pub(crate) fn check_handle(handle: u32, made_with: u32) -> Outcome<()> {
    if handle == made_with { Ok(()) } else { Err(ENOENT) }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: the function has no precondition, and returns the address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid for the thread that asked for it, which is this one.
    unsafe { *place = number };
}

/// Runs the body of an exported function. A panic becomes `EIO`: it must not unwind into C. A call in a child
/// of a process that uses the library gets `EIO`, too.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    if fork::is_child() {
        return Err(EIO);
    }
    // The state behind the call may be half changed. Locks that the panic held are poisoned, and later calls
    // that need them fail in the same way.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO))
}

/// For functions of libibverbs that return 0 or a positive error number.
pub(crate) fn status(body: impl FnOnce() -> Outcome<()>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error.0
        }
    }
}

/// For functions that return -1 and set `errno`.
pub(crate) fn minus_one(body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    guarded(body).unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// For functions that return a pointer, or NULL and set `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    guarded(body).unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}

/// Prints one line if `UWARP_LOG` is set: why a call was refused, where the error number says too little.
pub(crate) fn log(line: impl FnOnce() -> String) {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    if *IS_ON.get_or_init(|| settings::text(Key::Log).is_some()) {
        complain(&line());
    }
}

/// Prints one line for the user. Programs own stdout; stderr is where libraries complain.
pub(crate) fn complain(line: &str) {
    eprintln!("uwarp: {line}");
}
