//! The control block of one connection (RFC 9293 sections 3.3.1 and 3.10). The inputs of a control block are
//! segments, times and user calls. The outputs are events and transmissions.
//!
//! The control block connects a sending half and a receiving half, which do not use each other. This module
//! has the parts that belong to neither half: the state, and the dispatch of segments, calls and timers.
//!
//! | what | where | RFC 9293 |
//! |---|---|---|
//! | OPEN, and the states before ESTABLISHED | `open.rs` | sections 3.5, 3.10.1, 3.10.7.3 |
//! | a segment arrives | `input.rs`, `predicted.rs` | section 3.10.7.4 |
//! | a segment is made | `output.rs` | sections 3.4, 3.7 |
//! | SEND, RECEIVE, STATUS | this file | sections 3.10.2, 3.10.3, 3.10.6 |
//! | CLOSE, ABORT, and the end | `close.rs` | sections 3.6, 3.10.4, 3.10.5 |
//! | TIME-WAIT | `time_wait.rs` | section 3.6.1, RFC 6191, RFC 1337 |
//! | challenge ACKs | `challenge.rs` | RFC 5961 |
//! | keepalives, and the dispatch of timers | `timer.rs` | sections 3.8.4, 3.10.8 |
//!
//! The stack handles IP, checksums, the table of connections, and listeners.

mod challenge;
mod close;
mod input;
mod invariants;
mod open;
mod output;
mod predicted;
mod time_wait;
mod timer;

pub(crate) use input::Verdict;
pub(crate) use invariants::Holdings;
pub(crate) use open::syn_ack;
pub(crate) use output::{Transmission, UsualHeader, UsualSegment};
pub(crate) use predicted::PredictedSegment;

use std::net::SocketAddr;
use std::ops::Range;

use arrayvec::ArrayVec;
use dp::ExtBuf;

use self::challenge::Challenges;
use self::timer::ConnTimer;
use super::ctx::Ctx;
use super::info::{ConnInfo, SendError, State};
use super::open_params::{Agreed, OpenParams};
use super::receive::{MAX_EVICTED, ReceiveHalf};
use super::send::SendHalf;
use super::seq::{offset_of, pos_of};
use super::slabs::PageKey;
use crate::facade::TcpSeqNumber;
use crate::{Event, Instant, Keepalive, TcpConfig};

/// What was reported to the user about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    /// The user has opened the connection with a call, or `Event::Established` was generated.
    Opened,
    /// `Event::Closed` was generated, or no such event is needed.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Tcb {
    local_port: u16,
    remote_port: u16,
    state: State,
    reported: Reported,
    /// True if an RST has to be sent as the last segment.
    rst_due: bool,
    send: SendHalf,
    receive: ReceiveHalf,
    challenges: Challenges,
    /// Keepalive settings of this connection; `None` if the settings of the stack apply. The settings are
    /// boxed, because few connections have settings of their own.
    keepalive: Option<Box<Option<Keepalive>>>,
    keepalive_probes: u8,
    /// The timer of the connection itself; `None` if this timer does not run.
    timer: Option<(Instant, ConnTimer)>,
    /// In TIME-WAIT: the time at which the peer's FIN last arrived.
    fin_at: Instant,
}

impl Tcb {
    fn new(ctx: &Ctx<'_>, params: &OpenParams, (state, reported): (State, Reported)) -> Self {
        let config = ctx.config;
        let offer =
            Agreed { timestamps: config.timestamps, sack: config.sack, window_scale: Some(0), ecn: false };
        Self {
            local_port: params.local_port,
            remote_port: params.remote_port,
            state,
            reported,
            rst_due: false,
            send: SendHalf::new(ctx, params, offer),
            receive: ReceiveHalf::new(config, params, offer),
            challenges: Challenges::default(),
            keepalive: None,
            keepalive_probes: 0,
            timer: None,
            fin_at: ctx.now,
        }
    }

    /// Returns a page for a segment, and the maximum number of bytes of the segment: EMSS, or fewer if only a
    /// small buffer is used or free. `following` is the number of bytes that
    /// the user is known to write next. The next call must be [`push`](Self::push),
    /// [`push_external`](Self::push_external) or [`close_page`](Self::close_page).
    #[inline(always)]
    pub(crate) fn page_for_segment(
        &mut self,
        ctx: &mut Ctx<'_>,
        following: impl FnOnce() -> usize,
    ) -> Result<(PageKey, usize), SendError> {
        if !self.takes_segments() {
            return Err(SendError::Closed);
        }
        self.send.page_for_segment(ctx, following)
    }

    /// Called if nothing was written to the page that [`page_for_segment`](Self::page_for_segment) returned:
    /// frees the page, if it has no earlier segments.
    pub(crate) fn close_page(&mut self, ctx: &mut Ctx<'_>) {
        self.send.close_page(ctx);
    }

    /// Queues a segment: the first `bytes` bytes of the page that
    /// [`page_for_segment`](Self::page_for_segment) returned, at least one byte. `checksum` is their
    /// partial Internet checksum, if it is known. After the last of several segments, the caller calls
    /// [`on_pushed`](Self::on_pushed).
    #[inline]
    pub(crate) fn push(&mut self, ctx: &mut Ctx<'_>, bytes: usize, checksum: Option<u16>) {
        self.send.push(ctx, bytes, checksum);
    }

    /// Like [`push`](Self::push), but the segment also has external memory: `external` has this memory, and
    /// the number of bytes of the page before it.
    pub(crate) fn push_external(&mut self, ctx: &mut Ctx<'_>, bytes: usize, external: (ExtBuf, u32)) {
        self.send.push_external(ctx, bytes, external);
    }

    /// The stream offsets after the last pushed byte, and after the last acknowledged byte.
    pub(crate) fn send_offsets(&self) -> (u64, u64) {
        let (pushed, acknowledged) = self.send.pushed_and_acknowledged();
        (offset_of(pushed), offset_of(acknowledged))
    }

    /// Withholds acknowledgements of the peer's bytes from this stream offset on. With `None`, all bytes are
    /// acknowledged.
    pub(crate) fn withhold(&mut self, from: Option<u64>) {
        self.receive.withhold(from.map(pos_of));
    }

    /// ISS and IRS (RFC 9293 section 3.3.1): the sequence numbers of our SYN and of the peer's SYN.
    pub(crate) fn initial_sequence_numbers(&self) -> (u32, u32) {
        (self.send.seq(0).0 as u32, self.receive.seq(0).0 as u32)
    }

    #[inline]
    pub(crate) fn on_pushed(&mut self, now: Instant) {
        self.send.on_pushed(now);
    }

    /// Called when the user has taken an event. Some kinds of events are not generated again until the user
    /// has taken the previous event of the same kind.
    pub(crate) fn on_event_taken(&mut self, event: &Event) {
        self.send.on_event_taken(event);
    }

    /// Sets whether events report all acknowledgements of the peer.
    pub(crate) fn report_acknowledgements(&mut self, on: bool) {
        self.send.report_acknowledgements(on);
    }

    /// If any received bytes are not acknowledged yet, requests an acknowledgement now.
    pub(crate) fn acknowledge_early(&mut self) {
        self.receive.acknowledge_early();
    }

    fn takes_segments(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Whether the peer may still send payload.
    fn takes_payload(&self) -> bool {
        matches!(self.state, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether the announced window is so large that a [`release`](Self::release) of no bytes would change
    /// nothing.
    #[inline]
    pub(crate) fn has_window(&self, config: &TcpConfig) -> bool {
        self.state == State::Established && self.receive.has_window(config)
    }

    /// Notes that the user has released `bytes` bytes ([`Stack::release`](crate::Stack::release)).
    pub(crate) fn release(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        self.receive.release(ctx, bytes);
        if self.takes_payload() {
            self.receive.update_window(ctx);
        }
    }

    /// Notes that the user holds `bytes` bytes that it received in order
    /// ([`Stack::hold`](crate::Stack::hold)).
    pub(crate) fn hold(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        self.receive.hold(ctx, bytes);
    }

    /// Called when the user gives up these ranges of stream offsets. Either gives up all ranges and returns
    /// `true`, or gives up no range and returns `false`.
    pub(crate) fn evict(&mut self, ctx: &mut Ctx<'_>, stretches: &[Range<u64>]) -> bool {
        let positions: ArrayVec<_, MAX_EVICTED> = stretches
            .iter()
            .map(|offsets| pos_of(offsets.start)..pos_of(offsets.end))
            .take(MAX_EVICTED)
            .collect();
        positions.len() == stretches.len() && self.receive.evict(ctx, &positions)
    }

    /// Notes that the user keeps `bytes` bytes of packet buffers ([`Stack::pin`](crate::Stack::pin)).
    pub(crate) fn pin(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        self.receive.pin(ctx, bytes);
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Whether the control block can be dropped, because the connection has ended and no RST waits to be
    /// sent.
    pub(crate) fn is_droppable(&self) -> bool {
        self.state == State::Closed && !self.rst_due
    }

    /// Whether `Event::Closed` was generated, or was not needed because the connection was never reported.
    /// The user's id is not valid any more. The control block may still exist, in TIME-WAIT or until its RST
    /// is sent.
    pub(crate) fn is_closed_for_user(&self) -> bool {
        self.reported == Reported::Closed
    }

    /// Whether the connection is established, `seq` is the sequence number of the next expected byte, and no
    /// bytes have arrived ahead of this byte.
    pub(crate) fn is_next(&self, seq: TcpSeqNumber) -> bool {
        self.state == State::Established && self.receive.is_next(seq)
    }

    /// Whether the byte with this sequence number was sent and is not acknowledged. An ICMP error that quotes
    /// any other number is not plausible (RFC 5927).
    pub(crate) fn covers_outstanding(&self, seq: TcpSeqNumber) -> bool {
        self.send.covers_outstanding(seq)
    }

    /// Called when a router reports that the segment or path MTU probe from `seq` on is larger than `mss`.
    /// Returns whether such a segment or probe is in flight.
    pub(crate) fn on_packet_too_big(&mut self, ctx: &mut Ctx<'_>, seq: TcpSeqNumber, mss: u16) -> bool {
        self.send.on_packet_too_big(ctx, seq, mss)
    }

    pub(crate) fn has_sent_syn_again(&self) -> bool {
        self.send.syn_sends() > 1
    }

    pub(crate) fn info(&self, config: &TcpConfig, local: SocketAddr, remote: SocketAddr) -> ConnInfo {
        let send = self.send.info();
        let space = if self.takes_segments() {
            u64::from(config.send_buffer_bytes).saturating_sub(send.queued)
        } else {
            0
        };
        ConnInfo {
            local,
            remote,
            emss: send.emss as usize,
            send_offset: offset_of(send.end),
            send_space: space as usize,
            unacknowledged: send.queued,
            frontier: self.receive.frontier(),
            srtt_us: send.srtt_us,
            cwnd: send.cwnd,
            ssthresh: send.ssthresh,
            rto_us: send.rto.total_micros().min(u64::from(u32::MAX)) as u32,
            state: self.state,
            retransmits: send.retransmits,
            out_of_order: self.receive.held(),
        }
    }
}

#[cfg(test)]
impl Tcb {
    pub(super) fn sending(&self) -> &SendHalf {
        &self.send
    }

    pub(super) fn sending_mut(&mut self) -> &mut SendHalf {
        &mut self.send
    }

    pub(super) fn receiving(&self) -> &ReceiveHalf {
        &self.receive
    }
}
