//! The test of the limits. For each attack, the test checks that the victim answers as specified and stays
//! within its limits, and that honest connections keep at least four fifths of their goodput. The goodput is
//! compared with the goodput next to harmless frames: there are as many of these frames as frames of the
//! attacker. Another test checks that no guessed STag is accepted.
//!
//! The test computes this share of goodput from instructions that callgrind counts, since their number does
//! not depend on the load of the machine. The share in time is only printed, by this test and by the program
//! `attacks`.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Arguments, Failed, Trial};
use tests::attack::counted::count;
use tests::attack::measure::{Plan, measure};
use tests::attack::stag_guess::guess_many;
use tests::attack::{SCENARIOS, Scenario};
use tests::lab::Scratch;

/// Fewer rounds than the program's default, since the rounds of this plan only check the victim's answers and
/// memory.
const PLAN: Plan = Plan { pairs: 5, batches: 150 };
/// Minimum share of goodput that honest connections keep, as stated in SECURITY.md.
const KEPT: f64 = 0.80;
/// Number of guessed STags.
const GUESSES: u64 = 1_000_000;

/// A test holds this lock while it measures processor time, since tests on other cores would share its
/// caches.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a test for each scenario, and a test that guesses STags.
pub(crate) fn run() -> ExitCode {
    let scenarios = SCENARIOS.iter().map(|scenario| Trial::test(scenario.name, || withstands(scenario)));
    let guesses = Trial::test("a_million_wrong_stags_read_and_write_nothing", no_guess_is_right);
    libtest_mimic::run(&Arguments::from_args(), scenarios.chain([guesses]).collect()).exit_code()
}

fn withstands(scenario: &Scenario) -> Result<(), Failed> {
    {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{}", measure(scenario, PLAN)?);
    }
    let scratch = Scratch::new()?;
    // callgrind runs this program with `--count`.
    let kept = count(&std::env::current_exe()?, scenario, &scratch.file("profile"))?;
    println!("{}: {kept:?}", scenario.name);
    if kept.share < KEPT {
        return Err(format!("honest connections keep {:.3} of their goodput: {kept:?}", kept.share).into());
    }
    Ok(())
}

fn no_guess_is_right() -> Result<(), Failed> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let rate = guess_many(GUESSES)?;
    println!("{GUESSES} guesses, {rate:.0} a second");
    Ok(())
}
