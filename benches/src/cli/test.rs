//! Test options, and how they become [`Params`].

use std::path::PathBuf;

use crate::errors::Error;
use crate::params::{MAX_SIZE, Params, Test};
use crate::table::Unit;

/// The test and its output.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Test")]
pub struct TestArgs {
    /// Octets of a message [default: 65536 for bandwidth, 2 for latency].
    #[arg(short, long, value_parser = parse_size)]
    pub size: Option<u32>,
    /// Messages of each queue pair [default: 5000 for write-bw, else 1000].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(5..=100_000_000))]
    pub iters: Option<u32>,
    /// Run for so many seconds instead.
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with_all = ["iters", "all"],
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub duration: Option<u32>,
    /// All sizes from 2 to 2^23 octets.
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Both ends send at the same time.
    #[arg(short, long)]
    pub bidirectional: bool,
    /// Requests outstanding on each queue pair [default: 128].
    #[arg(short, long)]
    pub tx_depth: Option<u32>,
    /// Queue pairs.
    #[arg(short, long, default_value_t = 1)]
    pub qp: u32,
    /// Ask for a completion every so many requests [default: 100].
    #[arg(short = 'Q', long)]
    pub cq_mod: Option<u32>,
    /// Requests posted at a time.
    #[arg(short = 'l', long, default_value_t = 1)]
    pub post_list: u32,
    /// Copy messages up to this many octets when they are posted.
    #[arg(short = 'I', long, default_value_t = 0)]
    pub inline: u32,
    /// Reads outstanding on each queue pair.
    #[arg(short, long, default_value_t = 128)]
    pub outs: u32,
    /// Sleep on completion events instead of polling; an engine thread moves the data.
    #[arg(short, long)]
    pub events: bool,
    /// Bandwidth in Gb/s instead of MiB/s.
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub report_gbits: bool,
    /// Ask the peer for markers in its stream.
    #[arg(long)]
    pub markers: bool,
    /// Do not ask for CRCs (they are used if the peer asks).
    #[arg(long)]
    pub no_crc: bool,
    /// Check every octet at the target (iwperf on both ends).
    #[arg(long)]
    pub validate: bool,
    /// Seed of the patterns of --validate.
    #[arg(long, default_value_t = 1, hide_short_help = true)]
    pub seed: u64,
    /// Write the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print the counters of all layers at the end.
    #[arg(long)]
    pub stats: bool,
    /// Taken for perftest's sake; without effect.
    #[arg(short = 'F', hide = true)]
    pub force: bool,
}

impl TestArgs {
    /// The parameters of `test`, with perftest's defaults where nothing was said.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn params(&self, test: Test) -> Result<Params, Error> {
        let latency = test.is_latency();
        let default_iters = if test == Test::WriteBw { 5000 } else { 1000 };
        let size = match (self.all, self.size) {
            (true, _) => MAX_SIZE,
            (false, Some(size)) => size,
            (false, None) => {
                if latency {
                    2
                } else {
                    65536
                }
            }
        };
        let tx_depth = self.tx_depth.unwrap_or(if latency { 1 } else { 128 });
        let iters = if self.duration.is_some() { 0 } else { self.iters.unwrap_or(default_iters) };
        // perftest does the same: a completion must be due before the queue is full.
        let cq_mod = self.cq_mod.unwrap_or(100).min(tx_depth).min(if iters == 0 { u32::MAX } else { iters });
        let params = Params {
            test,
            size,
            iters,
            duration_s: self.duration.unwrap_or(0),
            all: self.all,
            bidirectional: self.bidirectional,
            tx_depth,
            qps: self.qp,
            cq_mod: if latency { 1 } else { cq_mod },
            post_list: self.post_list,
            inline: self.inline,
            outs: self.outs,
            events: self.events,
            validate: self.validate,
            markers: self.markers,
            crc: !self.no_crc,
            seed: self.seed,
        };
        params.check()?;
        Ok(params)
    }

    /// The unit of bandwidth.
    pub fn unit(&self) -> Unit {
        if self.report_gbits { Unit::GigabitsPerSecond } else { Unit::MebibytesPerSecond }
    }
}

/// Octets with perftest's suffixes: 64, 4K, 1M.
fn parse_size(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let number: u32 = digits.parse().map_err(|_| "not a number of octets (64, 4K, 1M)")?;
    number
        .checked_mul(1 << shift)
        .filter(|&n| (1..=1 << 30).contains(&n))
        .ok_or("from 1 to 1073741824".into())
}
