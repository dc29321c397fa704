//! Our TCP: RFC 9293 with a send queue of segments. The user pushes whole segments into this queue. A segment
//! keeps its bytes and its boundaries, unless the segment has to be cut.
//!
//! The [`Tcb`] of a connection connects two halves that do not use each other. The stack passes segments and
//! times to the [`Tcb`], asks the [`Tcb`] for segments to send, and gives the [`Tcb`] access to all shared
//! state ([`Ctx`]):
//!
//! ```text
//!   segment in                                                 segment out
//!       |                                                           ^
//!   header.rs: parse                                      header.rs: emit
//!       |                                                           |
//!   connection/input.rs: acceptable? split once     connection/output.rs: one header of both halves
//!       |  acknowledgement        |  payload                ^  position, payload    ^  ACK, window, SACK
//!   send/: SND.*, RFC 9293    receive/: RCV.*, RFC 9293     |                       |
//!   sections 3.8, 3.10.2      sections 3.8.6, 3.10.7.4   send/next.rs        receive/window.rs, sack.rs
//! ```
//!
//! Floors: a module uses only modules of lower floors.
//!
//! | floor | modules | what |
//! |---|---|---|
//! | 0 | `seq`, `header`, `info`, `open_params`, `timestamp_clock` | positions, the header, what users see, what the SYNs agree on, our timestamps |
//! | 1 | `congestion`, `slabs` | congestion control; records shared by all connections |
//! | 2 | `ctx` | what a call borrows from the stack |
//! | 3 | `send`, `receive` | the two halves |
//! | 4 | `connection` | the state machine that connects the two halves |
//!
//! EMSS is RFC 5044's name of Eff.snd.MSS (RFC 9293 section 3.7.1): the maximum number of payload bytes in a
//! segment. An FPDU is MPA's frame, which should not be split between segments.
//!
//! Deliberate deviations from the RFCs, besides short default times such as
//! [`TcpConfig::rto_min`](crate::TcpConfig):
//! - A segment without timestamps is accepted even if timestamps were agreed on. RFC 7323 section 3.2 would
//!   drop the segment (`receive/timestamps.rs`).
//! - A zero-window probe has no payload, since a byte of payload would split an FPDU. RFC 9293 section
//!   3.8.6.1 sends a byte (`send/next.rs`).
//! - An empty segment is acceptable also if its sequence number is the right edge of the window
//!   (`receive/mod.rs`).
//! - URG is ignored: urgent bytes are passed to the user like any other bytes (RFC 9293 section 3.8.5;
//!   `connection/input.rs`).
//! - The number of answers per second to segments with unexpected numbers is limited, as RFC 5961 section 7
//!   allows. Bare segments have a second, fixed limit (`connection/challenge.rs`).
//! - RST does not end TIME-WAIT. In TIME-WAIT, a SYN that may not start a new connection is answered with a
//!   challenge ACK (RFC 6191 drops the SYN; `connection/time_wait.rs`).
//! - The reordering timer expires when the first of the overtaken segments counts as lost. In RFC 8985
//!   (section 6.2, step 5), the timer expires when the last of them counts as lost
//!   (`send/queue/scoreboard.rs`).
//! - For a retransmission above a hole, the echoed timestamp does not decide which transmission has arrived
//!   (RFC 8985 section 6.2, step 2; `send/ack_sample.rs`).
//! - The loss of a retransmission reduces the window once more. RFC 8985 leaves this second reduction open,
//!   and Linux does not make it (`send/rate/reduction.rs`).
//! - The stack gives up a SYN or data sooner than RFC 9293 section 3.8.3 requires (MUST-23: at least 3
//!   minutes for a SYN; SHOULD: 100 s for data). A peer in a data centre that has not answered within
//!   [`TcpConfig::user_timeout`](crate::TcpConfig), 10 s by default, has probably failed
//!   (`send/loss/expiry.rs`).
//! - An out-of-order segment that is refused for lack of memory is in no SACK block. RFC 2018 section 8 would
//!   report the segment once, but the sender would treat it as received (`receive/payload.rs`).
//!
//! TCP Fast Open and Nagle's algorithm are not implemented. (Nagle's algorithm would merge segments, but the
//! user chooses the segments.)

mod congestion;
mod connection;
mod ctx;
pub(crate) mod header;
mod info;
mod open_params;
mod receive;
mod send;
mod seq;
mod slabs;
mod timestamp_clock;

#[cfg(test)]
mod tests;

pub(crate) use connection::{
    Holdings, PredictedSegment, Tcb, Transmission, UsualHeader, UsualSegment, Verdict, syn_ack,
};
pub(crate) use ctx::{Ctx, EVENTS_PER_CONNECTION};
pub use info::{ConnInfo, SendError, State};
pub(crate) use open_params::OpenParams;
pub(crate) use send::Payload;
pub(crate) use slabs::{
    BulkPool, EXTERNAL_VIEWS, MAX_EVICTION_REQUESTS, MAX_TRAIN, OutOfOrderSlab, PageKey, SearchSlab,
    SegmentKey, SegmentSlab,
};
pub(crate) use timestamp_clock::TimestampClock;

pub use crate::out_of_order::OutOfOrder;
