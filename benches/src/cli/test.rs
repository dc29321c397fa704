//! The options of a test, and their conversion to [`Params`].

use std::path::PathBuf;

use super::PerftestArgs;
use crate::errors::Error;
use crate::net::End;
use crate::params::{ATOMIC_BYTES, AtomicKind, MAX_SIZE, Params, RX_DEPTH_SEND, Test, Verb};
use crate::rate::Rate;
use crate::table::Unit;

/// Seconds between two rows of --run_infinitely if --duration is not given, as in perftest.
const ENDLESS_ROW_S: u32 = 5;

/// perftest's default for --out_json_file.
const PERFTEST_JSON: &str = "perftest_out.json";

/// The options of the test and of its output.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Test")]
pub struct TestArgs {
    /// Bytes of a message [default: 65536 for bandwidth, 2 for latency, 8 for atomics].
    #[arg(short, long, value_parser = parse_size)]
    pub size: Option<u32>,
    /// Messages of each queue pair [default: 5000 for write-bw and write-imm-bw, otherwise 1000].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub iters: Option<u32>,
    /// Run for this many seconds instead of a number of messages.
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with_all = ["iters", "all"],
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub duration: Option<u32>,
    /// Run each power of two from 2 to 2^23 bytes.
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Send messages at this rate, even if earlier messages are late. The latency of a message is measured
    /// from the time at which the message was due.
    #[arg(long = "rate_limit", alias = "rate-limit", value_name = "RATE", value_parser = parse_rate)]
    pub rate_limit: Option<f64>,
    /// Unit of --rate_limit: M (MiB/s), g (Gb/s) or p (messages per second).
    #[arg(long = "rate_units", alias = "rate-units", value_enum, default_value_t)]
    pub rate_units: RateUnit,
    /// With --rate_limit: number of messages that are due at the same time [default: 1].
    #[arg(long = "burst_size", alias = "burst-size", value_name = "N", requires = "rate_limit")]
    pub burst_size: Option<u32>,
    /// Both ends send at the same time.
    #[arg(short, long)]
    pub bidirectional: bool,
    /// With -b: also show the figures of each direction.
    #[arg(long = "report-both", alias = "report_both", requires = "bidirectional")]
    pub report_both: bool,
    /// Run until Ctrl-C, with a row every --duration seconds (5 by default) and a row for the whole run at
    /// the end.
    #[arg(long = "run_infinitely", alias = "run-infinitely", conflicts_with_all = ["iters", "all"])]
    pub run_infinitely: bool,
    /// Send some messages before the first measurement. With -a this is the default; with --rate_limit it is
    /// not done.
    #[arg(long = "perform_warm_up", alias = "perform-warm-up")]
    pub perform_warm_up: bool,
    /// Number of measurements; plots show their spread (needs a server with -P).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// The operation of atomic tests.
    #[arg(
        short = 'A',
        long = "atomic_type",
        alias = "atomic-type",
        value_enum,
        value_name = "TYPE",
        default_value_t
    )]
    pub atomic_type: AtomicKind,
    /// Outstanding requests on each queue pair [default: 128 for bandwidth, 1 for latency].
    #[arg(short, long)]
    pub tx_depth: Option<u32>,
    /// Receives that a target keeps posted on each queue pair, for Sends and Immediate Data [default: 512].
    #[arg(short, long = "rx-depth", alias = "rx_depth", value_name = "N")]
    pub rx_depth: Option<u32>,
    /// Number of queue pairs, at most 16000. Queue pairs share buffers if there are too many for a buffer
    /// each. With a list (1,16,256), do a run for each number (needs a server with -P).
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_value = "1")]
    pub qp: Vec<u32>,
    /// Request a completion for every this many messages [default: 100, at most --tx-depth; 1 for latency].
    #[arg(short = 'Q', long)]
    pub cq_mod: Option<u32>,
    /// Number of requests posted at a time.
    #[arg(short = 'l', long, alias = "post_list", default_value_t = 1)]
    pub post_list: u32,
    /// Number of receives posted at a time.
    #[arg(long = "recv_post_list", alias = "recv-post-list", value_name = "N", default_value_t = 1)]
    pub recv_post_list: u32,
    /// Copy messages of at most this many bytes when they are posted.
    #[arg(short = 'I', long, alias = "inline_size", default_value_t = 0)]
    pub inline: u32,
    /// Outstanding Reads on each queue pair.
    #[arg(short, long, default_value_t = 128)]
    pub outs: u32,
    /// Sleep on completion events instead of polling; an engine thread moves the data.
    #[arg(short, long)]
    pub events: bool,
    /// Show bandwidth in Gb/s instead of MiB/s.
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub report_gbits: bool,
    /// Do not look for the peak: the column of the peak is 0.
    #[arg(short = 'N', long = "noPeak")]
    pub no_peak: bool,
    /// Fail with exit status 1 if the best average bandwidth is below this limit, in the unit of the table.
    #[arg(short = 'w', long = "limit_bw", alias = "limit-bw", value_name = "BW", value_parser = parse_rate)]
    pub limit_bw: Option<f64>,
    /// Fail with exit status 1 if the best message rate is below this limit, in millions per second.
    #[arg(short = 'y', long = "limit_msgrate", alias = "limit-msgrate", value_name = "MPPS", value_parser = parse_rate)]
    pub limit_msgrate: Option<f64>,
    /// Show the CPU time of this process, in percent of one CPU. A polling process always uses the whole CPU.
    /// The line `cost` of --stats shows how much of this time was useful work.
    #[arg(long = "cpu_util", alias = "cpu-util")]
    pub cpu_util: bool,
    /// Latency: print each sample, shortest first.
    #[arg(short = 'H', long = "report-histogram", conflicts_with_all = ["duration", "runs"])]
    pub report_histogram: bool,
    /// Latency: print each sample, in the order of measurement.
    #[arg(short = 'U', long = "report-unsorted", conflicts_with_all = ["duration", "runs"])]
    pub report_unsorted: bool,
    /// Send Writes and Sends of 256 KiB and more from their memory, without a copy, if that costs less: with
    /// --no-crc and long frames (--mtu 9000). Such requests complete when they are acknowledged. Works with
    /// net_vhost, --packet and `local`; other ports copy.
    #[arg(long = "zero-copy", alias = "zero_copy")]
    pub zero_copy: bool,
    /// Ask the peer for markers in its stream.
    #[arg(long)]
    pub markers: bool,
    /// Do not ask for CRCs. CRCs are used if the peer asks for them, so a server needs this option too. Use
    /// this option only for paths that are protected against undetected errors at least as well as by an
    /// end-to-end CRC32c.
    #[arg(long)]
    pub no_crc: bool,
    /// Check every received byte (needs iwperf on both ends).
    #[arg(long)]
    pub validate: bool,
    /// Seed of the patterns of --validate, and of the lost frames of --drop-ppm.
    #[arg(long, default_value_t = 1, hide_short_help = true)]
    pub seed: u64,
    /// Write the results to this file as JSON, or to standard output (-). In the latter case the table is on
    /// standard error.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the last row as perftest does, as one JSON object with test_info and results.
    #[arg(long = "out_json", alias = "out-json")]
    pub out_json: bool,
    /// The file of --out_json, or - for standard output [default: perftest_out.json].
    #[arg(long = "out_json_file", alias = "out-json-file", value_name = "FILE")]
    pub out_json_file: Option<PathBuf>,
    /// Write the results with plots. A name that ends in .html is one file, and - is standard output. Any
    /// other name is a directory, with the same page (index.html) and each plot (SVG).
    #[arg(long, value_name = "FILE.html|DIR")]
    pub report: Option<PathBuf>,
    /// Show the cost of an FPDU by layer, in cycles of this end (needs a build with `--features profile`).
    #[arg(long, conflicts_with = "events")]
    pub profile: bool,
    /// At the end, print the counters of all layers and of the device that are not zero.
    #[arg(long)]
    pub stats: bool,
    /// Options of perftest that have no effect.
    #[command(flatten)]
    pub perftest: PerftestArgs,
}

/// perftest's letters for the unit of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum RateUnit {
    /// MiB/s.
    #[value(name = "M")]
    MebibytesPerSecond,
    /// Gb/s.
    #[default]
    #[value(name = "g")]
    GigabitsPerSecond,
    /// Messages per second.
    #[value(name = "p")]
    Messages,
}

impl RateUnit {
    fn of(self, number: f64) -> Rate {
        match self {
            Self::MebibytesPerSecond => Rate::Bytes(Unit::MebibytesPerSecond.to_bytes_per_s(number) as u64),
            Self::GigabitsPerSecond => Rate::Bytes(Unit::GigabitsPerSecond.to_bytes_per_s(number) as u64),
            Self::Messages => Rate::Messages(number as u64),
        }
    }
}

impl TestArgs {
    /// The parameters of `test`. Options that were not given have perftest's defaults.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the options do not fit the test, or do not fit each other.
    pub fn params(&self, test: Test) -> Result<Params, Error> {
        let latency = test.is_latency();
        let default_iters = if matches!(test, Test::WriteBw | Test::WriteImmBw) { 5000 } else { 1000 };
        let size = match (self.all, self.size) {
            (true, _) => MAX_SIZE,
            (false, Some(size)) => size,
            (false, None) if test.verb() == Verb::Atomic => ATOMIC_BYTES,
            (false, None) if latency => 2,
            (false, None) => 65536,
        };
        let duration = self.duration.or(self.run_infinitely.then_some(ENDLESS_ROW_S));
        let tx_depth = self.tx_depth.unwrap_or(if latency { 1 } else { 128 });
        let iters = if duration.is_some() { 0 } else { self.iters.unwrap_or(default_iters) };
        // As in perftest, a completion must be due before the queue is full.
        let cq_mod = self.cq_mod.unwrap_or(100).min(tx_depth).min(if iters == 0 { u32::MAX } else { iters });
        let params = Params {
            test,
            size,
            iters,
            duration_s: duration.unwrap_or(0),
            all: self.all,
            bidirectional: self.bidirectional,
            tx_depth,
            qps: self.qp.first().copied().unwrap_or(1),
            cq_mod: if latency { 1 } else { cq_mod },
            post_list: self.post_list,
            inline: self.inline,
            outs: self.outs,
            events: self.events,
            validate: self.validate,
            zero_copy: self.zero_copy,
            markers: self.markers,
            crc: !self.no_crc,
            seed: self.seed,
            rate: self.rate_limit.map(|number| self.rate_units.of(number)),
            burst: self.burst_size.unwrap_or(1),
            rx_depth: self.rx_depth.unwrap_or(RX_DEPTH_SEND),
            recv_post_list: self.recv_post_list,
            atomic: self.atomic_type,
            // With a given rate there is no warm-up, since the first messages are slow in real use as well.
            warm_up: (self.all || self.perform_warm_up) && self.rate_limit.is_none(),
            endless: self.run_infinitely,
        };
        if (self.report_histogram || self.report_unsorted) && !latency {
            return Err(Error::Usage(format!("{}: -H and -U are for latency tests", test.name())));
        }
        if (self.limit_bw.is_some() || self.limit_msgrate.is_some()) && latency {
            return Err(Error::Usage(format!("{}: -w and -y are for bandwidth tests", test.name())));
        }
        params.check()?;
        self.check()?;
        Ok(params)
    }

    /// The parameters of `test` for each number of queue pairs, repeated `--runs` times.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the parameters of a run are not valid.
    pub fn sweep(&self, test: Test) -> Result<Vec<Params>, Error> {
        let with = |&qps: &u32| {
            let params = Params { qps, ..self.params(test)? };
            params.check().map(|()| params)
        };
        let each = self.qp.iter().flat_map(|qps| std::iter::repeat_n(qps, self.runs as usize));
        each.map(with).collect()
    }

    /// Checks the options that do not depend on the test.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if this build cannot do what `--profile` asks for.
    pub fn check(&self) -> Result<(), Error> {
        if self.profile { crate::profile::check_available() } else { Ok(()) }
    }

    /// Whether the user wants each latency.
    pub fn keeps_samples(&self) -> bool {
        self.report_histogram || self.report_unsorted
    }

    /// Makes `end` profile its layers and keep each latency, if the user wants this.
    pub fn set(&self, end: &mut End) {
        end.endpoint.profile = self.profile;
        end.endpoint.keeps_samples = self.keeps_samples();
    }

    /// The file of --out_json, or `None` if the user does not want this file.
    pub fn perftest_json(&self) -> Option<PathBuf> {
        let wanted = self.out_json || self.out_json_file.is_some();
        wanted.then(|| self.out_json_file.clone().unwrap_or_else(|| PERFTEST_JSON.into()))
    }

    /// The unit of bandwidth.
    pub fn unit(&self) -> Unit {
        if self.report_gbits { Unit::GigabitsPerSecond } else { Unit::MebibytesPerSecond }
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
        .ok_or("give a number above 0".into())
}

/// Parses a number of bytes with an optional suffix: 64, 4K, 1M (as in perftest) or 1G.
fn parse_size(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes (64, 4K, 1M, 1G)")?;
    let bytes = number.checked_mul(1 << shift).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|bytes| (1..=1 << 30).contains(bytes)).ok_or("from 1 to 1073741824 (1G)".into())
}
