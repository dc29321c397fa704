//! The events of a stack, and the queue in which they wait for the user.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use dp::Mbuf;

use crate::facade::EthernetAddress;
use crate::id::{ConnId, ListenerId};

/// Bytes of a stream, in or out of order. The stack passes bytes to the user as soon as they have passed
/// TCP's checks.
///
/// The stack passes each byte to the user only once, unless the user gave the byte up
/// ([`Stack::evict`](crate::Stack::evict)). Offset 0 is the first byte that the peer sent (ISN + 1).
pub struct Received {
    /// Stream offset of the first byte of `buf`.
    pub offset: u64,
    /// The payload: exactly the new bytes. The buffer may be a chain.
    pub buf: Mbuf,
    /// The frontier (stream offset of the next expected byte) after these bytes: all bytes below this offset
    /// have been passed to the user.
    pub frontier: u64,
}

/// A UDP datagram to an open port ([`Stack::open_udp`](crate::Stack::open_udp)), which passed all checks.
pub struct Datagram {
    /// The destination: one of our addresses or a joined group, and the open port.
    pub local: SocketAddr,
    /// The source. The address is a unicast address.
    pub remote: SocketAddr,
    /// The frame from the Ethernet header to the last byte of the datagram. The first buffer has all headers;
    /// the payload may continue in further buffers of the chain.
    pub frame: Mbuf,
    /// The IP packet within the frame. The range begins at the IP header and ends with the datagram, even if
    /// the IP header states more bytes.
    pub ip: Range<usize>,
    /// The payload within the frame. The UDP header precedes it.
    pub payload: Range<usize>,
}

/// An event of a stack. [`Stack::event`](crate::Stack::event) returns events in the order in which they
/// happened.
pub enum Event {
    /// A connection is established. `listener` is `None` if we opened the connection.
    Established {
        /// The connection.
        conn: ConnId,
        /// The listener that accepted the connection; `None` if we opened the connection.
        listener: Option<ListenerId>,
    },
    /// Bytes arrived.
    Received {
        /// The connection.
        conn: ConnId,
        /// The bytes.
        received: Received,
    },
    /// Memory is short: the user should give up at least `bytes` of the bytes that this connection holds
    /// ahead of its frontier (the next expected byte). The user calls [`Stack::evict`](crate::Stack::evict),
    /// and gives up the bytes furthest from the frontier first. Bytes that the user has placed, and bytes
    /// that are in order by now, are not given up. If the user does nothing and a limit is reached, the stack
    /// refuses new out-of-order bytes.
    Evict {
        /// The connection.
        conn: ConnId,
        /// Number of bytes of payload.
        bytes: usize,
    },
    /// A connection that refused a segment ([`SendError::BufferFull`](crate::SendError)) accepts segments
    /// again.
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// The peer has acknowledged segments with external memory
    /// ([`SegmentBuf::attach`](crate::SegmentBuf::attach)). If a connection reports all acknowledgements
    /// ([`Stack::report_acknowledgements`](crate::Stack::report_acknowledgements)), the event is also raised
    /// for other segments. [`Stack::acknowledged`](crate::Stack::acknowledged) returns the acknowledged
    /// offset.
    Acknowledged {
        /// The connection.
        conn: ConnId,
    },
    /// All bytes up to the peer's FIN have arrived. We may still send.
    PeerClosed {
        /// The connection.
        conn: ConnId,
    },
    /// The connection has ended, and its id is no longer valid. This is the last event of the connection, and
    /// occurs once. After a graceful close, the event occurs when TIME-WAIT begins, or, if the peer sent its
    /// FIN first, when our FIN is acknowledged.
    Closed {
        /// The connection.
        conn: ConnId,
        /// The reason.
        reason: CloseReason,
    },
    /// Another host uses one of our addresses, or probes an address that we probe as well. The stack reports
    /// conflicts at most once in ten seconds for each address. If the address is not lost and
    /// [`Limits::events`](crate::Limits::events) or more events wait, the stack drops the report.
    AddressConflict {
        /// The address.
        address: IpAddr,
        /// The Ethernet address of the other host.
        mac: EthernetAddress,
        /// True if the address was still being probed ([`AddressProbing::Probe`](crate::AddressProbing)), so
        /// that we do not use it. False if we keep the address.
        lost: bool,
    },
    /// A UDP datagram to an open port arrived: [`Stack::next_datagram`](crate::Stack::next_datagram) returns
    /// the datagram.
    Datagram,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Each side sent a FIN, and the other side acknowledged it.
    #[error("closed by both sides")]
    Graceful,
    /// The peer sent RST.
    #[error("reset by the peer")]
    Reset,
    /// The peer answered our SYN with RST.
    #[error("connection refused")]
    Refused,
    /// The peer did not answer in time (SYN retries, user timeout, keepalive).
    #[error("the peer does not answer")]
    TimedOut,
    /// The port has been without a link for [`TcpConfig::link_timeout`](crate::TcpConfig::link_timeout), or
    /// the peer is gone ([`Stack::end_neighbor`](crate::Stack::end_neighbor)).
    #[error("the link is down")]
    LinkDown,
    /// The port was removed ([`Stack::end_port`](crate::Stack::end_port)).
    #[error("the network device was taken away")]
    PortGone,
    /// Nobody has answered the queries for the Ethernet address of the next hop, which is the peer or a
    /// router (ARP, NDP).
    #[error(
        "nobody answers for its address, or for that of the gateway (ARP, NDP): check that the host is up, and the address"
    )]
    NoNeighbor,
    /// While connecting, ICMP reported that the peer is unreachable, or the neighbour is gone
    /// ([`Stack::end_neighbor`](crate::Stack::end_neighbor)).
    #[error("the peer cannot be reached")]
    Unreachable,
    /// Another host has the local address of the connection, as probing has shown
    /// ([`AddressProbing::Probe`](crate::AddressProbing)).
    #[error("another host uses the local address: choose another one")]
    AddressLost,
    /// [`Stack::abort`](crate::Stack::abort) was called, or [`Stack::close`](crate::Stack::close) in
    /// SYN-SENT.
    #[error("aborted locally")]
    Aborted,
}

impl CloseReason {
    /// The kind of the [`io::Error`] into which the reason is converted: `ConnectionReset`,
    /// `ConnectionRefused`, `TimedOut`, `HostUnreachable`, `AddrNotAvailable` or `ConnectionAborted`;
    /// `NetworkDown` if the link or the port is gone; `UnexpectedEof` after a graceful end.
    pub fn kind(self) -> io::ErrorKind {
        match self {
            Self::Graceful => io::ErrorKind::UnexpectedEof,
            Self::Reset => io::ErrorKind::ConnectionReset,
            Self::Refused => io::ErrorKind::ConnectionRefused,
            Self::TimedOut => io::ErrorKind::TimedOut,
            Self::LinkDown | Self::PortGone => io::ErrorKind::NetworkDown,
            Self::NoNeighbor | Self::Unreachable => io::ErrorKind::HostUnreachable,
            Self::AddressLost => io::ErrorKind::AddrNotAvailable,
            Self::Aborted => io::ErrorKind::ConnectionAborted,
        }
    }
}

impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        Self::new(reason.kind(), reason)
    }
}

/// The events that the user has not received yet, oldest first.
///
/// Usually at most one event waits: the bytes of a segment, which the user receives before the next segment
/// arrives. A separate field holds such bytes, because storing them in a ring takes several times as long.
///
/// The queue has memory for several events of each connection, so its entries are small. Long contents are in
/// separate queues, which need memory for only one event of each connection, or for a limited number of
/// events of the whole stack.
pub(crate) struct EventQueue {
    /// Bytes that arrived while no event waited; `None` if the oldest event is in `rest`. All events in
    /// `rest` are later.
    first: Option<(ConnId, Received)>,
    rest: VecDeque<QueuedEvent>,
    /// The listeners of the [`QueuedEvent::Accepted`] in `rest`.
    listeners: VecDeque<ListenerId>,
    /// For each [`QueuedEvent::Evict`] in `rest`, the number of bytes that the user should give up.
    evictions: VecDeque<usize>,
    /// The bytes of the [`QueuedEvent::Received`] in `rest`.
    received: VecDeque<Received>,
    /// The addresses of the [`QueuedEvent::AddressConflict`] in `rest`.
    conflicts: VecDeque<(IpAddr, EthernetAddress)>,
    /// The datagrams that the user has not taken. They are separate, so that events are small.
    datagrams: VecDeque<Datagram>,
}

enum QueuedEvent {
    Connected { conn: ConnId },
    Accepted { conn: ConnId },
    Received { conn: ConnId },
    Evict { conn: ConnId },
    Writable { conn: ConnId },
    Acknowledged { conn: ConnId },
    PeerClosed { conn: ConnId },
    Closed { conn: ConnId, reason: CloseReason },
    AddressConflict { lost: bool },
    Datagram,
}

const _: () = assert!(size_of::<QueuedEvent>() <= 12);

impl EventQueue {
    /// An empty queue with memory for `capacity` events of any kind, except datagrams.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            first: None,
            rest: VecDeque::with_capacity(capacity),
            listeners: VecDeque::with_capacity(capacity),
            evictions: VecDeque::with_capacity(capacity),
            received: VecDeque::with_capacity(capacity),
            conflicts: VecDeque::with_capacity(capacity),
            datagrams: VecDeque::new(),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rest.len() + usize::from(self.first.is_some())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.rest.capacity()
    }

    /// Allocates memory for `events` events of connections, of which `accepted` are from listeners. The
    /// memory for other kinds of events does not grow.
    pub(crate) fn grow(&mut self, events: usize, accepted: usize) {
        self.rest.reserve_exact(events.saturating_sub(self.rest.len()));
        self.listeners.reserve_exact(accepted.saturating_sub(self.listeners.len()));
    }

    /// Allocates memory for `datagrams` datagrams, unless the queue has this memory already.
    pub(crate) fn reserve_datagrams(&mut self, datagrams: usize) {
        self.datagrams.reserve_exact(datagrams.saturating_sub(self.datagrams.len()));
    }

    /// Adds a datagram, and the event that announces the datagram.
    pub(crate) fn push_datagram(&mut self, datagram: Datagram) {
        self.datagrams.push_back(datagram);
        self.push_back(Event::Datagram);
    }

    /// Removes and returns the oldest datagram.
    pub(crate) fn pop_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.pop_front()
    }

    /// The number of datagrams in the queue.
    pub(crate) fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    pub(crate) fn push_back(&mut self, event: Event) {
        let queued = match event {
            Event::Established { conn, listener: None } => QueuedEvent::Connected { conn },
            Event::Established { conn, listener: Some(listener) } => {
                self.listeners.push_back(listener);
                QueuedEvent::Accepted { conn }
            }
            Event::Received { conn, received } => return self.push_received(conn, received),
            Event::Evict { conn, bytes } => {
                self.evictions.push_back(bytes);
                QueuedEvent::Evict { conn }
            }
            Event::Writable { conn } => QueuedEvent::Writable { conn },
            Event::Acknowledged { conn } => QueuedEvent::Acknowledged { conn },
            Event::PeerClosed { conn } => QueuedEvent::PeerClosed { conn },
            Event::Closed { conn, reason } => QueuedEvent::Closed { conn, reason },
            Event::AddressConflict { address, mac, lost } => {
                self.conflicts.push_back((address, mac));
                QueuedEvent::AddressConflict { lost }
            }
            Event::Datagram => QueuedEvent::Datagram,
        };
        self.rest.push_back(queued);
    }

    /// Appends the event that bytes arrived, like [`push_back`](Self::push_back).
    #[inline]
    pub(crate) fn push_received(&mut self, conn: ConnId, received: Received) {
        if self.is_empty() {
            self.first = Some((conn, received));
        } else {
            self.received.push_back(received);
            self.rest.push_back(QueuedEvent::Received { conn });
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<Event> {
        if let Some((conn, received)) = self.pop_received() {
            return Some(Event::Received { conn, received });
        }
        Some(match self.rest.pop_front()? {
            QueuedEvent::Connected { conn } => Event::Established { conn, listener: None },
            QueuedEvent::Accepted { conn } => {
                Event::Established { conn, listener: Some(self.listeners.pop_front()?) }
            }
            QueuedEvent::Received { conn } => Event::Received { conn, received: self.received.pop_front()? },
            QueuedEvent::Evict { conn } => Event::Evict { conn, bytes: self.evictions.pop_front()? },
            QueuedEvent::Writable { conn } => Event::Writable { conn },
            QueuedEvent::Acknowledged { conn } => Event::Acknowledged { conn },
            QueuedEvent::PeerClosed { conn } => Event::PeerClosed { conn },
            QueuedEvent::Closed { conn, reason } => Event::Closed { conn, reason },
            QueuedEvent::AddressConflict { lost } => {
                let (address, mac) = self.conflicts.pop_front()?;
                Event::AddressConflict { address, mac, lost }
            }
            QueuedEvent::Datagram => Event::Datagram,
        })
    }

    /// If the oldest event consists of bytes that arrived while no event waited, removes this event and
    /// returns its content. Otherwise returns `None`.
    #[inline]
    pub(crate) fn pop_received(&mut self) -> Option<(ConnId, Received)> {
        self.first.take()
    }

    /// The number of [`Event::Evict`] events in the queue.
    pub(crate) fn evictions(&self) -> usize {
        self.evictions.len()
    }
}

#[cfg(test)]
mod tests {
    use dp::Mempool;

    use super::*;

    /// Bytes that arrived while no event waited are the oldest event. Both `pop_front` and `pop_received`
    /// return these bytes first.
    #[test]
    fn events_come_in_the_order_in_which_they_happened() {
        let (pool, conn) = (Mempool::heap("events", 8, 64), ConnId { slot: 1, generation: 0 });
        let mut queue = EventQueue::with_capacity(8);
        let bytes = |offset| Received { offset, buf: pool.alloc().unwrap(), frontier: offset };
        let offset_of = |event: Option<Event>| match event {
            Some(Event::Received { received, .. }) => Some(received.offset),
            _ => None,
        };
        queue.push_received(conn, bytes(1));
        queue.push_back(Event::Writable { conn });
        queue.push_received(conn, bytes(2));
        assert_eq!((queue.len(), queue.is_empty()), (3, false));
        assert_eq!(queue.pop_received().map(|(_, received)| received.offset), Some(1));
        assert!(queue.pop_received().is_none(), "another event is older");
        assert!(matches!(queue.pop_front(), Some(Event::Writable { .. })));
        assert!(queue.pop_received().is_none());
        queue.push_received(conn, bytes(3));
        assert_eq!([2, 3].map(|_| offset_of(queue.pop_front())), [Some(2), Some(3)]);
        assert!(queue.is_empty() && queue.pop_front().is_none());
        queue.push_back(Event::Writable { conn });
        queue.push_received(conn, bytes(4));
        assert!(queue.pop_received().is_none(), "another event is older");
        assert_eq!(queue.len(), 2);
        queue.push_received(conn, bytes(5));
        assert!(matches!(queue.pop_front(), Some(Event::Writable { .. })));
        assert_eq!([4, 5].map(|_| offset_of(queue.pop_front())), [Some(4), Some(5)]);
    }

    /// Listeners and bytes are stored in separate queues. Each event is returned with its own listener or
    /// bytes.
    #[test]
    fn each_event_has_its_own_listener_and_its_own_bytes() {
        let conn = |slot| ConnId { slot, generation: 0 };
        let listener = |slot| ListenerId { slot: slot + 10, generation: 7 };
        let mut queue = EventQueue::with_capacity(8);
        for slot in 0..3 {
            queue.push_back(Event::Established { conn: conn(slot), listener: Some(listener(slot)) });
            queue.push_back(Event::Established { conn: conn(slot), listener: None });
            queue.push_back(Event::Evict { conn: conn(slot), bytes: slot as usize });
        }
        assert_eq!((queue.len(), queue.evictions()), (9, 3));
        for slot in 0..3 {
            for expected in [Some(listener(slot)), None] {
                let event = queue.pop_front();
                let Some(Event::Established { conn: of, listener }) = event else { panic!("another kind") };
                assert_eq!((of, listener), (conn(slot), expected));
            }
            let Some(Event::Evict { conn: of, bytes }) = queue.pop_front() else { panic!("another kind") };
            assert_eq!((of, bytes), (conn(slot), slot as usize));
        }
        assert!(queue.is_empty() && queue.evictions() == 0);
    }

    #[test]
    fn datagrams_are_counted_and_come_in_their_order_between_other_events() {
        let (pool, conn) = (Mempool::heap("events", 8, 64), ConnId { slot: 1, generation: 0 });
        let mut queue = EventQueue::with_capacity(8);
        queue.reserve_datagrams(2);
        let datagram = |port| Datagram {
            local: SocketAddr::from(([10, 0, 0, 1], port)),
            remote: SocketAddr::from(([10, 0, 0, 2], 1)),
            frame: pool.alloc().unwrap(),
            ip: 14..42,
            payload: 42..42,
        };
        queue.push_datagram(datagram(7));
        queue.push_back(Event::Writable { conn });
        queue.push_datagram(datagram(8));
        assert_eq!((queue.len(), queue.datagrams()), (3, 2));
        let next = |queue: &mut EventQueue| match queue.pop_front() {
            Some(Event::Datagram) => queue.pop_datagram().map(|datagram| datagram.local.port()),
            _ => None,
        };
        assert_eq!([0; 3].map(|_| next(&mut queue)), [Some(7), None, Some(8)]);
        assert_eq!((queue.len(), queue.datagrams()), (0, 0));
    }
}
