//! The scenarios: each a named plan that draws its parameters from the seed.

mod base;
mod faults;

use super::dice::{Dice, Part};
use super::setup::Setup;

/// A named plan.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// How it is called.
    pub name: &'static str,
    /// What goes wrong in it.
    pub about: &'static str,
    draw: fn(&mut Dice, &mut Setup),
}

impl Scenario {
    /// The run of `seed`.
    pub fn setup(&self, seed: u64) -> Setup {
        let mut dice = Dice::new(seed, Part::Setup);
        let mut setup = base::draw(&mut dice, Setup::keys(seed));
        (self.draw)(&mut dice, &mut setup);
        setup
    }

    /// The scenario of this name.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "clean", about: "nothing: nothing is sent again", draw: faults::clean },
    Scenario { name: "random-loss", about: "frames lost by chance", draw: faults::random_loss },
    Scenario { name: "burst-loss", about: "frames lost in bursts", draw: faults::burst_loss },
    Scenario {
        name: "named-loss",
        about: "segments lost by name, some again and again",
        draw: faults::named_loss,
    },
    Scenario { name: "reorder", about: "frames held back", draw: faults::reorder },
    Scenario { name: "duplicate", about: "frames that arrive twice", draw: faults::duplicate },
    Scenario {
        name: "corrupt",
        about: "bits turned, for checksums or only for MPA's CRC to find",
        draw: faults::corrupt,
    },
    Scenario { name: "middlebox", about: "segments cut and joined on the way", draw: faults::middlebox },
    Scenario {
        name: "lro",
        about: "segments joined by the receiver's port, and some loss",
        draw: faults::lro,
    },
    Scenario { name: "ecn", about: "congestion marked, and a short queue", draw: faults::ecn },
    Scenario { name: "mtu-drop", about: "a smaller MTU, and the sender is told", draw: faults::mtu_drop },
    Scenario { name: "blackhole", about: "a smaller MTU, and nobody is told", draw: faults::blackhole },
    Scenario { name: "mtu-rise", about: "a smaller MTU for a time, told or not", draw: faults::mtu_rise },
    Scenario { name: "blackout", about: "everything lost for a time", draw: faults::blackout },
    Scenario { name: "flap", about: "carrier lost and found", draw: faults::flap },
    Scenario {
        name: "slow-reader",
        about: "windows below a segment, readers that take their time",
        draw: faults::slow_reader,
    },
    Scenario { name: "crowded", about: "little memory for what comes out of order", draw: faults::crowded },
    Scenario { name: "forged", about: "segments and ICMP errors of somebody else", draw: faults::forged },
    Scenario {
        name: "taken-back",
        about: "bytes acknowledged selectively and then forgotten",
        draw: faults::taken_back,
    },
    Scenario {
        name: "backlog",
        about: "more connections at once than a listener has room for",
        draw: faults::backlog,
    },
    Scenario { name: "again", about: "ports used again at once", draw: faults::again },
    Scenario { name: "faulty", about: "requests that the peer has to refuse", draw: faults::faulty },
    Scenario {
        name: "stuck-port",
        about: "ports that take nothing and pools without a buffer, for a time",
        draw: faults::stuck_port,
    },
    Scenario { name: "stopped", about: "a host stopped for a time", draw: faults::stopped },
    Scenario { name: "everything", about: "several of these at once", draw: faults::everything },
];
