//! `measure pair ID`: measures one of the comparisons that need no device. All work is done in one process,
//! and the result is a line of JSON. If the two sides of a comparison need separate runs, these runs
//! alternate.
//!
//! | file | what |
//! |---|---|
//! | `alternate.rs` | rates measured in turn, and the result |
//! | `traffic.rs` | Writes on queue pairs between two engines on a wire in memory |
//! | `one_core.rs`, `qps.rs`, `beside_bulk.rs`, `cores.rs`, `queues.rs`, `await_cost.rs`, `stream.rs`, `idle.rs`, `vs_smoltcp.rs` | the comparisons |
//! | `copy_crc.rs` | a loop that copies and computes CRCs: the baseline of `one_core`, `cores_2` and `queues_2` |
//! | `smoltcp_sockets/` | smoltcp's own TCP sockets under MPA: the baseline of `vs_smoltcp` |
//! | `heap.rs` | a counting allocator |
//!
//! Nothing here needs privileges, hugepages or DPDK.

mod alternate;
mod await_cost;
mod beside_bulk;
mod copy_crc;
mod cores;
mod heap;
mod idle;
mod one_core;
mod qps;
mod queues;
mod smoltcp_sockets;
mod stream;
mod traffic;
mod vs_smoltcp;

use std::process::ExitCode;
use std::time::Duration;

use benches::errors::Error;
use clap::{Args, ValueEnum};

use alternate::Comparison;
use beside_bulk::BesideBulk;

/// One comparison that needs no device. Prints `{"id":...,"ours":...,"theirs":...,"unit":...}`
#[derive(Args, Debug)]
pub(crate) struct PairOptions {
    /// What to measure
    id: Id,
    /// Duration of the measurement of both sides together
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// CPUs to run on. Only `cores_2` and `queues_2` use the second CPU. `stream_*` ignores this option
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    cpus: Vec<usize>,
    /// Print details on standard error: sizes of allocations (`idle_qp_bytes`), counters of our engines
    /// (`qps_*`), percentiles (`fair_64`, `beside_bulk`), each rate (`engines_8`), each time (`await_cost`)
    #[arg(long)]
    detail: bool,
}

/// The comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Id {
    /// One core runs both ends of 1 MiB Writes at MTU 9000, against a loop that copies the bytes and computes
    /// their CRC for each end
    OneCore,
    /// 1,000 open queue pairs of which 64 are active, against 64 open queue pairs.
    #[value(name = "qps_1k")]
    Qps1k,
    /// 10,000 open queue pairs of which 64 are active, against 64 open queue pairs.
    #[value(name = "qps_10k")]
    Qps10k,
    /// The slowest of 64 bulk queue pairs, against the fastest of these queue pairs.
    #[value(name = "fair_64")]
    Fair64,
    /// The median round trip of 64 B Writes beside 64 bulk queue pairs, against 150 us
    BesideBulk,
    /// The gain of a second core, against nine tenths of the gain for a loop that copies and computes CRCs
    #[value(name = "cores_2")]
    Cores2,
    /// The gain of a second core if the engines of both cores are on two queues of one device
    #[value(name = "queues_2")]
    Queues2,
    /// 2, 4 and 8 engines on queues of one device and on one core: the slowest of these numbers of engines,
    /// against one engine
    #[value(name = "engines_8")]
    Engines8,
    /// The extra time of an awaited 64 B Read over a polled 64 B Read, against 2 us
    AwaitCost,
    /// The round trip of 64 B over a stream of `iwarp-tokio`, against the kernel's TCP over loopback
    #[value(name = "stream_64")]
    Stream64,
    /// A stream of `iwarp-tokio` with writes of 1 KiB, against the kernel's TCP over loopback
    #[value(name = "stream_1k")]
    Stream1k,
    /// A stream of `iwarp-tokio` with writes of 64 KiB, against the kernel's TCP over loopback
    #[value(name = "stream_64k")]
    Stream64k,
    /// Bytes of an idle queue pair without its work queues, against 4 KiB
    IdleQpBytes,
    /// Our TCP against unmodified smoltcp sockets below equal MPA code, at MTU 1500 with checksums in
    /// software
    VsSmoltcp,
}

pub(crate) fn run(options: &PairOptions) -> ExitCode {
    match take(options) {
        Ok(pair) => {
            println!("{}", pair.json(&id_name(options.id)));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("measure pair: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn take(options: &PairOptions) -> Result<Comparison, Error> {
    let time = Duration::from_secs_f64(options.seconds);
    let [first, .., last] = match options.cpus[..] {
        [only] => [only, only],
        [first, second] => [first, second],
        _ => return Err(Error::Usage("--cpus: give one or two CPUs".into())),
    };
    match options.id {
        Id::Cores2 => return cores::measure([first, last], time),
        Id::Queues2 => return queues::two_cores([first, last], time),
        Id::AwaitCost => return await_cost::measure(first, time, options.detail),
        Id::Stream64 => return stream::measure_trips(time),
        Id::Stream1k => return stream::measure(1 << 10, time),
        Id::Stream64k => return stream::measure(64 << 10, time),
        _ => {}
    }
    benches::net::pin(first)?;
    match options.id {
        Id::OneCore => one_core::measure(time),
        Id::Qps1k => qps::measure(1_000, time, options.detail),
        Id::Qps10k => qps::measure(10_000, time, options.detail),
        Id::Fair64 => Ok(BesideBulk::measure(time, options.detail)?.fairness()),
        Id::BesideBulk => Ok(BesideBulk::measure(time, options.detail)?.round_trip()),
        Id::Cores2 | Id::Queues2 | Id::AwaitCost | Id::Stream64 | Id::Stream1k | Id::Stream64k => {
            unreachable!("they are handled above")
        }
        Id::Engines8 => queues::one_core(time, options.detail),
        Id::IdleQpBytes => idle::measure(&idle::Counts::default(), options.detail),
        Id::VsSmoltcp => vs_smoltcp::measure(time),
    }
}

fn id_name(id: Id) -> String {
    // Every value has a name, since no variant is skipped.
    id.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.001 to 3600".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_have_the_names_of_the_table() {
        let names: Vec<String> = Id::value_variants().iter().map(|&id| id_name(id)).collect();
        let expected = ["one_core", "qps_1k", "qps_10k", "fair_64", "beside_bulk", "cores_2"];
        let newer = ["queues_2", "engines_8", "await_cost", "stream_64", "stream_1k", "stream_64k"];
        assert_eq!(names, [&expected[..], &newer, &["idle_qp_bytes", "vs_smoltcp"]].concat());
    }

    #[test]
    fn a_measure_takes_some_time_and_ends() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
