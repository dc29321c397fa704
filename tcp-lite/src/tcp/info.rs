//! What users see of a connection: its state, and how it stands.

use std::net::SocketAddr;

use crate::OutOfOrder;

/// Connection states (RFC 9293 section 3.3.2). LISTEN is the stack's: a listener makes a block per
/// SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Our SYN was sent, or is about to be.
    SynSent,
    /// The peer's SYN was received, ours is not acknowledged.
    SynReceived,
    /// Both SYNs are acknowledged.
    Established,
    /// We closed.
    FinWait1,
    /// We closed, and our FIN is acknowledged.
    FinWait2,
    /// The peer closed.
    CloseWait,
    /// Both closed, our FIN is not acknowledged.
    Closing,
    /// The peer closed, then we did; our FIN is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged, ours first.
    TimeWait,
    /// Over.
    Closed,
}

/// Why a segment was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Not established, or our FIN was asked for, or a dead id.
    #[error("the connection is closed for sending")]
    Closed,
    /// `TcpConfig::send_buffer_bytes` or `Limits::tx_segments` is reached.
    #[error("the send buffer is full")]
    BufferFull,
    /// The pool is empty: try again in the next turn.
    #[error("no packet buffer is free")]
    NoMbuf,
}

/// What a connection looks like from outside.
#[derive(Clone, Copy, Debug)]
pub struct ConnInfo {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Largest payload of a segment, bytes: constant but for path MTU changes.
    pub emss: usize,
    /// Stream offset that the next pushed byte will have (bytes pushed so far).
    pub send_offset: u64,
    /// Bytes the send buffer still takes.
    pub send_space: usize,
    /// Bytes sent or queued and not acknowledged.
    pub unacknowledged: u64,
    /// The in-order frontier of reception.
    pub frontier: u64,
    /// Smoothed round-trip time, microseconds; 0 before the first measurement.
    pub srtt_us: u32,
    /// Retransmission timeout, microseconds, backoff included.
    pub rto_us: u32,
    /// Congestion window, bytes; in fast recovery what it is going to be.
    pub cwnd: u32,
    /// Slow start threshold, bytes; `u32::MAX` before the first reduction.
    pub ssthresh: u32,
    /// Where the connection stands.
    pub state: State,
    /// Segments sent again.
    pub retransmits: u64,
    /// What waits ahead of the frontier.
    pub out_of_order: OutOfOrder,
}
