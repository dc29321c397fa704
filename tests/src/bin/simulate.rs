//! Runs the simulator with one seed or with many seeds.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use tests::sim::report::{Total, attempt, capture_paths, check_all, check_all_with};
use tests::sim::run::Stats;
use tests::sim::scenario::{SCENARIOS, Scenario};

/// Number of runs between two lines of progress.
const SOAK_BLOCK: u64 = 2000;

/// Two hosts on a wire with seeded faults. Ends with `seeds: N, failures: M`.
#[derive(Parser)]
struct Options {
    /// List the scenarios.
    #[arg(long)]
    list: bool,
    /// Scenarios to run [default: all].
    #[arg(long)]
    scenario: Vec<String>,
    /// Run one seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run many seeds: A..B, from A to B - 1.
    #[arg(long, value_parser = range, default_value = "0..100")]
    seeds: (u64, u64),
    /// Make this many runs, alternating between the scenarios.
    #[arg(long, conflicts_with_all = ["seed", "seeds"])]
    runs: Option<u64>,
    /// With --runs: the first run.
    #[arg(long, requires = "runs", default_value_t = 0)]
    from: u64,
    /// Print how often each fault and each event of the protocols occurred.
    #[arg(long)]
    coverage: bool,
    /// Print the hash of each run over all frames that were sent and delivered, with their times.
    #[arg(long, conflicts_with_all = ["seed", "runs"])]
    traces: bool,
    /// With --seed: write the frames of host A and of host B to FILE.a.pcapng and FILE.b.pcapng. A further
    /// queue has a file of its own, such as FILE.a.q1.pcapng.
    #[arg(long, requires = "seed")]
    pcap: Option<PathBuf>,
    /// With --seed: print the parameters that the seed draws.
    #[arg(long, requires = "seed")]
    setup: bool,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or("two numbers: A..B")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    Ok((number(from)?, number(to)?))
}

fn main() -> ExitCode {
    benches::lines::end_when_output_is_lost("simulate");
    let options = Options::parse();
    if options.list {
        for scenario in SCENARIOS {
            println!("{:<12} {}", scenario.name, scenario.about);
        }
        return ExitCode::SUCCESS;
    }
    let mut scenarios = Vec::new();
    for name in &options.scenario {
        match Scenario::find(name) {
            Some(scenario) => scenarios.push(scenario),
            None => {
                eprintln!("no scenario {name}: see --list");
                return ExitCode::from(2);
            }
        }
    }
    if scenarios.is_empty() {
        scenarios = SCENARIOS.to_vec();
    }
    let total = match (options.seed, options.runs) {
        (Some(seed), _) => one(&options, &scenarios, seed),
        (None, Some(runs)) => soak(&scenarios, options.from, runs),
        (None, None) => many(&options, &scenarios),
    };
    if options.coverage {
        println!("{}", total.occurrences);
    }
    println!("seeds: {}, failures: {}", total.seeds, total.failures);
    if total.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(options: &Options, scenarios: &[Scenario], seed: u64) -> Total {
    let mut total = Total::default();
    for scenario in scenarios {
        if options.setup {
            println!("{:#?}", scenario.setup(seed));
        }
        total.seeds += 1;
        let captures = options.pcap.as_deref().map(capture_paths);
        match attempt(scenario, seed, captures.as_ref()) {
            Ok(stats) => println!("{} {seed}: {stats:?}", scenario.name),
            Err(violation) => {
                total.failures += 1;
                println!("{} {seed} at {} us: {}", scenario.name, violation.at_us, violation.what);
                print!("{}", violation.state);
            }
        }
        for capture in captures.iter().flatten() {
            println!("capture: {}", capture.display());
        }
    }
    total
}

fn many(options: &Options, scenarios: &[Scenario]) -> Total {
    let mut all = Total::default();
    for scenario in scenarios {
        let started = Instant::now();
        let (from, to) = options.seeds;
        let each = |seed: u64, stats: &Stats| {
            if options.traces {
                println!("trace {} {seed}: {:016x}", scenario.name, stats.trace);
            }
        };
        let total = check_all_with(&[*scenario], from..to, &|failure| println!("{failure}\n"), &each);
        println!("{:<12} {total} seconds {:.1}", scenario.name, started.elapsed().as_secs_f64());
        all.join(&total);
    }
    all
}

/// Makes runs until their number is `runs`. Prints regularly the run from which to continue after an
/// interruption.
fn soak(scenarios: &[Scenario], from: u64, runs: u64) -> Total {
    let mut all = Total::default();
    let (mut next, end) = (from, from + runs);
    while next < end {
        let to = end.min(next + SOAK_BLOCK);
        all.join(&check_all(scenarios, next..to, &|failure| println!("{failure}\n")));
        next = to;
        println!("{all} next {next}");
    }
    all
}
