//! Peers that connect, send a Terminate, and connect again. Every second peer sends a Write that provokes a
//! Terminate of the victim, and its own Terminate right behind the Write. The victim never answers a
//! Terminate with a Terminate.

use std::collections::HashSet;

use iwarp::rdmap::{Terminate, TerminateError};

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, untagged, write};
use super::reconnects::{ReconnectingAttacker, Reconnects, finish};
use super::{Attack, Scenario, as_it_is, check, refusals};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "terminate-loop",
    about: "Terminates, some in answer to one, on many connections in a row",
    configure: as_it_is,
    attack: |arena| {
        let reconnects = Reconnects::new(arena.macs(), PEERS, PeerOptions::default());
        Box::new(TerminateLoop {
            reconnects,
            provoking: HashSet::new(),
            terminated: 0,
            provoked: 0,
            ended: 0,
        })
    },
};

/// Number of connections at a time.
const PEERS: usize = 64;
/// An STag that does not exist.
const NOBODYS: u32 = 0x00ff_ff00;

struct TerminateLoop {
    reconnects: Reconnects,
    /// Numbers of the peers that have provoked a Terminate and whose connection has not ended.
    provoking: HashSet<u32>,
    /// Number of connections on which only the peer sends a Terminate. `provoked`: the number of connections
    /// on which the peer first provokes a Terminate of the victim.
    terminated: u64,
    provoked: u64,
    ended: u64,
}

impl Actor for TerminateLoop {
    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(number) = self.reconnects.next_ready() {
            let provokes = number % 2 == 1;
            let peer = self.reconnects.crafted.get(number);
            if provokes {
                self.provoked += 1;
                self.provoking.insert(number);
                let fpdu = peer.fpdu(&write(NOBODYS, 0, &[0; 8]));
                let frame = peer.send_data(&fpdu);
                peer.queue(frame);
            } else {
                self.terminated += 1;
            }
            let terminate = Terminate::bare(TerminateError::StreamCatastrophic).to_bytes();
            let fpdu = peer.fpdu(&untagged(0x47, 2, 1, &terminate));
            let frame = peer.send_data(&fpdu);
            peer.queue(frame);
            self.reconnects.crafted.wake_one(number);
        }
        self.reconnects.frame(scene.now_us)
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.reconnects.on_frame(frame);
        while let Some(ended) = self.reconnects.next_ended() {
            if !ended.connected {
                continue;
            }
            self.ended += 1;
            let provoked = self.provoking.remove(&ended.number);
            let expected: &[_] = if provoked { &[TerminateError::DdpInvalidStag.codes()] } else { &[] };
            let as_specified = ended.terminates == expected && !ended.reset;
            if !as_specified {
                self.reconnects.record_error(|| format!("provoked {provoked}, and heard {ended:?}"));
            }
        }
    }
}

impl ReconnectingAttacker for TerminateLoop {
    fn reconnects(&mut self) -> &mut Reconnects {
        &mut self.reconnects
    }
}

impl Attack for TerminateLoop {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        finish(self, arena)?;
        let counters = arena.victim.host.engine.counters();
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
