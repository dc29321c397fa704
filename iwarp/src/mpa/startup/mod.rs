//! The startup exchange (RFC 5044 section 7.1; RFC 6581): an [`Initiator`] or a [`Responder`] for each
//! connection.
//!
//! Both are state machines without I/O and without a clock: stream bytes and deadlines come in, frames and
//! results go out. They end where Full Operation begins; then [`Framer`](super::Framer) and
//! [`Deframer`](super::Deframer) handle FPDUs. RDMAP makes the RTR message, of the kind in
//! [`Negotiated::rtr`].
//!
//! The roles do not depend on which end sent the SYN.

mod config;
mod frame_reader;
mod initiator;
mod responder;

pub use config::{ConfigError, MpaConfig, Revision};
pub use initiator::{Initiator, InitiatorEvent, Rejected, StartError};
pub use responder::{Accept, ConnectRequest, Responder, ResponderError};

pub use super::frame::{Depths, Enhanced, FrameBytes, PrivateData, PrivateDataTooLong, RtrKinds};

/// One kind of ready-to-receive message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RtrKind {
    /// A Send of length 0, MSN 1 of queue 0.
    Send,
    /// An RDMA Write of length 0.
    Write,
    /// An RDMA Read of length 0. Until it is answered it counts in the initiator's ORD and the responder's
    /// IRD.
    Read,
}

impl From<RtrKind> for RtrKinds {
    fn from(kind: RtrKind) -> Self {
        match kind {
            RtrKind::Send => Self::SEND,
            RtrKind::Write => Self::WRITE,
            RtrKind::Read => Self::READ,
        }
    }
}

/// What follows the Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// Client-server model: the initiator's first message takes the place of an RTR. The responder sends
    /// nothing before it.
    None,
    /// Initiator: send this before any other FPDU.
    Send(RtrKind),
    /// Responder: one of these comes first. Any other valid FPDU is accepted in its place.
    Expect(RtrKinds),
}

/// The result of startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Revision of the peer's frame.
    pub revision: u8,
    /// Markers go into the outgoing stream: for [`Framer`](super::Framer).
    pub tx_markers: bool,
    /// Markers are in the incoming stream: for [`Deframer`](super::Deframer).
    pub rx_markers: bool,
    /// CRCs are generated and checked in both directions.
    pub crc: bool,
    /// Maximum number of the peer's Reads to serve at a time.
    pub ird: u16,
    /// Maximum number of Reads to issue at a time.
    pub ord: u16,
    /// The peer's depths, model and RTR kinds as it sent them; `None` if it sent none (revision 1).
    pub peer: Option<Enhanced>,
    /// What follows the Reply.
    pub rtr: Rtr,
    /// The peer's private data.
    pub private_data: PrivateData,
    /// Stream offset of the first byte after the peer's startup frame: position 0 of the incoming stream.
    pub rx_start: u64,
}

/// The result of giving bytes to a state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<E> {
    /// Bytes that belong to startup. The bytes after them are FPDUs (after an accepting Reply) or the ULP's
    /// (after a reject).
    pub consumed: usize,
    /// The event, if there was one.
    pub event: Option<E>,
}

#[cfg(test)]
mod tests;
