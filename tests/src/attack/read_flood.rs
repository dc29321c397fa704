//! More Reads than the victim granted. The first Read beyond the IRD ends its stream, and the victim sends at
//! most the responses to the granted Reads.

use iwarp::rdmap::TerminateError;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, read};
use super::reconnects::{ReconnectingAttacker, Reconnects, finish};
use super::victim::STRANGERS_IRD;
use super::{Attack, Scenario, as_it_is, check, refusals};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "read-flood",
    about: "three times as many Reads as were granted, on many connections in a row",
    configure: as_it_is,
    attack: |arena| {
        let lent = (arena.victim.lent.rkey(), arena.victim.lent.addr());
        // The window has the size of one segment and is smaller than a Read Response, so that the responses
        // have to wait.
        let options = PeerOptions { large: false, window: WINDOW, ..PeerOptions::default() };
        let reconnects = Reconnects::new(arena.macs(), PEERS, options);
        Box::new(ReadFlood { reconnects, lent, floods: 0, answered: 0, bytes: 0 })
    },
};

/// Number of connections at a time.
const PEERS: usize = 64;
/// The window of the attacking peers, in bytes.
const WINDOW: u16 = 1460;
/// Length of a Read: more than the window, so that the victim answers Reads one after the other.
const READ: u32 = 2048;
/// Maximum number of bytes of a response in addition to its payload.
const OVERHEAD: u32 = 64;
/// Number of Reads of a flood.
const READS: u32 = 3 * STRANGERS_IRD as u32;

struct ReadFlood {
    reconnects: Reconnects,
    lent: (u32, u64),
    floods: u64,
    answered: u64,
    /// Number of bytes of Read Responses received.
    bytes: u64,
}

impl Actor for ReadFlood {
    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(number) = self.reconnects.next_ready() {
            self.floods += 1;
            let (stag, to) = self.lent;
            let peer = self.reconnects.crafted.get(number);
            // All Reads are in one segment, so that they all arrive before the victim answers any of them.
            let flood: Vec<u8> = (1..=READS).flat_map(|msn| peer.fpdu(&read(msn, READ, stag, to))).collect();
            let frame = peer.send_data(&flood);
            peer.queue(frame);
            self.reconnects.crafted.wake_one(number);
        }
        self.reconnects.frame(scene.now_us)
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.reconnects.on_frame(frame);
        while let Some(ended) = self.reconnects.next_ended() {
            self.bytes += ended.others.1;
            let as_specified = ended.terminates == [TerminateError::DdpNoBuffer.codes()];
            self.answered += u64::from(as_specified);
            if ended.connected && !as_specified {
                self.reconnects.record_error(|| format!("a flood was not answered as specified: {ended:?}"));
            }
        }
    }
}

impl ReconnectingAttacker for ReadFlood {
    fn reconnects(&mut self) -> &mut Reconnects {
        &mut self.reconnects
    }
}

impl Attack for ReadFlood {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        finish(self, arena)?;
        let (floods, answered) = (self.floods, self.answered);
        check(floods > 0 && floods == answered, || {
            format!("{answered} of {floods} were answered as specified")
        })?;
        let each = self.bytes / floods;
        // The victim sends at most the responses to the granted Reads, which are a third of the requested
        // bytes.
        check(each <= u64::from(STRANGERS_IRD) * u64::from(READ + OVERHEAD), || {
            format!("{each} bytes were read by each flood")
        })?;
        let slots = arena.victim.context().usage().read_slots;
        check(slots.refused == 0 && slots.used <= slots.limit, || format!("{slots:?}"))?;
        let asked = u64::from(READS * READ);
        let refused = refusals(arena, PEERS)?;
        Ok(format!(
            "{floods} floods, each answered by its Terminate, {each} bytes of {asked} out for each; {refused}"
        ))
    }
}
