//! Test suites of other projects: those of rdma-core and of the crate `ibverbs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::built;
use crate::pair::is_installed;

/// The suites, each with the package that it needs. One suite is rdma-core's own tests, which Debian's
/// package installs as documentation. The other suite is the tests of the crate `ibverbs`, whose build
/// configures rdma-core.
pub(crate) const SUITES: [(&str, &str); 2] =
    [("pyverbs", "python3-pyverbs, with its documentation"), ("ibverbs", "cmake")];

/// Whether the package that the suite needs is missing.
pub(crate) fn missing(suite: &str) -> bool {
    match suite {
        "pyverbs" => !Path::new("/usr/share/doc/rdma-core/tests").is_dir(),
        _ => !is_installed("cmake"),
    }
}

/// Checks that each case has the result that is recorded in `tests/judges/SUITE.txt`.
pub(crate) fn run(suite: &str) -> Result<(), String> {
    run_in(&[suite], None)
}

/// Like [`run`], with further arguments of the suite. Cargo builds into the folder `target`.
pub(crate) fn run_in(words: &[&str], target: Option<PathBuf>) -> Result<(), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/judges");
    let mut judges = Command::new(script);
    // The section `bare` hides DPDK from pkg-config by this variable. The crate's C library needs libnl.
    judges
        .args(words)
        .envs(target.map(|target| ("CARGO_TARGET_DIR", target)))
        .env("UWARP_BIN", built::launcher())
        .env_remove("PKG_CONFIG_LIBDIR");
    let judges = judges.output();
    let judges = judges.map_err(|error| error.to_string())?;
    let both = [judges.stdout, judges.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if judges.status.success() { Ok(()) } else { Err(both.concat()) }
}
