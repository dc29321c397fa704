//! The boundary to C: error numbers, and a guard that stops panics before they unwind into C.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use iwarp::verbs::VerbsError;
use libc::c_int;

use crate::ffi::ending;
use crate::ffi::exhaustion::is_exhaustion;
use crate::ffi::fork;
use crate::ffi::settings::{self, Key};

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
    /// The error number that a program expects from a call that failed with `error`.
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
            // `VerbsError` is non-exhaustive: this arm also covers variants that are added later.
            _ => EIO,
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        if is_exhaustion(&error) {
            log(|| format!("refused: {error}: raise the limit of the process, or let it do with less"));
        }
        error.raw_os_error().map_or(EIO, Self)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

/// The reason why the library could not start in this process.
#[derive(Debug)]
pub(crate) struct StartError {
    /// One line that tells the user what to do.
    pub(crate) line: String,
    pub(crate) errno: Errno,
    /// True if a resource was missing that may be available later. In this case the next call tries to start
    /// again.
    pub(crate) is_transient: bool,
}

impl From<String> for StartError {
    /// The error for a mistake in the settings, which `line` describes. The program receives `ENODEV`.
    fn from(line: String) -> Self {
        Self { line, errno: Errno(libc::ENODEV), is_transient: false }
    }
}

impl StartError {
    /// The errno is the system's error if this process or the system has run out of a resource. Otherwise the
    /// errno is `ENODEV`.
    pub(crate) fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::with_line(error.to_string(), error)
    }

    /// Like [`new`](Self::new), but with `line` in place of the text of `error`.
    pub(crate) fn with_line(line: String, error: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        // If the system refuses to create a thread, the system's error is EAGAIN.
        let of_system = causes.filter_map(|error| error.downcast_ref::<std::io::Error>());
        let exhaustion = of_system
            .into_iter()
            .find(|error| is_exhaustion(error) || error.raw_os_error() == Some(libc::EAGAIN));
        match exhaustion.and_then(std::io::Error::raw_os_error) {
            Some(number) => Self { line, errno: Errno(number), is_transient: true },
            None => line.into(),
        }
    }
}

/// Fails if the `handle` field of an object is not the handle with which the object was made. The kernel also
/// refuses such objects.
pub(crate) fn check_handle(handle: u32, made_with: u32) -> Outcome<()> {
    if handle == made_with { Ok(()) } else { Err(ENOENT) }
}

pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: the function has no precondition, and returns the address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid in this thread, which has called `__errno_location`.
    unsafe { *place = number };
}

/// Runs the body of an exported function. A panic becomes `EIO`, since it must not unwind into C. With debug
/// assertions, a panic instead ends the process, so that the tests of programs also fail if a program ignores
/// the error. A call in a forked child of a process that uses the library fails with `EIO`.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    if fork::is_child() {
        return Err(EIO);
    }
    ending::on_call();
    // A panic may leave state half changed. Locks that were held during the panic are poisoned, so later
    // calls that need these locks also fail with `EIO`.
    let result = catch_unwind(AssertUnwindSafe(body));
    if result.is_err() && cfg!(all(debug_assertions, not(test))) {
        std::process::abort();
    }
    result.unwrap_or(Err(EIO))
}

/// Runs the body of a libibverbs function that returns 0 or a positive error number.
pub(crate) fn status(body: impl FnOnce() -> Outcome<()>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error.0
        }
    }
}

/// Runs the body of a function that returns -1 and sets `errno` if it fails.
pub(crate) fn minus_one(body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    guarded(body).unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// Runs the body of a function that returns a pointer, or returns NULL and sets `errno` if it fails.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    guarded(body).unwrap_or_else(|error| {
        set_errno(error);
        std::ptr::null_mut()
    })
}

/// If `UWARP_LOG` is set, prints one line that says why a call was refused.
pub(crate) fn log(line: impl FnOnce() -> String) {
    if is_logging() {
        complain(&line());
    }
}

/// Whether `UWARP_LOG` is set.
pub(crate) fn is_logging() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    match IS_ON.get() {
        Some(is_on) => *is_on,
        // If the settings have a mistake or the file cannot be read, another call reports the error.
        None => settings::get(Key::Log).is_ok_and(|log| *IS_ON.get_or_init(|| log.is_some())),
    }
}

/// Prints one line for the user on stderr, since stdout belongs to the program. The line is lost if stderr is
/// closed or has no reader.
pub(crate) fn complain(line: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("uwarp: {line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_of_the_call() {
        let body = || -> Outcome<c_int> { panic!("this message is expected") };
        assert_eq!(guarded(body), Err(EIO));
        assert_eq!(status(|| body().map(drop)), EIO.0);
        assert_eq!(minus_one(body), -1);
        assert!(pointer(|| -> Outcome<*mut u8> { panic!("this message is expected") }).is_null());
    }
}
