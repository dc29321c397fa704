//! The rules by which the device of a host chooses the queue of a frame: RSS, and rules that differ from what
//! the device announces.

use dp::{Flow, Rss, RssFields};

/// The rule by which a device chooses the queue of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The device uses the hash and the table that it announces.
    #[default]
    Rss,
    /// The device uses a table other than the announced one.
    OtherTable,
    /// The device announces no rule.
    Unannounced,
    /// All frames go to the first queue.
    FirstQueue,
    /// The queues get the frames in turn, one frame each.
    InTurn,
    /// The table changes each time this number of frames has arrived.
    Moving(u64),
}

/// The queues of a host, and the rule of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringPlan {
    /// Number of queues, and of engines.
    pub queues: usize,
    /// The rule by which the device chooses queues.
    pub rule: Rule,
}

impl Default for SteeringPlan {
    fn default() -> Self {
        Self { queues: 1, rule: Rule::default() }
    }
}

/// The device of a host.
#[derive(Clone, Debug)]
pub struct Steering {
    plan: SteeringPlan,
    rss: Rss,
    /// Number of frames so far.
    frames: u64,
}

/// Number of entries of the RSS indirection table.
const TABLE: usize = 128;

impl Steering {
    /// Returns a device with this plan.
    pub fn new(plan: &SteeringPlan) -> Self {
        // The key is arbitrary, with set bits in all of its parts.
        let key: Vec<u8> =
            (0..dp::rss::RSS_KEY_BYTES).map(|at| (at as u8).wrapping_mul(167) ^ 0x6d).collect();
        let table: Vec<u16> = (0..TABLE).map(|entry| (entry % plan.queues) as u16).collect();
        let ports = RssFields::Ports;
        let rss = Rss::new(&key, &table, ports, ports)
            .expect("the key is long enough, and the table a power of two");
        Self { plan: *plan, rss, frames: 0 }
    }

    /// Returns the rule that the device announces, or `None` if it has one queue or announces no rule.
    pub fn announced(&self) -> Option<Rss> {
        (self.plan.queues > 1 && self.plan.rule != Rule::Unannounced).then(|| self.rss.clone())
    }

    /// Returns the queue of the next frame.
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
