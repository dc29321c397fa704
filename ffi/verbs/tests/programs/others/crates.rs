//! Tests and examples of crates that wrap verbs. `scripts/judges crates` fetches, builds and runs them.

use std::sync::Mutex;

use super::{From, Other};
use crate::judges;

const TESTS: &str = "`cargo test` with `uwarp run --` as cargo's runner";
const EXAMPLES: &str = "`uwarp run -- EXAMPLE`";
const BOTH: &str = "`cargo test` with `uwarp run --` as cargo's runner, and `uwarp run -- EXAMPLE`";
const AS_LISTED: &str = "each case ends as [listed](../ffi/verbs/tests/judges/crates.txt)";

pub(crate) const ALL: [Other; 6] = [
    of("crate_sideway", ("sideway", "0.4.3"), "tests and examples", BOTH, || run("sideway")),
    of("crate_ruapc", ("ruapc", "0.2.0-alpha.7"), "tests with the feature `rdma`", TESTS, || run("ruapc")),
    of("crate_ruapc_rdma", ("ruapc-rdma", "0.2.0-alpha.7"), "unit tests", TESTS, || run("ruapc-rdma")),
    of("crate_rdma", ("rdma", "0.3.0"), "unit tests", TESTS, || run("rdma")),
    of("crate_rdma_sys", ("rdma-sys", "0.3.0"), "examples", EXAMPLES, || run("rdma-sys")),
    of("crate_async_rdma", ("async-rdma", "0.5.0"), "tests and examples", BOTH, || run("async-rdma")),
];

const fn of(
    test: &'static str,
    (name, version): (&'static str, &'static str),
    program: &'static str,
    how: &'static str,
    run: fn() -> Result<(), String>,
) -> Other {
    Other { test, program, from: From::Crate(name, version), how, checks: AS_LISTED, run }
}

fn run(name: &str) -> Result<(), String> {
    // The crates are built into one folder, and some examples of different crates have the same name.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    judges::run_in(&["crates", name], Some(super::folder("crates")?))
}
