//! The errors that DDP finds in a received segment, by error type and code (RFC 5041 section 7.2).
//!
//! DDP only returns the error. RDMAP decides on the Terminate, and the engine ends the stream.

use crate::ddp::header::HeaderError;
use crate::memory::Fault;

/// A DDP error. A Terminate reports the error with layer 1, [`DdpError::etype`] and [`DdpError::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DdpError {
    /// 0x0/0x00: this endpoint, not the peer, has failed.
    #[error("DDP: local catastrophic error")]
    LocalCatastrophic,
    /// 0x1/0x00: the STag is unknown or revoked, or gives no remote write access (DDP has no separate code
    /// for missing rights).
    #[error("DDP tagged buffer: invalid STag")]
    InvalidStag,
    /// 0x1/0x01: the segment accesses bytes outside the range of its STag.
    #[error("DDP tagged buffer: base or bounds violation")]
    BaseOrBounds,
    /// 0x1/0x02: the STag belongs to another stream or protection domain.
    #[error("DDP tagged buffer: STag not associated with this stream")]
    NotAssociated,
    /// 0x1/0x03: the sum of tagged offset and length is 2^64 or more.
    #[error("DDP tagged buffer: tagged offset wraps")]
    ToWrap,
    /// 0x1/0x04: the DDP version of a tagged segment is not 1.
    #[error("DDP tagged buffer: invalid DDP version")]
    TaggedVersion,
    /// 0x2/0x01: the queue with this number is not open.
    #[error("DDP untagged buffer: invalid queue number")]
    InvalidQn,
    /// 0x2/0x02: no buffer is posted for the message.
    #[error("DDP untagged buffer: no buffer for this MSN")]
    NoBuffer,
    /// 0x2/0x03: the message was already delivered, or an earlier message is missing.
    #[error("DDP untagged buffer: MSN out of range")]
    MsnRange,
    /// 0x2/0x04: the message offset is beyond the end of the buffer.
    #[error("DDP untagged buffer: invalid message offset")]
    InvalidMo,
    /// 0x2/0x05: the message is longer than its buffer.
    #[error("DDP untagged buffer: message too long for its buffer")]
    TooLong,
    /// 0x2/0x06: the DDP version of an untagged segment is not 1.
    #[error("DDP untagged buffer: invalid DDP version")]
    UntaggedVersion,
}

impl DdpError {
    /// All DDP errors.
    pub const ALL: [DdpError; 12] = [
        DdpError::LocalCatastrophic,
        DdpError::InvalidStag,
        DdpError::BaseOrBounds,
        DdpError::NotAssociated,
        DdpError::ToWrap,
        DdpError::TaggedVersion,
        DdpError::InvalidQn,
        DdpError::NoBuffer,
        DdpError::MsnRange,
        DdpError::InvalidMo,
        DdpError::TooLong,
        DdpError::UntaggedVersion,
    ];

    /// Returns error type and error code.
    ///
    /// RFC 5041 section 7.2 (DDP-194): errors are reported with the numbers of this section.
    pub const fn pair(self) -> (u8, u8) {
        match self {
            DdpError::LocalCatastrophic => (0x0, 0x00),
            DdpError::InvalidStag => (0x1, 0x00),
            DdpError::BaseOrBounds => (0x1, 0x01),
            DdpError::NotAssociated => (0x1, 0x02),
            DdpError::ToWrap => (0x1, 0x03),
            DdpError::TaggedVersion => (0x1, 0x04),
            DdpError::InvalidQn => (0x2, 0x01),
            DdpError::NoBuffer => (0x2, 0x02),
            DdpError::MsnRange => (0x2, 0x03),
            DdpError::InvalidMo => (0x2, 0x04),
            DdpError::TooLong => (0x2, 0x05),
            DdpError::UntaggedVersion => (0x2, 0x06),
        }
    }

    /// The error type: 0 is local, 1 is tagged buffer, 2 is untagged buffer.
    pub const fn etype(self) -> u8 {
        self.pair().0
    }

    /// The error code within the type.
    pub const fn code(self) -> u8 {
        self.pair().1
    }

    /// Returns the error for an invalid header. Returns `None` for a runt, since DDP has no code for this
    /// fault.
    pub const fn of_header(error: HeaderError) -> Option<Self> {
        match error {
            HeaderError::Runt { .. } => None,
            HeaderError::Version { tagged: true, .. } => Some(DdpError::TaggedVersion),
            HeaderError::Version { tagged: false, .. } => Some(DdpError::UntaggedVersion),
        }
    }
}

/// Converts the reason for which the access of a tagged segment is refused.
impl From<Fault> for DdpError {
    fn from(fault: Fault) -> Self {
        // RFC 5041 section 7.1 (DDP-180 to DDP-184): the codes for failed checks. DDP has no code for missing
        // rights.
        match fault {
            Fault::InvalidStag | Fault::AccessRights | Fault::NotInvalidatable => DdpError::InvalidStag,
            Fault::NotAssociated => DdpError::NotAssociated,
            Fault::Wrap => DdpError::ToWrap,
            Fault::Bounds => DdpError::BaseOrBounds,
            // Only atomics need an aligned target (`EpochGuard::check_atomic`). DDP places no atomics, so
            // this fault cannot occur here.
            Fault::Misaligned => DdpError::LocalCatastrophic,
        }
    }
}
