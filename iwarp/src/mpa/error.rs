//! The errors that end a connection in MPA: the codes of RFC 5044 section 8 and RFC 6581 section 8.
//!
//! Each error determines the action for the connection ([`MpaError::action`]), and the layer, type and code
//! that a Terminate carries (RFC 5040 section 4.8, RFC 6580 section 3.3).

use thiserror::Error;

use super::frame::Malformed;

/// Layer, error type and code of a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// The layer, in 4 bits. The LLP has the number 2.
    pub layer: u8,
    /// The error type, in 4 bits. MPA has the number 0.
    pub etype: u8,
    /// The error code, in 8 bits.
    pub code: u8,
}

impl TerminateCode {
    /// Returns the error with layer LLP, type MPA and code `code`.
    pub const fn mpa(code: u8) -> Self {
        Self { layer: 2, etype: 0, code }
    }

    /// Returns the first 32 bits of a Terminate message in RFC 5040's bit order. The header control bits are
    /// 0.
    ///
    /// ```
    /// # use iwarp::mpa::TerminateCode;
    /// assert_eq!(TerminateCode::mpa(6).control(), [0x20, 0x06, 0, 0]);
    /// ```
    pub const fn control(self) -> [u8; 4] {
        [self.layer << 4 | self.etype, self.code, 0, 0]
    }
}

/// What the owner of the connection must do after an [`MpaError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a Terminate with [`MpaError::terminate_code`], then close. A responder that has not received a
    /// valid FPDU yet may not send anything (RFC 5044 section 7.1.2), so it only closes.
    Terminate,
    /// Close the TCP connection at once and send nothing.
    Close,
    /// Only report the error: TCP's receive direction has ended.
    Report,
}

/// Why startup ends with code 4: the peer sent a startup frame that is invalid or that this endpoint does not
/// accept, or sent bytes when it had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StartupFault {
    /// The frame cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// This endpoint does not implement the revision, or the revision is not allowed in a Reply to this
    /// Request.
    #[error("revision {0} is not supported")]
    Revision(u8),
    /// The peer sent an enhanced Request while enhanced startup is disabled (RFC 6581 section 10), or an
    /// enhanced Reply to an unenhanced Request.
    #[error("enhanced startup is off or was not requested")]
    NotEnhanced,
    /// The peer sent an unenhanced Reply to a peer-to-peer Request, so the responder has not agreed to an
    /// RTR.
    #[error("the peer does not support peer-to-peer startup")]
    NoPeerToPeer,
    /// The Request has more private data than the listener accepts.
    #[error("more private data than the listener accepts")]
    PrivateData,
    /// The Request asks for markers, and the listener does not allow markers.
    #[error("the peer asks for markers, which this listener refuses")]
    Markers,
    /// The Request offers InfiniBand's semantics
    /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)) in the form of an older version
    /// of this implementation, which reports accepted messages in a different form.
    #[error("the peer's uwarp is older and has other semantics of InfiniBand: update it")]
    OldAgreement,
    /// One of the two queue pairs is of type [`Uc`](crate::verbs::QpType::Uc), and the other is not.
    #[error("one queue pair is of type UC, and the other is not: give both the same type")]
    OtherType,
    /// The peer sent out-of-order bytes that are further ahead than the startup exchange allows.
    #[error("bytes too far ahead of an incomplete startup frame")]
    FarAhead,
    /// The peer sent bytes after its startup frame, although it had to wait before sending more bytes.
    #[error("bytes after a startup frame, before its sender may send any")]
    EarlyBytes,
}

/// Why MPA ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MpaError {
    /// Code 1: TCP ended inside an FPDU, or before startup was complete.
    #[error("the TCP connection ended inside an FPDU or a startup frame")]
    Closed,
    /// Code 2: the CRC of the FPDU at this position does not match.
    #[error("CRC mismatch in the FPDU at {position}")]
    Crc {
        /// Position of the FPDU's first byte.
        position: u64,
    },
    /// Code 3: markers and lengths disagree on where FPDUs begin, and no wrong CRC was found.
    #[error("marker and length disagree in the FPDU at {position}")]
    Marker {
        /// Position of the FPDU's first byte.
        position: u64,
    },
    /// Code 4: startup was invalid.
    #[error("invalid startup: {0}")]
    Startup(#[from] StartupFault),
    /// Code 5, which is the code of local errors that have no code of their own: startup was not complete at
    /// its deadline.
    #[error("startup timed out")]
    StartupTimeout,
    /// Code 5: no slot was free to hold a received buffer.
    #[error("no slot left to hold a received buffer")]
    NoHeldSlot,
    /// Code 5: this library has a defect. The connection ends, so that no bytes are lost silently.
    #[error("a defect in the reception of FPDUs")]
    Defect,
    /// Code 6: the peer's ORD is larger than the IRD that this endpoint can offer.
    #[error("the peer asks for {wanted} inbound Reads; {available} can be served")]
    InsufficientIrd {
        /// The peer's ORD.
        wanted: u16,
        /// The largest IRD that this endpoint can offer.
        available: u16,
    },
    /// Code 7: the endpoints have no common connection model or no common RTR kind.
    #[error("no common connection model or RTR kind")]
    NoMatchingRtr,
}

impl MpaError {
    /// Returns the error [`Defect`](Self::Defect): the invariant `what` is violated.
    #[cold]
    pub(super) fn defect(what: &str) -> Self {
        debug_assert!(false, "{what}");
        Self::Defect
    }

    /// Returns the MPA error code, 1 to 7.
    pub const fn code(self) -> u8 {
        match self {
            // RFC 5044 section 8 (MPA-227): MPA detects four errors, codes 1 to 4.
            // RFC 6581 section 9.3 (MPA2-095): a local error without a code of its own has code 5.
            // RFC 6581 sections 9.1 and 9.2 (MPA2-067, MPA2-088): terms that an endpoint cannot meet have
            // code 6 or 7.
            Self::Closed => 1,
            Self::Crc { .. } => 2,
            Self::Marker { .. } => 3,
            Self::Startup(_) => 4,
            Self::StartupTimeout | Self::NoHeldSlot | Self::Defect => 5,
            Self::InsufficientIrd { .. } => 6,
            Self::NoMatchingRtr => 7,
        }
    }

    /// Returns layer, type and code for a Terminate and for the application.
    pub const fn terminate_code(self) -> TerminateCode {
        TerminateCode::mpa(self.code())
    }

    /// Returns what the owner of the connection must do.
    pub const fn action(self) -> Action {
        match self {
            // RFC 5044 section 8 (MPA-235): an invalid startup frame closes TCP at once.
            // RFC 5044 section 8 (MPA-239): MPA does not close TCP for codes 2 and 3, so that RDMAP can send
            // a Terminate.
            Self::Closed => Action::Report,
            Self::Startup(_) | Self::StartupTimeout => Action::Close,
            Self::Crc { .. }
            | Self::Marker { .. }
            | Self::NoHeldSlot
            | Self::Defect
            | Self::InsufficientIrd { .. }
            | Self::NoMatchingRtr => Action::Terminate,
        }
    }
}
