//! Peers that connect, send a Terminate, and connect again. Every second one first provokes a Terminate and
//! answers it with its own. The victim never answers a Terminate with a Terminate.

use std::collections::HashSet;

use iwarp::rdmap::{Terminate, TerminateError};

use super::arena::{Actor, Arena, Scene};
use super::puppet::{Manners, untagged, write};
use super::siege::{Besieger, Siege, lift};
use super::{Attack, Scenario, as_it_is, check, refusals};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "terminate-loop",
    about: "Terminates, some in answer to one, on many connections in a row",
    configure: as_it_is,
    attack: |arena| {
        let siege = Siege::new(arena.macs(), PEERS, Manners::default());
        Box::new(TerminateLoop { siege, provoking: HashSet::new(), terminated: 0, provoked: 0, ended: 0 })
    },
};

/// Connections at a time.
const PEERS: usize = 64;
/// An STag that does not exist.
const NOBODYS: u32 = 0x00ff_ff00;

struct TerminateLoop {
    siege: Siege,
    /// Puppets that have provoked a Terminate and whose connection has not ended.
    provoking: HashSet<u32>,
    /// Terminates that came first, and those after a provoked one.
    terminated: u64,
    provoked: u64,
    ended: u64,
}

impl Actor for TerminateLoop {
    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(number) = self.siege.next_ready() {
            let provokes = number % 2 == 1;
            let puppet = self.siege.troupe.get(number);
            if provokes {
                self.provoked += 1;
                self.provoking.insert(number);
                let fpdu = puppet.fpdu(&write(NOBODYS, 0, &[0; 8]));
                let frame = puppet.say(&fpdu);
                puppet.queue(frame);
            } else {
                self.terminated += 1;
            }
            let terminate = Terminate::local(TerminateError::StreamCatastrophic).to_bytes();
            let fpdu = puppet.fpdu(&untagged(0x47, 2, 1, &terminate));
            let frame = puppet.say(&fpdu);
            puppet.queue(frame);
            self.siege.troupe.wake_one(number);
        }
        self.siege.frame(scene.now_us)
    }

    fn hear(&mut self, frame: &[u8]) {
        self.siege.hear(frame);
        while let Some(ended) = self.siege.next_ended() {
            if !ended.connected {
                continue;
            }
            self.ended += 1;
            let provoked = self.provoking.remove(&ended.number);
            let expected: &[_] = if provoked { &[TerminateError::DdpInvalidStag.codes()] } else { &[] };
            let as_specified = ended.terminates == expected && !ended.reset;
            if !as_specified {
                self.siege.blame(|| format!("provoked {provoked}, and heard {ended:?}"));
            }
        }
    }
}

impl Besieger for TerminateLoop {
    fn siege(&mut self) -> &mut Siege {
        &mut self.siege
    }
}

impl Attack for TerminateLoop {
    fn judge(&mut self, arena: &mut Arena) -> Result<String, String> {
        lift(self, arena)?;
        let counters = arena.victim.engine.counters();
        let (sent, heard) = (counters.tx_terminates, counters.rx_terminates);
        let (provoked, terminated) = (self.provoked, self.terminated);
        check(sent == provoked, || format!("{sent} Terminates were sent, {provoked} were provoked"))?;
        check(heard == terminated, || format!("{heard} Terminates were processed, {terminated} came first"))?;
        check(self.ended == provoked + terminated, || format!("{} connections have ended", self.ended))?;
        let refused = refusals(arena, PEERS)?;
        Ok(format!(
            "{terminated} answered by a close, {provoked} provoked, none in answer to another; {refused}"
        ))
    }
}
