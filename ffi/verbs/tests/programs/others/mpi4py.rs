//! The tests of mpi4py, over Open MPI.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{From, Other, folder, succeed};
use crate::pair::Running;
use crate::wire::Wire;

/// The version of Debian's package, whose tests are only in the source of the release.
const VERSION: &str = "3.1.4";
const FROM: From = From::Debian(&["python3-mpi4py", "openmpi-bin", "python3-pip"]);
/// Maximum time of a run. With four ranks on two processors, a run takes minutes.
const LIMIT: Duration = Duration::from_secs(900);
/// The least number of tests of a run.
const TESTS: usize = 1100;

pub(super) const ALL: [Other; 2] = [
    Other {
        test: "mpi4py_ucx",
        program: "mpi4py's tests, over Open MPI and UCX (`pml ucx`, `osc ucx`)",
        from: FROM,
        how: "`mpirun -n 2` and `mpirun -n 4` with all tests, except those that fail over TCP too",
        checks: "the tests compare the data",
        run: over_ucx,
    },
    Other {
        test: "mpi4py_ofi",
        program: "mpi4py's tests, over Open MPI and libfabric (`mtl ofi`)",
        from: FROM,
        how: "`mpirun -n 2` and `mpirun -n 4` with all tests, except those that fail over libfabric's `tcp` too",
        checks: "the tests compare the data",
        run: over_libfabric,
    },
];

/// Tests that fail or hang with Open MPI 4.1.4 on any network: a spawned process finds no free slot.
const ANYWHERE: [&str; 1] = ["test_spawn."];

/// Tests in which `osc ucx` calls UCX with memory that it has released, also over UCX's `tcp`.
const UCX: [&str; 1] = ["test_win.TestWinCreateDynamic"];

/// Tests that end with a signal, or that do not end, over libfabric's `tcp` too: most of them cancel or await
/// synchronous sends.
const LIBFABRIC: [&str; 7] = [
    // `mtl ofi` uses MPI_BOTTOM, which is a null pointer, as the address of a buffer.
    "test_cco_vec.TestCCOVecWorld.testAlltoallwBottom",
    "test_cco_vec.TestCCOVecWorldDup.testAlltoallwBottom",
    "test_dynproc.TestDPM.testJoin",
    "test_p2p_buf.TestP2PBufWorld.testProbeCancel",
    "test_p2p_buf.TestP2PBufWorldDup.testProbeCancel",
    "test_p2p_obj.",
    "test_util_pkl5.",
];

fn over_ucx() -> Result<(), String> {
    // UCX would also use shared memory between the ranks.
    let options = "--mca pml ucx --mca osc ucx -x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_NET_DEVICES=uwarp0:1";
    [2, 4].into_iter().try_for_each(|ranks| run(ranks, options, &UCX))
}

/// With an iWARP device, libfabric offers no data for completions of the peer. `mtl ofi` then waits for the
/// acknowledgements of `MPI_Ssend` from rank 0 only (`src_addr` in `ompi/mca/mtl/ofi/mtl_ofi.h`), over TCP
/// too.
fn over_libfabric() -> Result<(), String> {
    let options = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm";
    [2, 4].into_iter().try_for_each(|ranks| run(ranks, options, &LIBFABRIC))
}

fn run(ranks: usize, options: &str, without: &[&str]) -> Result<(), String> {
    let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
    let script = wire.folder().join("mpi4py_tests.py");
    fs::write(&script, include_str!("mpi4py_tests.py"))
        .map_err(|error| format!("{}: {error}", script.display()))?;
    let tests = tests()?;
    let without = [&ANYWHERE, without].concat().join(" ");
    let words = format!(
        "mpirun --oversubscribe {options} -n {ranks} /usr/bin/python3 mpi4py_tests.py {} {without}",
        tests.display()
    );
    let status = Running::start(&wire, "client", &words)?.wait(LIMIT);
    let output = wire.output("client");
    let lines: Vec<&str> = output.lines().filter(|line| line.starts_with("rank ")).collect();
    let is_right = |line: &&&str| {
        let count = line.split(": ").nth(1).and_then(|rest| rest.split(' ').next());
        let count = count.and_then(|count| count.parse::<usize>().ok());
        count.is_some_and(|count| count >= TESTS) && line.ends_with("bad []")
    };
    let right = lines.iter().filter(is_right).count();
    match status {
        Ok(status) if status.success() && right == ranks => Ok(()),
        status => {
            let logs = (0..ranks).map(|rank| wire.output(&format!("tests.{rank}")));
            let ends: Vec<String> =
                logs.map(|log| log.lines().last().unwrap_or_default().to_owned()).collect();
            Err(format!(
                "{right} of {ranks} ranks are right, {status:?}, the logs end with {ends:?}: {output}"
            ))
        }
    }
}

/// The folder of the tests, which pip fetches with the source of the release.
fn tests() -> Result<PathBuf, String> {
    let folder = folder("mpi4py")?;
    let tests = folder.join(format!("mpi4py-{VERSION}/test"));
    if !tests.join("runtests.py").exists() {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let package = format!("mpi4py=={VERSION}");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d"]);
        succeed(pip.arg(&folder).arg(package))?;
        let mut tar = Command::new("tar");
        succeed(tar.arg("-xf").arg(folder.join(format!("mpi4py-{VERSION}.tar.gz"))).arg("-C").arg(&folder))?;
    }
    Ok(tests)
}
