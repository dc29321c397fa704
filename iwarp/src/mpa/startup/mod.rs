//! The startup exchange (RFC 5044 section 7.1; RFC 6581): an [`Initiator`] or a [`Responder`] for each
//! connection.
//!
//! Initiator and responder are state machines without I/O and without a clock: they receive stream bytes and
//! deadlines, and return frames and results. After startup, in Full Operation, [`Framer`](super::Framer) and
//! [`Deframer`](super::Deframer) handle FPDUs. RDMAP makes the RTR message, of the kind in
//! [`Negotiated::rtr`].
//!
//! The roles do not depend on which endpoint sent the first SYN.

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
    /// An RDMA Read of length 0. Until the Read is answered, it counts towards the initiator's ORD and the
    /// responder's IRD.
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

/// The RTR that follows the Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// No RTR, in the client-server model: the initiator's first message replaces the RTR. The responder must
    /// not send anything before it has received this message.
    None,
    /// The initiator must send an RTR of this kind before any other FPDU.
    Send(RtrKind),
    /// The responder expects an RTR of one of these kinds as the first FPDU, but accepts any other valid FPDU
    /// instead.
    Expect(RtrKinds),
}

/// The result of startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Revision of the peer's frame.
    pub revision: u8,
    /// Whether the outgoing stream has markers; for [`Framer`](super::Framer).
    pub tx_markers: bool,
    /// Whether the incoming stream has markers; for [`Deframer`](super::Deframer).
    pub rx_markers: bool,
    /// Whether CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// Maximum number of the peer's Reads to serve at a time.
    pub ird: u16,
    /// Maximum number of Reads to issue at a time.
    pub ord: u16,
    /// The depths, model and RTR kinds that the peer sent; `None` if the peer sent no enhanced data, as in
    /// revision 1.
    pub peer: Option<Enhanced>,
    /// The RTR that follows the Reply.
    pub rtr: Rtr,
    /// The peer's private data.
    pub private_data: PrivateData,
    /// Stream offset of the first byte after the peer's startup frame: position 0 of the incoming stream.
    pub rx_start: u64,
}

/// The result of passing bytes to a state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<E> {
    /// Number of bytes that belong to startup. The bytes after them are FPDUs (after an accepting Reply) or
    /// bytes of the ULP (after a reject).
    pub consumed: usize,
    /// The event, if the bytes caused an event.
    pub event: Option<E>,
}

#[cfg(test)]
mod tests;
