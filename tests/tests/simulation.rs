//! The simulator's ordinary run: every scenario with several hundred seeds. `scripts/soak` makes more runs.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use tests::sim::coverage::Occurrence;
use tests::sim::report::{Total, attempt, attempt_of, check_all};
use tests::sim::run::Stats;
use tests::sim::scenario::{SCENARIOS, Scenario};
use tests::sim::setup::Work;

/// Number of seeds of each scenario, unless `UWARP_SEEDS` has another number.
const SEEDS: u64 = 300;

fn seeds() -> u64 {
    let number = std::env::var("UWARP_SEEDS").ok().map(|text| text.parse().expect("UWARP_SEEDS is a number"));
    number.unwrap_or(SEEDS)
}

fn scenario(name: &str) -> Scenario {
    Scenario::find(name).unwrap_or_else(|| panic!("no scenario {name}"))
}

/// The totals of a scenario's runs (one run for each seed), and the messages of the runs that failed.
type Runs = (Total, Vec<String>);

/// The runs of each scenario. The first test that needs the runs of a scenario makes them.
static RUNS: LazyLock<BTreeMap<&str, OnceLock<Runs>>> =
    LazyLock::new(|| SCENARIOS.iter().map(|scenario| (scenario.name, OnceLock::new())).collect());

/// Returns the totals of a scenario's runs, one run for each seed. Prints the failures in each test that
/// calls this function.
fn total_of(name: &str) -> &'static Total {
    let (total, failures) = RUNS[name].get_or_init(|| {
        let failures = Mutex::new(Vec::new());
        let add = |text| failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        let total = check_all(&[scenario(name)], 0..seeds(), &|failure| add(failure.to_string()));
        (total, failures.into_inner().unwrap_or_else(PoisonError::into_inner))
    });
    for failure in failures {
        eprintln!("{failure}\n");
    }
    total
}

fn holds(name: &str) {
    let total = total_of(name);
    println!("{name}: {total}");
    assert_eq!((total.seeds, total.failures), (seeds(), 0), "{name}");
    assert!(total.bytes > 0 && total.operations > 0, "{name} moves nothing: {total}");
}

tests::scenario_tests! {
    holds, SCENARIOS;
    clean "clean"
    random_loss "random-loss"
    burst_loss "burst-loss"
    named_loss "named-loss"
    reorder "reorder"
    duplicate "duplicate"
    corrupt "corrupt"
    middlebox "middlebox"
    lro "lro"
    ecn "ecn"
    mtu_drop "mtu-drop"
    blackhole "blackhole"
    mtu_rise "mtu-rise"
    blackout "blackout"
    flap "flap"
    slow_reader "slow-reader"
    crowded "crowded"
    forged "forged"
    taken_back "taken-back"
    backlog "backlog"
    again "again"
    not_ready "not-ready"
    faulty "faulty"
    stuck_port "stuck-port"
    stopped "stopped"
    queues "queues"
    everything "everything"
}

/// Runs that failed because of a mistake in a rule or in the simulator, which has been corrected since then.
/// tcp-lite was right in these runs. (Runs that found a defect of tcp-lite are in `tests/sim-defects`.)
const WRONGLY_ACCUSED: &[(&str, u64)] = &[
    // A byte and its timer had waited since a time before the acknowledgement of other bytes.
    ("everything", 47_840),
    // Delayed echoes reported marks to which the sender had already responded.
    ("everything", 45_619),
    // smoltcp's host answered a segment with a RST, and then with an acknowledgement as in TIME-WAIT.
    ("duplicate", 46_298),
    // smoltcp's host answered a late SYN-ACK with a RST, and then with an acknowledgement as in TIME-WAIT.
    ("duplicate", 160_134),
    // A tail loss probe was answered faster than the minimum round trip, which proves nothing. After that,
    // the full RTO had to pass.
    ("stopped", 10_806),
    ("stopped", 12_982),
    // The connections used the same ports. A RST of one connection ended the TIME-WAIT of another connection.
    // Then a duplicate of an older SYN arrived, and was answered like a new SYN.
    ("again", 167_482),
    // A host was stopped before all connections to it were established, since connecting took long on a slow
    // wire.
    ("stopped", 24_640),
    // A port joined a marked segment to a segment that had arrived unmarked.
    ("everything", 25_815),
    // A user was asked to give up bytes. The event had reported these bytes as beyond a hole, but the hole
    // had been filled since then.
    ("everything", 11_880),
    // smoltcp's host continued to answer as in TIME-WAIT after a RST had ended TIME-WAIT.
    ("everything", 17_628),
    ("forged", 164_883),
    // A close was delayed until shortly before its engine gave up.
    ("named-loss", 244_160),
    // A forged RST had the sequence number after the FIN. This number was RCV.NXT, so the RST ended a
    // connection that was closing.
    ("everything", 252_419),
    // An acknowledgement that arrived first was overtaken between two engines, and dropped because of its
    // timestamp.
    ("queues", 4139),
    // smoltcp retransmitted bytes beyond our window, and had no timer for the bytes that we dropped.
    ("everything", 286_704),
];

#[test]
fn nobody_is_wrongly_accused_again() {
    for &(name, seed) in WRONGLY_ACCUSED {
        let ran = attempt(&scenario(name), seed, None);
        assert!(ran.is_ok(), "{name} {seed}: {:?}", ran.map_err(|violation| violation.what));
    }
}

#[test]
fn a_seed_gives_the_same_bytes_at_the_same_times() {
    for scenario in SCENARIOS {
        for seed in 0..6 {
            let [one, two] = [0, 1].map(|_| attempt(scenario, seed, None));
            let [one, two] = [one, two].map(|run| run.map(|stats| (stats.trace, stats.frames)));
            let text =
                |run: Result<(u64, u64), tests::sim::run::Violation>| run.map_err(|violation| violation.what);
            assert_eq!(text(one), text(two), "{} {seed}", scenario.name);
        }
    }
}

#[test]
fn a_run_is_the_same_with_header_prediction_and_without() {
    for scenario in SCENARIOS {
        for seed in 0..8 {
            let ran = [true, false].map(|predicts| {
                let mut setup = scenario.setup(seed);
                setup.set_header_prediction(predicts);
                let ran = attempt_of(&setup, seed, None);
                ran.map(|stats| (stats.trace, stats.frames)).map_err(|violation| violation.what)
            });
            assert_eq!(ran[0], ran[1], "{} {seed}", scenario.name);
        }
    }
}

/// Returns the hashes of the first four seeds of each scenario, from the lines that `simulate --traces`
/// prints.
fn traces_of_a_process() -> BTreeMap<String, String> {
    let ran =
        Command::new(env!("CARGO_BIN_EXE_simulate")).args(["--seeds", "0..4", "--traces"]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8(ran.stdout).unwrap();
    let line = |line: &str| line.strip_prefix("trace ").and_then(|rest| rest.split_once(": ")).map(own);
    text.lines().filter_map(line).collect()
}

fn own((name, trace): (&str, &str)) -> (String, String) {
    (name.to_owned(), trace.to_owned())
}

#[test]
fn a_seed_gives_the_same_in_another_process_and_beside_other_runs() {
    let (one, two) = (traces_of_a_process(), traces_of_a_process());
    assert_eq!(one.len(), 4 * SCENARIOS.len());
    assert_eq!(one, two);
    for scenario in SCENARIOS {
        for seed in 0..4 {
            let alone =
                attempt(scenario, seed, None).map(|stats| stats.trace).map_err(|violation| violation.what);
            let name = format!("{} {seed}", scenario.name);
            assert_eq!(alone.map(|trace| format!("{trace:016x}")), Ok(one[&name].clone()), "{name}");
        }
    }
}

#[test]
fn everything_with_a_name_happens() {
    // The scenarios are run in reverse order, since the other tests begin with the first scenarios.
    let totals: Vec<_> = SCENARIOS.iter().rev().map(|scenario| total_of(scenario.name)).collect();
    assert!(totals.iter().all(|total| total.failures == 0));
    let mut missing = totals[0].occurrences.missing();
    for total in &totals[1..] {
        let missing_there = total.occurrences.missing();
        missing.retain(|name| missing_there.contains(name));
    }
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn another_seed_gives_another_run() {
    let traces: std::collections::BTreeSet<u64> = (0..20)
        .filter_map(|seed| attempt(&scenario("clean"), seed, None).ok())
        .map(|stats| stats.trace)
        .collect();
    assert_eq!(traces.len(), 20);
}

#[test]
fn the_faults_of_a_scenario_happen() {
    assert_eq!((total_of("clean").lost, total_of("clean").retransmits), (0, 0));
    for name in ["random-loss", "burst-loss", "named-loss", "blackout", "flap"] {
        let total = total_of(name);
        assert!(total.lost > 0 && total.retransmits > 0, "{name}: {total}");
    }
    for name in ["mtu-drop", "blackhole", "slow-reader"] {
        assert!(total_of(name).cuts > 0, "{name} makes nobody cut");
    }
    assert!(total_of("mtu-rise").raises > 0, "no path is found to carry more");
    for name in ["reorder", "random-loss"] {
        assert!(total_of(name).early > 0, "{name}: nothing comes ahead of its frontier");
    }
}

/// Returns the numbers of segments that were joined and split in runs of a scenario. Counts only iWARP runs:
/// with `markers`, the runs in which some direction has markers; otherwise the runs without markers.
fn recut(name: &str, markers: bool) -> (u64, u64) {
    let scenario = scenario(name);
    let of_iwarp = |seed: &u64| match scenario.setup(*seed).work {
        Work::Rdma(plans) => plans.iter().any(|plan| plan.markers != [false; 2]) == markers,
        Work::Streams(_) => false,
    };
    let runs = (0..SEEDS).filter(of_iwarp).take(20).filter_map(|seed| attempt(&scenario, seed, None).ok());
    runs.fold((0, 0), |(joined, cut), Stats { coverage, .. }| {
        let by_port = coverage.times(Occurrence::JoinedByPort);
        (
            joined + coverage.times(Occurrence::JoinedByMiddlebox) + by_port,
            cut + coverage.times(Occurrence::Split),
        )
    })
}

#[test]
fn fpdus_are_joined_and_cut_on_the_way_with_markers_and_without() {
    for markers in [false, true] {
        let (joined, _) = recut("lro", markers);
        assert!(joined > 200, "lro, markers {markers}: {joined} joined");
        let (joined, split) = recut("middlebox", markers);
        assert!(joined > 20 && split > 200, "middlebox, markers {markers}: {joined} joined, {split} cut");
    }
}
