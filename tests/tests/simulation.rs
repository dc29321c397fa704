//! The simulator's ordinary run: every scenario, some hundred seeds each. `scripts/soak` runs more.

use tcp_lite::TcpConfig;
use tests::sim::link::Plan;
use tests::sim::report::{attempt, check_all};
use tests::sim::run::run;
use tests::sim::scenario::{SCENARIOS, Scenario};
use tests::sim::setup::Work;
use tests::sim::world::{Chunks, EndPlan, StreamPlan};

/// Seeds of each scenario.
const SEEDS: u64 = 300;

fn scenario(name: &str) -> Scenario {
    Scenario::find(name).unwrap_or_else(|| panic!("no scenario {name}"))
}

fn holds(name: &str) {
    let total = check_all(&[scenario(name)], 0..SEEDS, &|failure| eprintln!("{failure}\n"));
    println!("{name}: {total}");
    assert_eq!((total.seeds, total.failures), (SEEDS, 0), "{name}");
    assert!(total.octets > 0 && total.operations > 0, "{name} moves nothing: {total}");
}

macro_rules! scenarios {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            holds($name);
        })*

        #[test]
        fn every_scenario_is_run() {
            let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

scenarios! {
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
    blackout "blackout"
    flap "flap"
    slow_reader "slow-reader"
    crowded "crowded"
    everything "everything"
}

#[test]
fn a_seed_gives_the_same_octets_at_the_same_times() {
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
fn another_seed_gives_another_run() {
    let traces: std::collections::BTreeSet<u64> = (0..20)
        .filter_map(|seed| attempt(&scenario("clean"), seed, None).ok())
        .map(|stats| stats.trace)
        .collect();
    assert_eq!(traces.len(), 20);
}

#[test]
fn the_faults_of_a_scenario_happen() {
    let total = |name: &str| check_all(&[scenario(name)], 0..60, &|failure| eprintln!("{failure}\n"));
    assert_eq!((total("clean").lost, total("clean").retransmits), (0, 0));
    for name in ["random-loss", "burst-loss", "named-loss", "blackout", "flap"] {
        let total = total(name);
        assert!(total.lost > 0 && total.retransmits > 0, "{name}: {total}");
    }
    for name in ["mtu-drop", "slow-reader"] {
        assert!(total(name).cuts > 0, "{name} makes nobody cut");
    }
    for name in ["reorder", "random-loss"] {
        assert!(total(name).early > 0, "{name}: nothing comes ahead of its frontier");
    }
}

/// Segments joined and cut in the runs of a scenario whose iWARP connections have markers towards some side, or none.
fn recut(name: &str, markers: bool) -> (u64, u64) {
    let scenario = scenario(name);
    let of_iwarp = |seed: &u64| match scenario.setup(*seed).work {
        Work::Rdma(plans) => plans.iter().any(|plan| plan.markers != [false; 2]) == markers,
        Work::Streams(_) => false,
    };
    let runs = (0..SEEDS).filter(of_iwarp).take(20).filter_map(|seed| attempt(&scenario, seed, None).ok());
    runs.fold((0, 0), |(joined, split), stats| (joined + stats.joined, split + stats.split))
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

/// Octets a second that a stream of default settings moves over a wire of this rate and round trip, in shares of what the wire
/// carries, headers and slow start included.
fn filled(rate_octets_per_ms: u64, round_trip_us: u64, tcp: TcpConfig) -> f64 {
    const OCTETS: u64 = 60_000_000;
    let mut setup = scenario("clean").setup(0);
    let delay_us = round_trip_us / 2;
    let queue_octets = rate_octets_per_ms * round_trip_us / 1000;
    for (host, link) in setup.hosts.iter_mut().zip(&mut setup.links) {
        (host.mtu, host.ipv6, host.stock, host.tcp, host.mbufs) = (1500, false, None, tcp, 16_384);
        *link = Plan::clean(rate_octets_per_ms, delay_us, 2 * queue_octets);
    }
    setup.lossless = false;
    let end = |octets| EndPlan { octets, chunks: Chunks::Stream, reader: None, holds: false, abort_at: None };
    setup.work = Work::Streams(vec![StreamPlan { opener: 0, ends: [end(OCTETS), end(0)] }]);
    let stats = run(&setup, 1, &mut |_, port| Ok(port)).unwrap_or_else(|broken| panic!("{}", broken.what));
    let least_us = OCTETS * 1514 / 1448 * 1000 / rate_octets_per_ms;
    println!("{rate_octets_per_ms} octets/ms, {round_trip_us} us: {} us, {least_us} at best", stats.time_us);
    least_us as f64 / stats.time_us as f64
}

#[test]
fn the_default_window_fills_long_paths() {
    let narrow = TcpConfig { recv_window_octets: 512 << 10, ..TcpConfig::default() };
    // 10 Gb/s over 1 ms, 200 Mb/s over 50 ms: 1.25 MB each.
    for (rate, round_trip_us) in [(1_250_000, 1000), (25_000, 50_000)] {
        let share = filled(rate, round_trip_us, TcpConfig::default());
        assert!(share > 0.7, "{share:.2} of {rate} octets/ms over {round_trip_us} us");
        let share = filled(rate, round_trip_us, narrow);
        assert!(share < 0.5, "a window below rate times delay is the bound: {share:.2}");
    }
}
