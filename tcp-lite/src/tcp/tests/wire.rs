//! A host with one connection, and two such hosts on a wire.

use std::ops::Range;

use dp::Mempool;

use crate::event::EventQueue;
use crate::facade::TcpSeqNumber;
use crate::ip::Ecn;
use crate::stack::{ConnId, ListenerId, StackCounters};
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::{
    BulkPool, Ctx, OpenParams, OutOfOrderSlab, Payload, SearchSlab, SegmentSlab, State, Tcb, Verdict,
};
use crate::{CloseReason, Duration, Event, Instant, SendError, TcpConfig};

pub(super) const MSS: u16 = 1012;
/// The MSS of BASE_PLPMTU.
pub(super) const BASE_MSS: u16 = 612;
/// The MSS of MIN_PLPMTU.
pub(super) const MIN_MSS: u16 = 536;
/// The EMSS with timestamps.
pub(super) const EMSS: usize = 1000;
pub(super) const DELAY: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) header: TcpHeader,
    pub(super) payload: Vec<u8>,
    pub(super) ecn: Ecn,
}

impl Packet {
    /// Returns a packet that routers may not mark.
    pub(super) fn new(header: TcpHeader, payload: Vec<u8>) -> Self {
        Self { header, payload, ecn: Ecn::NotEct }
    }

    pub(super) fn is(&self, flags: Flags) -> bool {
        self.header.flags.contains(flags)
    }
}

/// The events that the user has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Established,
    Writable,
    Acknowledged,
    PeerClosed,
    Closed(CloseReason),
}

pub(super) struct Host {
    pub(super) tcb: Option<Tcb>,
    pub(super) params: OpenParams,
    pub(super) config: TcpConfig,
    pub(super) pool: Mempool,
    pub(super) bulk_pool: Option<BulkPool>,
    pub(super) segments: SegmentSlab,
    pub(super) out_of_order: OutOfOrderSlab,
    pub(super) searches: SearchSlab,
    pub(super) counters: StackCounters,
    events: EventQueue,
    pub(super) events_limit: usize,
    /// True if the user takes `Writable` at once. If `false`, the event stays in the event queue.
    pub(super) takes_writable: bool,
    listener: Option<ListenerId>,
    pub(super) seen: Vec<Seen>,
    /// The numbers of bytes that the host was asked to give up.
    pub(super) asked: Vec<usize>,
    /// The stream as it was passed to the user; `None` for bytes that were not passed yet.
    pub(super) stream: Vec<Option<u8>>,
    pub(super) frontier: u64,
    /// True if the user releases bytes at once that arrive ahead of the frontier.
    pub(super) releases: bool,
    pub(super) sent_segments: u64,
    /// Path MTU probes: the time of transmission, the stream offset, and the bytes.
    pub(super) probes: Vec<(Instant, u32, Vec<u8>)>,
}

pub(super) fn config() -> TcpConfig {
    TcpConfig { recv_window_bytes: 64 * 1024, send_buffer_bytes: 64 * 1024, ..TcpConfig::default() }
}

pub(super) fn params(iss: u32) -> OpenParams {
    OpenParams {
        local_port: 1000,
        remote_port: 2000,
        iss: TcpSeqNumber(iss as i32),
        timestamp_offset: 0xffff_fff0,
        mss: MSS,
        base_mss: BASE_MSS,
        default_peer_mss: MIN_MSS,
    }
}

impl Host {
    pub(super) fn new(config: TcpConfig, iss: u32) -> Self {
        let pool = Mempool::heap("test", 1024, 2048);
        Self {
            tcb: None,
            params: params(iss),
            config,
            out_of_order: OutOfOrderSlab::new(4, 1 << 20, &pool),
            pool,
            bulk_pool: None,
            segments: SegmentSlab::new(512, 512),
            searches: SearchSlab::new(4),
            counters: StackCounters::default(),
            events: EventQueue::with_capacity(0),
            events_limit: 1024,
            takes_writable: true,
            listener: None,
            seen: Vec::new(),
            asked: Vec::new(),
            stream: Vec::new(),
            frontier: 0,
            releases: true,
            sent_segments: 0,
            probes: Vec::new(),
        }
    }

    /// Runs `call` on the connection with its context. After that, arms the connection's timer, as the stack
    /// does, and takes the events.
    pub(super) fn with<R>(&mut self, now: Instant, call: impl FnOnce(&mut Tcb, &mut Ctx<'_>) -> R) -> R {
        let mut tcb = self.tcb.take().expect("a connection");
        let result = call(&mut tcb, &mut self.ctx(now));
        tcb.arm(now, &self.config, &self.segments);
        let deadline = tcb.deadline();
        tcb.arm(now, &self.config, &self.segments);
        assert_eq!(tcb.deadline(), deadline, "armed again without a change");
        let slabs = (&self.segments, &self.out_of_order, &self.searches);
        tcb.check(ConnId { slot: 0, generation: 0 }, slabs).expect("invariants");
        self.tcb = Some(tcb);
        self.take_events(now);
        result
    }

    fn ctx(&mut self, now: Instant) -> Ctx<'_> {
        Ctx {
            now,
            config: &self.config,
            pool: &self.pool,
            bulk_pool: self.bulk_pool.as_ref(),
            segments: &mut self.segments,
            out_of_order: &mut self.out_of_order,
            searches: &mut self.searches,
            counters: &mut self.counters,
            events: &mut self.events,
            events_limit: self.events_limit,
            conn: ConnId { slot: 0, generation: 0 },
            listener: self.listener,
        }
    }

    pub(super) fn connect(&mut self, now: Instant) {
        let params = self.params;
        self.tcb = Some(Tcb::connect(&mut self.ctx(now), params));
        self.with(now, |_, _| ());
    }

    pub(super) fn accept(&mut self, now: Instant, syn: &TcpHeader) {
        self.listener = Some(ListenerId { slot: 0, generation: 0 });
        let params = self.params;
        self.tcb = Some(Tcb::accept(&mut self.ctx(now), params, syn));
        self.with(now, |_, _| ());
    }

    pub(super) fn tcb(&self) -> &Tcb {
        self.tcb.as_ref().expect("a connection")
    }

    pub(super) fn state(&self) -> State {
        self.tcb().state()
    }

    /// Makes the user take the event of this kind that was left in the queue.
    pub(super) fn take_event(&mut self, kind: impl FnOnce(ConnId) -> Event) {
        let event = kind(ConnId { slot: 0, generation: 0 });
        if let Some(tcb) = &mut self.tcb {
            tcb.on_event_taken(&event);
        }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Established { .. } => self.seen.push(Seen::Established),
                Event::Writable { .. } => {
                    self.seen.push(Seen::Writable);
                    if self.takes_writable {
                        self.with(now, |tcb, _| tcb.on_event_taken(&event));
                    }
                }
                Event::Acknowledged { .. } => self.seen.push(Seen::Acknowledged),
                Event::AddressConflict { .. } => panic!("no control block tells of addresses"),
                Event::Datagram => panic!("no control block receives datagrams"),
                Event::PeerClosed { .. } => self.seen.push(Seen::PeerClosed),
                Event::Closed { reason, .. } => self.seen.push(Seen::Closed(reason)),
                Event::Received { received, .. } => {
                    let (start, len) = (received.offset as usize, received.buf.len());
                    assert!(len > 0, "nothing was handed up");
                    self.stream.resize(self.stream.len().max(start + len), None);
                    let mut bytes = vec![0; len];
                    received.buf.copy_to(0, &mut bytes);
                    for (at, byte) in bytes.into_iter().enumerate() {
                        assert_eq!(self.stream[start + at].replace(byte), None, "handed up twice");
                    }
                    assert!(received.frontier >= self.frontier, "the frontier moved back");
                    self.frontier = received.frontier;
                    let below = &self.stream[..received.frontier as usize];
                    assert!(below.iter().all(Option::is_some), "the frontier passed a hole");
                    if self.releases && received.offset >= received.frontier {
                        self.with(now, |tcb, ctx| tcb.release(ctx, len));
                    }
                }
                Event::Evict { bytes, .. } => {
                    self.out_of_order.on_eviction_request_taken();
                    self.asked.push(bytes);
                }
            }
        }
    }

    /// Makes the user give up this part of the stream, if that is possible. Returns whether this part was
    /// given up.
    pub(super) fn give_up(&mut self, now: Instant, offsets: Range<u64>) -> bool {
        let may = self.with(now, |tcb, ctx| tcb.evict(ctx, std::slice::from_ref(&offsets)));
        if may {
            self.stream[offsets.start as usize..offsets.end as usize].fill(None);
        }
        may
    }

    /// Returns all bytes below the frontier that were passed to the user.
    pub(super) fn read(&self) -> Vec<u8> {
        self.stream[..self.frontier as usize].iter().map(|byte| byte.expect("below the frontier")).collect()
    }

    pub(super) fn receive(&mut self, now: Instant, packet: &Packet) -> Verdict {
        let mut buf = self.pool.alloc().expect("a buffer");
        buf.append(packet.payload.len()).expect("room").copy_from_slice(&packet.payload);
        self.with(now, |tcb, ctx| tcb.on_segment(ctx, &packet.header, packet.ecn, (buf, 1)))
    }

    /// Returns the next segment that this host sends; `None` if the host has nothing to send. Serializes and
    /// parses the segment, and checks rules that each segment has to obey.
    pub(super) fn transmit(&mut self, now: Instant) -> Option<Packet> {
        let transmission = self.with(now, |tcb, ctx| {
            let transmission = tcb.next_transmission(ctx)?;
            assert!(tcb.wants_transmit(), "it has something but does not say so");
            let again = tcb.next_transmission(ctx).expect("asking changes nothing");
            assert_eq!(again.header, transmission.header);
            Some(transmission)
        })?;
        let mut bytes = vec![0; transmission.header.emitted_len()];
        transmission.header.emit(&mut bytes);
        let (header, len) = TcpHeader::parse(&bytes).expect("own header");
        assert_eq!(len, bytes.len());
        assert_eq!(header, transmission.header);
        let mut payload = Vec::new();
        if let Some(carried) = transmission.payload {
            payload.extend_from_slice(match carried {
                Payload::Segment(key) => self.segments.bytes(key),
                Payload::MtuProbe(key) => self.searches.buf(key).expect("a payload").head(),
            });
            assert!(
                bytes.len() - 20 + payload.len() <= usize::from(MSS),
                "options and payload exceed the MSS"
            );
            let offset = header.seq.0.wrapping_sub(self.params.iss.0).wrapping_sub(1) as u32;
            if matches!(carried, Payload::MtuProbe(_)) {
                let end = u64::from(offset) + payload.len() as u64;
                assert!(end < self.tcb().sending().positions().una(), "a probe of what is not acknowledged");
                self.probes.push((now, offset, payload.clone()));
            }
        }
        self.with(now, |tcb, ctx| tcb.sent(ctx, &transmission));
        self.sent_segments += 1;
        Some(Packet { header, payload, ecn: transmission.ecn })
    }

    pub(super) fn push(&mut self, now: Instant, bytes: &[u8]) -> Result<(), SendError> {
        self.with(now, |tcb, ctx| {
            let (page, emss) = tcb.page_for_segment(ctx, || bytes.len())?;
            assert!(bytes.len() <= emss);
            ctx.segments.room(page)[..bytes.len()].copy_from_slice(bytes);
            match bytes.len() {
                0 => tcb.close_page(ctx),
                bytes => {
                    tcb.push(ctx, bytes, None);
                    tcb.on_pushed(ctx.now);
                }
            }
            Ok(())
        })
    }

    pub(super) fn close(&mut self, now: Instant) {
        self.with(now, |tcb, ctx| tcb.close(ctx));
    }

    /// Whether the connection has no segment records, no ranges and no searches in the slabs.
    pub(super) fn holds_nothing(&self) -> bool {
        self.segments.len() == 0 && self.out_of_order.len() == 0 && self.searches.len() == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// Decides the fate of each packet: returns the delays of its arrivals. If there is no delay, the packet is
/// lost. If there are two delays, the packet is duplicated.
pub(super) type Plan = Box<dyn FnMut(Side, &Packet) -> Vec<Duration>>;

/// Returns whether a router marks this packet.
pub(super) type Mark = Box<dyn FnMut(Side, &Packet) -> bool>;

pub(super) struct Pair {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) now: Instant,
    pub(super) plan: Plan,
    /// Chooses the packets that a router marks.
    pub(super) mark: Mark,
    /// Returns the position at which the wire cuts a payload of this length in two; `None` if the wire does
    /// not cut the payload.
    pub(super) cut: Box<dyn FnMut(usize) -> Option<usize>>,
    /// The packets in flight, each with its time of arrival, a number that breaks ties, and its receiver.
    flying: Vec<(Instant, u64, Side, Packet)>,
    sent: u64,
    /// All packets that were sent, lost or not.
    pub(super) log: Vec<(Instant, Side, Packet)>,
}

impl Pair {
    pub(super) fn new(a: TcpConfig, b: TcpConfig) -> Self {
        let (mut a, mut b) = (Host::new(a, 0xffff_f000), Host::new(b, 0xffff_ffff));
        (b.params.local_port, b.params.remote_port) = (2000, 1000);
        a.params.timestamp_offset = 5;
        b.params.timestamp_offset = 0xffff_fff0;
        Self {
            a,
            b,
            now: Instant::from_millis(1000),
            plan: Box::new(|_, _| vec![DELAY]),
            mark: Box::new(|_, _| false),
            cut: Box::new(|_| None),
            flying: Vec::new(),
            sent: 0,
            log: Vec::new(),
        }
    }

    /// Returns a pair after `a` has connected to `b`.
    pub(super) fn established(a: TcpConfig, b: TcpConfig) -> Self {
        let mut pair = Self::new(a, b);
        pair.a.connect(pair.now);
        pair.run_for(Duration::from_millis(100));
        assert_eq!((pair.a.state(), pair.b.state()), (State::Established, State::Established));
        pair
    }

    pub(super) fn host(&mut self, side: Side) -> &mut Host {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    /// Makes both sides send all that they can.
    pub(super) fn transmit(&mut self) {
        for side in [Side::A, Side::B] {
            let now = self.now;
            if self.host(side).tcb.is_none() {
                continue;
            }
            let mut budget = 1000;
            while let Some(packet) = self.host(side).transmit(now) {
                budget -= 1;
                assert!(budget > 0, "sends for ever: {packet:?}");
                self.fly(side, packet);
            }
        }
    }

    pub(super) fn fly(&mut self, from: Side, mut packet: Packet) {
        self.log.push((self.now, from, packet.clone()));
        if (self.mark)(from, &packet) {
            packet.ecn = Ecn::Ce;
        }
        let len = packet.payload.len();
        if let Some(at) = (self.cut)(len.max(1)).filter(|at| (1..len).contains(at)) {
            let (mut first, mut second) = (packet.clone(), packet);
            first.payload.truncate(at);
            second.payload.drain(..at);
            second.header.seq += at;
            self.launch(from, &first);
            return self.launch(from, &second);
        }
        self.launch(from, &packet);
    }

    fn launch(&mut self, from: Side, packet: &Packet) {
        let to = if from == Side::A { Side::B } else { Side::A };
        for delay in (self.plan)(from, packet) {
            self.sent += 1;
            self.flying.push((self.now + delay, self.sent, to, packet.clone()));
        }
    }

    fn deliver(&mut self, to: Side, packet: &Packet) {
        let now = self.now;
        let host = self.host(to);
        if host.tcb.is_none() {
            if packet.is(Flags::SYN) && packet.header.ack.is_none() {
                host.accept(now, &packet.header);
            }
            return;
        }
        match host.receive(now, packet) {
            Verdict::Done => {}
            Verdict::Reset(header) => self.fly(to, Packet::new(header, Vec::new())),
            Verdict::Reopen => panic!("no test reopens on a wire"),
        }
    }

    /// Performs one step: the next arrival or timer that is not later than `until`. Returns `false` if there
    /// was no such event.
    fn step(&mut self, until: Instant) -> bool {
        self.transmit();
        let arrival = self.flying.iter().map(|(at, nr, ..)| (*at, *nr)).min();
        let deadline = |host: &Host| host.tcb.as_ref().and_then(Tcb::deadline);
        let timer = [deadline(&self.a), deadline(&self.b)].into_iter().flatten().min();
        let Some(next) = [arrival.map(|(at, _)| at), timer].into_iter().flatten().min() else { return false };
        if next > until {
            return false;
        }
        self.now = self.now.max(next);
        if let Some((at, nr)) = arrival.filter(|(at, _)| *at <= self.now) {
            let index = self.flying.iter().position(|(a, n, ..)| (*a, *n) == (at, nr)).expect("found above");
            let (_, _, to, packet) = self.flying.swap_remove(index);
            self.deliver(to, &packet);
        } else {
            let now = self.now;
            for side in [Side::A, Side::B] {
                let host = self.host(side);
                if host.tcb.is_some() {
                    host.with(now, |tcb, ctx| tcb.on_timer(ctx));
                }
            }
        }
        true
    }

    /// Performs all steps within `span`.
    pub(super) fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        let mut budget = 200_000;
        while self.step(until) {
            budget -= 1;
            assert!(budget > 0, "never at rest");
        }
        self.now = until;
    }

    /// Performs steps until `done` returns `true`, for at most `span`. Returns whether `done` returned
    /// `true`.
    pub(super) fn run_until(&mut self, span: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let until = self.now + span;
        while !done(self) {
            if !self.step(until) {
                return done(self);
            }
        }
        true
    }

    /// Returns the segments with payload that `side` sent, each with its stream offset and length.
    pub(super) fn data_sent(&self, side: Side) -> Vec<(u32, usize)> {
        let iss = if side == Side::A { self.a.params.iss } else { self.b.params.iss };
        let offset = |packet: &Packet| packet.header.seq.0.wrapping_sub(iss.0).wrapping_sub(1) as u32;
        self.log
            .iter()
            .filter(|(_, from, packet)| *from == side && !packet.payload.is_empty())
            .map(|(_, _, packet)| (offset(packet), packet.payload.len()))
            .collect()
    }
}

/// `len` bytes for the stream offsets from `from` on. Neighbouring bytes differ.
pub(super) fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
