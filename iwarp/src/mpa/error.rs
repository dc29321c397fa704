//! The errors that end a connection in MPA: the codes of RFC 5044 section 8 and RFC 6581 section 8.
//!
//! Each error names the action for the connection ([`MpaError::action`]) and the layer, type and code that a
//! Terminate carries (RFC 5040 section 4.8, RFC 6580 section 3.3).

use thiserror::Error;

use super::frame::Malformed;

/// Layer, error type and code of a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// 4 bits; LLP is 2.
    pub layer: u8,
    /// 4 bits; MPA is 0.
    pub etype: u8,
    /// 8 bits.
    pub code: u8,
}

impl TerminateCode {
    /// Layer LLP, type MPA, code `code`.
    pub const fn mpa(code: u8) -> Self {
        Self { layer: 2, etype: 0, code }
    }

    /// The first 32 bits of a Terminate message in RFC 5040's bit order. The header control bits are 0.
    ///
    /// ```
    /// # use iwarp::mpa::TerminateCode;
    /// assert_eq!(TerminateCode::mpa(6).control(), [0x20, 0x06, 0, 0]);
    /// ```
    pub const fn control(self) -> [u8; 4] {
        [self.layer << 4 | self.etype, self.code, 0, 0]
    }
}

/// The duty of the owner of the connection after an [`MpaError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a Terminate with [`MpaError::terminate_code`], then close. A responder that has received no valid
    /// FPDU yet may not send anything (RFC 5044 section 7.1.2): it only closes.
    Terminate,
    /// Close the TCP connection at once and send nothing.
    Close,
    /// Only report the error: the TCP connection is closed already.
    Report,
}

/// Why startup ends with code 4: an invalid startup frame, or bytes where none are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StartupFault {
    /// The frame cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// This end does not implement the revision, or it is not allowed in a Reply to this Request.
    #[error("revision {0} is not supported")]
    Revision(u8),
    /// An enhanced Request while enhanced startup is off (RFC 6581 section 10), or an enhanced Reply to an
    /// unenhanced Request.
    #[error("enhanced startup is off or was not requested")]
    NotEnhanced,
    /// An unenhanced Reply to a peer-to-peer Request. The responder has not agreed to an RTR.
    #[error("the peer does not support peer-to-peer startup")]
    NoPeerToPeer,
    /// More private data than the listener accepts.
    #[error("more private data than the listener accepts")]
    PrivateData,
    /// The Request asks for markers, and the listener refuses that.
    #[error("the peer asks for markers, which this listener refuses")]
    Markers,
    /// The Request offers InfiniBand's semantics
    /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)) of an older version of this
    /// implementation, which reports differently what it has taken.
    #[error("the peer's uwarp is older and has other semantics of InfiniBand: update it")]
    OldAgreement,
    /// Out-of-order bytes further ahead than the startup exchange can explain.
    #[error("bytes too far ahead of an incomplete startup frame")]
    FarAhead,
    /// Bytes after a startup frame whose sender has to wait before it sends more.
    #[error("bytes after a startup frame, before its sender may send any")]
    EarlyBytes,
}

/// Why MPA ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MpaError {
    /// Code 1: TCP ended inside an FPDU or a startup frame.
    #[error("the TCP connection ended inside an FPDU or a startup frame")]
    Closed,
    /// Code 2: the CRC of the FPDU at this position does not match.
    #[error("CRC mismatch in the FPDU at {position}")]
    Crc {
        /// Position of the FPDU's first byte.
        position: u64,
    },
    /// Code 3: markers and lengths disagree on where FPDUs begin. The CRC is good, or CRCs are not in use.
    #[error("marker and length disagree in the FPDU at {position}")]
    Marker {
        /// Position of the FPDU's first byte.
        position: u64,
    },
    /// Code 4: startup was invalid.
    #[error("invalid startup: {0}")]
    Startup(#[from] StartupFault),
    /// Code 5, the code of local errors without their own code: startup was not over at its deadline.
    #[error("startup timed out")]
    StartupTimeout,
    /// Code 5: there was no free slot to hold a received buffer.
    #[error("no slot left to hold a received buffer")]
    NoHeldSlot,
    /// Code 5: a defect of this code. The connection ends rather than lose bytes silently.
    #[error("a defect in the reception of FPDUs")]
    Defect,
    /// Code 6: the peer's ORD is above the IRD that this end can serve.
    #[error("the peer asks for {wanted} inbound Reads; {available} can be served")]
    InsufficientIrd {
        /// The peer's ORD.
        wanted: u16,
        /// The largest IRD of this end.
        available: u16,
    },
    /// Code 7: no common connection model or RTR kind.
    #[error("no common connection model or RTR kind")]
    NoMatchingRtr,
}

impl MpaError {
    /// [`Defect`](Self::Defect): `what` does not hold.
    #[cold]
    pub(super) fn defect(what: &str) -> Self {
        debug_assert!(false, "{what}");
        Self::Defect
    }

    /// The MPA error code, 1..7.
    pub const fn code(self) -> u8 {
        match self {
            // RFC 5044 section 8 (MPA-227): MPA detects four errors, codes 1 to 4.
            // RFC 6581 section 9.3 (MPA2-095): a local error without a code of its own has code 5.
            // RFC 6581 sections 9.1 and 9.2 (MPA2-067, MPA2-088): unmet terms have code 6 or 7.
            Self::Closed => 1,
            Self::Crc { .. } => 2,
            Self::Marker { .. } => 3,
            Self::Startup(_) => 4,
            Self::StartupTimeout | Self::NoHeldSlot | Self::Defect => 5,
            Self::InsufficientIrd { .. } => 6,
            Self::NoMatchingRtr => 7,
        }
    }

    /// Layer, type and code for a Terminate and for the application.
    pub const fn terminate_code(self) -> TerminateCode {
        TerminateCode::mpa(self.code())
    }

    /// The duty of the owner of the connection.
    pub const fn action(self) -> Action {
        match self {
            // RFC 5044 section 8 (MPA-235): an invalid startup frame closes TCP at once.
            // RFC 5044 section 8 (MPA-239): MPA does not close TCP for codes 2 and 3. RDMAP gets to send a
            // Terminate.
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
