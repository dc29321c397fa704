//! The stack: one for each engine. Frames in, frames and events out.

use std::net::SocketAddr;

use dp::{Burst, Mbuf, Mempool};

use crate::{ConnInfo, Event, Instant, SegmentBuf, SendError, StackConfig};

/// Names a connection. Never reused while anybody may still hold it (slot and generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The slot, dense from 0: an index for tables beside the stack's.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Names a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Why a connection could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// `Limits::connections` reached.
    #[error("no free connection (limit {0})")]
    NoConnection(usize),
    /// Every local port towards this endpoint is in use.
    #[error("no free local port towards this endpoint")]
    NoPort,
    /// The 4-tuple exists.
    #[error("this connection exists already")]
    InUse,
    /// No address of the peer's family, or no route.
    #[error("no local address or route for {0}")]
    NoRoute(std::net::IpAddr),
}

/// Why a port could not be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// `Limits::listeners` reached.
    #[error("no free listener (limit {0})")]
    NoListener(usize),
    /// Somebody listens there already.
    #[error("port {0} is being listened on")]
    InUse(u16),
}

/// Frames and events of the whole stack, never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// TCP segments received that passed all checks.
    pub rx_segments: u64,
    /// Frames handed to the slow path.
    pub rx_slow: u64,
    /// Frames too short or inconsistent.
    pub rx_malformed: u64,
    /// Frames with a bad IP or TCP checksum.
    pub rx_bad_checksum: u64,
    /// Frames for another Ethernet or IP address, or another VLAN.
    pub rx_not_ours: u64,
    /// TCP segments for no connection and no listener (answered with RST where allowed).
    pub rx_no_connection: u64,
    /// SYNs dropped because of `Limits`.
    pub rx_syn_dropped: u64,
    /// TCP segments that came through IP reassembly.
    pub rx_reassembled: u64,
    /// Out-of-order octets dropped for lack of budget.
    pub rx_out_of_order_dropped: u64,
    /// Received octets that had been handed up before (duplicates).
    pub rx_duplicate_octets: u64,
    /// TCP segments sent, first transmissions and all others.
    pub tx_segments: u64,
    /// Segments sent again.
    pub tx_retransmits: u64,
    /// Retransmission timeouts.
    pub rto_expired: u64,
    /// Fast retransmits.
    pub fast_retransmits: u64,
    /// Segments cut because EMSS dropped.
    pub tx_cut_by_emss: u64,
    /// Segments cut because the peer's window stayed below them (persist timer).
    pub tx_cut_by_persist: u64,
    /// Pure ACKs sent.
    pub tx_acks: u64,
    /// RSTs sent.
    pub tx_resets: u64,
    /// Times no packet buffer was left to send with.
    pub tx_no_mbuf: u64,
}

/// A host on one port.
///
/// The order of calls in a turn: [`input`](Self::input) for every received frame, [`poll`](Self::poll) once,
/// [`event`](Self::event) until `None`, [`transmit`](Self::transmit) until it says there is no more.
/// Between turns nothing happens: see [`next_deadline`](Self::next_deadline).
pub struct Stack {}

impl Stack {
    /// A stack that takes its buffers from `pool`. All memory for `config.limits` is taken here or grows to
    /// those limits only when objects are created.
    pub fn new(config: StackConfig, pool: Mempool) -> Self {
        let _ = (config, pool);
        todo!()
    }

    /// One received frame.
    pub fn input(&mut self, now: Instant, frame: Mbuf) {
        let _ = (now, frame);
        todo!()
    }

    /// Timers that are due, and the slow path.
    pub fn poll(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }

    /// The oldest event not yet taken.
    pub fn event(&mut self) -> Option<Event> {
        todo!()
    }

    /// Fills the free places of `out` with frames to send, connections taking turns. Returns whether more wait.
    pub fn transmit(&mut self, now: Instant, out: &mut Burst) -> bool {
        let _ = (now, out);
        todo!()
    }

    /// When [`poll`](Self::poll) has something to do next; `None`: never, by itself.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        todo!()
    }

    /// Accepts connections to `port` on every address.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(&mut self, port: u16) -> Result<ListenerId, ListenError> {
        let _ = port;
        todo!()
    }

    /// Stops accepting; connections already accepted stay, half-open ones are dropped.
    pub fn unlisten(&mut self, listener: ListenerId) {
        let _ = listener;
        todo!()
    }

    /// Starts a connection. `Event::Established` or `Event::Closed` follows.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(&mut self, now: Instant, remote: SocketAddr, local_port: Option<u16>) -> Result<ConnId, ConnectError> {
        let _ = (now, remote, local_port);
        todo!()
    }

    /// Sends FIN after everything queued; receiving goes on.
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        let _ = (now, conn);
        todo!()
    }

    /// Sends RST and drops everything queued. `Event::Closed(Aborted)` follows. No effect on a dead id.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        let _ = (now, conn);
        todo!()
    }

    /// An empty segment to write up to `emss` octets of whole FPDUs into.
    ///
    /// # Errors
    /// [`SendError`]: closed, send buffer full (an `Event::Writable` follows when there is room), no packet buffer.
    pub fn segment(&mut self, conn: ConnId) -> Result<SegmentBuf, SendError> {
        let _ = conn;
        todo!()
    }

    /// Queues a segment behind all others. It is sent as it is: its octets and boundaries never change but by a
    /// drop of EMSS before it was sent, or by the persist timer. An empty segment is dropped.
    pub fn push(&mut self, conn: ConnId, segment: SegmentBuf) {
        let _ = (conn, segment);
        todo!()
    }

    /// Cuts `octets` into segments of EMSS and queues what fits; returns how many octets were taken.
    /// For plain streams: FPDUs go by [`segment`](Self::segment) and [`push`](Self::push).
    ///
    /// # Errors
    /// As [`segment`](Self::segment), when not a single octet was taken.
    pub fn send(&mut self, conn: ConnId, octets: &[u8]) -> Result<usize, SendError> {
        let _ = (conn, octets);
        todo!()
    }

    /// Says that `octets` handed up ahead of the frontier are no longer held (they were placed, or the frontier
    /// passed them and they were consumed). The out-of-order budget counts what was handed up and not released.
    pub fn release(&mut self, conn: ConnId, octets: usize) {
        let _ = (conn, octets);
        todo!()
    }

    /// State, sizes and counters of a connection; `None` for a dead id.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        let _ = conn;
        todo!()
    }

    /// Counters of the stack.
    pub fn counters(&self) -> StackCounters {
        todo!()
    }
}
