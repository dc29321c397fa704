//! The contents of a Terminate, for the application: the "error query" of RFC 5040 section 4.8.

use crate::rdmap::Terminate;

/// The endpoint that sent a Terminate, if a Terminate was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateOrigin {
    /// The peer sent the Terminate.
    Received,
    /// This endpoint sent the Terminate.
    Sent,
    /// This endpoint found the error but did not send the Terminate. A responder may send nothing before the
    /// first FPDU of the peer (RFC 5044 section 7.1.2). With InfiniBand's semantics, the failure of a local
    /// request is not reported to the peer if the queue pair outlives its peer.
    NotSent,
}

/// The Terminate that ended a stream: layer, type, code, and length and headers of the failing segment. A
/// received Terminate also has its control word and the [bit order](crate::rdmap::BitOrder) in which the
/// control word was interpreted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminateReport {
    /// The endpoint that sent the Terminate, if it was sent.
    pub origin: TerminateOrigin,
    /// The fields of the Terminate (RFC 5040 section 4.8).
    pub terminate: Terminate,
}
