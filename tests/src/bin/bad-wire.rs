//! Connects two DPDK devices by a wire with a given rate, delay and loss. A seed determines the faults.
//!
//! Prints `ready` once both devices are open. At the end it prints the frame counters and the observed
//! traffic of each side. Ends after `--seconds`, or on SIGINT or SIGTERM.

use std::process::ExitCode;
use std::time::Duration;

use benches::driver::Interrupt;
use clap::Parser;
use tests::bridge::{Bridge, Passed};
use tests::device;
use tests::lab::{LabError, Result};
use tests::sim::link::Plan;

/// A wire with loss and delay, the same in both directions.
#[derive(Parser)]
struct Options {
    /// DPDK device at the left side.
    #[arg(long)]
    left: String,
    /// DPDK device at the right side.
    #[arg(long)]
    right: String,
    /// MTU, bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Rate, megabits per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Time on the wire, microseconds.
    #[arg(long, default_value_t = 5000)]
    delay: u64,
    /// Maximum length of the queue in front of the wire, in frames of the MTU.
    #[arg(long, default_value_t = 200)]
    queue: u64,
    /// Share of segments that are lost, parts per million.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    loss: u32,
    /// Share of segments that are delayed, parts per million.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    reorder: u32,
    /// Additional delay of a delayed segment, microseconds.
    #[arg(long, default_value_t = 2000)]
    reorder_by: u64,
    /// Share of segments that are split into two to four segments, parts per million.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    cut: u32,
    /// Maximum payload into which consecutive segments are joined, bytes; 0: segments are never joined.
    #[arg(long, default_value_t = 0)]
    join: usize,
    /// Maximum time for which a segment waits for the segment with which it is joined, microseconds.
    #[arg(long, default_value_t = 500)]
    join_for: u64,
    /// Number of packet buffers of each device; 0: the default.
    #[arg(long, default_value_t = 0)]
    mbufs: u32,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Duration of the run, seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(Passed { taken, given, lost, stuck, reordered, cut, joined, witness }) => {
            for (side, name) in ["left", "right"].into_iter().enumerate() {
                print!("{name} {} ", witness.seen()[side]);
                print!(
                    "taken={} given={} lost={} stuck={} ",
                    taken[side], given[side], lost[side], stuck[side]
                );
                println!("reordered={} cut={} joined={}", reordered[side], cut[side], joined[side]);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bad-wire: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<Passed> {
    let interrupt = Interrupt::on_signals().map_err(|error| LabError(error.to_string()))?;
    let open = |vdev: &str| device::open(vdev, options.mtu, options.mbufs);
    let ports = [open(&options.left)?, open(&options.right)?];
    // The rate in bytes per millisecond.
    let rate = options.rate * 125;
    let plan = Plan {
        loss_ppm: options.loss,
        reorder_ppm: options.reorder,
        reorder_us: options.reorder_by,
        split_ppm: options.cut,
        join: (options.join > 0).then_some((options.join, options.join_for)),
        ..Plan::clean(rate, options.delay, options.queue * (u64::from(options.mtu) + 14))
    };
    let bridge = Bridge::new(ports, &plan, options.seed);
    println!("ready");
    Ok(bridge.run(Duration::from_secs(options.seconds), || interrupt.is_raised()))
}
