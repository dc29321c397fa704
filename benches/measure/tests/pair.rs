//! `measure pair`: comparisons run and print plausible figures. Comparisons of goodput also check their data:
//! a wrong byte makes the run fail.

use std::process::{Command, Output};

use serde_json::Value;

fn measure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_measure"))
        .args(arguments)
        .output()
        .expect("the binary was built with this test")
}

/// Seconds of a run. Other programs may also use CPU 0, so the run is long enough for the scheduler to run
/// each side several times.
const SHORT: &str = "0.3";

/// Seconds of a run that has six parts, and whose figure is a ratio of these parts.
const OF_SIX_PARTS: &str = "1.5";

/// Returns the figures of both sides, after a short run on CPU 0.
fn both_sides(id: &str, unit: &str, seconds: &str) -> [f64; 2] {
    let output = measure(&["pair", id, "--seconds", seconds, "--cpus", "0"]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{id}: {err}");
    assert_eq!(out.lines().count(), 1, "{out}");
    let line: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&line["id"], &line["unit"]), (&id.into(), &unit.into()), "{out}");
    ["ours", "theirs"].map(|side| line[side].as_f64().unwrap())
}

/// Checks that both figures are within `bounds`, and that their ratio is possible. A rate that no machine has
/// would be an error of the measurement.
fn is_plausible(id: &str, sides: [f64; 2], bounds: [f64; 2]) {
    let [least, most] = bounds;
    for side in sides {
        assert!((least..most).contains(&side), "{id}: {sides:?}");
    }
    assert!((0.02..50.0).contains(&(sides[0] / sides[1])), "{id}: {sides:?}");
}

#[test]
fn goodput_measures_move_bytes() {
    for id in ["one_core", "qps_1k", "engines_8", "vs_smoltcp"] {
        is_plausible(id, both_sides(id, "GB/s", SHORT), [0.001, 200.0]);
    }
}

#[test]
fn bulk_is_shared_and_leaves_room_for_a_ping_pong() {
    let [slowest, fastest] = both_sides("fair_64", "MB/s", SHORT);
    assert!(0.0 < slowest && slowest <= fastest && fastest < 200_000.0, "{slowest} {fastest}");
    let [round_trip, limit] = both_sides("beside_bulk", "us", SHORT);
    assert!(round_trip > 0.0 && limit == 150.0, "{round_trip} {limit}");
}

#[test]
fn a_second_core_gains_no_more_than_another_one() {
    // Both threads are on one CPU here, so the second thread gains almost nothing.
    for id in ["cores_2", "queues_2"] {
        is_plausible(id, both_sides(id, "x", OF_SIX_PARTS), [0.2, 3.0]);
    }
}

/// The figure is equal in each run and on each machine, and is within the goal of `compare/measures.rs`.
#[test]
fn an_idle_queue_pair_takes_some_memory_and_no_more_than_its_goal() {
    let [ours, theirs] = both_sides("idle_qp_bytes", "bytes", SHORT);
    is_plausible("idle_qp_bytes", [ours, theirs], [256.0, 131_072.0]);
    assert!(
        ours <= 0.75 * theirs,
        "{ours} bytes: `measure pair idle_qp_bytes --detail` says in what they are"
    );
}

#[test]
fn an_unknown_measure_is_refused() {
    for arguments in [&["two_cores"][..], &["one_core", "--seconds", "0"], &["one_core", "--cpus", "0,1,2"]] {
        let output = measure(arguments);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    }
}
