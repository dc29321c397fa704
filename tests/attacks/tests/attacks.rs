//! Attacks on an engine in memory: the victim answers as specified and stays within its limits, and honest
//! connections keep four fifths of the goodput that they have next to as many harmless frames. This share is
//! asserted in instructions counted by callgrind, which do not depend on the load of the machine; in time it
//! is only printed, by this test and by the program `attacks`.

use std::path::Path;
use std::sync::Mutex;

use tests::attack::counted::count;
use tests::attack::measure::{Plan, measure};
use tests::attack::stag_guess::guess_many;
use tests::attack::{SCENARIOS, Scenario};
use tests::lab::Scratch;

/// Fewer than the program's: this test checks only the victim's answers and memory.
const PLAN: Plan = Plan { pairs: 5, batches: 150 };
/// Least share of goodput that honest connections keep, as stated in SECURITY.md.
const KEPT: f64 = 0.80;
/// Wrong STags.
const GUESSES: u64 = 1_000_000;

/// One at a time: the processor time is measured, and caches are shared.
static TURN: Mutex<()> = Mutex::new(());

fn withstands(name: &str) {
    let scenario = Scenario::find(name).unwrap_or_else(|| panic!("no scenario {name}"));
    {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let figures = measure(&scenario, PLAN).unwrap_or_else(|text| panic!("{name}: {text}"));
        println!("{figures}");
    }
    let scratch = Scratch::new().unwrap();
    let kept = count(Path::new(env!("CARGO_BIN_EXE_attacks")), &scenario, &scratch.file("profile"))
        .unwrap_or_else(|text| panic!("{name}: {text}"));
    println!("{name}: {kept:?}");
    assert!(
        kept.share >= KEPT,
        "{name}: honest connections keep {:.3} of their goodput: {kept:?}",
        kept.share
    );
}

tests::scenario_tests! {
    withstands, SCENARIOS;
    syn_flood "syn-flood"
    blind_resets "blind-rst"
    blind_syns "blind-syn"
    blind_data "blind-data"
    acks_of_what_was_never_sent "ack-unsent"
    duplicate_acks "ack-duplicate"
    divided_acks "ack-division"
    tiny_segments_in_order "tiny-in-order"
    tiny_segments_out_of_order "tiny-out-of-order"
    a_tiny_maximum_segment_size "tiny-mss"
    windows_kept_closed "zero-window"
    windows_filled_behind_holes "out-of-order"
    forged_reports_of_a_narrow_path "packet-too-big"
    slow_startup_frames "slow-startup"
    guessed_stags "stag-guess"
    reads_beyond_the_depth "read-flood"
    terminates_in_a_loop "terminate-loop"
}

#[test]
fn a_million_wrong_stags_read_and_write_nothing() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rate = guess_many(GUESSES).unwrap_or_else(|text| panic!("{text}"));
    println!("{GUESSES} guesses, {rate:.0} a second");
}
