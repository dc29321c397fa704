//! Measures the effect of pacing on a path with a short queue: goodput, loss at the queue, and the time of
//! short transfers, each with and without pacing. Time is the simulator's clock, so the table is equal on all
//! machines.
use std::process::ExitCode;

use clap::Args;
use tcp_lite::{Duration, Limits, Pacing, TcpConfig};
use testing::sim::link::Plan;
use testing::sim::run::{self, Stats};
use testing::sim::setup::{HostSetup, Setup, Work};
use testing::sim::steering::SteeringPlan;
use testing::sim::world::{Chunks, EndPlan, StreamPlan};

/// Round trip in microseconds, and number of bytes in a millisecond.
const PATHS: [(u64, u64); 5] =
    [(20, 1_250_000), (100, 1_250_000), (1000, 125_000), (10_000, 25_000), (50_000, 25_000)];

/// Length of the queue in hundredths of the bandwidth-delay product.
const QUEUES: [u64; 4] = [10, 25, 50, 100];

/// Number of short transfers measured for each row of the table.
const SHORT: u64 = 20;

const MTU: u16 = 1500;

/// Goodput, loss and short transfers with and without pacing, by round trip and queue
#[derive(Debug, Args)]
pub(crate) struct PacingOptions {
    /// Duration in round trips of a bulk transfer that has the path for itself and loses no frames
    #[arg(long, default_value_t = 30)]
    rounds: u64,
    /// Number of segments of a burst
    #[arg(long, default_value_t = 4)]
    burst: u8,
}

/// One path, and one way to send on this path.
#[derive(Clone, Copy)]
struct Case {
    rtt_us: u64,
    rate: u64,
    queue: u64,
    pacing: Option<Pacing>,
}

impl Case {
    fn bdp(&self) -> u64 {
        self.rtt_us * self.rate / 1000
    }

    /// Runs `count` transfers of `bytes` bytes each at the same time.
    fn transfer(&self, count: usize, bytes: u64) -> Result<Stats, String> {
        let tcp = TcpConfig {
            pacing: self.pacing,
            recv_window_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
            user_timeout: Duration::from_secs(3600),
            ..TcpConfig::default()
        };
        let host = |key| HostSetup {
            mtu: MTU,
            ipv6: false,
            tcp,
            mbufs: 16_384,
            out_of_order_bytes: Limits::default().out_of_order_bytes,
            key: [key; 32],
            quantum_bytes: 1 << 16,
            smoltcp: None,
            backlog: 1024,
            path_shrinks: false,
            steering: SteeringPlan::default(),
        };
        let end = |bytes| EndPlan {
            bytes,
            chunks: Chunks::Stream,
            reader: None,
            holds: false,
            abort_at: None,
            closes_last: false,
        };
        let plan = StreamPlan::new(0, [end(bytes), end(0)]);
        // The queue has room for at least two frames, since acknowledgements of the peer may also wait there.
        let queue = (self.bdp() * self.queue / 100).max(2 * u64::from(MTU) + 28);
        let link = |queue| Plan::clean(self.rate, self.rtt_us / 2, queue);
        let setup = Setup {
            hosts: [host(1), host(2)],
            links: [link(queue), link(1 << 24)],
            lro: [None; 2],
            flaps: Vec::new(),
            stalls: Default::default(),
            work: Work::Streams(vec![plan; count]),
            may_cut: false,
            lossless: false,
        };
        let stats = run::run(&setup, 1, &mut |_, port| Ok(port));
        stats.map_err(|violation| format!("{}\n{}", violation.what, violation.state))
    }

    /// Measures goodput in hundredths of the rate and frames lost per thousand, both for one flow and for
    /// four flows. Also measures the median and the maximum time of short transfers in hundredths of a round
    /// trip.
    fn measure(&self, rounds: u64) -> Result<[u64; 6], String> {
        let bytes = self.bdp() * rounds;
        let share = |stats: &Stats| {
            let full = stats.transferred.bytes * 1000 / self.rate;
            (full * 100 / stats.time_us.max(1), stats.lost * 1000 / stats.frames.max(1))
        };
        let one = share(&self.transfer(1, bytes)?);
        let four = share(&self.transfer(4, bytes / 4)?);
        let mut times = Vec::new();
        for nr in 1..=SHORT {
            // Each transfer has four segments and, in addition, from a fifth of the bandwidth-delay product
            // to four times this product.
            let stats = self.transfer(1, 1448 * 4 + self.bdp() * 4 * nr / SHORT)?;
            times.push(stats.time_us * 100 / self.rtt_us);
        }
        times.sort_unstable();
        Ok([one.0, one.1, four.0, four.1, times[times.len() / 2], times[times.len() - 1]])
    }
}

pub(crate) fn run(options: &PacingOptions) -> ExitCode {
    println!(
        "rtt_us  queue  pacing  1 flow: % of rate, lost/1000  4 flows: %, lost/1000  short: median, slowest (RTT/100)"
    );
    for (rtt_us, rate) in PATHS {
        for queue in QUEUES {
            for burst in [None, Some(options.burst)] {
                let pacing = burst.map(|burst_segments| Pacing { burst_segments, rtt_min: Duration::ZERO });
                match (Case { rtt_us, rate, queue, pacing }).measure(options.rounds) {
                    Ok([one, lost, four, lost_four, median, slowest]) => println!(
                        "{rtt_us:>6} {:>5}% {:>7} {one:>9} {lost:>14} {four:>16} {lost_four:>9} {median:>12} {slowest:>9}",
                        queue,
                        if burst.is_some() { "on" } else { "off" },
                    ),
                    Err(what) => {
                        eprintln!("{rtt_us} us, {queue} %: {what}");
                        return ExitCode::FAILURE;
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}
