//! The rows of UCX and of Open MPI: the same unmodified program with the library on a local wire, and over
//! the kernel's TCP on the loopback interface. The program's two processes are on two cores. UCX and Open MPI
//! can also use shared memory without verbs. These figures are beside the rows in the JSON, and they are the
//! baseline of the rows `mpi_vader_*` and `ucx_shm_*`.

use std::fs;
use std::time::{Duration, Instant};

use testing::lab::{Process, Result, Run, Scratch};
use testing::lab_error;

use crate::compare::kernel::KernelHosts;
use crate::compare::kernel::shape::{DEV, Shape};
use crate::compare::session::{Session, Tally};

/// The port at which the server of `ucx_perftest` tells its address, over the kernel's TCP.
const PORT: u16 = 13_347;

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(120);

/// The ways of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Uwarp,
    KernelTcp,
    SharedMemory,
}

/// The library between the program and the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// UCP, by `ucx_perftest`.
    Ucp,
    /// Open MPI's `pml ucx`, by NetPIPE.
    MpiUcx,
    /// Open MPI's `mtl ofi`, by NetPIPE.
    MpiOfi,
}

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// Half of a round trip of 64 bytes in us: the median of UCP, and the average of NetPIPE.
    Latency,
    /// The rate of large messages in GB/s.
    Rate,
}

/// What `ucx_perftest` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UcpTest {
    /// The median of half of a round trip of 64 bytes, with tags, in us.
    Tag,
    /// The rate of puts of 64 KiB in GB/s.
    Put,
    /// The rate of active messages of 64 bytes in millions per second.
    Messages,
}

impl From<Figure> for UcpTest {
    fn from(figure: Figure) -> Self {
        match figure {
            Figure::Latency => Self::Tag,
            Figure::Rate => Self::Put,
        }
    }
}

const ROWS: [(&str, Through, Figure, Over); 8] = [
    ("ucx_tag_64", Through::Ucp, Figure::Latency, Over::KernelTcp),
    ("ucx_put_64k", Through::Ucp, Figure::Rate, Over::KernelTcp),
    ("mpi_ucx_64", Through::MpiUcx, Figure::Latency, Over::KernelTcp),
    ("mpi_ofi_64", Through::MpiOfi, Figure::Latency, Over::KernelTcp),
    ("mpi_ucx_1m", Through::MpiUcx, Figure::Rate, Over::KernelTcp),
    ("mpi_ofi_1m", Through::MpiOfi, Figure::Rate, Over::KernelTcp),
    ("mpi_vader_64", Through::MpiUcx, Figure::Latency, Over::SharedMemory),
    ("mpi_vader_1m", Through::MpiUcx, Figure::Rate, Over::SharedMemory),
];

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    let wanted: Vec<_> = ROWS.into_iter().filter(|(id, ..)| session.options.wants(id)).collect();
    for _ in 0..session.pace.pairs {
        for &(id, through, figure, baseline) in &wanted {
            let of = |over| taken(session, through, figure, over);
            tally.add(id, "both", session.pair(|| of(Over::Uwarp), || of(baseline)));
        }
    }
    for (id, through, figure, baseline) in wanted {
        if baseline == Over::SharedMemory {
            continue;
        }
        match taken(session, through, figure, Over::SharedMemory) {
            Ok(value) => tally.note(id, "shared_memory", value),
            Err(error) => tally.note(id, "shared_memory_error", error.to_string()),
        }
    }
}

fn taken(session: &Session, through: Through, figure: Figure, over: Over) -> Result<f64> {
    let scratch = Scratch::new()?;
    let with_library = |run: Run| match over {
        Over::Uwarp => {
            let run = run.env("LD_PRELOAD", session.program("libuwarp.so")?);
            // UCX opens only InfiniBand devices.
            Ok(run.env("UWARP_DIR", scratch.path()).env("UWARP_PRETEND", "ib"))
        }
        Over::KernelTcp | Over::SharedMemory => Ok(run),
    };
    match through {
        Through::Ucp => ucp(session, figure.into(), |run| with_library(ucx(run, over))),
        Through::MpiUcx | Through::MpiOfi => {
            let file = scratch.file("netpipe.out");
            let mpirun =
                ucx(Run::new("mpirun").args(["--allow-run-as-root", "-n", "2", "--bind-to", "none"]), over);
            let mpirun = mpirun.args(transport(through, over)).args(["sh", "-c", PINNED, "sh"]);
            let mpirun = mpirun.args(session.cpus.map(|cpu| cpu.to_string())).args(netpipe(session, figure));
            with_library(mpirun.arg("-o").arg(&file))?.check(LIMIT)?;
            result_of_netpipe(&fs::read_to_string(&file)?, figure)
        }
    }
}

/// Sets UCX's transports.
fn ucx(run: Run, over: Over) -> Run {
    let (transports, devices) = match over {
        Over::Uwarp => ("rc_verbs,ud_verbs,self", "uwarp0:1"),
        Over::KernelTcp => ("tcp,self", "lo"),
        Over::SharedMemory => return run.env("UCX_TLS", "shm,self"),
    };
    run.env("UCX_TLS", transports).env("UCX_NET_DEVICES", devices)
}

// ---- UCP ----

/// Measures UCX over shared memory.
///
/// # Errors
/// Fails if `ucx_perftest` fails.
pub(crate) fn in_shared_memory(session: &Session, test: UcpTest) -> Result<f64> {
    ucp(session, test, |run| Ok(ucx(run, Over::SharedMemory)))
}

/// Measures UCX over the kernel's TCP between two hosts.
///
/// # Errors
/// Fails if `ucx_perftest` fails.
pub(crate) fn between(session: &Session, hosts: &KernelHosts, test: UcpTest) -> Result<f64> {
    let end = |at: usize| {
        let run = perftest(session, test).env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", DEV);
        let server = (at == 1).then(|| hosts.address(Shape::Plain));
        hosts.spawn(at, run.args(server))
    };
    both_ends(end, test)
}

fn ucp(session: &Session, test: UcpTest, with_library: impl Fn(Run) -> Result<Run>) -> Result<f64> {
    let end = |at: usize| {
        let run = with_library(perftest(session, test).pinned(session.cpus[at]))?;
        run.args((at == 1).then_some("127.0.0.1")).spawn()
    };
    both_ends(end, test)
}

fn perftest(session: &Session, test: UcpTest) -> Run {
    let (name, size, count) = match test {
        UcpTest::Tag => ("tag_lat", "64", session.pace.round_trips),
        UcpTest::Put => ("ucp_put_bw", "65536", session.pace.round_trips),
        UcpTest::Messages => ("ucp_am_bw", "64", 10 * session.pace.round_trips),
    };
    let count = count.to_string();
    let run = Run::new("ucx_perftest").args(["-f", "-t", name, "-s", size, "-n", &count, "-w", "1000"]);
    run.args(["-p", &PORT.to_string()])
}

/// Starts the server, which is end 0, and the client, which is end 1. Returns the client's figure.
fn both_ends(end: impl Fn(usize) -> Result<Process>, test: UcpTest) -> Result<f64> {
    let mut server = end(0)?;
    wait_for_port(&mut server)?;
    let text = end(1)?.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    result_of_ucx(&text, test)
}

/// Waits until a program listens at [`PORT`] of the kernel's TCP, in the program's network namespace.
fn wait_for_port(server: &mut Process) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < START {
        let path = |table: &str| format!("/proc/{}/net/{table}", server.id());
        let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(path(table)).unwrap_or_default());
        if tables.iter().any(|table| listens(table)) {
            return Ok(());
        }
        if !server.is_running()? {
            return Err(lab_error!("ucx_perftest has ended: {}", server.text()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(lab_error!("ucx_perftest does not listen: {}", server.text()))
}

/// Whether a socket of a table of the kernel's TCP is in the state LISTEN (`0A`) at [`PORT`].
fn listens(table: &str) -> bool {
    let port = format!(":{PORT:04X}");
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1).is_some_and(|local| local.ends_with(&port)) && words.get(3) == Some(&"0A")
    })
}

/// Returns the median latency in us, the average rate in GB/s, or the average rate in millions of messages
/// per second. The last line of numbers has the count, the latencies (50th percentile, average, overall), the
/// rates in MB/s of 2^20 bytes (average, overall), and messages per second (average, overall).
fn result_of_ucx(text: &str, test: UcpTest) -> Result<f64> {
    let numbers =
        |line: &str| -> Option<Vec<f64>> { line.split_whitespace().map(|word| word.parse().ok()).collect() };
    let row = text.lines().rev().filter_map(numbers).find(|numbers| numbers.len() == 8);
    let row = row.ok_or_else(|| lab_error!("no figures of ucx_perftest in: {text}"))?;
    Ok(match test {
        UcpTest::Tag => row[1],
        UcpTest::Put => row[4] * f64::from(1 << 20) / 1e9,
        UcpTest::Messages => row[6] / 1e6,
    })
}

// ---- Open MPI ----

/// A script that runs NetPIPE on the first core in rank 0, and on the second core in rank 1.
const PINNED: &str =
    r#"cpu=$1; [ "$OMPI_COMM_WORLD_RANK" = 0 ] || cpu=$2; shift 2; exec taskset -c "$cpu" "$@""#;

/// Options of mpirun that allow a single transport.
fn transport(through: Through, over: Over) -> &'static [&'static str] {
    match (over, through) {
        (Over::Uwarp, Through::MpiOfi) => &[
            "--mca",
            "pml",
            "cm",
            "--mca",
            "mtl",
            "ofi",
            "--mca",
            "mtl_ofi_provider_include",
            "verbs;ofi_rxm",
        ],
        (Over::Uwarp, _) => &["--mca", "pml", "ucx"],
        (Over::KernelTcp, _) => {
            &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
        }
        (Over::SharedMemory, _) => &["--mca", "pml", "ob1", "--mca", "btl", "vader,self"],
    }
}

/// NetPIPE with messages of one length. The option `-p 0` keeps NetPIPE from also trying lengths nearby.
fn netpipe(session: &Session, figure: Figure) -> Vec<String> {
    let (size, count) = match figure {
        Figure::Latency => ("64", session.pace.round_trips),
        Figure::Rate => ("1048576", session.pace.round_trips / 100),
    };
    let count = count.to_string();
    ["NPopenmpi", "-p", "0", "-l", size, "-u", size, "-n", &count].map(str::to_owned).into()
}

/// Returns the latency in us, or the rate in GB/s. NetPIPE writes a line with the length, the rate in Mb/s of
/// 2^20 bits, and half of the round trip in seconds.
fn result_of_netpipe(text: &str, figure: Figure) -> Result<f64> {
    let words: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[_, rate, half] = words.as_slice() else {
        return Err(lab_error!("no figures of NetPIPE in: {text}"));
    };
    Ok(match figure {
        Figure::Latency => half * 1e6,
        Figure::Rate => rate * f64::from(1 << 20) / 8.0 / 1e9,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::measures::find;

    #[test]
    fn each_row_is_in_the_table() {
        for (id, _, figure, _) in ROWS {
            let unit = find(id).unwrap().unit;
            assert_eq!(unit, if figure == Figure::Latency { "us" } else { "GB/s" }, "{id}");
        }
    }

    #[test]
    fn the_median_and_the_average_rate_of_ucx_count() {
        let text = "|   Test | # iterations | 50.0%ile |\n+---+\n     20000      1.356     7.126     \
                    7.200        1024.00       1025.00      140322      140323\n";
        assert_eq!(result_of_ucx(text, UcpTest::Tag).unwrap(), 1.356);
        assert_eq!(result_of_ucx(text, UcpTest::Put).unwrap(), 1.073_741_824);
        assert_eq!(result_of_ucx(text, UcpTest::Messages).unwrap(), 0.140_322);
        assert!(result_of_ucx("20000 1.356 7.126\n", UcpTest::Tag).is_err());
    }

    #[test]
    fn the_line_of_netpipe_has_a_rate_and_half_a_round_trip() {
        let text = " 1048576 8000.000000   0.00100000";
        assert_eq!(result_of_netpipe(text, Figure::Rate).unwrap(), 1.048_576);
        assert_eq!(result_of_netpipe(text, Figure::Latency).unwrap(), 1000.0);
        assert!(result_of_netpipe("64 1.0\n", Figure::Rate).is_err());
    }

    #[test]
    fn a_listener_is_found_by_its_port_and_state() {
        let line =
            |port: &str, state: &str| format!("   0: 00000000:{port} 00000000:0000 {state} 00000000:0");
        assert!(listens(&line("3423", "0A")));
        assert!(!listens(&line("3423", "01")) && !listens(&line("3424", "0A")) && !listens("  sl  local"));
    }
}
