//! The row of registrations: the time of `ibv_reg_mr` in a process with many mappings. The program is
//! `reg_mr.c`, which knows nothing of uwarp. The program is compiled with rdma-core's headers before each
//! measurement.

use std::time::Duration;

use testing::lab::{Result, Run, Scratch};

use crate::compare::last_line::last_line;
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};

const ID: &str = "reg_mr_4k";

/// The baseline: the time in us that a registration may take in any process.
const ALLOWED_US: f64 = 5.0;

/// Number of mappings of the process, beside those of its libraries. Linux allows 65,530 mappings.
const MAPPINGS: &str = "40000";

/// Number of registrations, of which the row has the median.
const REGISTRATIONS: &str = "10000";

const SOURCE: &str = include_str!("reg_mr.c");

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    if !session.options.wants(ID) {
        return;
    }
    for _ in 0..session.pace.pairs {
        match run(session) {
            Ok([reg, dereg, mlock]) => {
                tally.add(ID, "both", Ok(Pair::new(reg, ALLOWED_US)));
                tally.note(ID, "dereg_us", dereg);
                tally.note(ID, "mlock_munlock_us", mlock);
            }
            Err(error) => return tally.fail(ID, &error),
        }
    }
}

/// Returns the median times in us of `ibv_reg_mr`, of `ibv_dereg_mr`, and of `mlock` with `munlock`.
fn run(session: &Session) -> Result<[f64; 3]> {
    let scratch = Scratch::new()?;
    let (source, program) = (scratch.file("reg_mr.c"), scratch.file("reg_mr"));
    std::fs::write(&source, SOURCE)?;
    let compiler = Run::new("cc").args(["-std=gnu11", "-O2", "-o"]).arg(&program).arg(&source);
    compiler.arg("-libverbs").check(LIMIT)?;
    let run = Run::new(&program).args([MAPPINGS, REGISTRATIONS]).pinned(session.cpus[0]);
    let run = run.env("LD_PRELOAD", session.program("libuwarp.so")?).env("UWARP_DIR", scratch.path());
    last_line(&run.spawn()?.finish(LIMIT)?.success()?)
}
