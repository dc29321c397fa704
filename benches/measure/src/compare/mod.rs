//! The table that `measure compare` prints. Each row is the ratio of a figure of uwarp to a figure of its
//! baseline. Most rows measure the two figures alternately on the same cores. The table is printed, and
//! written as JSON. `scripts/compare` builds the programs and runs this command.
//!
//! | file | what |
//! |---|---|
//! | `options` | the options, and the durations of all runs |
//! | `measures` | the rows: unit, which ratio is better, goal and aim |
//! | `sample` | pairs, their median and spread, verdicts |
//! | `session` | one run: its programs and CPUs, and its results |
//! | `distance` | the distance of the two cores, and repeats of pairs during which they moved |
//! | `disturbed` | runs whose pollers lost their CPU: counted and repeated |
//! | `vhost`, `over_vhost` | two `iwperf` processes on a vhost-user wire, and the rows measured on it |
//! | `over_local` | unmodified programs of libibverbs on a local wire, next to loopback and to `iwperf` |
//! | `registering` | the time of `ibv_reg_mr` in a process with many mappings, whose program is `reg_mr.c` |
//! | `over_ucx` | UCX and Open MPI on a local wire, next to the same programs over the kernel's TCP |
//! | `over_valkey` | valkey over RDMA on a local wire, next to valkey over TCP |
//! | `over_packet` | two `iwperf` processes on packet sockets, next to programs over the kernel's TCP on the same interfaces |
//! | `asleep` | processes that sleep until a frame arrives |
//! | `wake` | one of two processes that sleep, run as a separate process |
//! | `kernel` | the kernel's TCP between two namespaces: `iperf3`, small messages, and RDMA Writes over sockets |
//! | `burst` | many connections that are set up at the same time |
//! | `churn` | connections that are set up and ended at a steady rate (`measure churn`) |
//! | `kernel_tcp` | one end of a connection with small messages, run as a separate process |
//! | `kernel_iwarp` | one end of a connection with RDMA Writes over the kernel's sockets, run as a separate process |
//! | `in_memory` | rows measured by `measure pair` |
//! | `loss` | the row over a lossy wire, made by `bad-wire` |
//! | `limits` | the limits of the wire and the memory: bare frames, copies, CRCs, and a pipe between two cores |
//! | `bare_wire` | one end of a wire with bare frames, run as a separate process |
//! | `train` | the loads of `scripts/pgo`, which are measured nowhere |
//! | `cpus`, `last_line` | the CPUs of the measurements, and the last line of a program's output |
//! | `table`, `json`, `plots` | the output |
//!
//! `compare` measures with other processes: it runs programs, pins them to CPUs, and reads their output.
//! Only the copies and CRCs of `limits`, and the distance of the two cores, are measured in the process of
//! `compare` itself.
//!
//! The exit status is 0 if every wanted row and limit was measured, and the requested files were written,
//! whatever the ratios are.

mod asleep;
pub(crate) mod bare_wire;
pub(crate) mod burst;
pub(crate) mod churn;
mod cpus;
mod distance;
mod disturbed;
mod in_memory;
mod json;
mod kernel;
pub(crate) mod kernel_iwarp;
pub(crate) mod kernel_tcp;
mod last_line;
pub(crate) mod limits;
mod loss;
pub(crate) mod measures;
pub(crate) mod options;
mod over_local;
mod over_packet;
mod over_ucx;
mod over_valkey;
mod over_vhost;
mod plots;
mod registering;
pub(crate) mod sample;
pub(crate) mod session;
pub(crate) mod table;
pub(crate) mod train;
mod vhost;
pub(crate) mod wake;

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::Value;
use testing::lab::Result;

use crate::kinds::kept;
use benches::machine::MachineInfo;
use options::CompareOptions;
use session::{Row, Session, Tally};

pub(crate) fn run(options: CompareOptions) -> ExitCode {
    match take(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("measure compare: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the wanted rows, without a line for each pair.
pub(crate) fn measured(session: &Session) -> Tally {
    let mut tally = Tally::silent();
    measure_into(session, &mut tally);
    tally
}

fn measure_into(session: &Session, tally: &mut Tally) {
    over_vhost::measure(session, tally);
    over_local::measure(session, tally);
    registering::measure(session, tally);
    over_ucx::measure(session, tally);
    over_valkey::measure(session, tally);
    over_packet::measure(session, tally);
    asleep::measure(session, tally);
    burst::measure(session, tally);
    in_memory::measure(session, tally);
    loss::measure(session, tally);
}

/// Measures and prints the table. Returns whether all wanted rows and limits were measured.
fn take(options: CompareOptions) -> Result<bool> {
    let (machine, session) = (MachineInfo::here(), Session::new(options)?);
    let mut tally = Tally::default();
    measure_into(&session, &mut tally);
    let (mut rows, mut missing): (Vec<Row>, Vec<(&str, String)>) = Default::default();
    println!("{machine}");
    if session.options.quick {
        println!("quick: {} pair of each, short runs; do not quote these figures", session.pace.pairs);
    }
    println!("{}", table::heading());
    for measure in session.options.wanted() {
        match tally.row(measure) {
            Ok(row) => {
                println!("{}", table::row(&row));
                rows.push(row);
            }
            Err(reason) => {
                println!("{}", table::missing(measure, &reason));
                missing.push((measure.id, reason));
            }
        }
    }
    for row in &rows {
        table::beside(row).into_iter().for_each(|line| println!("{line}"));
    }
    let runs = session.runs.get();
    if runs.any() {
        println!("{runs}");
    }
    // The limits belong to the whole table, so they are not measured with `--only`.
    let limits = match session.options.only.is_empty() {
        true => {
            println!("limits of the wire and the memory, without any protocol:");
            limits::measure(&session)
        }
        false => Value::Null,
    };
    if let Some(path) = &session.options.json {
        let document = json::document(&machine, &session, &rows, &missing, limits.clone());
        std::fs::write(path, format!("{document:#}\n"))
            .map_err(|error| testing::lab_error!("{}: {error}", path.display()))?;
    }
    if let Some(folder) = &session.options.keep {
        let day: String =
            humantime::format_rfc3339_seconds(SystemTime::now()).to_string().chars().take(10).collect();
        let kept =
            |row: &Row| (row.measure.id.to_owned(), table::kept(row, day.clone(), machine.kernel.clone()));
        kept::keep(folder, &machine, rows.iter().map(kept)).map_err(testing::lab::LabError::new)?;
    }
    if let Some(directory) = &session.options.plots {
        plots::draw(&session, &rows, directory)?;
    }
    Ok(missing.is_empty() && limits::is_complete(&limits))
}
