//! Events of a stack.

use std::net::IpAddr;

use dp::Mbuf;

use crate::facade::EthernetAddress;
use crate::id::{ConnId, ListenerId};

/// Bytes of a stream, handed over in or out of order as soon as they passed TCP's checks.
///
/// Bytes are handed up only once, unless they were [given up](crate::Stack::evict). Offsets count from
/// the first byte the peer sent (its ISN + 1).
pub struct Received {
    /// Stream offset of the first byte of `buf`.
    pub offset: u64,
    /// The payload: exactly the new bytes, possibly a chain.
    pub buf: Mbuf,
    /// The in-order frontier after this segment: all bytes below it have been handed up.
    pub frontier: u64,
}

/// Something happened. Events come in the order in which they happened.
pub enum Event {
    /// A connection is established: ours (`listener` is `None`) or one that a listener accepted.
    Established {
        /// The connection.
        conn: ConnId,
        /// The listener that accepted it.
        listener: Option<ListenerId>,
    },
    /// Bytes arrived.
    Received {
        /// The connection.
        conn: ConnId,
        /// The bytes.
        received: Received,
    },
    /// Memory is short: this connection is to give up at least `bytes` of what it holds ahead of its
    /// frontier, those furthest from the frontier first, with [`Stack::evict`](crate::Stack::evict).
    /// Bytes that were placed or are in order by now stay. If the user does nothing, newcomers are
    /// refused.
    Evict {
        /// The connection.
        conn: ConnId,
        /// Bytes of payload.
        bytes: usize,
    },
    /// A connection that refused a segment ([`SendError::BufferFull`](crate::SendError)) takes segments
    /// again, or segments with external memory are acknowledged
    /// ([`SegmentBuf::attach`](crate::SegmentBuf::attach)).
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// The peer's FIN was reached in order: no bytes follow. We may still send.
    PeerClosed {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is over; its id is dead. Comes once for each connection, as its last event. After
    /// a graceful close it comes when TIME-WAIT begins or, on the passive side, when our FIN is
    /// acknowledged.
    Closed {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
    /// Another host uses one of our addresses. Reported at most once in ten seconds for each address,
    /// and not while [`Limits::events`](crate::Limits::events) or more events wait, unless the address
    /// is lost.
    AddressConflict {
        /// The address.
        address: IpAddr,
        /// The Ethernet address of the other host.
        mac: EthernetAddress,
        /// It was still being probed ([`AddressProbing::Probe`](crate::AddressProbing)), and we do not
        /// use it. Otherwise we keep it.
        lost: bool,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both sides sent FIN and saw it acknowledged.
    #[error("closed by both sides")]
    Graceful,
    /// The peer sent RST.
    #[error("reset by the peer")]
    Reset,
    /// RST in answer to our SYN.
    #[error("connection refused")]
    Refused,
    /// No answer in time (SYN retries, user timeout, keepalive).
    #[error("the peer does not answer")]
    TimedOut,
    /// The port has been without a link for [`TcpConfig::link_timeout`](crate::TcpConfig::link_timeout).
    #[error("the link is down")]
    LinkDown,
    /// No Ethernet address for the next hop, or ICMP said so while connecting.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// [`Stack::abort`](crate::Stack::abort) was called.
    #[error("aborted locally")]
    Aborted,
}
