//! The rules by which the device of a host chooses the queue of a frame: RSS, and wrong rules.

use dp::{Flow, Rss, RssFields};

/// The rule by which a device chooses queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The hash and the table that it announces.
    #[default]
    Rss,
    /// A table other than the announced one.
    OtherTable,
    /// It announces no rule, and hashes with another key.
    Unannounced,
    /// All frames go to the first queue.
    FirstQueue,
    /// Each frame goes to another queue.
    InTurn,
    /// The table changes each time after this many frames.
    Moving(u64),
}

/// The queues of a host, and the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringPlan {
    /// Queues, and engines.
    pub queues: usize,
    /// The rule.
    pub rule: Rule,
}

impl Default for SteeringPlan {
    fn default() -> Self {
        Self { queues: 1, rule: Rule::default() }
    }
}

/// The device.
#[derive(Clone, Debug)]
pub struct Steering {
    plan: SteeringPlan,
    rss: Rss,
    /// Frames so far.
    frames: u64,
}

/// Entries of the table.
const TABLE: usize = 128;

impl Steering {
    /// A device with this plan.
    pub fn new(plan: &SteeringPlan) -> Self {
        // Any key with bits in all places.
        let key: Vec<u8> =
            (0..dp::rss::RSS_KEY_BYTES).map(|at| (at as u8).wrapping_mul(167) ^ 0x6d).collect();
        let table: Vec<u16> = (0..TABLE).map(|entry| (entry % plan.queues) as u16).collect();
        let ports = RssFields::Ports;
        let rss = Rss::new(&key, &table, ports, ports)
            .expect("the key is long enough, and the table a power of two");
        Self { plan: *plan, rss, frames: 0 }
    }

    /// The rule that the device announces.
    pub fn announced(&self) -> Option<Rss> {
        (self.plan.queues > 1 && self.plan.rule != Rule::Unannounced).then(|| self.rss.clone())
    }

    /// The queue of the next frame.
    pub fn queue(&mut self, frame: &[u8]) -> usize {
        let queues = self.plan.queues;
        if queues == 1 {
            return 0;
        }
        self.frames += 1;
        let by_hash = Flow::of_frame(frame).map_or(0, |flow| usize::from(self.rss.queue(&flow)));
        match self.plan.rule {
            Rule::Rss => by_hash,
            Rule::OtherTable | Rule::Unannounced => (by_hash + 1) % queues,
            Rule::FirstQueue => 0,
            Rule::InTurn => self.frames as usize % queues,
            Rule::Moving(frames) => (by_hash + (self.frames / frames) as usize) % queues,
        }
    }
}
