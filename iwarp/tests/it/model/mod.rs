//! Long random runs of two engines, compared with a simple model of the results that users may see.
//!
//! | file | what |
//! |---|---|
//! | `steps.rs` | the steps of a run: posts, receives, registrations, revocations, connections, polls, rests |
//! | `operations.rs`, `operations/` | the requests of the send queue: **a new operation is added only here** |
//! | `memory.rs` | the values that each byte of registered memory may have |
//! | `names.rs` | STags of regions and windows: the bytes that they name, and whether they are valid |
//! | `streams.rs`, `streams/` | which request completes, in which order, with what, and what that says about memory |
//! | `cause.rs` | the causes that end a stream, and what each endpoint may then report |
//! | `world.rs`, `world/` | the engines on their wire, the comparison, and the objects that hosts hold |
//! | `wire.rs` | bits that the wire flips |
//! | `sabotage.rs` | deliberate defects, which must be found |
//!
//! One number determines a run. When a run fails, its steps are reduced to a few that still fail, and the
//! command that repeats the run is printed. `UWARP_MODEL_SEED=n` repeats run `n`. `UWARP_MODEL_SEEDS=n` runs
//! the first `n` runs: 0 to `n` - 1.

mod cause;
mod memory;
mod names;
mod operations;
mod sabotage;
mod steps;
mod streams;
mod wire;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use sabotage::{Defect, Sabotage};
use steps::Step;
use testkit::dice::Dice;
use world::{Setting, World};

/// Number of runs when `cargo test` is called without an environment variable.
const SEEDS: u64 = 60;

/// Number of runs in which each deliberate defect must be found.
const SEEDS_OF_DEFECTS: u64 = 40;

/// Maximum number of lines of a failing run's log that are printed.
const TAIL: usize = 60;

/// Counts of a run that passed.
#[derive(Default)]
struct Totals {
    succeeded: u64,
    failed: u64,
    exact: u64,
    checked: u64,
}

/// The reason why a run failed, and its log.
struct Failed {
    reason: String,
    log: Vec<String>,
}

fn draw(seed: u64) -> (Setting, Vec<Step>) {
    let mut dice = Dice::new(seed);
    (Setting::draw(&mut dice), steps::draw(&mut dice))
}

fn run(setting: &Setting, steps: &[Step], defect: Defect) -> Result<Totals, Failed> {
    let mut world = World::new(setting.clone(), Sabotage::new(defect));
    let result = catch_unwind(AssertUnwindSafe(|| world.run(steps)));
    let reason = match result {
        Ok(Ok(())) => {
            let model = &world.model;
            let (exact, checked) = (model.memory.exact, model.memory.checked);
            return Ok(Totals { succeeded: model.succeeded, failed: model.failed, exact, checked });
        }
        Ok(Err(reason)) => reason,
        Err(_) => "panicked, see above".into(),
    };
    let log = std::mem::take(&mut world.log);
    // After a panic the engines may be in a state in which they cannot be dropped.
    drop(catch_unwind(AssertUnwindSafe(|| drop(world))));
    Err(Failed { reason, log })
}

/// Removes steps, in smaller and smaller blocks, as long as the run still fails.
fn shrink(
    setting: &Setting,
    mut steps: Vec<Step>,
    defect: Defect,
    mut failed: Failed,
) -> (Vec<Step>, Failed) {
    let mut block = steps.len() / 2;
    while block > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + block).min(steps.len()));
            match run(setting, &fewer, defect) {
                Err(other) => (steps, failed) = (fewer, other),
                Ok(_) => at += block,
            }
        }
        block /= 2;
    }
    (steps, failed)
}

/// Runs `seed`. The text of a failure contains the reason, the number of steps to which the run was reduced,
/// the end of the log, and the command that repeats the run.
fn report(seed: u64, defect: Defect, test: &str) -> Result<Totals, String> {
    let (mut setting, steps) = draw(seed);
    setting.crc |= defect == Defect::WireUnderCrc;
    let first = match run(&setting, &steps, defect) {
        Ok(sum) => return Ok(sum),
        Err(failed) => failed,
    };
    let whole = first.reason.clone();
    let (fewer, failed) = shrink(&setting, steps, defect, first);
    let tail = &failed.log[failed.log.len().saturating_sub(TAIL)..];
    Err(format!(
        "seed {seed}: {whole}\nwith {} steps: {}\n{setting:?}\n{}\n\
         UWARP_MODEL_SEED={seed} cargo test -p iwarp --no-default-features --test it -- model::{test} --nocapture",
        fewer.len(),
        failed.reason,
        tail.join("\n"),
    ))
}

/// Returns the seeds to run: those that the environment names, or the first `count` seeds.
fn seeds(count: u64) -> std::ops::Range<u64> {
    match number("UWARP_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("UWARP_MODEL_SEEDS").unwrap_or(count),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs random posts, revocations, closes and losses. Bytes, order, statuses and ends have to be among those
/// that the model allows. The engines' invariants and limits hold, and the hosts hold no objects at the end.
// Proves RDMAP-007, RDMAP-044, RDMAP-045, RDMAP-064, RDMAP-076, RDMAP-239, RDMAP-269, RDMAP-270, RDMAP-277,
// RDMAP-287, RDMAP-307, RDMAP-407, RDMAP-412, RDMAP-413, RDMAP-416, RDMAP-421: over wires that lose and
// reorder frames, the model finds completions out of order (RDMAP-007, RDMAP-044, RDMAP-239, RDMAP-287,
// RDMAP-407). The model finds requests that fail without a cause or that a graceful close loses (RDMAP-045,
// RDMAP-307). Each byte of memory has a value that it may have at that time (RDMAP-064, RDMAP-269 to
// RDMAP-277, RDMAP-412 to RDMAP-421), and changes only where a name grants the change (RDMAP-076).
#[test]
fn random_runs() {
    let seeds = seeds(SEEDS);
    let count = seeds.end - seeds.start;
    let mut all = Totals::default();
    for seed in seeds {
        let sum = report(seed, Defect::None, "random_runs");
        let Totals { succeeded, failed, exact, checked } = sum.unwrap_or_else(|text| panic!("{text}"));
        all.succeeded += succeeded;
        all.failed += failed;
        all.exact += exact;
        all.checked += checked;
    }
    let Totals { succeeded, failed, exact, checked } = all;
    println!(
        "{count} runs: {succeeded} requests succeeded, {failed} failed; {exact} of {checked} bytes exact"
    );
    // A model that allows every value would find no error.
    assert!(count < SEEDS || exact * 100 > checked * 95, "{exact} of {checked} bytes are exact");
    assert!(count < SEEDS || succeeded > 20 * count && failed > count, "{succeeded} and {failed} requests");
}

/// The runs find each deliberate defect, which shows that the model can fail.
#[test]
fn deliberate_defects_are_found() {
    for defect in Defect::ALL {
        let found = (0..SEEDS_OF_DEFECTS).find_map(|seed| {
            let (mut setting, steps) = draw(seed);
            // Without CRCs, the corrupted bytes have to be found in memory.
            setting.crc &= defect != Defect::Wire;
            run(&setting, &steps, defect).err().map(|failed| (seed, failed.reason))
        });
        let (seed, reason) = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
        println!("{defect:?} in run {seed}: {reason}");
        assert!(!reason.contains("panicked"), "{defect:?} made the stack panic");
    }
}

/// With CRCs, the same corruption ends the stream with MPA's Terminate, and no byte in memory is wrong.
#[test]
fn the_crc_keeps_what_the_wire_turns_away() {
    let seeds = seeds(SEEDS_OF_DEFECTS);
    let count = seeds.end - seeds.start;
    let mut ended = 0;
    for seed in seeds {
        let sum = report(seed, Defect::WireUnderCrc, "the_crc_keeps");
        ended += sum.unwrap_or_else(|text| panic!("{text}")).failed;
    }
    assert!(count < SEEDS_OF_DEFECTS || ended > count, "{ended} requests failed by it");
}
