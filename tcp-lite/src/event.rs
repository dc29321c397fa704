//! What a stack tells its user.

use std::net::IpAddr;

use dp::Mbuf;

use crate::facade::EthernetAddress;
use crate::id::{ConnId, ListenerId};

/// Bytes of a stream, handed over in or out of order as soon as they passed TCP's checks.
///
/// Bytes handed up are never shown again, unless they were [given up](crate::Stack::evict). Offsets count
/// from the first byte the peer sent (its ISN + 1).
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
        /// Who accepted it.
        listener: Option<ListenerId>,
    },
    /// Bytes arrived.
    Received {
        /// The connection.
        conn: ConnId,
        /// The bytes.
        received: Received,
    },
    /// Memory is short: of what this connection came to hold ahead of its frontier, `bytes` at least are to
    /// be given up, those furthest from the frontier first, with [`Stack::evict`](crate::Stack::evict). What
    /// was placed, and what is in order by now, stays. A user that does nothing sees newcomers refused.
    Evict {
        /// The connection.
        conn: ConnId,
        /// Bytes of payload.
        bytes: usize,
    },
    /// A connection that had refused a segment ([`SendError::BufferFull`](crate::SendError)) takes segments
    /// again.
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// The peer's FIN was reached in order: nothing follows. We may still send.
    PeerClosed {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is over; its id is dead. Comes once for each connection, and last. After a graceful
    /// close it comes when TIME-WAIT begins or, for the passive side, when our FIN is acknowledged.
    Closed {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
    /// Somebody else uses an address of ours. Told once in ten seconds for each address, and not while more
    /// than [`Limits::events`](crate::Limits::events) wait, unless it is lost.
    AddressConflict {
        /// The address.
        address: IpAddr,
        /// Who uses it.
        mac: EthernetAddress,
        /// It was still being probed ([`AddressProbing::Probe`](crate::AddressProbing)), and we do not use
        /// it. Else we keep it.
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
