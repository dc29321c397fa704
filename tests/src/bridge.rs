//! A wire with loss and delay between two devices, for kernels without netem. This module runs the
//! simulator's link between real ports, by the machine's clock.

use std::thread;
use std::time::Duration;

use dp::{Burst, Clock, Port};

use crate::sim::coverage::Occurrence;
use crate::sim::link::{Link, Outcome, Plan};
use crate::sim::queue::Queue;
use crate::witness::Witness;

/// Time for which an idle bridge sleeps: short compared with its delays. The bridge has to sleep because the
/// two hosts need the same core.
const REST: Duration = Duration::from_micros(50);

/// Maximum number of frames in flight to one side. Further frames are lost and counted.
const WAITING: usize = 4096;

/// What happened to the frames so far. Of each two numbers, the first is for frames from the left, and the
/// second for frames from the right.
#[derive(Clone, Debug, Default)]
pub struct Passed {
    /// Number of frames received from the left and from the right.
    pub taken: [u64; 2],
    /// Number of frames sent to the right and to the left.
    pub given: [u64; 2],
    /// Number of frames lost according to the plan, or because the queue of the link was full.
    pub lost: [u64; 2],
    /// Number of frames lost because too many frames were in flight, or because no buffer was free. This is
    /// not part of the plan.
    pub stuck: [u64; 2],
    /// Number of frames that were delayed, so that later frames arrived first.
    pub reordered: [u64; 2],
    /// Number of frames that were split into several frames.
    pub cut: [u64; 2],
    /// Number of frames that were joined to the previous frame.
    pub joined: [u64; 2],
    /// What the frames from the left and from the right showed.
    pub witness: Witness,
}

/// Two ports with a link in each direction.
pub struct Bridge {
    ports: [Box<dyn Port>; 2],
    links: [Link; 2],
    /// Frames in flight to each port.
    arriving: [Queue<Vec<u8>>; 2],
    leaving: [Burst; 2],
    waiting: [usize; 2],
    passed: Passed,
    clock: Clock,
}

impl Bridge {
    /// Connects two ports. Both directions follow `plan`, with separate random numbers from `seed`.
    pub fn new(ports: [Box<dyn Port>; 2], plan: &Plan, seed: u64) -> Self {
        Self {
            ports,
            links: [0, 1].map(|side| Link::new(plan.clone(), seed, side)),
            arriving: Default::default(),
            leaving: Default::default(),
            waiting: [0; 2],
            passed: Passed::default(),
            clock: Clock::new(),
        }
    }

    /// Carries frames until `limit` has passed or `is_stopped` returns `true`. Returns the counters.
    pub fn run(mut self, limit: Duration, is_stopped: impl Fn() -> bool) -> Passed {
        let limit_us = limit.as_micros() as u64;
        while self.clock.now_us() < limit_us && !is_stopped() {
            let mut moved = false;
            for side in [0, 1] {
                moved |= self.take(side);
                moved |= self.give(side);
            }
            if !moved {
                thread::sleep(REST);
            }
        }
        for side in [0, 1] {
            let (link, coverage) = (&self.links[side], self.links[side].coverage());
            self.passed.lost[side] = link.lost();
            self.passed.reordered[side] = coverage.times(Occurrence::Delayed);
            (self.passed.cut[side], self.passed.joined[side]) =
                (coverage.times(Occurrence::Split), coverage.times(Occurrence::JoinedByMiddlebox));
        }
        self.passed
    }

    /// Receives frames from the port at `side`. Returns whether any frame was received.
    fn take(&mut self, side: usize) -> bool {
        let mut frames = Burst::new();
        let now_us = self.clock.now_us();
        let taken = self.ports[side].rx_burst(now_us, &mut frames);
        self.passed.taken[side] += taken as u64;
        for frame in frames {
            let mut bytes = vec![0; frame.len()];
            frame.copy_to(0, &mut bytes);
            self.passed.witness.see(side, &bytes);
            let outcome = self.links[side].carry(now_us, bytes);
            self.enter(side, outcome);
        }
        let outcome = self.links[side].poll(now_us);
        self.enter(side, outcome);
        taken > 0
    }

    /// Queues the frames that the link delivers for a frame from `side`.
    fn enter(&mut self, side: usize, outcome: Outcome) {
        let other = 1 - side;
        for (at_us, frame) in outcome.arrivals {
            if self.waiting[other] < WAITING {
                self.waiting[other] += 1;
                self.arriving[other].push(at_us, frame.bytes);
            } else {
                self.passed.stuck[side] += 1;
            }
        }
        for (at_us, bytes) in outcome.to_sender {
            self.waiting[side] += 1;
            self.arriving[side].push(at_us, bytes);
        }
    }

    /// Sends the frames that have arrived for the port at `side`. Returns whether any frame was sent.
    fn give(&mut self, side: usize) -> bool {
        let now_us = self.clock.now_us();
        let pool = self.ports[side].mempool().clone();
        while !self.leaving[side].is_full() {
            let Some(bytes) = self.arriving[side].pop(now_us) else { break };
            self.waiting[side] -= 1;
            let frame = pool.alloc().and_then(|mut frame| frame.append_slice(&bytes).then_some(frame));
            match frame {
                Some(frame) => self.leaving[side].push(frame),
                None => self.passed.stuck[1 - side] += 1,
            }
        }
        let given = self.ports[side].tx_burst(now_us, &mut self.leaving[side]);
        self.passed.given[1 - side] += given as u64;
        given > 0
    }
}
