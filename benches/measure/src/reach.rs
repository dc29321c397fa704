//! Measures which share of a wire's rate one connection reaches, with and without markers. Time is the
//! simulator's clock, so the table is equal on all machines.
use std::process::ExitCode;

use clap::Args;
use tcp_lite::TcpConfig;
use testing::reach::Path;

/// Megabits per second, and round trip in microseconds.
const PATHS: [(u64, u64); 6] =
    [(200, 10_000), (200, 50_000), (600, 50_000), (1000, 10_000), (10_000, 1000), (10_000, 3000)];

/// Prints the share of a wire's rate that one connection reaches, with markers and without
#[derive(Debug, Args)]
pub(crate) struct ReachOptions {
    /// Number of round trips before the measurement. The measurement lasts as many round trips
    #[arg(long, default_value_t = 30)]
    rounds: u64,
    /// Length of the queue in front of the wire, in hundredths of the bandwidth-delay product
    #[arg(long, value_delimiter = ',', default_values_t = [25, 100])]
    queues: Vec<u64>,
    /// Send buffer and receive window in bytes [default: those of the library]
    #[arg(long)]
    window: Option<u32>,
}

pub(crate) fn run(options: &ReachOptions) -> ExitCode {
    let tcp = TcpConfig::default();
    let (recv_window_bytes, send_buffer_bytes) = match options.window {
        Some(bytes) => (bytes, bytes),
        None => (tcp.recv_window_bytes, tcp.send_buffer_bytes),
    };
    let tcp = TcpConfig { recv_window_bytes, send_buffer_bytes, ..tcp };
    println!("  Mb/s  rtt_us  queue   mtu  markers  wire %  payload %  full after  overflowed  timeouts");
    for (rate_mbit, rtt_us) in PATHS {
        for &queue in &options.queues {
            for mtu in [1500, 9000] {
                for markers in [false, true] {
                    let path = Path { rate_mbit, rtt_us, queue, mtu, markers, loss_ppm: 0 };
                    match path.reach(tcp, options.rounds) {
                        Ok(reached) => println!(
                            "{rate_mbit:>6} {rtt_us:>7} {queue:>5}% {mtu:>5} {:>8} {:>7.1} {:>10.1} {:>7} rtt {:>11} {:>9}",
                            if markers { "with" } else { "without" },
                            reached.wire * 100.0,
                            reached.payload * 100.0,
                            reached.filled_after,
                            reached.overflowed,
                            reached.timeouts,
                        ),
                        Err(what) => {
                            eprintln!("{path:?}: {what}");
                            return ExitCode::FAILURE;
                        }
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}
