//! Measures out-of-order placement: the benefit of markers when segments are lost.
//!
//! The first measurement is in virtual time, on the simulator's wire, so equal options and seeds print equal
//! figures. The second measurement is in real time, on this machine: the work that is left when a hole is
//! filled. `tests/PLACEMENT.md` explains the figures.
use std::process::ExitCode;

use clap::Args;
use testing::placement::{Fill, FillSetting, Loss, Outcome, Setting, Traffic, measure};

/// Measures the payload that is placed before the hole in front of it is filled, the memory that holes cause
/// to be held, and the benefit of placing early
#[derive(Debug, Args)]
pub(crate) struct PlacementOptions {
    /// Percentage of the frames that are lost in each direction.
    #[arg(long, default_value_t = 1.0, value_parser = percent)]
    loss: f64,
    /// Rate of the wire in each direction, for instance 10Gb/s or 200Mb/s.
    #[arg(long, default_value = "10Gb/s", value_parser = rate)]
    rate: u64,
    /// Round-trip time of the empty wire, for instance 100us or 10ms.
    #[arg(long, default_value = "100us", value_parser = time)]
    rtt: u64,
    /// Bytes of a message, for instance 64K or 1M.
    #[arg(long, default_value = "64K", value_parser = size)]
    message: usize,
    /// Number of messages of each connection in a run.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Number of connections.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    connections: u16,
    /// Load of all messages together, in percent of the wire's rate. Each setting is measured with this load,
    /// and with bulk transfers
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100))]
    load: u32,
    /// Traffic: write+send, write+imm, write, send [default: all]
    #[arg(long, value_parser = traffic)]
    traffic: Vec<Traffic>,
    /// MTU in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
    /// Number of runs of each setting.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Number of holes that are timed for each window. 0 means none
    #[arg(long, default_value_t = 51)]
    holes: usize,
}

fn number(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (digits, factor) = found.ok_or_else(|| {
        format!(
            "give a number with one of the units {}",
            units.iter().map(|unit| unit.0).collect::<Vec<_>>().join(" ")
        )
    })?;
    let value: u64 = digits.trim().parse().map_err(|error| format!("{digits}: {error}"))?;
    let value = value.checked_mul(*factor).filter(|value| *value > 0);
    value.ok_or_else(|| format!("{text} is out of range"))
}

/// Parses a rate, and returns it in megabits per second.
fn rate(text: &str) -> Result<u64, String> {
    number(text, &[("Gb/s", 1000), ("Mb/s", 1)])
}

/// Parses a time, and returns it in microseconds.
fn time(text: &str) -> Result<u64, String> {
    number(text, &[("us", 1), ("ms", 1000), ("s", 1_000_000)])
}

/// Parses a size, and returns it in bytes.
fn size(text: &str) -> Result<usize, String> {
    let bytes = number(text, &[("K", 1 << 10), ("M", 1 << 20), ("", 1)])? as usize;
    // A message needs a minimum length, since its last bytes have to identify it.
    if (16..=1 << 24).contains(&bytes) { Ok(bytes) } else { Err("from 16 bytes to 16M".into()) }
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|error| format!("{text}: {error}"))?;
    if (0.0..=20.0).contains(&value) { Ok(value) } else { Err("from 0 to 20".into()) }
}

fn traffic(text: &str) -> Result<Traffic, String> {
    Traffic::find(text).ok_or_else(|| "give write+send, write+imm, write or send".into())
}

/// Prints the table in virtual time and, unless no holes are timed, the table in real time.
pub(crate) fn run(options: &PlacementOptions) -> ExitCode {
    match on_the_wire(options).and_then(|()| when_filled(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("placement: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on_the_wire(options: &PlacementOptions) -> Result<(), String> {
    let all = [Traffic::WriteSend, Traffic::WriteImmediate, Traffic::Write, Traffic::Send];
    let kinds = if options.traffic.is_empty() { &all[..] } else { &options.traffic };
    let ppm = (options.loss * 10_000.0) as u32;
    println!(
        "{} % lost, {} Mb/s, round trip {} us, {} connections, {} messages of {} bytes, {} seeds",
        options.loss,
        options.rate,
        options.rtt,
        options.connections,
        options.messages,
        options.message,
        options.seeds
    );
    println!(
        "{:<7} {:<6} {:<11} {:<7} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9}  {:<8} {:>7}{:>8}{:>8}{:>8}{:>8}",
        "loss",
        "load",
        "traffic",
        "markers",
        "Gb/s",
        "behind",
        "placed",
        "pinned",
        "pinned",
        "waiting",
        "",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max"
    );
    println!(
        "{:<7} {:<6} {:<11} {:<7} {:>6} {:>8} {:>7} {:>9} {:>9} {:>9}  us, due to",
        "", "", "", "", "", "% of all", "early %", "mean KiB", "max KiB", "max KiB"
    );
    for (name, loss) in [("random", Loss::Random(ppm)), ("burst", Loss::Burst(ppm))] {
        for load in [None, Some(options.load)] {
            for &traffic in kinds {
                for markers in [false, true] {
                    let setting = Setting {
                        loss,
                        rate_mbit: options.rate,
                        rtt_us: options.rtt,
                        mtu: options.mtu,
                        connections: options.connections,
                        traffic,
                        message: options.message,
                        messages: options.messages,
                        load,
                        markers,
                    };
                    let mut outcome = Outcome::default();
                    for seed in 0..options.seeds {
                        outcome.merge(&measure(&setting, seed)?);
                    }
                    row(name, &setting, &outcome);
                }
            }
        }
    }
    Ok(())
}

fn row(loss: &str, setting: &Setting, outcome: &Outcome) {
    let load = setting.load.map_or_else(|| "bulk".to_owned(), |load| format!("{load} %"));
    let markers = if setting.markers { "with" } else { "without" };
    let kib = |bytes: f64| bytes / 1024.0;
    println!(
        "{loss:<7} {load:<6} {:<11} {markers:<7} {:>6.2} {:>8.1} {:>7.1} {:>9.1} {:>9.1} {:>9.1}  {:<7}{}",
        setting.traffic.name(),
        outcome.goodput_gbit(),
        outcome.behind as f64 * 100.0 / outcome.payload as f64,
        outcome.share() * 100.0,
        kib(outcome.pinned.mean()),
        kib(outcome.pinned.max() as f64),
        kib(outcome.waiting.max() as f64),
        "placed",
        outcome.placement_us,
    );
    println!("{:<83}{:<7}{}", "", "told", outcome.completion_us);
}

fn when_filled(options: &PlacementOptions) -> Result<(), String> {
    if options.holes == 0 {
        return Ok(());
    }
    println!(
        "\nreal time from a missing segment's arrival to the last completion behind it, us, {} holes",
        options.holes
    );
    println!("{:>10} {:<8} {:>9} {:>9} {:>9}", "behind", "markers", "median", "p10", "p90");
    for shift in [16, 18] {
        for markers in [false, true] {
            let setting = FillSetting { mtu: options.mtu, behind: 1 << shift, markers };
            let took = Fill::new(&setting)?.measure(options.holes)?;
            let us = |share: f64| took.at(share) as f64 / 1000.0;
            println!(
                "{:>6} KiB {:<8} {:>9.1} {:>9.1} {:>9.1}",
                (1 << shift) / 1024,
                if markers { "with" } else { "without" },
                us(0.5),
                us(0.1),
                us(0.9)
            );
        }
    }
    Ok(())
}
