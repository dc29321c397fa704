//! One run: the virtual clock, the events, and the rules about time. The bound on progress is in
//! `progress_bound.rs`.

use std::iter::successors;

use dp::Mbuf;

use super::coverage::{Coverage, Occurrence};
use super::link::{Link, Span};
use super::middlebox::Coalescer;
use super::port::{Sent, Socket, queues};
use super::progress_bound::ProgressBound;
use super::queue::Queue;
use super::setup::{Setup, Stall, StallKind, Work};
use super::trace::Trace;
use super::watch::{Framing, Watch};
use super::world::{RdmaWorld, StreamWorld, Transferred, World};
use testkit::packet::{Frame, parse};

/// The time at which a run begins.
pub const START_US: u64 = 1_000_000;

/// Time in microseconds for which a run continues after all connections are over: longer than TIME-WAIT.
const QUIET_US: u64 = 160_000_000;

/// Duration in microseconds of the last part of `QUIET_US`, in which no host may send frames.
const SILENCE_US: u64 = 3_000_000;

/// Maximum duration of a run in microseconds.
const END_US: u64 = 7_200_000_000;

/// Maximum number of polls without work that a host may ask for: `IDLE_POLLS`, and in addition
/// `IDLE_POLLS_PER_BUSY` for each poll with work.
const IDLE_POLLS: u64 = 1000;
const IDLE_POLLS_PER_BUSY: u64 = 4;

/// Number of additional idle polls for each millisecond in which the host is stalled. With these polls, the
/// stack, the engine and the user check whether the stall is over.
const IDLE_POLLS_PER_STALLED_MS: u64 = 3;

/// Maximum number of polls at one moment of virtual time.
const POLLS_PER_INSTANT: u64 = 10_000;

/// The reason why a run failed.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The time of the failure in microseconds.
    pub at_us: u64,
    /// The broken rule.
    pub what: String,
    /// The state of both hosts.
    pub state: String,
}

/// The results of a run that passed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// The work that the users did.
    pub transferred: Transferred,
    /// Number of frames that both hosts sent.
    pub frames: u64,
    /// Number of frames lost between the hosts, for any reason.
    pub lost: u64,
    /// Virtual time in microseconds until all connections were over.
    pub time_us: u64,
    /// The longest time in microseconds in which a connection made no progress.
    pub standstill_us: u64,
    /// Hash of all frames that were sent and delivered, with their times.
    pub trace: u64,
    /// Counts of faults and events.
    pub coverage: Coverage,
}

enum Event {
    Arrival(usize, Frame),
    Carrier(bool),
    /// A stall of a host begins or ends.
    Stall(usize, StallKind, bool),
}

#[derive(Clone, Copy, Debug)]
struct LastProgress {
    mark: u64,
    at_us: u64,
    standstill_us: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct PollCounts {
    busy: u64,
    idle: u64,
}

struct Run {
    setup: Setup,
    now_us: u64,
    queue: Queue<Event>,
    sockets: [Socket; 2],
    links: [Link; 2],
    lro: [Option<Coalescer>; 2],
    world: Box<dyn World>,
    watch: Watch,
    wakes: [Option<u64>; 2],
    polls: [PollCounts; 2],
    /// For each connection, whether the user of each host has finished.
    over: Vec<[bool; 2]>,
    last_progress: Vec<LastProgress>,
    last_fault_us: u64,
    /// The last time at which a host was stalled, in microseconds.
    stalled_us: u64,
    /// Number of tail loss probes, and the time of the last probe.
    probed: (u64, u64),
    /// For each host that is stopped, the maximum number of frames that may wait for the host.
    stopped: [Option<usize>; 2],
    waiting: [Vec<Frame>; 2],
    /// Buffers taken from each host's pool, so that the pool is empty for a time.
    withheld: [Vec<Mbuf>; 2],
    stats: Stats,
    trace: Trace,
    sent_last_us: u64,
}

/// Wraps a host's port, for captures.
pub type Wrap<'a> = &'a mut dyn FnMut(usize, Box<dyn dp::Port>) -> std::io::Result<Box<dyn dp::Port>>;

/// Makes the run of `setup`.
///
/// # Errors
/// The first broken rule.
pub fn run(setup: &Setup, seed: u64, wrap: Wrap<'_>) -> Result<Stats, Violation> {
    let early = |what: String| Violation { at_us: 0, what, state: String::new() };
    let mut run = Run::new(setup.clone(), seed, wrap).map_err(early)?;
    match run.carry_out() {
        Ok(()) => Ok(run.stats),
        Err(what) => {
            let state = format!(
                "{}{:#?}\nlast progress {:?}, last fault at {} us, wakes {:?}, polls {:?}\n",
                run.world.describe(),
                run.links.iter().map(Link::coverage).collect::<Vec<_>>(),
                run.last_progress,
                run.last_fault_us,
                run.wakes,
                run.polls
            );
            Err(Violation { at_us: run.now_us, what, state })
        }
    }
}

impl Run {
    fn new(setup: Setup, seed: u64, wrap: Wrap<'_>) -> Result<Self, String> {
        let mtus = [setup.hosts[0].mtu, setup.hosts[1].mtu];
        let device = |side: usize| {
            let host = &setup.hosts[side];
            queues(side, mtus[side], host.mbufs, &host.steering)
        };
        let ([ports_a, ports_b], [socket_a, socket_b]) = {
            let ((a, socket_a), (b, socket_b)) = (device(0), device(1));
            ([a, b], [socket_a, socket_b])
        };
        let mut wrapped = |side: usize, ports: Vec<Box<dyn dp::Port>>| {
            let all = ports.into_iter().map(|port| wrap(side, port).map_err(|error| error.to_string()));
            all.collect::<Result<Vec<_>, _>>()
        };
        let ports = [wrapped(0, ports_a)?, wrapped(1, ports_b)?];
        let (framing, world): (_, Box<dyn World>) = match &setup.work {
            Work::Streams(plans) => {
                let ports = ports.map(|mut queues| queues.swap_remove(0));
                (Framing::Plain, Box::new(StreamWorld::new(&setup.hosts, plans, ports, seed)?))
            }
            Work::Rdma(plans) => (Framing::Mpa, Box::new(RdmaWorld::new(&setup.hosts, plans, ports, seed)?)),
        };
        let mut queue = Queue::default();
        for &Span { from_us, to_us } in &setup.flaps {
            queue.push(from_us, Event::Carrier(false));
            queue.push(to_us, Event::Carrier(true));
        }
        for (side, stalls) in setup.stalls.iter().enumerate() {
            for &Stall { span, kind } in stalls {
                queue.push(span.from_us, Event::Stall(side, kind, true));
                queue.push(span.to_us, Event::Stall(side, kind, false));
            }
        }
        let mut watch = Watch::new(framing, setup.ours(), mtus);
        if let Work::Rdma(plans) = &setup.work {
            let depths = plans.iter().enumerate().map(|(number, plan)| (world.port(number), plan.depth));
            depths.for_each(|(port, depth)| watch.set_depth(port, depth));
        }
        let link = |side: usize| Link::new(setup.links[side].clone(), seed, side);
        let last = LastProgress { mark: 0, at_us: START_US, standstill_us: 0 };
        Ok(Self {
            now_us: START_US,
            queue,
            sockets: [socket_a, socket_b],
            links: [link(0), link(1)],
            lro: setup.lro.map(|lro| lro.map(|(bytes, hold_us)| Coalescer::new(bytes, hold_us))),
            watch,
            wakes: [Some(START_US), Some(START_US)],
            polls: Default::default(),
            over: vec![[false; 2]; world.connections()],
            last_progress: vec![last; world.connections()],
            world,
            last_fault_us: START_US,
            stalled_us: START_US,
            probed: (0, START_US),
            stopped: [None; 2],
            waiting: Default::default(),
            withheld: Default::default(),
            stats: Stats::default(),
            trace: Trace::default(),
            sent_last_us: START_US,
            setup,
        })
    }

    fn carry_out(&mut self) -> Result<(), String> {
        let mut over_us = None;
        let mut at_once = 0;
        while let Some(next_us) = self.next_us() {
            if over_us.is_some_and(|over_us| next_us > over_us + QUIET_US) {
                break;
            }
            at_once = if next_us > self.now_us { 0 } else { at_once + 1 };
            if at_once > POLLS_PER_INSTANT {
                return Err(format!("{at_once} polls at the same moment: a host keeps asking for polls"));
            }
            self.now_us = self.now_us.max(next_us);
            self.step()?;
            if over_us.is_none() {
                if self.check_progress()? {
                    over_us = Some(self.now_us);
                } else if self.now_us > END_US {
                    return Err("the run does not end".into());
                }
            }
        }
        let Some(over_us) = over_us else {
            return Err("no event is left, but not all connections are done".into());
        };
        self.stats.time_us = over_us - START_US;
        self.finish(over_us + QUIET_US)
    }

    fn next_us(&self) -> Option<u64> {
        let links = self.links.iter().filter_map(Link::next_us);
        let lro = self.lro.iter().flatten().filter_map(Coalescer::next_us);
        let runs = |side: &usize| self.stopped[*side].is_none();
        let wakes = [0, 1].into_iter().filter(runs).filter_map(|side| self.wakes[side]);
        self.queue.next_us().into_iter().chain(links).chain(lro).chain(wakes).min()
    }

    fn step(&mut self) -> Result<(), String> {
        while let Some(happening) = self.queue.pop(self.now_us) {
            match happening {
                Event::Carrier(up) => {
                    self.sockets.iter().for_each(|socket| socket.set_up(up));
                    self.last_fault_us = self.now_us;
                }
                Event::Stall(side, kind, begins) => self.stall(side, kind, begins),
                Event::Arrival(side, frame) => {
                    let mut out = Vec::new();
                    match &mut self.lro[side] {
                        Some(joiner) => joiner.push(self.now_us, frame, &mut out),
                        None => out.push(frame),
                    }
                    self.deliver(side, out);
                }
            }
        }
        for side in [0, 1] {
            let mut out = Vec::new();
            if let Some(joiner) = &mut self.lro[side] {
                joiner.poll(self.now_us, &mut out);
            }
            self.deliver(side, out);
            if self.links[side].next_us().is_some_and(|at_us| at_us <= self.now_us) {
                let outcome = self.links[side].poll(self.now_us);
                self.enter(side, outcome);
            }
        }
        for side in [0, 1] {
            let due = self.wakes[side].is_some_and(|at_us| at_us <= self.now_us);
            if self.stopped[side].is_some() {
                continue;
            }
            if due || !self.sockets[side].is_idle() {
                self.poll(side)?;
            }
        }
        Ok(())
    }

    /// Begins or ends a stall of host `side`.
    fn stall(&mut self, side: usize, kind: StallKind, begins: bool) {
        self.stalled_us = self.now_us;
        match kind {
            StallKind::PortStuck => {
                self.sockets[side].set_stuck(begins);
                self.stats.coverage.count_if(Occurrence::PortStuck, begins);
            }
            StallKind::NoBuffers if begins => {
                let pool = self.sockets[side].pool().clone();
                self.withheld[side].extend(std::iter::from_fn(|| pool.alloc()));
                self.stats.coverage.count(Occurrence::NoBuffers, 1);
            }
            StallKind::NoBuffers => self.withheld[side].clear(),
            StallKind::Stopped(most) if begins => {
                self.stopped[side] = Some(most);
                self.stats.coverage.count(Occurrence::HostStopped, 1);
            }
            StallKind::Stopped(_) => {
                self.stopped[side] = None;
                self.wakes[side] = Some(self.now_us);
                let waiting = std::mem::take(&mut self.waiting[side]);
                self.deliver(side, waiting);
            }
        }
    }

    /// Returns the time for which host `side` has been stalled so far, and whether it is stalled now.
    fn stalled(&self, side: usize) -> (u64, bool) {
        let spans = || self.setup.stalls[side].iter().map(|stall| stall.span);
        let us = spans().map(|span| self.now_us.min(span.to_us).saturating_sub(span.from_us)).sum();
        (us, spans().any(|span| span.holds(self.now_us)))
    }

    /// Whether host `side` has no space for this frame. The limit applies to all frames, not only to TCP
    /// frames.
    fn is_refused(&mut self, side: usize, frame: &Frame) -> bool {
        let reason = match self.stopped[side] {
            Some(most) if self.waiting[side].len() >= most => Occurrence::LostAtStopped,
            None if !self.withheld[side].is_empty() && !self.sockets[side].has_buffers_for(&frame.bytes) => {
                Occurrence::LostWithoutBuffer
            }
            _ => return false,
        };
        self.stats.lost += 1;
        self.stats.coverage.count(reason, 1);
        self.last_fault_us = self.now_us;
        true
    }

    /// Delivers frames to host `side`, if the host's link is up and the host has space for the frames.
    fn deliver(&mut self, side: usize, frames: Vec<Frame>) {
        for frame in frames {
            if self.is_cut_off(&frame.bytes) || self.is_refused(side, &frame) {
                continue;
            }
            if self.stopped[side].is_some() {
                self.waiting[side].push(frame);
                continue;
            }
            self.trace.add(self.now_us, side as u64 + 2, &frame.bytes);
            self.watch.on_delivered(self.now_us, side, &frame, self.world.condition(side));
            self.sockets[side].deliver(frame.bytes);
        }
    }

    /// Whether the link is down for this segment. If so, counts the segment as lost. As with the other faults
    /// of the wire, only TCP segments are affected.
    fn is_cut_off(&mut self, bytes: &[u8]) -> bool {
        let cut_off = self.setup.flaps.iter().any(|span| span.holds(self.now_us)) && parse(bytes).is_some();
        if cut_off {
            self.stats.lost += 1;
            self.stats.coverage.count(Occurrence::LostLinkDown, 1);
            self.last_fault_us = self.now_us;
        }
        cut_off
    }

    fn poll(&mut self, side: usize) -> Result<(), String> {
        self.world.set_last_fault(self.last_fault_us.max(self.stalled_us));
        let busy = self.world.poll(side, self.now_us, &mut self.watch)?;
        let stalled_us = self.stalled(side).0;
        let polls = &mut self.polls[side];
        if busy {
            polls.busy += 1;
        } else {
            polls.idle += 1;
        }
        let most =
            IDLE_POLLS + IDLE_POLLS_PER_BUSY * polls.busy + stalled_us / 1000 * IDLE_POLLS_PER_STALLED_MS;
        if polls.idle > most {
            return Err(format!("host {side} asks for polls without work: {polls:?}"));
        }
        self.note_ends(side);
        let condition = self.world.condition(side);
        for sent in self.sockets[side].take_sendings() {
            self.sent_last_us = self.now_us;
            let (bytes, is_news, leaves) = match sent {
                Sent::Whole(bytes) => (bytes, true, true),
                Sent::Offered(bytes) => (bytes, true, false),
                Sent::Taken(bytes) => (bytes, false, true),
            };
            if is_news {
                self.stats.frames += 1;
                self.trace.add(self.now_us, side as u64, &bytes);
                self.watch
                    .on_sent(self.now_us, side, &bytes, condition)
                    .map_err(|what| format!("host {side}: {what}"))?;
            }
            if leaves && !self.is_cut_off(&bytes) {
                let outcome = self.links[side].carry(self.now_us, bytes);
                self.enter(side, outcome);
            }
        }
        // After a lost window update, a small window may stay open until the persist timer expires.
        if condition.cuts > 0 && !self.setup.may_cut && self.last_fault_us == START_US {
            return Err(format!("host {side} has split {} segments for no reason", condition.cuts));
        }
        // Repeated losses, or a peer that answers late, may look like a path with a smaller MTU (RFC 8899
        // section 4.3). A local port that accepts no frames must not look like such a path.
        let unharmed = self.last_fault_us == START_US
            && !self.setup.hosts[side].path_shrinks
            && self.setup.stalls[1 - side].is_empty();
        if condition.cuts_by_emss > 0 && unharmed {
            return Err(format!(
                "host {side} has split segments for a smaller EMSS, but the MTU did not change"
            ));
        }
        self.wakes[side] = self.world.next_us(side, self.now_us).map(|at_us| at_us.max(self.now_us));
        if self.world.is_due(1 - side) {
            self.wakes[1 - side] = Some(self.now_us);
        }
        Ok(())
    }

    /// Tells the watch which connections are over for host `side`.
    fn note_ends(&mut self, side: usize) {
        for number in 0..self.over.len() {
            if !self.over[number][side] && self.world.is_over(side, number) {
                self.over[number][side] = true;
                self.watch.set_over(side, self.world.port(number));
            }
        }
    }

    /// Queues what happens because of a frame that host `side` sent.
    fn enter(&mut self, side: usize, outcome: super::link::Outcome) {
        if outcome.fault {
            self.last_fault_us = self.now_us;
        }
        outcome.reneged.into_iter().for_each(|bytes| self.links[1 - side].renege(bytes));
        for port in outcome.poisoned {
            self.world.poisoned(port);
        }
        for (at_us, frame) in outcome.arrivals {
            self.queue.push(at_us, Event::Arrival(1 - side, frame));
        }
        for (at_us, bytes) in outcome.to_sender {
            let frame = Frame { bytes, damage: Default::default() };
            self.queue.push(at_us, Event::Arrival(side, frame));
        }
    }

    /// Checks the bound on progress. Returns whether all connections are done.
    fn check_progress(&mut self) -> Result<bool, String> {
        let mut all = true;
        if self.stalled(0).1 || self.stalled(1).1 {
            self.stalled_us = self.now_us;
        }
        let last_fault_us = self.last_fault_us.max(self.stalled_us);
        let pause_us = 1_000_000 + 4 * self.setup.pause_us();
        // smoltcp's maximum RTO is one minute.
        let rto_max_us = match self.setup.ours() {
            [true, true] => {
                self.setup.hosts.iter().map(|host| host.tcp.rto_max.total_micros()).max().unwrap_or(0)
            }
            _ => 60_000_000,
        };
        let bound = ProgressBound {
            rto_max_us,
            pause_us,
            timestamps: self.setup.hosts.iter().all(|host| host.tcp.timestamps),
        };
        let probes = [0, 1].iter().map(|&side: &usize| self.world.condition(side).tail_probes).sum();
        if probes > self.probed.0 {
            self.probed = (probes, self.now_us);
        }
        for (number, last) in self.last_progress.iter_mut().enumerate() {
            let progress = self.world.progress(number);
            let port = self.world.port(number);
            // RSTs of this connection count, and RSTs of the earlier connections for which this connection
            // waits.
            let ports = || {
                successors(Some(number), |&number| self.world.before(number))
                    .map(|number| self.world.port(number))
            };
            let resets = ports().filter(|&port| self.watch.earlier_was_reset(port)).count();
            let acked = self.watch.acked(0, port) + self.watch.acked(1, port);
            let mark = progress.steps + acked + resets as u64;
            all &= progress.done;
            let still_us = self.now_us - last.at_us;
            if mark != last.mark || progress.done {
                if !progress.done {
                    last.standstill_us = last.standstill_us.max(still_us);
                    self.stats.standstill_us = self.stats.standstill_us.max(still_us);
                }
                (last.mark, last.at_us) = (mark, self.now_us);
                continue;
            }
            if !bound.timestamps && ports().any(|port| self.watch.syn_looks_old(port)) {
                last.at_us = self.now_us;
                continue;
            }
            let since_fault_us = self.now_us - last_fault_us.max(last.at_us);
            let longest_wait_us = last
                .standstill_us
                .max(last_fault_us.saturating_sub(last.at_us))
                .max(self.watch.longest_wait_us(port, last_fault_us));
            let probed_us = self.now_us - self.probed.1;
            if !bound.allows(longest_wait_us, since_fault_us, probed_us) {
                let bound_us = bound.bound_us(longest_wait_us);
                return Err(format!(
                    "connection {port} has made no progress for {still_us} us, the last fault was {since_fault_us} us ago, the \
                     last probe was sent {probed_us} us ago: the bound is {bound_us} us"
                ));
            }
        }
        Ok(all)
    }

    /// Checks the end of a run, when all work is done and time has passed: no host may still send frames or
    /// hold buffers. In a run without losses, no segment may have been retransmitted.
    fn finish(&mut self, end_us: u64) -> Result<(), String> {
        if self.sent_last_us + SILENCE_US > end_us {
            return Err(format!("frames are still being sent, the last at {} us", self.sent_last_us));
        }
        for side in [0, 1] {
            let pool = self.sockets[side].pool();
            if pool.available() != pool.capacity() {
                let missing = pool.capacity() - pool.available();
                return Err(format!("host {side} has withheld {missing} packet buffers"));
            }
            self.stats.lost += self.links[side].lost();
            self.stats.coverage.join(&self.links[side].coverage());
            let joined = self.lro[side].as_ref().map_or(0, Coalescer::joined);
            self.stats.coverage.count(Occurrence::JoinedByPort, joined);
        }
        self.stats.transferred = self.world.finish()?;
        if self.setup.lossless && self.stats.transferred.retransmits > 0 {
            return Err(format!(
                "{} segments were retransmitted, but none was lost",
                self.stats.transferred.retransmits
            ));
        }
        self.stats.coverage.join(self.watch.coverage());
        self.world.cover(&mut self.stats.coverage);
        self.stats.trace = self.trace.value();
        Ok(())
    }
}
