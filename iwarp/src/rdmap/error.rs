//! The errors that a Terminate reports, with layer, type and code (RFC 5040 section 4.8, RFC 5041 section
//! 7.2, RFC 5044 section 8, RFC 6581 section 8). The error also determines which headers of the failing
//! message the Terminate carries.

use std::fmt;

use crate::ddp::{DdpError, HeaderError};
use crate::memory::Fault;

macro_rules! terminate_errors {
    ($($(#[$doc:meta])* $name:ident = $layer:literal / $etype:literal / $code:literal, $text:literal;)*) => {
        /// An error with its layer, error type and error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TerminateError {
            $($(#[$doc])* #[doc = concat!("\n\n", stringify!($layer), "/", stringify!($etype), "/", stringify!($code), ".")] $name,)*
        }

        impl TerminateError {
            /// All errors.
            pub const ALL: &[TerminateError] = &[$(TerminateError::$name,)*];

            /// Returns layer, error type and error code.
            pub const fn codes(self) -> (u8, u8, u8) {
                match self { $(TerminateError::$name => ($layer, $etype, $code),)* }
            }

            /// Returns the meaning of the error, without the numbers.
            pub const fn text(self) -> &'static str {
                match self { $(TerminateError::$name => $text,)* }
            }
        }
    };
}

terminate_errors! {
    /// This endpoint, not the peer, has failed. Every code is valid; this endpoint sends 0x00.
    LocalCatastrophic = 0x0 / 0x0 / 0x00, "RDMA local catastrophic error";
    /// A Read Request, an Atomic Request or an invalidation names an STag that is unknown or revoked, or that
    /// gives no right to peers.
    ReadInvalidStag = 0x0 / 0x1 / 0x00, "RDMA remote protection error: invalid STag";
    /// A Read Request or an Atomic Request accesses bytes outside the range of its STag.
    ReadBounds = 0x0 / 0x1 / 0x01, "RDMA remote protection error: base or bounds violation";
    /// The STag does not give the right to read, or to perform atomics.
    ReadAccessRights = 0x0 / 0x1 / 0x02, "RDMA remote protection error: access rights violation";
    /// The STag belongs to another stream or protection domain.
    ReadNotAssociated = 0x0 / 0x1 / 0x03, "RDMA remote protection error: STag not associated with this stream";
    /// The sum of tagged offset and length is 2^64 or more.
    ReadToWrap = 0x0 / 0x1 / 0x04, "RDMA remote protection error: tagged offset wraps";
    /// The peer may not invalidate the STag, for example because the STag belongs to another stream or to
    /// several streams.
    CannotInvalidate = 0x0 / 0x1 / 0x09, "RDMA remote protection error: STag cannot be invalidated";
    /// A protection error to which no other code applies.
    ProtectionUnspecified = 0x0 / 0x1 / 0xFF, "RDMA remote protection error: unspecified";
    /// The RDMAP version of a message is not 1.
    RdmapVersion = 0x0 / 0x2 / 0x05, "RDMA remote operation error: invalid RDMAP version";
    /// The opcode (also the AOpCode of an Atomic Request) is unknown, the buffer model or the queue is wrong,
    /// or a response is out of order.
    UnexpectedOpcode = 0x0 / 0x2 / 0x06, "RDMA remote operation error: unexpected opcode";
    /// The stream cannot continue, for example after an Atomic Request whose target is not aligned to eight
    /// bytes.
    StreamCatastrophic = 0x0 / 0x2 / 0x07, "RDMA remote operation error: catastrophic, localized to this stream";
    /// No stream of the endpoint can continue.
    GlobalCatastrophic = 0x0 / 0x2 / 0x08, "RDMA remote operation error: catastrophic, global";
    /// The same error as `CannotInvalidate`. RFC 5040 lists this error under two error types, remote
    /// protection and remote operation.
    OperationCannotInvalidate = 0x0 / 0x2 / 0x09, "RDMA remote operation error: STag cannot be invalidated";
    /// An operation error to which no other code applies, for example a Read Request that is too short, or
    /// Immediate Data whose length is not eight bytes.
    OperationUnspecified = 0x0 / 0x2 / 0xFF, "RDMA remote operation error: unspecified";
    /// DDP of this endpoint has failed.
    DdpLocalCatastrophic = 0x1 / 0x0 / 0x00, "DDP local catastrophic error";
    /// A tagged segment names an STag that is unknown, revoked or not writable.
    DdpInvalidStag = 0x1 / 0x1 / 0x00, "DDP tagged buffer error: invalid STag";
    /// A tagged segment accesses bytes outside the range of its STag.
    DdpBounds = 0x1 / 0x1 / 0x01, "DDP tagged buffer error: base or bounds violation";
    /// The STag belongs to another stream or protection domain.
    DdpNotAssociated = 0x1 / 0x1 / 0x02, "DDP tagged buffer error: STag not associated with this stream";
    /// The sum of tagged offset and length is 2^64 or more.
    DdpToWrap = 0x1 / 0x1 / 0x03, "DDP tagged buffer error: tagged offset wraps";
    /// The DDP version of a tagged segment is not 1.
    DdpTaggedVersion = 0x1 / 0x1 / 0x04, "DDP tagged buffer error: invalid DDP version";
    /// The queue with this number is not open.
    DdpInvalidQn = 0x1 / 0x2 / 0x01, "DDP untagged buffer error: invalid queue number";
    /// No buffer is posted for the message.
    DdpNoBuffer = 0x1 / 0x2 / 0x02, "DDP untagged buffer error: invalid MSN, no buffer available";
    /// The message with this MSN was already delivered, or an earlier message is missing.
    DdpMsnRange = 0x1 / 0x2 / 0x03, "DDP untagged buffer error: invalid MSN, out of range";
    /// The message offset is beyond the end of the buffer.
    DdpInvalidMo = 0x1 / 0x2 / 0x04, "DDP untagged buffer error: invalid message offset";
    /// The message is longer than its buffer.
    DdpTooLong = 0x1 / 0x2 / 0x05, "DDP untagged buffer error: message too long for its buffer";
    /// The DDP version of an untagged segment is not 1.
    DdpUntaggedVersion = 0x1 / 0x2 / 0x06, "DDP untagged buffer error: invalid DDP version";
    /// The TCP connection is closed or lost.
    MpaConnectionLost = 0x2 / 0x0 / 0x01, "MPA error: TCP connection closed, terminated or lost";
    /// An FPDU's CRC is wrong.
    MpaCrc = 0x2 / 0x0 / 0x02, "MPA error: CRC mismatch";
    /// A marker and the length field of an FPDU disagree.
    MpaMarker = 0x2 / 0x0 / 0x03, "MPA error: marker and ULPDU length disagree";
    /// The startup exchange was invalid, for example because of a malformed frame.
    MpaFrame = 0x2 / 0x0 / 0x04, "MPA error: invalid request or reply frame";
    /// The sender had a local error that has no code of its own, for example during startup (RFC 6581).
    MpaStartupCatastrophic = 0x2 / 0x0 / 0x05, "MPA error: local catastrophic error during start-up";
    /// The IRD that one endpoint offers is less than the ORD that the other endpoint needs (RFC 6581).
    MpaInsufficientIrd = 0x2 / 0x0 / 0x06, "MPA error: insufficient IRD resources";
    /// The endpoints have no common connection model, or no common kind of RTR message (RFC 6581).
    MpaNoMatchingRtr = 0x2 / 0x0 / 0x07, "MPA error: no matching RTR option";
}

/// The headers of the failing message that a Terminate carries (RFC 5040 figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inclusion {
    /// No headers: M = D = R = 0.
    Nothing,
    /// Segment length and DDP header: M = D = 1, R = 0.
    DdpHeader,
    /// Segment length, DDP header and Read Request header: M = D = R = 1.
    ReadRequestHeader,
}

impl TerminateError {
    /// Returns the error with these numbers, or `None` if they are unknown. With layer 0 and type 0 every
    /// code stands for the local catastrophic error.
    pub fn from_codes(layer: u8, etype: u8, code: u8) -> Option<Self> {
        if (layer, etype) == (0, 0) {
            return Some(TerminateError::LocalCatastrophic);
        }
        Self::ALL.iter().copied().find(|error| error.codes() == (layer, etype, code))
    }

    /// The layer: 0 is RDMA, 1 is DDP, 2 is the LLP (MPA).
    pub const fn layer(self) -> u8 {
        self.codes().0
    }

    /// The error type within the layer.
    pub const fn etype(self) -> u8 {
        self.codes().1
    }

    /// The error code within the type.
    pub const fn code(self) -> u8 {
        self.codes().2
    }

    /// Returns the headers that the Terminate carries if an incoming message caused the error. `read_request`
    /// says whether the message was a Read Request whose header is available. If no incoming message caused
    /// the error, the Terminate carries no headers.
    pub const fn inclusion(self, read_request: bool) -> Inclusion {
        match (self.layer(), self.etype()) {
            (0, 0) | (1, 0) | (2, _) => Inclusion::Nothing,
            (0, 1) if read_request => Inclusion::ReadRequestHeader,
            _ => Inclusion::DdpHeader,
        }
    }

    /// Returns the error of a Read Request or an Atomic Request (RFC 7306 section 8.2) whose access is
    /// refused.
    pub const fn of_read_fault(fault: Fault) -> Self {
        match fault {
            Fault::InvalidStag => TerminateError::ReadInvalidStag,
            Fault::NotAssociated => TerminateError::ReadNotAssociated,
            Fault::AccessRights => TerminateError::ReadAccessRights,
            Fault::Wrap => TerminateError::ReadToWrap,
            Fault::Bounds => TerminateError::ReadBounds,
            // RFC 7306 sections 5.1.1, 5.1.2 and 8.2 (EXT-178, EXT-180, EXT-184, EXT-185, EXT-203): a target
            // that is not aligned ends the stream with a Terminate of 0/2/07, which is reported to the users
            // of both endpoints.
            Fault::Misaligned => TerminateError::StreamCatastrophic,
            Fault::NotInvalidatable => TerminateError::CannotInvalidate,
        }
    }

    /// Returns the error of a refused remote invalidation.
    ///
    /// RFC 5040 section 5.3 (RDMAP-251): an STag of another stream cannot be invalidated.
    pub const fn of_invalidate_fault(fault: Fault) -> Self {
        match fault {
            Fault::InvalidStag => TerminateError::ReadInvalidStag,
            _ => TerminateError::CannotInvalidate,
        }
    }
}

impl fmt::Display for TerminateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, etype, code) = self.codes();
        write!(f, "{} (layer {layer}, type {etype}, code {code:#04x})", self.text())
    }
}

impl std::error::Error for TerminateError {}

impl From<DdpError> for TerminateError {
    fn from(error: DdpError) -> Self {
        match error {
            DdpError::LocalCatastrophic => TerminateError::DdpLocalCatastrophic,
            DdpError::InvalidStag => TerminateError::DdpInvalidStag,
            DdpError::BaseOrBounds => TerminateError::DdpBounds,
            DdpError::NotAssociated => TerminateError::DdpNotAssociated,
            DdpError::ToWrap => TerminateError::DdpToWrap,
            DdpError::TaggedVersion => TerminateError::DdpTaggedVersion,
            DdpError::InvalidQn => TerminateError::DdpInvalidQn,
            DdpError::NoBuffer => TerminateError::DdpNoBuffer,
            DdpError::MsnRange => TerminateError::DdpMsnRange,
            DdpError::InvalidMo => TerminateError::DdpInvalidMo,
            DdpError::TooLong => TerminateError::DdpTooLong,
            DdpError::UntaggedVersion => TerminateError::DdpUntaggedVersion,
        }
    }
}

/// No code exists for a ULPDU that is shorter than its DDP header. MPA's "marker and length disagree" is the
/// closest code.
impl From<HeaderError> for TerminateError {
    fn from(error: HeaderError) -> Self {
        DdpError::of_header(error).map_or(TerminateError::MpaMarker, TerminateError::from)
    }
}
