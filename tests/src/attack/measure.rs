//! Runs rounds with the same honest work, in turn: next to an attack, next to as many harmless frames, and
//! without other frames. The rounds alternate, so that other load of the machine affects all of them.

use std::fmt;

use super::Scenario;
use super::arena::{Arena, NoAttacker, Round};
use super::harmless::Harmless;

/// The extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of pairs of rounds.
    pub pairs: usize,
    /// Number of honest batches in a round.
    pub batches: u64,
}

/// The results of a scenario.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The name of the scenario.
    pub name: &'static str,
    /// Number of frames of the attacker, and of frames of the honest client in the same rounds.
    pub frames: [u64; 2],
    /// Median goodput next to harmless frames and next to the attack, in megabits per second.
    pub goodput: [f64; 2],
    /// Goodput next to the attack divided by goodput next to harmless frames: lower quartile, median, upper
    /// quartile.
    pub ratio: [f64; 3],
    /// The victim's cost in nanoseconds of a harmless frame, and of a frame of the attack.
    pub frame_ns: [f64; 2],
    /// Maximum number of packet buffers that the victim held.
    pub buffers: usize,
    /// The answers and counters of the victim.
    pub answers: String,
}

/// Runs a scenario.
///
/// # Errors
/// The first check that failed. The caller checks the goodput.
pub fn measure(scenario: &Scenario, plan: Plan) -> Result<Figures, String> {
    let new = || Arena::new(&scenario.configure);
    let (mut attacked, mut spared, mut quiet) = (new(), new(), new());
    let mut attack = (scenario.attack)(&attacked);
    let lent = (spared.victim.lent.rkey(), spared.victim.lent.addr());
    let mut harmless = Harmless::new(spared.macs(), lent);
    attacked.prepare(&mut *attack)?;
    spared.prepare(&mut harmless)?;
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    // The first pair of rounds is a warm-up.
    for _ in 0..=plan.pairs {
        attacked.lengths = Some(Vec::new());
        rounds[1].push(attacked.round(&mut *attack, plan.batches)?);
        harmless.follow(&attacked.lengths.take().unwrap_or_default());
        rounds[0].push(spared.round(&mut harmless, plan.batches)?);
        rounds[2].push(quiet.round(&mut NoAttacker, plan.batches)?);
    }
    let [beside_harmless, beside_attack, alone] = rounds.map(|rounds| rounds[1..].to_vec());
    let answers = attack.check_outcome(&mut attacked)?;
    if !attacked.all_established() {
        return Err("an honest connection has ended".into());
    }
    let sum = |of: fn(&Round) -> u64| beside_attack.iter().map(of).sum::<u64>();
    let frames = [sum(|round| round.others), sum(|round| round.legitimate)];
    if frames[0] * 10 < frames[1] * 9 {
        return Err(format!(
            "{} frames next to {} honest ones are too few for an attack",
            frames[0], frames[1]
        ));
    }
    let median_of = |rounds: &[Round]| quartiles(rounds.iter().map(Round::goodput).collect())[1];
    let ratios = beside_attack
        .iter()
        .zip(&beside_harmless)
        .map(|(beside, spared)| beside.goodput() / spared.goodput());
    let cost = |rounds: &[Round]| {
        let pairs = rounds.iter().zip(&alone);
        let costs = pairs.map(|(with, without)| {
            let same_work = without.cpu_ns as f64 * with.bytes as f64 / without.bytes as f64;
            (with.cpu_ns as f64 - same_work) / with.others as f64
        });
        quartiles(costs.collect())[1]
    };
    Ok(Figures {
        name: scenario.name,
        frames,
        goodput: [median_of(&beside_harmless), median_of(&beside_attack)],
        ratio: quartiles(ratios.collect()),
        frame_ns: [cost(&beside_harmless), cost(&beside_attack)],
        buffers: attacked.held_most,
        answers,
    })
}

/// Returns the quartiles of some numbers.
fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len() - 1;
    [1, 2, 3].map(|quarter| numbers[(last * quarter + 2) / 4])
}

impl Figures {
    /// The heading of the columns that [`Display`](fmt::Display) prints.
    pub const HEADING: &str = "scenario            attack  honest   goodput, Mb/s: beside   ratio (quartiles)   ns a frame:   buffers  the victim\n                    frames  frames     harmless    attack                      harmless attack    held";
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, frames, goodput, ratio, frame_ns, buffers, answers } = self;
        write!(
            f,
            "{name:<18} {:>7} {:>7} {:>12.0} {:>9.0}    {:.2} ({:.2}-{:.2})     {:>5.0} {:>6.0} {buffers:>8}  {answers}",
            frames[0],
            frames[1],
            goodput[0],
            goodput[1],
            ratio[1],
            ratio[0],
            ratio[2],
            frame_ns[0],
            frame_ns[1]
        )
    }
}
