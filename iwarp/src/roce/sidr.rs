//! The messages by which connection managers look up the queue pair of a datagram service: SIDR_REQ and
//! SIDR_REP (IBA volume 1, section 12.11).
//!
//! A message is a management datagram (MAD) of 256 bytes, which queue pair 1 of one host sends to queue pair
//! 1 of the other host:
//!
//! ```text
//!            0        24          28      32          36    40     44      48           120
//! SIDR_REQ | header | request ID | P_Key | service ID      | private data ...                   |
//! SIDR_REP | header | request ID | status| QP number | service ID | Q_Key | information | private data |
//! ```
//!
//! The header has the version, the class of the message (0x07, communication management), the method, the
//! transaction ID and the attribute ID, which says what kind of message this is. Linux's `ib_cm` sends and
//! receives the same messages.

use super::{DEFAULT_PKEY, Qpn};

/// Number of bytes of a management datagram.
pub const MAD_BYTES: usize = 256;

/// The port space of `rdma_cm` for datagrams (`RDMA_PS_UDP`), which is part of a service ID.
pub const DATAGRAM_PORT_SPACE: u16 = 0x0111;

/// The Q_Key of the queue pairs of `rdma_cm`'s datagram services (`RDMA_UDP_QKEY`).
pub const DATAGRAM_QKEY: u32 = 0x0123_4567;

/// Number of bytes of the header.
const HEADER_BYTES: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// The method of all messages of this class. A reply is a Send, too.
const METHOD_SEND: u8 = 0x03;
const SIDR_REQ: u16 = 0x0017;
const SIDR_REP: u16 = 0x0018;
/// The position of the transaction ID in the header.
const TRANSACTION_AT: usize = 8;
/// The position of the attribute ID in the header.
const ATTRIBUTE_AT: usize = 16;

/// Asks for the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// Names the message and its repetitions among the messages of the sender.
    pub transaction: u64,
    /// Names the request among the requests of the sender.
    pub request_id: u32,
    /// The partition in which the service is used.
    pub pkey: u16,
    /// The service.
    pub service: u64,
    /// Data for the service.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

/// Answers a [`SidrRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReply {
    /// The transaction ID of the request.
    pub transaction: u64,
    /// The request that is answered.
    pub request_id: u32,
    /// 0 if the other fields name a queue pair. Otherwise the reason why they do not, usually one of the
    /// constants of this type.
    pub status: u8,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The service.
    pub service: u64,
    /// The Q_Key of the queue pair.
    pub qkey: u32,
    /// Data of the service.
    pub private_data: [u8; Self::PRIVATE_BYTES],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidrMessage {
    /// SIDR_REQ.
    Request(SidrRequest),
    /// SIDR_REP.
    Reply(SidrReply),
}

/// Why a datagram is not a message of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MadFault {
    /// A management datagram has 256 bytes.
    #[error("a management datagram of {0} bytes")]
    Length(usize),
    /// The versions are not those of communication management.
    #[error("base version {base} and class version {class} of a management datagram")]
    Version {
        /// The version of the header.
        base: u8,
        /// The version of the messages of the class.
        class: u8,
    },
    /// The message is not for the connection manager.
    #[error("management class {0:#04x}")]
    Class(u8),
    /// The method is not Send.
    #[error("method {0:#04x} of a management datagram")]
    Method(u8),
    /// The message is neither SIDR_REQ nor SIDR_REP.
    #[error("attribute {0:#06x} of communication management")]
    Attribute(u16),
}

impl SidrRequest {
    /// Number of bytes of the private data.
    pub const PRIVATE_BYTES: usize = 216;

    /// Returns the message on the wire.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let Self { transaction, request_id, pkey, service, private_data } = self;
        let mut mad = header(SIDR_REQ, *transaction);
        put(&mut mad, 24, &request_id.to_be_bytes());
        put(&mut mad, 28, &pkey.to_be_bytes());
        put(&mut mad, 32, &service.to_be_bytes());
        put(&mut mad, 40, private_data);
        mad
    }

    fn of(mad: &[u8; MAD_BYTES]) -> Self {
        Self {
            transaction: u64::from_be_bytes(get(mad, TRANSACTION_AT)),
            request_id: u32::from_be_bytes(get(mad, 24)),
            pkey: u16::from_be_bytes(get(mad, 28)),
            service: u64::from_be_bytes(get(mad, 32)),
            private_data: get(mad, 40),
        }
    }

    /// Returns the request for the service that `rdma_cm` offers at a port in the port space of datagrams.
    pub fn of_port(port: u16) -> Self {
        let service = u64::from(DATAGRAM_PORT_SPACE) << 16 | u64::from(port);
        let private_data = [0; Self::PRIVATE_BYTES];
        Self { transaction: 0, request_id: 0, pkey: DEFAULT_PKEY, service, private_data }
    }

    /// Returns the port of the service, if the service is one of `rdma_cm`'s port space of datagrams.
    pub fn port(&self) -> Option<u16> {
        (self.service >> 16 == u64::from(DATAGRAM_PORT_SPACE)).then_some(self.service as u16)
    }

    /// Returns the answer with this status, which names no queue pair.
    pub fn refusal(&self, status: u8) -> SidrReply {
        let Self { transaction, request_id, service, .. } = *self;
        let (qpn, private_data) = (Qpn::NONE, [0; SidrReply::PRIVATE_BYTES]);
        SidrReply { transaction, request_id, status, qpn, service, qkey: 0, private_data }
    }
}

impl SidrReply {
    /// Number of bytes of the private data.
    pub const PRIVATE_BYTES: usize = 136;

    /// The queue pair of the service is in the reply.
    pub const VALID: u8 = 0;
    /// The host does not offer the service.
    pub const UNSUPPORTED: u8 = 1;
    /// The service refuses the request.
    pub const REJECTED: u8 = 2;

    /// Returns the message on the wire, without additional information.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let Self { transaction, request_id, status, qpn, service, qkey, private_data } = self;
        let mut mad = header(SIDR_REP, *transaction);
        put(&mut mad, 24, &request_id.to_be_bytes());
        mad[28] = *status;
        put(&mut mad, 32, &(qpn.get() << 8).to_be_bytes());
        put(&mut mad, 36, &service.to_be_bytes());
        put(&mut mad, 44, &qkey.to_be_bytes());
        put(&mut mad, 120, private_data);
        mad
    }

    fn of(mad: &[u8; MAD_BYTES]) -> Self {
        Self {
            transaction: u64::from_be_bytes(get(mad, TRANSACTION_AT)),
            request_id: u32::from_be_bytes(get(mad, 24)),
            status: mad[28],
            qpn: Qpn::from_high_bits(u32::from_be_bytes(get(mad, 32))),
            service: u64::from_be_bytes(get(mad, 36)),
            qkey: u32::from_be_bytes(get(mad, 44)),
            private_data: get(mad, 120),
        }
    }
}

impl SidrMessage {
    /// Parses the payload of a datagram to queue pair 1. Reserved fields and the additional information of a
    /// reply are not read.
    ///
    /// # Errors
    /// Any [`MadFault`].
    pub fn parse(payload: &[u8]) -> Result<Self, MadFault> {
        let mad: &[u8; MAD_BYTES] = payload.try_into().map_err(|_| MadFault::Length(payload.len()))?;
        let [base, class, class_version, method, ..] = *mad;
        if class != CLASS {
            return Err(MadFault::Class(class));
        }
        if (base, class_version) != (BASE_VERSION, CLASS_VERSION) {
            return Err(MadFault::Version { base, class: class_version });
        }
        if method != METHOD_SEND {
            return Err(MadFault::Method(method));
        }
        match u16::from_be_bytes(get(mad, ATTRIBUTE_AT)) {
            SIDR_REQ => Ok(Self::Request(SidrRequest::of(mad))),
            SIDR_REP => Ok(Self::Reply(SidrReply::of(mad))),
            other => Err(MadFault::Attribute(other)),
        }
    }

    /// Returns the message on the wire.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        match self {
            Self::Request(request) => request.to_bytes(),
            Self::Reply(reply) => reply.to_bytes(),
        }
    }
}

/// Returns a message without content.
fn header(attribute: u16, transaction: u64) -> [u8; MAD_BYTES] {
    let mut mad = [0; MAD_BYTES];
    put(&mut mad, 0, &[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
    put(&mut mad, TRANSACTION_AT, &transaction.to_be_bytes());
    put(&mut mad, ATTRIBUTE_AT, &attribute.to_be_bytes());
    mad
}

fn put(mad: &mut [u8; MAD_BYTES], at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}

fn get<const N: usize>(mad: &[u8; MAD_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&mad[at..at + N]);
    bytes
}

const _: () = assert!(HEADER_BYTES == 24 && 40 + SidrRequest::PRIVATE_BYTES == MAD_BYTES);
const _: () = assert!(120 + SidrReply::PRIVATE_BYTES == MAD_BYTES);

#[cfg(test)]
mod tests;
