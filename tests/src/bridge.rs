//! A wire between two devices that loses and delays: the simulator's link with real ports at its ends and the
//! clock of the machine, where the kernel has no netem.

use std::thread;
use std::time::Duration;

use dp::{Burst, Clock, Port};

use crate::sim::coverage::Occurrence;
use crate::sim::link::{Link, Outcome, Plan};
use crate::sim::queue::Queue;
use crate::witness::Witness;

/// Rest of a bridge that has nothing to do: small beside the delays it makes, and the ends need the core as
/// well.
const REST: Duration = Duration::from_micros(50);

/// Frames that one side's full ring keeps waiting, at most; more are lost, and counted.
const WAITING: usize = 4096;

/// What passed, in frames.
#[derive(Clone, Debug, Default)]
pub struct Passed {
    /// Taken from the left and from the right.
    pub taken: [u64; 2],
    /// Given to the right and to the left.
    pub given: [u64; 2],
    /// Lost by the plan, or in its queue.
    pub lost: [u64; 2],
    /// Lost because the other device had no room: not by the plan.
    pub stuck: [u64; 2],
    /// Held back, so that others overtake them.
    pub reordered: [u64; 2],
    /// Cut in several.
    pub cut: [u64; 2],
    /// Joined to the one in front.
    pub joined: [u64; 2],
    /// What came from the left and from the right.
    pub witness: Witness,
}

/// Two ports with a link in each direction.
pub struct Bridge {
    ports: [Box<dyn Port>; 2],
    links: [Link; 2],
    /// Frames under way to each port.
    arriving: [Queue<Vec<u8>>; 2],
    leaving: [Burst; 2],
    waiting: [usize; 2],
    passed: Passed,
    clock: Clock,
}

impl Bridge {
    /// Joins two ports; both directions are like `plan`, with their own dice of `seed`.
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

    /// Carries frames until `limit` has passed, or it is told to stop.
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

    /// Takes frames from a port.
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

    /// What a link made of a frame from `side`.
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

    /// Gives a port what has arrived for it.
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
