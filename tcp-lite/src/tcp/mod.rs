//! Our TCP: RFC 9293 with a send queue of frozen segments.
//!
//! One [`Tcb`] for each connection; the stack feeds it segments and time (`input.rs`, `timer.rs`), asks it what to
//! send (`output.rs`), and lends it all that is shared ([`Ctx`]). On the way in: `header.rs` parses, `input.rs`
//! judges, `ack.rs` works off the acknowledgement on the queue (`send.rs` and `pages.rs`, `flight.rs`, `scoreboard.rs`, `rtt.rs`),
//! `recovery.rs` says what follows (`rack.rs`, `tail_probe.rs`, `reduction.rs`, `prr.rs`, `undo.rs`, `frto.rs`, `congestion`),
//! `recv.rs` hands up the octets that are new (`ranges.rs`), `reorder.rs` bounds what waits. Positions are 64 bits (`seq.rs`).
//! How large segments may be: `path_mtu.rs`; several of them together: `train.rs`.
//!
//! Deliberate deviations: a segment without timestamps is accepted where they were agreed on (RFC 7323
//! section 3.2 would drop it); a zero-window probe carries no octet (RFC 9293 section 3.8.6.1 sends one), since that
//! would split an FPDU; a segment with nothing in it is acceptable at the right edge of the window itself;
//! a segment out of order that is refused for lack of memory is in no SACK block (RFC 2018 section 8 would name it
//! once): its sender is not to take it for received.
//! How fast a window leaves is `pacing.rs`'s, where it is asked for. Not there: TCP Fast Open, Nagle (the segment is the user's unit).

mod ack;
mod congestion;
mod ctx;
mod ecn;
mod flight;
mod frto;
pub(crate) mod header;
mod input;
mod news;
mod open;
mod out_of_order;
mod output;
mod pacing;
mod pages;
mod path_mtu;
mod prr;
mod rack;
mod ranges;
mod recovery;
mod recv;
mod reduction;
mod reorder;
mod rtt;
mod scoreboard;
mod send;
mod seq;
mod tail_probe;
mod tcb;
mod time_wait;
mod timer;
mod train;
mod undo;

#[cfg(test)]
mod tests;

pub(crate) use ctx::{Ctx, EVENTS_PER_CONNECTION};
pub(crate) use input::Verdict;
pub use out_of_order::OutOfOrder;
pub(crate) use output::{Payload, Transmission};
pub(crate) use pages::PageKey;
pub(crate) use path_mtu::SearchSlab;
pub(crate) use reorder::{MAX_ASKED, ReorderSlab};
pub(crate) use send::SegmentSlab;
pub use tcb::State;
pub(crate) use tcb::{Birth, Tcb};
pub(crate) use train::MAX_TRAIN;

use std::net::SocketAddr;

/// Why a segment was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Not established, or our FIN was asked for, or a dead id.
    #[error("the connection is closed for sending")]
    Closed,
    /// `TcpConfig::send_buffer_octets` or `Limits::tx_segments` is reached.
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
    /// Largest payload of a segment, octets: constant but for path MTU changes.
    pub emss: usize,
    /// Stream offset that the next pushed octet will have (octets pushed so far).
    pub send_offset: u64,
    /// Octets the send buffer still takes.
    pub send_space: usize,
    /// Octets sent or queued and not acknowledged.
    pub unacknowledged: u64,
    /// The in-order frontier of reception.
    pub frontier: u64,
    /// Smoothed round-trip time, microseconds; 0 before the first measurement.
    pub srtt_us: u32,
    /// Retransmission timeout, microseconds, backoff included.
    pub rto_us: u32,
    /// Congestion window, octets; in fast recovery what it is going to be.
    pub cwnd: u32,
    /// Slow start threshold, octets; `u32::MAX` before the first reduction.
    pub ssthresh: u32,
    /// Where the connection stands.
    pub state: State,
    /// Segments sent again.
    pub retransmits: u64,
    /// What waits ahead of the frontier.
    pub out_of_order: OutOfOrder,
}
