//! The scenarios. Each has a name and draws its parameters from the seed.

mod base;
mod faults;

use super::dice::Part;
use super::setup::Setup;
use testkit::dice::Dice;

/// A scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Its faults.
    pub about: &'static str,
    draw: fn(&mut Dice, &mut Setup),
}

impl Scenario {
    /// The parameters of the run of `seed`.
    pub fn setup(&self, seed: u64) -> Setup {
        let mut dice = Part::Setup.dice(seed);
        let mut setup = base::draw(&mut dice, Setup::keys(seed));
        (self.draw)(&mut dice, &mut setup);
        // Not drawn, so that a run is the same with and without: every other seed takes the general way.
        setup.set_header_prediction(seed.is_multiple_of(2) && !general_way());
        setup
    }

    /// The scenario of this name.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }
}

/// Whether the environment asks that no run predicts headers: `UWARP_GENERAL_WAY`.
fn general_way() -> bool {
    std::env::var_os("UWARP_GENERAL_WAY").is_some()
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "clean", about: "no faults: nothing may be retransmitted", draw: faults::clean },
    Scenario { name: "random-loss", about: "frames lost at random", draw: faults::random_loss },
    Scenario { name: "burst-loss", about: "frames lost in bursts", draw: faults::burst_loss },
    Scenario {
        name: "named-loss",
        about: "selected segments lost, some repeatedly",
        draw: faults::named_loss,
    },
    Scenario { name: "reorder", about: "frames delayed", draw: faults::reorder },
    Scenario { name: "duplicate", about: "frames duplicated", draw: faults::duplicate },
    Scenario {
        name: "corrupt",
        about: "bits flipped, visible to checksums or only to MPA's CRC",
        draw: faults::corrupt,
    },
    Scenario { name: "middlebox", about: "segments split and joined on the way", draw: faults::middlebox },
    Scenario {
        name: "lro",
        about: "segments joined by the receiver's port (LRO), and some loss",
        draw: faults::lro,
    },
    Scenario { name: "ecn", about: "congestion marks, and a short queue", draw: faults::ecn },
    Scenario { name: "mtu-drop", about: "a smaller MTU, reported to the sender", draw: faults::mtu_drop },
    Scenario { name: "blackhole", about: "a smaller MTU, packets dropped silently", draw: faults::blackhole },
    Scenario { name: "mtu-rise", about: "a smaller MTU for a time, reported or not", draw: faults::mtu_rise },
    Scenario { name: "blackout", about: "everything lost for a time", draw: faults::blackout },
    Scenario { name: "flap", about: "the link goes down and up", draw: faults::flap },
    Scenario {
        name: "slow-reader",
        about: "windows smaller than a segment, slow readers",
        draw: faults::slow_reader,
    },
    Scenario { name: "crowded", about: "little memory for out-of-order bytes", draw: faults::crowded },
    Scenario { name: "forged", about: "forged segments and ICMP errors", draw: faults::forged },
    Scenario {
        name: "taken-back",
        about: "bytes selectively acknowledged and then dropped (reneging)",
        draw: faults::taken_back,
    },
    Scenario {
        name: "backlog",
        about: "more connections at once than a listener's backlog",
        draw: faults::backlog,
    },
    Scenario { name: "again", about: "ports reused at once", draw: faults::again },
    Scenario {
        name: "not-ready",
        about: "messages that wait for receives, and some loss and reordering",
        draw: faults::not_ready,
    },
    Scenario { name: "faulty", about: "requests that the peer has to refuse", draw: faults::faulty },
    Scenario {
        name: "stuck-port",
        about: "ports that accept no frames and pools without buffers, for a time",
        draw: faults::stuck_port,
    },
    Scenario { name: "stopped", about: "a host stopped for a time", draw: faults::stopped },
    Scenario {
        name: "queues",
        about: "four engines on each host, on queues that are chosen by wrong rules, and some of the other faults",
        draw: faults::queues,
    },
    Scenario { name: "everything", about: "several of these at once", draw: faults::everything },
];
