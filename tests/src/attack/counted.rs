//! Measures the share of goodput that honest connections keep under attack, from instruction counts.
//! Callgrind counts the instructions of the victim's polls twice: next to an attack, and next to as many
//! harmless frames. The counts do not depend on the load of the machine.
//!
//! The clock of such a run is nominal: each poll and each frame takes a fixed time, whatever the machine is.
//! Idle time counts as in `measure.rs`, and an instruction counts as a quarter of a nanosecond.

use std::hint::black_box;
use std::path::Path;

use benches::callgrind::Callgrind;

use super::Scenario;
use super::arena::{Arena, Round};
use super::harmless::Harmless;
use super::victim::Clock;

/// The frames that the victim gets in addition to those of the honest client. Each variant has its own
/// function, whose name is in the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTo {
    /// The frames of an attack.
    Attack,
    /// Harmless frames, whose number is that of the frames of an attack.
    Harmless,
}

impl NextTo {
    const BOTH: [Self; 2] = [Self::Attack, Self::Harmless];

    /// Returns the name of the function. This name is a part of the mangled name, and the first word of the
    /// line that the counted process prints.
    const fn function(self) -> &'static str {
        match self {
            Self::Attack => "poll_beside_an_attack",
            Self::Harmless => "poll_beside_harmless_frames",
        }
    }

    /// Calls `poll` in the function whose instructions callgrind counts.
    pub(super) fn count(self, poll: &mut dyn FnMut()) {
        match self {
            Self::Attack => poll_beside_an_attack(poll),
            Self::Harmless => poll_beside_harmless_frames(poll),
        }
    }
}

// Each function contains a different number, since the compiler would merge equal functions.

#[inline(never)]
fn poll_beside_an_attack(poll: &mut dyn FnMut()) {
    poll();
    black_box(1_u8);
}

#[inline(never)]
fn poll_beside_harmless_frames(poll: &mut dyn FnMut()) {
    poll();
    black_box(2_u8);
}

/// Number of nanoseconds of idle time that count as much as one instruction.
const NS_AN_INSTRUCTION: f64 = 0.25;

/// Number of honest batches before the counted batches. After these batches, windows are open, lazy
/// allocations are done, and the Read Responses to peers that close their windows have filled the send
/// queues.
const WARM_UP: u64 = 200;

/// Number of honest batches that are counted.
const COUNTED: u64 = 150;

/// The results of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct KeptGoodput {
    /// Honest goodput next to the attack, divided by the honest goodput next to harmless frames.
    pub share: f64,
    /// Number of the victim's instructions for each byte of honest payload: next to the attack, and next to
    /// harmless frames.
    pub each: [f64; 2],
}

/// Runs a scenario once. Returns a line about the counted round next to the attack, and a line about the
/// counted round next to harmless frames. The process that callgrind runs calls this function.
///
/// # Errors
/// The first check that failed.
pub fn run(scenario: &Scenario) -> Result<String, String> {
    let new = || Arena::with_clock(&scenario.configure, Clock::Nominal);
    let (mut attacked, mut spared) = (new(), new());
    let mut attack = (scenario.attack)(&attacked);
    let lent = (spared.victim.lent.rkey(), spared.victim.lent.addr());
    let mut harmless = Harmless::new(spared.macs(), lent);
    attacked.prepare(&mut *attack)?;
    spared.prepare(&mut harmless)?;
    let mut said = String::new();
    for (batches, counted) in [(WARM_UP, false), (COUNTED, true)] {
        attacked.victim.counted = counted.then_some(NextTo::Attack);
        spared.victim.counted = counted.then_some(NextTo::Harmless);
        attacked.lengths = Some(Vec::new());
        let rounds = [attacked.round(&mut *attack, batches)?, {
            harmless.follow(&attacked.lengths.take().unwrap_or_default());
            spared.round(&mut harmless, batches)?
        }];
        if counted {
            let line = |(beside, round): (NextTo, Round)| {
                let (bytes, idle_ns) = (round.bytes, round.ns - round.cpu_ns);
                format!("{} {bytes} {idle_ns} {} {}\n", beside.function(), round.legitimate, round.others)
            };
            said = NextTo::BOTH.into_iter().zip(rounds).map(line).collect();
        }
    }
    attacked.victim.counted = None;
    if !attacked.all_established() {
        return Err("an honest connection has ended".into());
    }
    Ok(said)
}

/// Runs a scenario ([`run`]) by `program` under callgrind, which writes its profile to `file`.
///
/// # Errors
/// If valgrind is missing, the run fails, or the attack sent too few frames.
pub fn count(program: &Path, scenario: &Scenario, file: &Path) -> Result<KeptGoodput, String> {
    let text = |error: Box<dyn std::error::Error>| error.to_string();
    let profile = Callgrind::run(program, &["--count", scenario.name], None, file).map_err(text)?;
    let mut rates = [[0.0; 2]; 2];
    for (rate, beside) in rates.iter_mut().zip(NextTo::BOTH) {
        let said = profile.said(beside.function());
        let numbers: Vec<u64> = said.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [bytes, idle_ns, legitimate, others] = numbers[..] else {
            return Err(format!("{}: unexpected output {said:?}", scenario.name));
        };
        if others * 10 < legitimate * 9 {
            return Err(format!(
                "{others} frames next to {legitimate} honest ones are too few for an attack"
            ));
        }
        let instructions = profile.instructions(beside.function()).map_err(text)? as f64;
        let bytes = bytes as f64;
        *rate = [bytes / (instructions * NS_AN_INSTRUCTION + idle_ns as f64), instructions / bytes];
    }
    let [[beside_attack, attacked], [beside_harmless, spared]] = rates;
    Ok(KeptGoodput { share: beside_attack / beside_harmless, each: [attacked, spared] })
}
