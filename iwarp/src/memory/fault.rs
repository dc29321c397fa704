//! Why an access to registered memory is refused.

/// A refused access, in the order in which the checks are made (RFC 5040 section 7.2, RFC 5041 section 7.1).
///
/// [`DdpError`](crate::ddp::DdpError) and [`TerminateError`](crate::rdmap::TerminateError) know its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// Unknown, revoked, or (for a peer) without any remote right.
    #[error("invalid STag")]
    InvalidStag,
    /// The registration belongs to another stream or protection domain.
    #[error("STag of another stream or protection domain")]
    NotAssociated,
    /// The right is missing.
    #[error("access rights violation")]
    AccessRights,
    /// Tagged offset plus length reaches 2^64.
    #[error("tagged offset wraps")]
    Wrap,
    /// The range is not inside the registration.
    #[error("base or bounds violation")]
    Bounds,
    /// The target of an atomic is not at a multiple of eight bytes.
    #[error("target of an atomic not aligned to eight bytes")]
    Misaligned,
    /// The peer may not invalidate it: several streams may use it.
    #[error("STag cannot be invalidated by this peer")]
    NotInvalidatable,
}
