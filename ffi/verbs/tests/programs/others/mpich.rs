//! MPICH: Debian's over UCX, and that of PyPI over its own UCX and over its own libfabric.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{From, Other, python};
use crate::c;
use crate::pair::Running;
use crate::wire::Wire;

/// Maximum time of a run.
const LIMIT: Duration = Duration::from_secs(120);
/// PyPI's package, with UCX 1.20.1 and libfabric 2.5.1.
pub(super) const PYPI: &str = "mpich==5.0.2";
const CHECKS: &str = "each rank compares the bytes of every other rank, and of windows";

pub(super) const ALL: [Other; 3] = [
    Other {
        test: "mpich",
        program: "MPICH over UCX, with a program of [ours](../ffi/verbs/tests/programs/c/ranks.c)",
        from: From::Debian(&["mpich", "libmpich-dev"]),
        how: "`mpiexec.hydra -n 2` and `mpiexec.hydra -n 4`",
        checks: CHECKS,
        run: debians,
    },
    Other {
        test: "mpich_5_ucx",
        program: "MPICH 5 over UCX 1.20, with the same program",
        from: From::PyPi("mpich", "5.0.2"),
        how: "`mpiexec.hydra -n 2` and `mpiexec.hydra -n 4`, with `MPIR_CVAR_CH4_NETMOD=ucx`",
        checks: CHECKS,
        run: over_ucx,
    },
    Other {
        test: "mpich_5_ofi",
        program: "MPICH 5 over libfabric 2 (`verbs;ofi_rxm`), with the same program",
        from: From::PyPi("mpich", "5.0.2"),
        how: "`mpiexec.hydra -n 2` and `mpiexec.hydra -n 4`, with `MPIR_CVAR_CH4_NETMOD=ofi`",
        checks: CHECKS,
        run: over_libfabric,
    },
];

/// Variables with which UCX opens only our device. MPICH would otherwise use shared memory between the ranks.
const UCX: &str = "UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=uwarp0:1 MPIR_CVAR_CH4_NETMOD=ucx \
                   MPIR_CVAR_NOLOCAL=1";
const LIBFABRIC: &str = "FI_PROVIDER=verbs;ofi_rxm MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1";

fn debians() -> Result<(), String> {
    let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
    let program = c::compile_with(&wire, "ranks", &["-I/usr/include/x86_64-linux-gnu/mpich", "-lmpich"])?;
    run(&wire, UCX, Path::new("mpiexec.hydra"), &program)
}

fn over_ucx() -> Result<(), String> {
    pypis(Wire::new()?.with("UWARP_PRETEND", "ib"), UCX)
}

fn over_libfabric() -> Result<(), String> {
    pypis(Wire::new()?, LIBFABRIC)
}

fn pypis(wire: Wire, variables: &str) -> Result<(), String> {
    let prefix = prefix()?;
    let [include, lib] = ["include", "lib"].map(|folder| prefix.join(folder).display().to_string());
    let [include, lib, path] = [format!("-I{include}"), format!("-L{lib}"), format!("-Wl,-rpath,{lib}")];
    let program = c::compile_with(&wire, "ranks", &[&include, &lib, &path, "-lmpi"])?;
    run(&wire, variables, &prefix.join("bin/mpiexec.hydra"), &program)
}

/// The folder in which pip has installed MPICH.
pub(super) fn prefix() -> Result<PathBuf, String> {
    let python = python("mpich", &[PYPI])?;
    let prefix = python.parent().and_then(Path::parent).ok_or("the environment has no folder")?;
    Ok(prefix.to_owned())
}

fn run(wire: &Wire, variables: &str, mpiexec: &Path, program: &str) -> Result<(), String> {
    for ranks in [2, 4] {
        let words = format!("env {variables} {} -n {ranks} {program}", mpiexec.display());
        let status = Running::start(wire, "client", &words)?.wait(LIMIT)?;
        let output = wire.output("client");
        let right = output.matches(&format!(" of {ranks}: 0 wrong\n")).count();
        if !status.success() || right != ranks {
            return Err(format!("{right} of {ranks} ranks are right, and it ended with {status}: {output}"));
        }
    }
    Ok(())
}
