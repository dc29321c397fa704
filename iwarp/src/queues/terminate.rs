//! What a Terminate said, for the application: the "error query" of RFC 5040 section 4.8.

use crate::rdmap::Terminate;

/// What became of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateOrigin {
    /// The peer sent it.
    Received,
    /// We sent it.
    Sent,
    /// It names what was found here, and could not be sent: a responder may not before the peer's first FPDU
    /// (RFC 5044 section 7.1.2).
    NotSent,
}

/// The Terminate that ended a stream: layer, type, code, the failing segment's length and headers, and for a
/// received one the raw control word with the [bit order](crate::rdmap::BitOrder) it was read in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminateReport {
    /// Who sent it.
    pub origin: TerminateOrigin,
    /// The message.
    pub terminate: Terminate,
}
