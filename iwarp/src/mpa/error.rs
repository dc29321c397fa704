//! What ends a connection in MPA: the codes of the draft's section 8 and of RFC 6581 section 8.
//!
//! Each error says what to do with the connection ([`MpaError::action`]) and, where a Terminate may carry it,
//! the layer, type and code (RFC 5040 section 4.8, RFC 6580 section 3.3).

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
    /// LLP, MPA, `code`.
    pub const fn mpa(code: u8) -> Self {
        Self { layer: 2, etype: 0, code }
    }

    /// The Terminate control word in RFC 5040's bit order, without header bits.
    ///
    /// ```
    /// # use iwarp::mpa::TerminateCode;
    /// assert_eq!(TerminateCode::mpa(6).control(), [0x20, 0x06, 0, 0]);
    /// ```
    pub const fn control(self) -> [u8; 4] {
        [self.layer << 4 | self.etype, self.code, 0, 0]
    }
}

/// What an [`MpaError`] asks of the connection's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a Terminate with [`MpaError::terminate_code`] if anything may be sent (a responder may not before
    /// the first valid FPDU: [`Responder::may_send`](super::Responder::may_send)), then close.
    Terminate,
    /// Close the TCP connection at once and send nothing.
    Close,
    /// The TCP connection is gone already.
    Report,
}

/// Why an invalid startup frame, or a byte where there may be none, ends startup (code 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartupFault {
    /// The frame cannot be parsed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A revision that cannot be spoken here, or not in answer to the Request.
    #[error("revision {0} is not spoken here")]
    Revision(u8),
    /// An enhanced Request where enhanced startup is switched off (RFC 6581 section 10), or an enhanced Reply
    /// to an unenhanced Request.
    #[error("enhanced startup was not asked for")]
    NotEnhanced,
    /// An unenhanced Reply to a peer-to-peer Request: nobody would send the RTR.
    #[error("the peer does not speak peer-to-peer startup")]
    NoPeerToPeer,
    /// More private data than the listener admits.
    #[error("{got} bytes of private data, {max} are admitted here")]
    PrivateData {
        /// In the Request.
        got: usize,
        /// Admitted.
        max: usize,
    },
    /// More out-of-order bytes than a startup frame can explain.
    #[error("bytes far ahead of a startup frame that is not whole")]
    FarAhead,
    /// Bytes behind a startup frame while its sender has to wait.
    #[error("bytes behind a startup frame, where none may be sent yet")]
    EarlyBytes,
}

/// Why MPA gives up on a connection, or on its receive direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MpaError {
    /// Code 1: TCP ended inside an FPDU or a startup frame.
    #[error("the TCP connection ended in the middle")]
    Closed,
    /// Code 2: the CRC of the FPDU at this position does not match.
    #[error("CRC mismatch in the FPDU at {position}")]
    Crc {
        /// Position of the FPDU's first byte.
        position: u64,
    },
    /// Code 3: the CRC is right, or unused, and markers and lengths disagree on where FPDUs begin.
    #[error("marker and length disagree in the FPDU at {position}")]
    Marker {
        /// Position of the FPDU's first byte.
        position: u64,
    },
    /// Code 4: startup was invalid.
    #[error("invalid startup: {0}")]
    Startup(#[from] StartupFault),
    /// Code 5, as any local error without a code of its own: no answer in time during startup.
    #[error("startup timed out")]
    StartupTimeout,
    /// Code 5: no held-buffer slot was left for what TCP handed up.
    #[error("no slot left to hold a received buffer")]
    NoHeldSlot,
    /// Code 6: the peer's ORD is above what can be served here.
    #[error("the peer wants {wanted} inbound reads, {available} can be served")]
    InsufficientIrd {
        /// The peer's ORD.
        wanted: u16,
        /// Our limit.
        available: u16,
    },
    /// Code 7: no common connection model or RTR kind.
    #[error("no common connection model or RTR kind")]
    NoMatchingRtr,
}

impl MpaError {
    /// The MPA error code, 1..7.
    pub const fn code(self) -> u8 {
        match self {
            Self::Closed => 1,
            Self::Crc { .. } => 2,
            Self::Marker { .. } => 3,
            Self::Startup(_) => 4,
            Self::StartupTimeout | Self::NoHeldSlot => 5,
            Self::InsufficientIrd { .. } => 6,
            Self::NoMatchingRtr => 7,
        }
    }

    /// Layer, type and code for a Terminate and for the application.
    pub const fn terminate_code(self) -> TerminateCode {
        TerminateCode::mpa(self.code())
    }

    /// What to do with the connection.
    pub const fn action(self) -> Action {
        match self {
            Self::Closed => Action::Report,
            Self::Startup(_) | Self::StartupTimeout => Action::Close,
            Self::Crc { .. }
            | Self::Marker { .. }
            | Self::NoHeldSlot
            | Self::InsufficientIrd { .. }
            | Self::NoMatchingRtr => Action::Terminate,
        }
    }
}
