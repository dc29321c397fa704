//! Guessed STags. Each wrong STag ends its stream with the Terminate for this error, so the attacker needs a
//! connection for each guess. No memory is read or written.

use std::time::Duration;

use iwarp::rdmap::TerminateError;

use super::arena::{Actor, Arena, NoAttacker, Scene};
use super::crafted_peer::{PeerOptions, read, write};
use super::reconnects::{ReconnectingAttacker, Reconnects, finish};
use super::{Attack, Scenario, as_it_is, check, refusals};
use crate::sim::dice::Part;
use testkit::dice::Dice;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "stag-guess",
    about: "Writes to and Reads from guessed STags, a connection for each",
    configure: as_it_is,
    attack: |arena| Box::new(StagGuess::new(arena, None)),
};

/// Number of connections at a time.
const PEERS: usize = 64;
/// Payload of a guess.
const BYTES: [u8; 32] = [0xbd; 32];

/// An attacker that guesses STags.
pub struct StagGuess {
    reconnects: Reconnects,
    /// The STag of the lent region, which is never guessed.
    right: u32,
    to: u64,
    dice: Dice,
    /// Maximum number of guesses; `None`: no limit.
    limit: Option<u64>,
    /// Number of guesses so far, and number of guesses that were answered as specified.
    pub guesses: [u64; 2],
    /// Numbers of the peers whose guess is a Write; the guess of any other peer is a Read.
    writers: std::collections::HashSet<u32>,
}

impl StagGuess {
    /// Creates an attacker that makes `limit` guesses. With `None`, the attacker never stops.
    pub fn new(arena: &Arena, limit: Option<u64>) -> Self {
        let lent = &arena.victim.lent;
        Self {
            reconnects: Reconnects::new(arena.macs(), PEERS, PeerOptions::default()),
            right: lent.rkey(),
            to: lent.addr(),
            dice: Part::Setup.dice(4),
            limit,
            guesses: [0; 2],
            writers: std::collections::HashSet::new(),
        }
    }

    fn guess(&mut self) -> u32 {
        loop {
            let stag = self.dice.below(1 << 32) as u32;
            if stag != self.right && stag != 0 {
                return stag;
            }
        }
    }

    /// Whether all guesses are done, or an answer was not as specified.
    pub fn is_done(&self) -> bool {
        self.reconnects.verdict().is_err()
            || self.limit.is_some_and(|limit| self.reconnects.begun >= limit) && self.reconnects.is_empty()
    }

    /// Checks that each ended connection was ended by the right Terminate.
    fn settle(&mut self) {
        while let Some(ended) = self.reconnects.next_ended() {
            let error = if self.writers.remove(&ended.number) {
                TerminateError::DdpInvalidStag
            } else {
                TerminateError::ReadInvalidStag
            };
            let as_specified = ended.terminates == [error.codes()] && ended.others == (0, 0) && !ended.reset;
            self.guesses[1] += u64::from(as_specified);
            if !as_specified && ended.connected {
                self.reconnects.record_error(|| format!("a guess was not answered as specified: {ended:?}"));
            }
        }
    }

    /// Checks that all guesses so far were answered as specified, and that no guess has changed memory.
    ///
    /// # Errors
    /// If the answer to a guess was not as specified, or a guess has changed memory.
    pub fn verdict(&self, arena: &Arena) -> Result<(), String> {
        self.reconnects.verdict()?;
        check(arena.victim.lent_is_whole(), || "a guess was written to memory".into())
    }
}

impl Actor for StagGuess {
    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(number) = self.reconnects.next_ready() {
            let stag = self.guess();
            self.guesses[0] += 1;
            let peer = self.reconnects.crafted.get(number);
            let ulpdu = if number % 2 == 0 {
                self.writers.insert(number);
                write(stag, self.to, &BYTES)
            } else {
                read(1, BYTES.len() as u32, stag, self.to)
            };
            let fpdu = peer.fpdu(&ulpdu);
            // The guess follows the peer's first FPDU, which is about to be sent.
            let frame = peer.send_data(&fpdu);
            peer.queue(frame);
            self.reconnects.crafted.wake_one(number);
        }
        if self.limit.is_some_and(|limit| self.reconnects.begun >= limit) {
            self.reconnects.end();
        }
        self.reconnects.frame(scene.now_us)
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.reconnects.on_frame(frame);
        self.settle();
    }
}

impl ReconnectingAttacker for StagGuess {
    fn reconnects(&mut self) -> &mut Reconnects {
        &mut self.reconnects
    }
}

impl Attack for StagGuess {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        finish(self, arena)?;
        self.verdict(arena)?;
        let [guesses, answered] = self.guesses;
        check(guesses > 0 && guesses == answered, || {
            format!("{answered} of {guesses} answered as specified")
        })?;
        let refused = refusals(arena, PEERS)?;
        Ok(format!("{guesses} guesses, each answered by its Terminate, nothing read or written; {refused}"))
    }
}

/// Makes `count` guesses without other traffic. Returns the number of guesses per second that the victim's
/// core answers.
///
/// # Errors
/// If a guess is not answered, or its answer is not as specified.
pub fn guess_many(count: u64) -> Result<f64, String> {
    let mut arena = Arena::new(&|_, options| options.failures_per_address = None);
    let mut guess = StagGuess::new(&arena, Some(count));
    let (begin_cpu, limit) = (arena.victim.cpu_ns, Duration::from_secs(600));
    check(arena.alone(&mut guess, limit, |_, me| me.is_done()), || {
        format!("after {limit:?} {:?} of {count} are answered", guess.guesses)
    })?;
    guess.verdict(&arena)?;
    check(guess.guesses == [count; 2], || {
        format!("{:?} of {count} are answered as specified", guess.guesses)
    })?;
    let cpu_ns = arena.victim.cpu_ns - begin_cpu;
    arena.alone(&mut NoAttacker, Duration::from_secs(8), |arena, _| arena.victim.strangers().0 == 0);
    check(arena.connect(&mut NoAttacker, Duration::from_secs(1)), || {
        "an honest client cannot connect".into()
    })?;
    let ends: u64 = arena.victim.ends.values().sum();
    check(ends == count, || format!("the server got events for {ends} ends: {:?}", arena.victim.ends))?;
    Ok(count as f64 * 1e9 / cpu_ns as f64)
}
