//! OpenSHMEM, as a part of Open MPI, over UCX.

use std::time::Duration;

use super::{From, Other};
use crate::c;
use crate::pair::Running;
use crate::wire::Wire;

/// Maximum time of a run.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) const ALL: [Other; 1] = [Other {
    test: "oshmem",
    program: "OpenSHMEM of Open MPI over UCX (`spml ucx`), with a program of [ours](../ffi/verbs/tests/programs/c/pes.c)",
    from: From::Debian(&["libopenmpi-dev", "openmpi-bin"]),
    how: "`oshrun -n 2` and `oshrun -n 4`",
    checks: "the program compares the bytes of puts and gets, and checks the results of atomics and of a sum",
    run: pes,
}];

/// Options that force UCX over our device. Without Open MPI's own memory hooks, UCX uses its own. Open MPI
/// 4.1.4 calls its hook after it has unloaded the hook's library, and ends with SIGSEGV, also over UCX's
/// `tcp`.
const OPTIONS: &str = "--oversubscribe --mca spml ucx --mca pml ucx --mca opal_common_ucx_opal_mem_hooks 0 \
                       -x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_NET_DEVICES=uwarp0:1";

fn pes() -> Result<(), String> {
    let wire = Wire::new()?.with("UWARP_PRETEND", "ib");
    let libraries = ["-I/usr/lib/x86_64-linux-gnu/openmpi/include", "-l:liboshmem.so.40"];
    let program = c::compile_with(&wire, "pes", &libraries)?;
    for pes in [2, 4] {
        let words = format!("oshrun {OPTIONS} -n {pes} {program}");
        let status = Running::start(&wire, "client", &words)?.wait(LIMIT)?;
        let output = wire.output("client");
        let right = output.matches(&format!(" of {pes}: 0 wrong\n")).count();
        if !status.success() || right != pes {
            return Err(format!("{right} of {pes} PEs are right, and oshrun ended with {status}: {output}"));
        }
    }
    Ok(())
}
