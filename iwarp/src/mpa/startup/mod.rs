//! The startup exchange (section 7.1; RFC 6581): an [`Initiator`] or a [`Responder`] for each connection.
//!
//! State machines without I/O or clock: stream bytes and deadlines come in, frames and outcomes go out. They
//! end where Full Operation begins; FPDUs are [`Framer`](super::Framer)'s and
//! [`Deframer`](super::Deframer)'s. The RTR message itself is made by RDMAP, of the kind that
//! [`Negotiated::rtr`] names.
//!
//! Roles are independent of who sent the SYN.

mod config;
mod inbox;
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
    /// An RDMA Read of length 0: takes one ORD of the initiator and one IRD of the responder until answered.
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
    /// Client-server: the initiator's first message serves as RTR. Until it has come the responder sends
    /// nothing.
    None,
    /// Initiator: send this before any other FPDU.
    Send(RtrKind),
    /// Responder: one of these comes first. Any other valid FPDU is taken in its place.
    Expect(RtrKinds),
}

/// What startup agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Revision of the peer's frame.
    pub revision: u8,
    /// Markers go into what is sent: for [`Framer`](super::Framer).
    pub tx_markers: bool,
    /// Markers are in what is received: for [`Deframer`](super::Deframer).
    pub rx_markers: bool,
    /// CRCs are generated and checked, both ways.
    pub crc: bool,
    /// Reads from the peer to serve at a time.
    pub ird: u16,
    /// Reads to issue at a time, at most.
    pub ord: u16,
    /// The peer's depths, model and RTR kinds as it sent them; `None` if it sent none (revision 1).
    pub peer: Option<Enhanced>,
    /// What follows the Reply.
    pub rtr: Rtr,
    /// The peer's private data.
    pub private_data: PrivateData,
    /// Stream offset of the first byte behind the peer's startup frame: position 0 of what is received.
    pub rx_start: u64,
}

/// What a machine made of the bytes it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<E> {
    /// Bytes that belong to startup. What follows is FPDUs (after an accepting Reply) or the ULP's (after a
    /// reject).
    pub consumed: usize,
    /// What happened, if anything did.
    pub event: Option<E>,
}

#[cfg(test)]
mod tests;
