//! Our TCP: RFC 9293 with a send queue of frozen segments.
//!
//! A [`Tcb`] for each connection connects two halves that know nothing of each other. The stack passes
//! it segments and time, asks it for segments to send, and lends it everything that is shared ([`Ctx`]):
//!
//! ```text
//!   segment in                                                 segment out
//!       |                                                           ^
//!   header.rs: parse                                      header.rs: emit
//!       |                                                           |
//!   connection/input.rs: acceptable? split once     connection/output.rs: one header of both halves
//!       |  acknowledgement        |  payload                ^  position, payload    ^  ACK, window, SACK
//!   send/: SND.*, RFC 9293    receive/: RCV.*, RFC 9293     |                       |
//!   sections 3.8, 3.10.4      sections 3.8.6, 3.10.7.4   send/next.rs        receive/window.rs, sack.rs
//! ```
//!
//! Floors: a module uses only modules of lower floors.
//!
//! | floor | modules | what |
//! |---|---|---|
//! | 0 | `seq`, `header`, `info`, `birth` | positions, the header, what users see, what the SYNs agree on |
//! | 1 | `congestion`, `slabs` | congestion control; records shared by all connections |
//! | 2 | `ctx` | what a call borrows from the stack |
//! | 3 | `send`, `receive` | the two halves |
//! | 4 | `connection` | the state machine that connects them |
//!
//! Deliberate deviations:
//! - A segment without timestamps is accepted even if they were agreed on (RFC 7323 section 3.2 would
//!   drop it).
//! - A zero-window probe carries no byte (RFC 9293 section 3.8.6.1 sends one), since that would split an
//!   FPDU.
//! - An empty segment is acceptable at the right edge of the window itself.
//! - A SYN and data are given up sooner than RFC 9293 section 3.8.3 says (MUST-23: R2 of a SYN at least 3
//!   minutes; SHOULD: 100 s for data): after [`TcpConfig::user_timeout`](crate::TcpConfig), 10 s by
//!   default. A peer in a data centre that has not answered by then has failed, and its user wants to
//!   know. Whoever needs more sets more.
//! - An out-of-order segment that is refused for lack of memory is in no SACK block (RFC 2018 section 8
//!   would report it once): its sender must not take it as received.
//!
//! Not implemented: TCP Fast Open, and Nagle's algorithm (the segment is the user's unit).

mod birth;
mod congestion;
mod connection;
mod ctx;
pub(crate) mod header;
mod info;
mod receive;
mod send;
mod seq;
mod slabs;

#[cfg(test)]
mod tests;

pub(crate) use birth::Birth;
pub(crate) use connection::{Holdings, Tcb, Transmission, Verdict};
pub(crate) use ctx::{Ctx, EVENTS_PER_CONNECTION};
pub use info::{ConnInfo, SendError, State};
pub(crate) use send::Payload;
pub(crate) use slabs::{MAX_ASKED, MAX_TRAIN, PageKey, ReorderSlab, SearchSlab, SegmentSlab};

pub use crate::out_of_order::OutOfOrder;
