//! Runs the victim, its honest client and an attacker in turn on one thread. The clock advances with the
//! victim's own work.
//!
//! The clock is the processor time of the victim's thread, except for counted runs (`counted.rs`). Therefore
//! an attack that keeps the victim busy slows everything, and the work of the other hosts costs no time. When
//! no host has anything to do, the clock advances to the next deadline, so the time for which a host waits
//! counts as well.

use std::collections::HashMap;
use std::time::Duration;

use iwarp::engine::EngineConfig;
use iwarp::verbs::{CmEventKind, ConnParam, ListenOptions, QpInit};
use tcp_lite::Instant;
use tcp_lite::facade::EthernetAddress;

use super::far_end::{FarEnd, port_with_far_end};
use super::honest::{BATCH_BYTES, Honest};
use super::segment::arp_reply;
use super::victim::{CLIENT, Clock, PORT, ROUTER, VICTIM, Victim};
use hosts::{Host, context};
use testkit::packet::{flag, parse};

/// Number of honest connections.
pub const HONEST: usize = 4;
/// The router's Ethernet address.
pub const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
/// The honest client's Ethernet address.
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// The victim's Ethernet address.
pub const VICTIM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Maximum number of frames that an unpaced attacker sends at a time.
const UNPACED: usize = 64;
/// A run fails after this time without progress of the honest connections.
const STANDSTILL: Duration = Duration::from_secs(30);

/// The part of an honest connection's state that an attacker on the path could see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// The client's port.
    pub port: u16,
    /// The client's next sequence number.
    pub seq: u32,
    /// The client's last acknowledgement number.
    pub ack: u32,
}

/// The state that an attacker can see.
pub struct Scene<'a> {
    /// The time in microseconds.
    pub now_us: u64,
    /// The honest connections.
    pub flows: &'a [Flow],
}

/// A host that sends frames next to the honest client.
pub trait Actor {
    /// Whether the attacker's preparation is done, so that rounds may begin.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns the attacker's next frame, or `None` if the attacker waits for a frame or for time to pass.
    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>>;

    /// Handles a frame from the victim to an address behind the router.
    fn on_frame(&mut self, _frame: &[u8]) {}

    /// Handles a bare ACK from the victim to the honest client.
    fn on_client_ack(&mut self, _frame: &[u8]) {}
}

/// The results of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Number of payload bytes of the completed honest batches.
    pub bytes: u64,
    /// Duration of the round in nanoseconds.
    pub ns: u64,
    /// The victim's processor time in this round, in nanoseconds.
    pub cpu_ns: u64,
    /// Number of frames that the honest client has sent.
    pub legitimate: u64,
    /// Number of frames that the attacker, or an actor in its place, has sent.
    pub others: u64,
}

impl Round {
    /// Returns the honest goodput, in megabits per second.
    pub fn goodput(&self) -> f64 {
        self.bytes as f64 * 8000.0 / self.ns as f64
    }
}

/// The three hosts and the clock.
pub struct Arena {
    /// The host under attack.
    pub victim: Victim,
    client: Host,
    client_far_end: FarEnd,
    honest: Vec<Honest>,
    flows: Vec<Flow>,
    by_port: HashMap<u16, usize>,
    /// Time in nanoseconds in which no host had anything to do.
    idle_ns: u64,
    /// If set, collects the lengths of the attacker's frames.
    pub lengths: Option<Vec<usize>>,
    /// Maximum number of packet buffers that the victim held.
    pub held_most: usize,
    /// Number of frames that the attacker may still send to match the frames of the honest client.
    owed: u64,
}

impl Arena {
    /// Creates and connects the hosts, with the victim's processor time as the clock.
    pub fn new(configure: &dyn Fn(&mut EngineConfig, &mut ListenOptions)) -> Self {
        Self::with_clock(configure, Clock::Processor)
    }

    /// Creates and connects the hosts, with any clock.
    pub fn with_clock(configure: &dyn Fn(&mut EngineConfig, &mut ListenOptions), clock: Clock) -> Self {
        let victim = Victim::new(configure, clock);
        let (port, client_far_end) = port_with_far_end("client", CLIENT_MAC);
        let client = Host::new(context([2; 32]), port, &[&format!("{CLIENT}/24")], 1, |config| {
            config.stack.mac = EthernetAddress(CLIENT_MAC);
            config.stack.seed = [2; 32];
        });
        let mut arena = Self {
            victim,
            client,
            client_far_end,
            honest: Vec::new(),
            flows: Vec::new(),
            by_port: HashMap::new(),
            idle_ns: 0,
            lengths: None,
            held_most: 0,
            owed: 0,
        };
        for _ in 0..HONEST {
            let connected = arena.connect(&mut NoAttacker, PATIENCE);
            assert!(connected, "the honest client connects");
        }
        arena
    }

    /// Makes one more honest connection, while `other` sends its frames. Returns whether the connection was
    /// established within `patience`.
    pub fn connect(&mut self, other: &mut dyn Actor, patience: Duration) -> bool {
        let cq = self.client.context.create_cq(512, None).expect("a queue");
        let qp = self.client.pd.create_qp(&QpInit::new(&cq)).expect("a queue pair");
        let id = self.client.context.create_id(&self.client.channel);
        let remote = std::net::SocketAddr::from((VICTIM, PORT));
        id.connect(&qp, remote, &ConnParam::default()).expect("a route");
        let deadline = self.now_us() + patience.as_micros() as u64;
        let (mut established, mut failed) = (false, false);
        while !(established && self.victim.served.len() == 1) {
            if failed || self.now_us() >= deadline {
                return false;
            }
            self.step(other, Pace::Equal);
            while let Some(event) = self.client.channel.poll() {
                established |= matches!(event.kind, CmEventKind::Established { .. });
                failed |=
                    matches!(event.kind, CmEventKind::ConnectError { .. } | CmEventKind::Rejected { .. });
            }
        }
        let served = self.victim.served.pop().expect("the victim accepted the connection");
        let number = self.honest.len() as u64 + 1;
        self.honest.push(Honest::new(&self.client.pd, qp, id, cq, served, number));
        true
    }

    /// Returns the time, in microseconds.
    pub fn now_us(&self) -> u64 {
        (self.victim.cpu_ns + self.idle_ns) / 1000
    }

    /// Returns the Ethernet addresses of the router and of the victim, for frames from behind the router.
    pub fn macs(&self) -> [[u8; 6]; 2] {
        [ROUTER_MAC, VICTIM_MAC]
    }

    /// Runs the honest connections until `batches` batches are done. The attacker may send as many frames as
    /// the client.
    ///
    /// # Errors
    /// If an honest connection fails, or if no honest batch is done within `STANDSTILL`.
    pub fn round(&mut self, other: &mut dyn Actor, batches: u64) -> Result<Round, String> {
        self.run(other, |arena, done| {
            for honest in &mut arena.honest {
                honest.post();
            }
            done >= batches
        })
    }

    fn run(
        &mut self,
        other: &mut dyn Actor,
        mut enough: impl FnMut(&mut Self, u64) -> bool,
    ) -> Result<Round, String> {
        let start = (self.done(), self.victim.cpu_ns, self.idle_ns);
        let mut round = Round::default();
        let (mut last_done, mut progress_us) = (start.0, self.now_us());
        while !enough(self, self.done() - start.0) {
            let (legitimate, others) = self.step(other, Pace::Equal);
            round.legitimate += legitimate;
            round.others += others;
            for honest in &mut self.honest {
                honest.check_completions()?;
            }
            if self.done() > last_done {
                (last_done, progress_us) = (self.done(), self.now_us());
            }
            if self.now_us() - progress_us > STANDSTILL.as_micros() as u64 {
                return Err(format!("no honest batch was done within {STANDSTILL:?}"));
            }
        }
        round.bytes = (self.done() - start.0) * BATCH_BYTES;
        round.cpu_ns = self.victim.cpu_ns - start.1;
        round.ns = round.cpu_ns + self.idle_ns - start.2;
        Ok(round)
    }

    fn done(&self) -> u64 {
        self.honest.iter().map(|honest| honest.done).sum()
    }

    /// Whether all honest connections are established.
    pub fn all_established(&self) -> bool {
        self.honest.iter().all(Honest::is_established)
    }

    /// Lets the attacker send without honest work, until `done` returns `true` or `time` has passed. Returns
    /// the last result of `done`.
    pub fn alone<A: Actor>(
        &mut self,
        other: &mut A,
        time: Duration,
        mut done: impl FnMut(&mut Self, &mut A) -> bool,
    ) -> bool {
        let deadline = self.now_us() + time.as_micros() as u64;
        while self.now_us() < deadline {
            if done(self, other) {
                return true;
            }
            self.step(other, Pace::Free(deadline));
        }
        done(self, other)
    }

    /// Lets the attacker prepare, for example establish its connections.
    ///
    /// # Errors
    /// If the attacker is not ready within a minute.
    pub fn prepare(&mut self, other: &mut dyn Actor) -> Result<(), String> {
        let deadline = self.now_us() + 60_000_000;
        while !other.is_ready() {
            if self.now_us() >= deadline {
                return Err("the attacker's connections are not established".into());
            }
            self.step(other, Pace::Free(deadline));
        }
        Ok(())
    }

    /// Polls all hosts. Returns the number of frames of the client, and of frames of the attacker.
    fn step(&mut self, other: &mut dyn Actor, pace: Pace) -> (u64, u64) {
        let now_us = self.now_us();
        let now = Instant::from_micros(now_us as i64);
        let mut busy = self.client.engine.poll_at(now);
        let sent = self.client_far_end.take_sent();
        let legitimate = sent.len() as u64;
        let mut others = 0;
        match pace {
            Pace::Equal => self.owed += legitimate,
            Pace::Free(_) => self.owed = UNPACED as u64,
        }
        // Delivers frames of the client and of the attacker in turns, as long as both have frames.
        for frame in sent {
            self.learn(&frame);
            self.victim.far_end.deliver(&frame);
            others += self.other_sends(other, now_us);
        }
        while self.owed > 0 {
            let sent = self.other_sends(other, now_us);
            if sent == 0 {
                break;
            }
            others += sent;
        }
        busy |= self.victim.poll(now) || others > 0;
        self.held_most = self.held_most.max(self.victim.far_end.held());
        for frame in self.victim.far_end.take_sent() {
            busy = true;
            self.route(other, &frame);
        }
        if !busy {
            self.sleep(now, pace);
        }
        (legitimate, others)
    }

    /// Sends one frame of the attacker, if the attacker has a frame and its pace allows it. Returns the
    /// number of sent frames.
    fn other_sends(&mut self, other: &mut dyn Actor, now_us: u64) -> u64 {
        if self.owed == 0 {
            return 0;
        }
        let Some(frame) = other.frame(&Scene { now_us, flows: &self.flows }) else { return 0 };
        self.owed -= 1;
        if let Some(lengths) = &mut self.lengths {
            lengths.push(frame.len());
        }
        self.victim.far_end.deliver(&frame);
        1
    }

    /// Delivers a frame of the victim.
    fn route(&mut self, other: &mut dyn Actor, frame: &[u8]) {
        if frame[..6] == CLIENT_MAC {
            if parse(frame).is_some_and(|tcp| tcp.is_empty() && tcp.flags == flag::ACK) {
                other.on_client_ack(frame);
            }
            return self.client_far_end.deliver(frame);
        }
        if frame[..6] == ROUTER_MAC {
            return other.on_frame(frame);
        }
        if let Some(reply) = arp_reply(frame, ROUTER_MAC, ROUTER) {
            return self.victim.far_end.deliver(&reply);
        }
        self.client_far_end.deliver(frame);
    }

    /// Updates the state of a connection from a frame of its client.
    fn learn(&mut self, frame: &[u8]) {
        let Some(tcp) = parse(frame) else { return };
        let at = *self.by_port.entry(tcp.src_port).or_insert_with(|| {
            self.flows.push(Flow { port: tcp.src_port, ..Flow::default() });
            self.flows.len() - 1
        });
        let end = tcp.seq.wrapping_add(tcp.len() as u32 + u32::from(tcp.has(flag::SYN)));
        let flow = &mut self.flows[at];
        if flow.seq == 0 || end.wrapping_sub(flow.seq) as i32 > 0 {
            flow.seq = end;
        }
        flow.ack = tcp.ack;
    }

    /// Advances the clock to the next deadline of a host.
    fn sleep(&mut self, now: Instant, pace: Pace) {
        let deadlines = [self.client.engine.next_deadline(now), self.victim.host.engine.next_deadline(now)];
        let next = deadlines.into_iter().flatten().min().map_or(i64::MAX, |at| at.total_micros());
        let limit = match pace {
            Pace::Free(deadline_us) => deadline_us as i64,
            Pace::Equal => now.total_micros() + 1_000_000,
        };
        let wait_us = (next.min(limit) - now.total_micros()).max(1) as u64;
        self.idle_ns += wait_us * 1000;
    }
}

/// The number of frames that the attacker may send.
#[derive(Clone, Copy)]
enum Pace {
    /// As many frames as the client sends.
    Equal,
    /// As many frames as the attacker has, until this time in microseconds.
    Free(u64),
}

/// Time limit of an honest connect, longer than any honest connect should take.
const PATIENCE: Duration = Duration::from_secs(5);

/// An attacker that sends nothing.
pub struct NoAttacker;

impl Actor for NoAttacker {
    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        None
    }
}
