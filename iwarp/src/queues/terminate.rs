//! The contents of a Terminate, for the application: the "error query" of RFC 5040 section 4.8.

use crate::rdmap::Terminate;

/// The end that sent a Terminate, if one was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateOrigin {
    /// The peer sent it.
    Received,
    /// We sent it.
    Sent,
    /// The Terminate names an error that was found here, and was not sent: a responder may send nothing
    /// before the first FPDU of the peer (RFC 5044 section 7.1.2).
    NotSent,
}

/// The Terminate that ended a stream: layer, type, code, and length and headers of the failing segment. A
/// received one also has the raw control word and the [bit order](crate::rdmap::BitOrder) in which it was
/// read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminateReport {
    /// The end that sent it, if it was sent.
    pub origin: TerminateOrigin,
    /// The fields of the Terminate (RFC 5040 section 4.8).
    pub terminate: Terminate,
}
