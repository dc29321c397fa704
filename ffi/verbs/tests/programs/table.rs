//! The chapter of programs that run (`docs/programs.md`), made from the tests' own lists.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use crate::others;
use crate::pair::Pair;
use crate::pairs;

/// Set to write the chapter instead of comparing it.
const WRITE: &str = "UWARP_WRITE_PROGRAMS";

/// The marks in the chapter: the part between them is made by this module.
const BEGIN: &str =
    "<!-- made by `UWARP_WRITE_PROGRAMS=1 scripts/test --only the_chapter_on_programs verbs_local` -->\n";
const END: &str = "<!-- end of what is made -->\n";

/// Suites of other projects, whose cases and outcomes are in `tests/judges`.
const SUITES: [(&str, &str); 10] = [
    ("pyverbs", "rdma-core's own tests"),
    ("fabtests", "the tests of libfabric, over its verbs provider"),
    ("rdma-unit-test", "Google's tests of verbs"),
    ("ibverbs", "the tests of the crate `ibverbs`"),
    ("crates", "the tests and examples of crates that wrap verbs"),
    (
        "valkey",
        "valkey's own test of RDMA, and [cases of ours](../scripts/judges) with its server and clients",
    ),
    ("disni", "DiSNI's examples and benchmarks, in Java"),
    ("rpma", "the examples of librpma, also with a file as persistent memory"),
    ("mercury", "the tests and measurements of Mercury, over libfabric and UCX"),
    ("spdk", "SPDK's NVMe-oF target `nvmf_tgt`, with `spdk_nvme_perf` (`perf`) and other programs of SPDK"),
];

/// Programs whose tests are not pairs of a server and a client: the program, its package, the name of the
/// test, and what is checked.
const OTHERS: [[&str; 4]; 7] = [
    [
        "Open MPI over libfabric (`mtl ofi`)",
        "openmpi-bin",
        "mpi_4_ranks",
        "each rank compares the bytes of every other rank; 2 and 4 ranks, on one host and on two",
    ],
    [
        "Open MPI over UCX (`pml ucx`, `osc ucx`)",
        "openmpi-bin",
        "mpi_ucx_4_ranks",
        "each rank compares the bytes of every other rank, and of windows; 2 and 4 ranks, on one host and on two",
    ],
    [
        "UCP, connected by addresses of sockets ([ours](../ffi/verbs/tests/programs/c/ucp_sockets.c))",
        "libucx-dev",
        "ucp_sockets",
        "both ends compare messages of 0 bytes to 1 MiB; on one host and on two",
    ],
    ["NetPIPE over Open MPI", "netpipe-openmpi", "hosts_mpi_netpipe", "NetPIPE compares all bytes"],
    ["QEMU", "qemu-system-x86", "qemu_migration", "a guest migrates by RDMA, and goes on"],
    ["valgrind", "valgrind", "valgrind_rping", "rping runs under valgrind, without an error"],
    ["ibv_asyncwatch", "ibverbs-utils", "interface_asyncwatch", "prints the event of a lost link"],
];

/// Checks that the chapter is the one that the lists of tests make. `names` are the names of all tests.
pub(crate) fn check(names: &[String]) -> Result<(), String> {
    for [program, _, test, _] in OTHERS {
        if !names.iter().any(|name| name == test) {
            return Err(format!("no test {test} runs {program}"));
        }
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/programs.md");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (front, rest) = text.split_once(BEGIN).ok_or("docs/programs.md lacks the first mark")?;
    let (present, back) = rest.split_once(END).ok_or("docs/programs.md lacks the second mark")?;
    let made = made()?;
    if std::env::var_os(WRITE).is_some() {
        let whole = [front, BEGIN, &made, END, back].concat();
        return fs::write(&path, whole).map_err(|error| format!("{}: {error}", path.display()));
    }
    // Other versions of the packages may be installed.
    let without_versions = |text: &str| text.lines().map(without_version).collect::<Vec<_>>();
    let [present, made] = [present, &made].map(without_versions);
    match present.iter().zip(&made).find(|(present, made)| present != made) {
        None if present.len() == made.len() => Ok(()),
        found => Err(format!("docs/programs.md is not what the tests' lists make: {found:?}; set {WRITE}=1")),
    }
}

/// A line of a table without the version of a package, which is in parentheses at the end of the first or of
/// the second column. The names of some programs also end with parentheses, in which no version is.
fn without_version(line: &str) -> String {
    let is_version = |text: &str| text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    let without = |(at, column): (usize, &str)| match column.rsplit_once(" (") {
        Some((name, rest)) if at < 2 && rest.ends_with(')') && is_version(rest) => name.to_owned(),
        _ => column.to_owned(),
    };
    line.split(" | ").enumerate().map(without).collect::<Vec<_>>().join(" | ")
}

fn made() -> Result<String, String> {
    let mut text = String::from(
        "\n| package | client, as the test starts it | wires | what is checked |\n|---|---|---|---|\n",
    );
    let failed = |error: std::fmt::Error| error.to_string();
    let [apart, hosts] = [pairs::connection_managed(), pairs::between_hosts()];
    for pair in pairs::all() {
        let is_in = |list: &[Pair]| list.iter().any(|other| other.name == pair.name);
        let mut wires = vec!["`local`"];
        if is_in(&hosts) {
            wires.push("`packet`");
        }
        if is_in(&apart) {
            wires.push("`packet` with `addr=`");
        }
        let wires = wires.join(", ");
        let client = pair.client.replace('|', "\\|");
        let version = version(pair.package);
        writeln!(text, "| {} ({version}) | `{client}` | {wires} | {} |", pair.package, pair.checks())
            .map_err(failed)?;
    }
    text.push_str("\n| program | package | what is checked | test |\n|---|---|---|---|\n");
    for [program, package, test, checks] in OTHERS {
        let version = version(package);
        writeln!(text, "| {program} | {package} ({version}) | {checks} | `{test}` |").map_err(failed)?;
    }
    text.push_str(
        "\n| program | from | how the test runs it | what is checked | test |\n|---|---|---|---|---|\n",
    );
    for other in others::all() {
        let (from, name) = (other.package(), other.name());
        writeln!(text, "| {} | {from} | {} | {} | `{name}` |", other.program, other.how, other.checks)
            .map_err(failed)?;
    }
    text.push_str("\n| suite | ok | fail | skip | what the suite is |\n|---|---|---|---|---|\n");
    for (suite, what) in SUITES {
        let path = format!("{}/tests/judges/{suite}.txt", env!("CARGO_MANIFEST_DIR"));
        let table = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let head = table.lines().next().unwrap_or_default();
        let of = head.trim_start_matches("# ").split(". ").next().unwrap_or_default();
        let count = |outcome: &str| {
            table.lines().skip(1).filter(|line| line.split(' ').nth(1) == Some(outcome)).count()
        };
        let [ok, fail, skip] = ["ok", "fail", "skip"].map(count);
        let link = format!("[{suite}](../ffi/verbs/tests/judges/{suite}.txt)");
        writeln!(text, "| {link}: {of} | {ok} | {fail} | {skip} | {what} |").map_err(failed)?;
    }
    text.push('\n');
    Ok(text)
}

impl Pair {
    /// What the test checks, apart from the exit codes of both programs.
    fn checks(&self) -> String {
        let compares = ["ping -", "pong -", "qperf", "fi_pingpong"]
            .iter()
            .any(|word| self.client.contains(word))
            && (self.client.contains(" -V") || self.client.contains(" -c") || self.shows.starts_with("ver_"));
        let what = match (&self.files, self.shows) {
            (Some(_), "") => "the test compares the file".to_owned(),
            _ if compares => "the programs compare the bytes".to_owned(),
            (_, "") => "both programs succeed".to_owned(),
            (_, shows) => format!("the client prints `{}`", shows.trim()),
        };
        match self.codes {
            [0] => what,
            _ => format!("{what}; perftest exits with 1 here over any iWARP device"),
        }
    }
}

/// The installed version of a package, or `-` if the package is not installed.
fn version(package: &str) -> String {
    let text = others::version(package);
    if text.is_empty() { "-".into() } else { text }
}
