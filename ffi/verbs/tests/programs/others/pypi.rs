//! PyPI's package `ibverbs`, which opens libibverbs by `dlopen`: only the launcher's folder of links reaches
//! it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{From, Other, ends, python, succeed};
use crate::pair::Running;
use crate::wire::Wire;

const VERSION: &str = "2026.10.22";
const IBVERBS: From = From::PyPi("ibverbs", VERSION);
/// Maximum time of the package's tests.
const LIMIT: Duration = Duration::from_secs(180);
/// The package has this number of tests that need neither a GPU nor a device of Mellanox nor two devices.
const TESTS: &str = "87 passed";

pub(super) const ALL: [Other; 2] = [
    Other {
        test: "pypi_ibverbs",
        program: "PyPI's ibverbs",
        from: IBVERBS,
        how: "two processes with a queue pair of type RC each, started by `uwarp run`",
        checks: "the processes compare the bytes of Sends, RDMA Reads and RDMA Writes; `uwarp status` shows the bytes",
        run: two_processes,
    },
    Other {
        test: "pypi_ibverbs_suite",
        program: "PyPI's ibverbs",
        from: IBVERBS,
        how: "the package's own tests by pytest, started by `uwarp run`",
        checks: "all tests pass that need neither a GPU nor certain hardware",
        run: suite,
    },
];

/// The package, numpy and pytest.
fn environment() -> Result<std::path::PathBuf, String> {
    python("ibverbs", &[&format!("ibverbs=={VERSION}"), "numpy==2.2.6", "pytest==8.4.2"])
}

fn two_processes() -> Result<(), String> {
    let python = environment()?;
    let wire = Wire::new()?.with_launcher();
    ends::exchange(&wire, include_str!("ibverbs.py"), &python.display().to_string(), "")
}

fn suite() -> Result<(), String> {
    let python = environment()?;
    let wire = Wire::new()?.with_launcher();
    let tests = source(&python, wire.folder())?.join("tests");
    let words = format!("{} -m pytest -q -rs -p no:cacheprovider {}", python.display(), tests.display());
    let status = Running::start(&wire, "tests", &words)?.wait(LIMIT)?;
    let output = wire.output("tests");
    if status.success() && output.contains(TESTS) { Ok(()) } else { Err(format!("{status}: {output}")) }
}

/// Downloads the package's sources, which contain its tests, and returns their folder.
fn source(python: &Path, folder: &Path) -> Result<std::path::PathBuf, String> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "--no-binary=ibverbs", "-d"]).arg(folder);
    succeed(pip.arg(format!("ibverbs=={VERSION}")))?;
    let archive = folder.join(format!("ibverbs-{VERSION}.tar.gz"));
    succeed(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(folder))?;
    Ok(folder.join(format!("ibverbs-{VERSION}")))
}
