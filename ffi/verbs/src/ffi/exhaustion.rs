//! Errors that report an exhausted resource.

/// Whether the error means that this process or the system has run out of a resource. If so, a later call may
/// succeed.
pub(crate) fn is_exhaustion(error: &std::io::Error) -> bool {
    let of_this_kind = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error.raw_os_error().is_some_and(|number| of_this_kind.contains(&number))
}
