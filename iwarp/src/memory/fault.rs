//! Reasons to refuse an access to registered memory.

/// The reason for which an access is refused. The variants from `InvalidStag` to `Bounds` are in the order of
/// the checks (RFC 5040 section 7.2, RFC 5041 section 7.1).
///
/// [`DdpError`](crate::ddp::DdpError) and [`TerminateError`](crate::rdmap::TerminateError) map each reason to
/// its code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// The STag is unknown or revoked. A peer also gets this fault for an STag without a remote right, and a
    /// local request for the STag of a window. This is also the fault if the caller's memory is no longer
    /// mapped, and in a child of the process that made the table.
    #[error("invalid STag")]
    InvalidStag,
    /// The registration belongs to another stream or protection domain.
    #[error("STag of another stream or protection domain")]
    NotAssociated,
    /// The registration does not have the right that the access needs.
    #[error("access rights violation")]
    AccessRights,
    /// The sum of tagged offset and length is 2^64 or more.
    #[error("tagged offset wraps")]
    Wrap,
    /// The range is not inside the registration.
    #[error("base or bounds violation")]
    Bounds,
    /// The address of an atomic is not a multiple of eight. With InfiniBand's rules, this is also the fault
    /// of a tagged offset that is not a multiple of eight.
    #[error("target of an atomic not aligned to eight bytes")]
    Misaligned,
    /// The peer may not invalidate the STag, for example because several streams may use it. This is also the
    /// fault of a local request to invalidate a window of type 1.
    #[error("STag cannot be invalidated by this peer")]
    NotInvalidatable,
}
