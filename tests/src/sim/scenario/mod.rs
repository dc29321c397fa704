//! The scenarios of the simulator. A scenario has a name and draws its parameters from the seed.

mod base;
mod faults;

use super::dice::Part;
use super::setup::Setup;
use testkit::dice::Dice;

/// A scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name of the scenario.
    pub name: &'static str,
    /// The faults of the scenario.
    pub about: &'static str,
    draw: fn(&mut Dice, &mut Setup),
}

impl Scenario {
    /// Returns the parameters of the run of `seed`.
    pub fn setup(&self, seed: u64) -> Setup {
        let mut dice = Part::Setup.dice(seed);
        let mut setup = base::draw(&mut dice, Setup::keys(seed));
        (self.draw)(&mut dice, &mut setup);
        // Every second seed disables header prediction. The dice do not decide this, so that a run is the
        // same with and without header prediction.
        setup.set_header_prediction(seed.is_multiple_of(2) && !general_way());
        setup
    }

    /// Returns the scenario of this name.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }
}

/// Whether the environment variable `UWARP_GENERAL_WAY` disables header prediction in all runs.
fn general_way() -> bool {
    std::env::var_os("UWARP_GENERAL_WAY").is_some()
}

const fn scenario(name: &'static str, about: &'static str, draw: fn(&mut Dice, &mut Setup)) -> Scenario {
    Scenario { name, about, draw }
}

/// All scenarios of the simulator.
pub const SCENARIOS: &[Scenario] = &[
    scenario("clean", "no faults: nothing may be retransmitted", faults::clean),
    scenario("random-loss", "frames lost at random", faults::random_loss),
    scenario("burst-loss", "frames lost in bursts", faults::burst_loss),
    scenario("named-loss", "selected segments lost, some repeatedly", faults::named_loss),
    scenario("reorder", "frames delayed", faults::reorder),
    scenario("duplicate", "frames duplicated", faults::duplicate),
    scenario("corrupt", "bits flipped, visible to checksums or only to MPA's CRC", faults::corrupt),
    scenario("middlebox", "segments split and joined on the way", faults::middlebox),
    scenario("lro", "segments joined by the receiver's port (LRO), and some loss", faults::lro),
    scenario("ecn", "congestion marks, and a short queue", faults::ecn),
    scenario("mtu-drop", "a smaller MTU, reported to the sender", faults::mtu_drop),
    scenario("blackhole", "a smaller MTU, packets dropped silently", faults::blackhole),
    scenario("mtu-rise", "a smaller MTU for a time, reported or not", faults::mtu_rise),
    scenario("blackout", "everything lost for a time", faults::blackout),
    scenario("flap", "the link goes down and up", faults::flap),
    scenario("slow-reader", "windows smaller than a segment, slow readers", faults::slow_reader),
    scenario("crowded", "little memory for out-of-order bytes", faults::crowded),
    scenario("forged", "forged segments and ICMP errors", faults::forged),
    scenario("taken-back", "bytes selectively acknowledged and then dropped (reneging)", faults::taken_back),
    scenario("backlog", "more connections at once than a listener's backlog", faults::backlog),
    scenario("again", "ports reused at once", faults::again),
    scenario("not-ready", "messages that wait for receives, and some loss and reordering", faults::not_ready),
    scenario("faulty", "requests that the peer has to refuse", faults::faulty),
    scenario(
        "stuck-port",
        "ports that accept no frames and pools without buffers, for a time",
        faults::stuck_port,
    ),
    scenario("stopped", "a host stopped for a time", faults::stopped),
    scenario(
        "queues",
        "four engines on each host, on queues that are chosen by wrong rules, and some of the other faults",
        faults::queues,
    ),
    scenario("everything", "several of these at once", faults::everything),
];
