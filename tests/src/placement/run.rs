//! A run in virtual time: several connections, one sender, and a wire with seeded losses.

use std::collections::HashMap;

use tcp_lite::TcpConfig;

use super::flow::Flow;
use super::follow::{Counts, Follow};
use super::hosts::{Hosts, HostsConfig};
use super::tally::{Level, Quantiles};
use super::wire::{Loss, Wire};
use super::{Traffic, text};
use crate::sim::dice::Part;
use crate::sim::queue::Queue;
use testkit::dice::Dice;
use testkit::packet::parse;

/// Local port of the first connection.
const FIRST_PORT: u16 = 40_000;

/// Number of packet buffers of each port: enough that only losses matter.
const MBUFS: usize = 8192;

/// Maximum length in bytes of the queue in front of the wire.
const QUEUE_BYTES: u64 = 1 << 20;

/// Maximum duration of a run in microseconds.
const LIMIT_US: u64 = 600_000_000;

/// The parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Losses in each direction.
    pub loss: Loss,
    /// Rate in each direction, in megabits per second.
    pub rate_mbit: u64,
    /// Round-trip time of the empty wire in microseconds.
    pub rtt_us: u64,
    /// MTU in bytes.
    pub mtu: u16,
    /// Number of connections.
    pub connections: u16,
    /// The requests that the sender posts for each message.
    pub traffic: Traffic,
    /// Length in bytes of a message.
    pub message: usize,
    /// Number of messages of each connection.
    pub messages: u64,
    /// Load of all connections together, in percent of the wire's rate. With `None`, each message is posted
    /// as soon as a slot is free.
    pub load: Option<u32>,
    /// Whether the receiver asks for markers.
    pub markers: bool,
}

/// The results of a run, or of several runs after [`merge`](Self::merge).
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Number of payload bytes delivered.
    pub payload: u64,
    /// Virtual time in microseconds from the start of the run to the last delivery.
    pub time_us: u64,
    /// Number of frames lost on the wire to the receiver.
    pub lost: u64,
    /// Number of payload bytes in FPDUs that were complete beyond a hole.
    pub behind: u64,
    /// The part of `behind` that was in memory before the hole was filled.
    pub early: u64,
    /// Number of bytes beyond a hole that the receiver dropped, since it keeps a limited number of holes.
    pub dropped: u64,
    /// Size in bytes of the packet buffers that the receiver held for all connections together.
    pub pinned: Level,
    /// Number of payload bytes of one connection that were complete beyond a hole but not in memory.
    pub waiting: Level,
    /// Time in microseconds from the moment when a message is due to the receiver's completion.
    pub completion_us: Quantiles,
    /// Time in microseconds from the moment when a message is due until its last byte is in memory.
    pub placement_us: Quantiles,
}

impl Outcome {
    /// Adds the results of another run.
    pub fn merge(&mut self, other: &Self) {
        let Self { payload, time_us, lost, behind, early, dropped, .. } = other;
        let Self { pinned, waiting, completion_us, placement_us, .. } = other;
        self.payload += payload;
        self.time_us += time_us;
        self.lost += lost;
        self.behind += behind;
        self.early += early;
        self.dropped += dropped;
        self.pinned.merge(pinned);
        self.waiting.merge(waiting);
        self.completion_us.merge(completion_us);
        self.placement_us.merge(placement_us);
    }

    /// Returns the goodput in gigabits of payload per second.
    pub fn goodput_gbit(&self) -> f64 {
        self.payload as f64 * 8.0 / self.time_us.max(1) as f64 / 1000.0
    }

    /// Returns which share of the payload beyond a hole was in memory before the hole was filled.
    pub fn share(&self) -> f64 {
        self.early as f64 / self.behind.max(1) as f64
    }
}

struct Run {
    setting: Setting,
    hosts: Hosts,
    flows: Vec<Flow>,
    /// The index of each flow, by the number of the receiver's queue pair.
    numbers: HashMap<u32, usize>,
    wires: [Wire; 2],
    arrivals: Queue<(usize, Vec<u8>)>,
    wakes: [Option<u64>; 2],
    dice: Dice,
    start_us: u64,
    /// The time at which the receiver's state was recorded last, in microseconds.
    since_us: u64,
    pinned_bytes: u64,
    pinned: Level,
    waiting: Level,
}

/// Makes one run.
///
/// # Errors
/// If a byte is wrong, or the run does not end.
pub fn measure(setting: &Setting, seed: u64) -> Result<Outcome, String> {
    let mut run = Run::new(setting, seed)?;
    run.carry_out()?;
    Ok(run.outcome())
}

impl Run {
    fn new(setting: &Setting, seed: u64) -> Result<Self, String> {
        let tcp = TcpConfig::default();
        let config = HostsConfig { mtu: setting.mtu, mbufs: MBUFS, tcp, seed, exchange_us: 1 };
        let mut hosts = Hosts::new(&config)?;
        let mut flows = Vec::new();
        for number in 0..setting.connections {
            let mut follow = Follow::new(setting.markers);
            let connected = hosts.connect(FIRST_PORT + number, setting.markers, &mut |side, frame| {
                if let (0, Some(tcp)) = (side, parse(frame))
                    && tcp.src_port == FIRST_PORT + number
                {
                    follow.sent_segment(&tcp, frame);
                    // The segment arrives at once, since the wire does not lose frames yet.
                    follow.segment_arrives(&tcp);
                }
            })?;
            let seed = seed ^ u64::from(number) << 48;
            flows.push(Flow::new(&hosts, connected, follow, setting.traffic, setting.message, seed)?);
        }
        let numbers = flows.iter().enumerate().map(|(number, flow)| (flow.receiver(), number)).collect();
        let start_us = hosts.now_us;
        let mut run = Self {
            wires: [0, 1].map(|side| {
                let Setting { rate_mbit, rtt_us, loss, .. } = *setting;
                Wire::new(rate_mbit, rtt_us / 2, QUEUE_BYTES, loss, seed, side)
            }),
            arrivals: Queue::default(),
            wakes: [Some(start_us); 2],
            dice: Part::Setup.dice(seed),
            start_us,
            since_us: start_us,
            pinned_bytes: 0,
            pinned: Level::default(),
            waiting: Level::default(),
            setting: *setting,
            hosts,
            flows,
            numbers,
        };
        for number in 0..run.flows.len() {
            run.flows[number].due_us = start_us + run.pause_us();
        }
        Ok(run)
    }

    /// Draws the time in microseconds between two messages of a connection. The time is 0 if the setting has
    /// no load.
    fn pause_us(&mut self) -> u64 {
        let Setting { load, message, connections, rate_mbit, .. } = self.setting;
        let Some(load) = load else { return 0 };
        let mean = message as u64 * 8 * 100 * u64::from(connections) / rate_mbit / u64::from(load).max(1);
        self.dice.between(mean / 2, mean + mean / 2)
    }

    fn carry_out(&mut self) -> Result<(), String> {
        while !self.is_done() {
            let Some(next_us) = self.next_us() else {
                return Err("no event is left, but not all messages are delivered".into());
            };
            self.hosts.now_us = self.hosts.now_us.max(next_us);
            if self.hosts.now_us > self.start_us + LIMIT_US {
                return Err("the run does not end".into());
            }
            self.step()?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.flows.iter().all(|flow| flow.delivered == self.setting.messages)
    }

    fn next_us(&self) -> Option<u64> {
        let wakes = self.wakes.iter().flatten().copied();
        let due = self.flows.iter().filter(|flow| self.may_post(flow)).map(|flow| flow.due_us);
        self.arrivals.next_us().into_iter().chain(wakes).chain(due).min()
    }

    fn may_post(&self, flow: &Flow) -> bool {
        flow.has_room() && flow.posted() < self.setting.messages
    }

    fn step(&mut self) -> Result<(), String> {
        let now_us = self.hosts.now_us;
        for number in 0..self.flows.len() {
            while self.may_post(&self.flows[number]) && self.flows[number].due_us <= now_us {
                let flow = &self.flows[number];
                // Without a load, the next message is due when a slot is free.
                let due_us = if self.setting.load.is_none() { now_us } else { flow.due_us };
                let next_us = due_us + self.pause_us();
                self.flows[number].due_us = due_us;
                self.flows[number].post(next_us)?;
                self.wakes[0] = Some(now_us);
            }
        }
        while let Some((side, frame)) = self.arrivals.pop(now_us) {
            let flow = if side == 1 { self.flow_of(&frame) } else { None };
            if let (Some(number), Some(tcp)) = (flow, parse(&frame)) {
                self.flows[number].arriving(now_us, &tcp)?;
            }
            let before = self.dropped();
            self.hosts.sockets[side].deliver(frame);
            self.poll(side)?;
            if let Some(number) = flow {
                let refused = self.dropped() > before;
                self.flows[number].arrived(now_us, refused)?;
            }
            self.completions(side)?;
            self.look();
        }
        for side in [0, 1] {
            if self.wakes[side].is_some_and(|at_us| at_us <= now_us) {
                self.poll(side)?;
                self.completions(side)?;
            }
        }
        self.look();
        Ok(())
    }

    /// Returns the number of bytes beyond a hole that the receiver's TCP has dropped because of a limit.
    fn dropped(&self) -> u64 {
        self.hosts.hosts[1].engine.counters().stack.rx_out_of_order_dropped_bytes
    }

    fn flow_of(&self, frame: &[u8]) -> Option<usize> {
        let number = parse(frame)?.src_port.checked_sub(FIRST_PORT)?;
        (usize::from(number) < self.flows.len()).then_some(number.into())
    }

    /// Polls one host, and puts the frames that it sends on the wire.
    fn poll(&mut self, side: usize) -> Result<(), String> {
        let now_us = self.hosts.now_us;
        let busy = self.hosts.hosts[side].poll_us(now_us);
        for bytes in self.hosts.sockets[side].take_sent() {
            if side == 0
                && let (Some(number), Some(tcp)) = (self.flow_of(&bytes), parse(&bytes))
            {
                self.flows[number].follow.sent_segment(&tcp, &bytes);
            }
            if let Some(at_us) = self.wires[side].carry(now_us, bytes.len()) {
                self.arrivals.push(at_us, (1 - side, bytes));
            }
        }
        self.wakes[side] = if busy { Some(now_us) } else { self.hosts.hosts[side].next_us(now_us) };
        Ok(())
    }

    fn completions(&mut self, side: usize) -> Result<(), String> {
        let now_us = self.hosts.now_us;
        while let Some(wc) = self.hosts.hosts[side].cq.poll_one() {
            if wc.status != iwarp::verbs::WcStatus::Success {
                return Err(format!("a request of host {side} failed: {}", text(wc.status)));
            }
            if side == 1 {
                let number = self.numbers.get(&wc.qp_num).ok_or("a completion of an unknown queue pair")?;
                self.flows[*number].completed(now_us, &wc)?;
            }
        }
        Ok(())
    }

    /// Records the state of the receiver.
    fn look(&mut self) {
        let us = self.hosts.now_us - self.since_us;
        self.since_us = self.hosts.now_us;
        self.pinned.hold(self.pinned_bytes, us);
        for flow in &self.flows {
            self.waiting.hold(flow.follow.waiting, us);
        }
        self.pinned_bytes = self.hosts.hosts[1].pinned_bytes();
    }

    fn outcome(self) -> Outcome {
        let mut outcome = Outcome {
            payload: u64::from(self.setting.connections)
                * self.setting.messages
                * self.setting.message as u64,
            time_us: self.hosts.now_us - self.start_us,
            lost: self.wires[0].lost(),
            dropped: self.dropped(),
            pinned: self.pinned,
            waiting: self.waiting,
            ..Outcome::default()
        };
        for flow in &self.flows {
            let Counts { behind, early } = flow.follow.counts;
            outcome.behind += behind;
            outcome.early += early;
            outcome.completion_us.merge(&flow.completion_us);
            outcome.placement_us.merge(&flow.placement_us);
        }
        outcome
    }
}
