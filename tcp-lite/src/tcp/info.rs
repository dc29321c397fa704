//! What the user can learn about a connection: its state and statistics (RFC 9293 sections 3.3.2 and 3.10.6,
//! STATUS).

use std::net::SocketAddr;

use crate::OutOfOrder;

/// Connection states (RFC 9293 section 3.3.2). There is no state LISTEN, because a listener creates a control
/// block for each SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Our SYN was sent, or is about to be sent.
    SynSent,
    /// The peer's SYN was received. Our SYN is not acknowledged.
    SynReceived,
    /// Both SYNs are acknowledged.
    Established,
    /// We closed. Our FIN is not acknowledged.
    FinWait1,
    /// We closed, and our FIN is acknowledged.
    FinWait2,
    /// The peer closed.
    CloseWait,
    /// Both sides closed at the same time. Our FIN is not acknowledged.
    Closing,
    /// The peer closed first, and then we closed. Our FIN is not acknowledged.
    LastAck,
    /// Our FIN is acknowledged and the peer's FIN has arrived. We closed first, or both sides closed at the
    /// same time.
    TimeWait,
    /// The connection has ended.
    Closed,
}

/// Why a segment was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The connection is not established, we have closed it, or it no longer exists.
    #[error("the connection is closed for sending")]
    Closed,
    /// The limit `TcpConfig::send_buffer_bytes` is reached, or the connection's share of
    /// `Limits::tx_segments` or of the small packet buffers.
    #[error("the send buffer is full")]
    BufferFull,
    /// The pool is empty, or all connections together have reached the limit of segments or of packet
    /// buffers. The user should try again at the next poll.
    #[error("no packet buffer is free")]
    NoMbuf,
}

/// State and statistics of a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnInfo {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Maximum number of payload bytes in a segment. After the handshake, this number changes only with the
    /// path MTU.
    pub emss: usize,
    /// Stream offset of the next byte to be pushed, which is the number of bytes pushed so far.
    pub send_offset: u64,
    /// Free bytes of the send buffer; 0 if the connection accepts no segments.
    pub send_space: usize,
    /// Number of bytes that are queued and unsent, or sent and not acknowledged.
    pub unacknowledged: u64,
    /// The stream offset of the next expected byte (the frontier).
    pub frontier: u64,
    /// Smoothed round-trip time in microseconds; 0 before the first measurement.
    pub srtt_us: u32,
    /// Retransmission timeout in microseconds, including backoff.
    pub rto_us: u32,
    /// Congestion window in bytes. During fast recovery, this is the value that the window will have after
    /// the recovery.
    pub cwnd: u32,
    /// Slow start threshold in bytes; `u32::MAX` until it is set for the first time.
    pub ssthresh: u32,
    /// The state of the connection (RFC 9293 section 3.3.2).
    pub state: State,
    /// Number of segments sent again.
    pub retransmits: u64,
    /// Bytes that the user has received and not released: bytes ahead of the frontier, and bytes in order
    /// that the user holds ([`Stack::hold`](crate::Stack::hold)).
    pub out_of_order: OutOfOrder,
}
