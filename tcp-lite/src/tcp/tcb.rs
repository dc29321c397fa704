//! The control block of one connection (RFC 9293): segments and time in, events and transmissions out.
//!
//! Here is its shape and what the user calls. Handshake: `open.rs`; segments: `input.rs`; acknowledgements and loss
//! recovery: `recovery.rs`; what is sent next: `output.rs`; timers: `timer.rs`. Not here: IP, checksums, the
//! table of connections, listeners; those are the stack's.

use std::net::SocketAddr;
use std::ops::Range;

use arrayvec::ArrayVec;
use bitflags::bitflags;

use super::congestion::{Congestion, CongestionControl};
use super::ecn::Echo;
use super::pacing::Pace;
use super::pages::{BULK_SEGMENTS, PageKey};
use super::path_mtu::PathMtu;
use super::rack::Rack;
use super::recovery::Recovery;
use super::recv::Receiver;
use super::reduction::Reduction;
use super::rtt::RttEstimator;
use super::send::SendQueue;
use super::seq::SeqSpace;
use super::timer::Timers;
use super::{ConnInfo, Ctx, SendError};
use crate::facade::TcpSeqNumber;
use crate::{CloseReason, Instant, Keepalive, TcpConfig};

/// Stretches that a user may give up at a time.
pub(crate) const MAX_EVICTED: usize = 16;

/// Connection states (RFC 9293 section 3.3.2). LISTEN is the stack's: a listener makes a block per SYN.
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

/// What a connection is born with; the stack decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    /// Our port.
    pub(crate) local_port: u16,
    /// The peer's port.
    pub(crate) remote_port: u16,
    /// Initial sequence number (RFC 6528).
    pub(crate) iss: TcpSeqNumber,
    /// Added to the millisecond clock of our timestamps (RFC 7323 section 7.1).
    pub(crate) timestamp_offset: u32,
    /// Largest TCP segment without options towards this peer: MTU - IP header - 20. Also the MSS we announce.
    pub(crate) mss: u16,
    /// As `mss`, of BASE_PLPMTU (RFC 8899 section 5.1.2): what most paths carry.
    pub(crate) base_mss: u16,
    /// The peer's MSS when its SYN names none: 536 for IPv4, 1220 for IPv6 (RFC 9293 section 3.7.1).
    pub(crate) default_peer_mss: u16,
}

bitflags! {
    /// What waits to be sent besides data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Pending: u8 {
        const SYN = 1;
        const ACK = 2;
        const RST = 4;
        /// A segment without payload in front of the window: zero window or keepalive.
        const PROBE = 8;
        /// A tail loss probe.
        const TAIL = 32;
        /// A probe of the path's MTU.
        const PATH = 64;
        /// Not a transmission: the next fresh segment may be cut to the peer's window.
        const CUT = 16;
    }
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// Not asked for.
    Open,
    /// Follows the queue, for the first time or, after a timeout, again.
    Due,
    Sent,
    Acked,
}

/// Whether the user waits for `Event::Writable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writable {
    NotOwed,
    /// `segment` was refused.
    Owed,
    /// The event waits to be taken, and stands for all refusals until it is.
    Told,
}

/// What the two SYNs agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// Timestamps on every segment.
    pub(super) timestamps: bool,
    /// SACK blocks in both directions.
    pub(super) sack: bool,
    /// Windows are scaled; the shift of the peer's.
    pub(super) window_scale: Option<u8>,
    /// Marks instead of drops: the peer's marks are echoed, its echoes are answered.
    pub(super) ecn: bool,
    /// And what we send may be marked.
    pub(super) ect: bool,
}

/// The peer's window (RFC 9293 section 3.10.7.4).
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerWindow {
    /// First position we must not send.
    pub(super) edge: u64,
    /// The largest window seen, octets.
    pub(super) max: u64,
    /// The peer's position and our acknowledged one at the last update (SND.WL1, SND.WL2).
    pub(super) wl1: i64,
    pub(super) wl2: u64,
}

/// Whole seconds of the clock, where a block has no room for more; they wrap after a century.
pub(super) type Seconds = u32;

/// Challenge ACKs asked for in a second (RFC 5961 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    pub(super) second: Seconds,
    pub(super) all: u16,
    /// By bare segments, answered or not.
    pub(super) bare: u16,
}

/// The second that `now` is in.
pub(super) fn seconds(now: Instant) -> Seconds {
    now.secs() as u32
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Tcb {
    pub(super) birth: Birth,
    pub(super) state: State,
    /// The user has seen this connection: by its own call, or by `Event::Established`.
    pub(super) announced: bool,
    /// `Event::Closed` was raised or is not owed.
    pub(super) over: bool,
    pub(super) agreed: Agreed,
    pub(super) echo: Echo,
    pub(super) reduction: Reduction,
    /// Largest payload.
    pub(super) emss: u32,
    pub(super) snd_space: SeqSpace,
    pub(super) snd: SendQueue,
    pub(super) fin: Fin,
    pub(super) window: PeerWindow,
    pub(super) rcv: Receiver,
    /// TS.Recent (RFC 7323 section 4.3), and when it was learned.
    pub(super) ts_recent: u32,
    pub(super) ts_recent_at: Seconds,
    /// The acknowledgement sent last.
    pub(super) last_ack_sent: u64,
    /// Segments and octets received and not acknowledged.
    pub(super) unacked_segments: u32,
    pub(super) unacked_octets: u32,
    pub(super) rtt: RttEstimator,
    pub(super) congestion: Congestion,
    pub(super) recovery: Recovery,
    pub(super) rack: Rack,
    pub(super) pace: Pace,
    pub(super) timers: Timers,
    pub(super) path: PathMtu,
    pub(super) keepalive: Option<Keepalive>,
    pub(super) pending: Pending,
    writable: Writable,
    pub(super) retransmits: u64,
    pub(super) challenges: Challenges,
}

impl Tcb {
    pub(super) fn new(ctx: &Ctx<'_>, birth: Birth, state: State) -> Self {
        let config = ctx.config;
        let scale = window_shift(config.recv_window_octets);
        Self {
            birth,
            state,
            announced: ctx.listener.is_none(),
            over: false,
            agreed: Agreed {
                timestamps: config.timestamps,
                sack: config.sack,
                window_scale: Some(0),
                ecn: false,
                ect: false,
            },
            echo: Echo::default(),
            reduction: Reduction::default(),
            emss: u32::from(birth.default_peer_mss.min(birth.mss)),
            snd_space: SeqSpace::new(birth.iss),
            snd: SendQueue::new(),
            fin: Fin::Open,
            window: PeerWindow { edge: 1, max: 0, wl1: 0, wl2: 0 },
            rcv: Receiver::new(
                SeqSpace::new(TcpSeqNumber(0)),
                scale,
                config.recv_window_octets.min(u32::from(u16::MAX)),
            ),
            ts_recent: 0,
            ts_recent_at: seconds(ctx.now),
            last_ack_sent: 0,
            unacked_segments: 0,
            unacked_octets: 0,
            rtt: RttEstimator::new(config.rto_initial, config.rto_min, config.rto_max),
            congestion: Congestion::new(config.congestion, u32::from(birth.mss), false),
            recovery: Recovery::default(),
            rack: Rack::new(),
            pace: Pace::OPEN,
            timers: Timers::new(ctx.now),
            path: PathMtu::new(),
            keepalive: config.keepalive(),
            pending: Pending::SYN,
            writable: Writable::NotOwed,
            retransmits: 0,
            challenges: Challenges::default(),
        }
    }

    /// Where a segment of up to EMSS octets can be written to; [`push`](Self::push) or [`close_page`](Self::close_page) has
    /// to follow at once.
    pub(crate) fn segment(&mut self, ctx: &mut Ctx<'_>) -> Result<(PageKey, usize), SendError> {
        if !self.takes_segments() {
            return Err(SendError::Closed);
        }
        let queued = self.snd.queued();
        // A queue that is empty takes one segment in any case.
        if queued > 0 {
            let full = queued + u64::from(self.emss) > u64::from(ctx.config.send_buffer_octets);
            if full || ctx.segments.is_full_for(self.snd.segments) {
                return Err(self.full());
            }
        } else if ctx.segments.is_full() {
            // Others hold the records, and no acknowledgement of ours will free any: ask again.
            return Err(SendError::NoMbuf);
        }
        let emss = self.emss as usize;
        let bulk = ctx.bulk_pool.filter(|_| queued >= BULK_SEGMENTS * u64::from(self.emss));
        match self.snd.page(ctx.segments, (ctx.pool, bulk), emss) {
            Ok(page) => Ok((page, emss)),
            Err(SendError::BufferFull) => Err(self.full()),
            Err(error) => {
                ctx.counters.tx_no_mbuf += 1;
                Err(error)
            }
        }
    }

    /// The send buffer is full: its user is told when there is room.
    fn full(&mut self) -> SendError {
        if self.writable == Writable::NotOwed {
            self.writable = Writable::Owed;
        }
        SendError::BufferFull
    }

    /// Nothing was written to the page that [`segment`](Self::segment) gave.
    pub(crate) fn close_page(&mut self, ctx: &mut Ctx<'_>) {
        self.snd.close_page(ctx.segments);
    }

    /// Queues a segment: the first `octets` octets, at least one, of the page that [`segment`](Self::segment) gave.
    /// [`on_pushed`](Self::on_pushed) is called behind the last of several.
    pub(crate) fn push(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        if self.snd.queued() == 0 {
            self.timers.progress = ctx.now;
            let idle = ctx.now - self.timers.last_sent;
            if idle > self.rtt.rto() {
                self.congestion.on_idle(ctx.now, idle);
            }
        }
        self.snd.push(ctx.segments, octets);
    }

    /// Segments were queued.
    pub(crate) fn on_pushed(&mut self, ctx: &mut Ctx<'_>) {
        self.pace.advance(ctx.now);
        self.arm_resend(ctx);
    }

    fn takes_segments(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait)
    }

    /// Raises `Event::Writable` when it is owed and a quarter of the send buffer is free.
    pub(super) fn check_writable(&mut self, ctx: &mut Ctx<'_>) {
        if self.writable != Writable::Owed {
            return;
        }
        let queued = self.snd.queued();
        let room = queued <= u64::from(ctx.config.send_buffer_octets) * 3 / 4
            && !ctx.segments.is_full_for(self.snd.segments);
        if queued == 0 || room {
            self.writable = Writable::NotOwed;
            if self.takes_segments() {
                self.writable = Writable::Told;
                ctx.writable();
            }
        }
    }

    /// The user has taken `Event::Writable` from the queue of events.
    pub(crate) fn on_writable_taken(&mut self) {
        self.writable = Writable::NotOwed;
    }

    /// No more segments will be pushed: FIN after the queue (RFC 9293 section 3.10.4).
    pub(crate) fn close(&mut self, ctx: &mut Ctx<'_>) {
        match self.state {
            State::SynSent => self.terminate(ctx, CloseReason::Aborted, false),
            State::SynReceived => self.fin = Fin::Due,
            State::Established => {
                self.fin = Fin::Due;
                self.state = State::FinWait1;
                self.await_fin(ctx);
            }
            State::CloseWait => {
                self.fin = Fin::Due;
                self.state = State::LastAck;
                self.await_fin(ctx);
            }
            _ => {}
        }
    }

    /// Our FIN waits to be sent: behind an empty queue for nothing but a way out.
    fn await_fin(&mut self, ctx: &mut Ctx<'_>) {
        if self.snd.queued() == 0 {
            self.timers.progress = ctx.now;
            self.arm_resend(ctx);
        }
    }

    /// Drops everything queued; a RST is the last transmission where the peer knows of the connection.
    /// `Event::Closed(Aborted)` (RFC 9293 section 3.10.5).
    pub(crate) fn abort(&mut self, ctx: &mut Ctx<'_>) {
        let reset = !matches!(self.state, State::SynSent | State::TimeWait);
        self.terminate(ctx, CloseReason::Aborted, reset);
    }

    /// The peer cannot be reached (ICMP while connecting, no neighbour): ends the connection without a RST, also
    /// without one that was still to be sent.
    pub(crate) fn unreachable(&mut self, ctx: &mut Ctx<'_>) {
        self.terminate(ctx, CloseReason::Unreachable, false);
        self.pending.remove(Pending::RST);
    }

    /// The end, in any state: everything shared is given back; a RST is sent if `reset`.
    pub(super) fn terminate(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason, reset: bool) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.echo.stop();
        self.dispose(ctx);
        self.pending = if reset { Pending::RST } else { Pending::empty() };
        if reset {
            // A RST that finds no way out does not keep the block for ever.
            self.timers.time_wait = Some(ctx.now + ctx.config.user_timeout);
        }
        self.raise_closed(ctx, reason);
    }

    /// Gives back all shared storage; before the block is dropped in any state but with [`is_dead`](Self::is_dead).
    pub(crate) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.snd.clear(ctx.segments);
        self.rcv.dispose(ctx);
        self.forget_search(ctx);
        self.timers.stop();
    }

    pub(super) fn raise_closed(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        if !self.over {
            self.over = true;
            if self.announced {
                ctx.closed(reason);
            }
        }
    }

    /// `octets` handed up ahead of the frontier are no longer held.
    pub(crate) fn release(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        self.rcv.release(ctx, octets);
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        // A window update, where the peer may be waiting for one.
        let budget = self.window_budget(ctx.config);
        let left = self.rcv.edge.saturating_sub(self.rcv.nxt);
        if left < u64::from(budget / 2) && self.rcv.grows(ctx.reorder, budget, self.birth.mss.into()) {
            self.pending |= Pending::ACK;
        }
    }

    /// `octets` handed up in order are held until they are released.
    pub(crate) fn hold(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        self.rcv.hold(ctx, octets);
    }

    /// The user gives up these stretches of the stream, by offset, or none of them. Returns whether it may.
    pub(crate) fn evict(&mut self, ctx: &mut Ctx<'_>, stretches: &[Range<u64>]) -> bool {
        // The SYN has position 0.
        let positions: ArrayVec<_, MAX_EVICTED> =
            stretches.iter().map(|offsets| offsets.start + 1..offsets.end + 1).take(MAX_EVICTED).collect();
        positions.len() == stretches.len() && self.rcv.evict(ctx, &positions)
    }

    /// The user keeps `octets` octets of packet buffers for what came ahead of the frontier.
    pub(crate) fn pin(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        self.rcv.pin(ctx, octets);
    }

    /// Probes the peer so from now on.
    pub(crate) fn set_keepalive(&mut self, ctx: &Ctx<'_>, keepalive: Option<Keepalive>) {
        self.keepalive = keepalive;
        if !matches!(self.state, State::SynSent | State::SynReceived) {
            self.on_alive(ctx);
        }
    }

    /// The window field of a segment sent now.
    pub(super) fn rcv_window(&self, ctx: &Ctx<'_>) -> u16 {
        self.rcv.window(ctx.reorder, self.window_budget(ctx.config), u32::from(self.birth.mss))
    }

    /// The largest window we announce: without scaling the field is the bound.
    fn window_budget(&self, config: &TcpConfig) -> u32 {
        config.recv_window_octets.min(u32::from(u16::MAX) << self.rcv.scale)
    }

    /// The state.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Nothing more to receive, wait for or send: forget the block.
    pub(crate) fn is_dead(&self) -> bool {
        self.state == State::Closed && !self.pending.contains(Pending::RST)
    }

    /// `Event::Closed` was raised (or, for a connection that was never announced, would have been): the id is dead
    /// for the user, the block may live on in TIME-WAIT or until its RST is sent.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether this sequence number is in flight, i.e. an ICMP error that quotes it is plausible (RFC 5927).
    pub(crate) fn in_flight(&self, seq: TcpSeqNumber) -> bool {
        let pos = self.snd_space.pos(seq, self.snd.una);
        (self.snd.una as i64..self.snd.nxt as i64).contains(&pos)
    }

    /// A look from outside.
    pub(crate) fn info(&self, config: &TcpConfig, local: SocketAddr, remote: SocketAddr) -> ConnInfo {
        let queued = self.snd.queued();
        let space = if self.takes_segments() {
            u64::from(config.send_buffer_octets).saturating_sub(queued)
        } else {
            0
        };
        ConnInfo {
            local,
            remote,
            emss: self.emss as usize,
            send_offset: self.snd.end - 1,
            send_space: space as usize,
            unacknowledged: queued,
            frontier: self.rcv.fin.unwrap_or(self.rcv.nxt).min(self.rcv.nxt) - 1,
            srtt_us: self.rtt.srtt_us(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            rto_us: self.rtt.rto().total_micros().min(u64::from(u32::MAX)) as u32,
            state: self.state,
            retransmits: self.retransmits,
            out_of_order: self.rcv.held,
        }
    }
}

/// Payload of a segment of `mss` octets beside the options that every segment has (RFC 6691).
pub(super) fn payload_of(mss: u16, timestamps: bool) -> u32 {
    u32::from(mss) - if timestamps { 12.min(u32::from(mss) - 1) } else { 0 }
}

/// The smallest shift with which a window fits its field (RFC 7323 section 2.3), rounding up included.
pub(super) fn window_shift(octets: u32) -> u8 {
    (0..14).find(|shift| octets >> shift < u32::from(u16::MAX)).unwrap_or(14)
}
