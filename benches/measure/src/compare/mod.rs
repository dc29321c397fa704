//! The table of measures in one run: each is a ratio of two figures taken on the same cores in turn, one of
//! uwarp and one of what it is held against. It is printed, and written as JSON. `scripts/compare` builds
//! what it runs, and calls it.
//!
//! | file | what |
//! |---|---|
//! | `options` | the options, and how long everything takes |
//! | `measures` | the rows: unit, which way is better, goal and aim |
//! | `sample` | pairs, their median and spread, verdicts |
//! | `session` | one run: what it has, and what came of it |
//! | `vhost`, `over_vhost` | two `iwperf` on a vhost-user wire, and the rows measured on it |
//! | `kernel` | the kernel's TCP between two namespaces: `iperf3`, and small messages |
//! | `kernel_tcp` | one end of a connection with small messages: a process of its own |
//! | `in_memory` | rows measured by `measure pair` on a wire in memory |
//! | `loss` | the row over a wire that loses, made by `bad-wire` |
//! | `limits` | what the wire and the memory can do: bare frames, copies and CRCs |
//! | `bare_wire` | one end of a wire with bare frames: a process of its own |
//! | `told` | what a program's last line says |
//! | `machine`, `table`, `json`, `plots` | what is shown |
//!
//! It runs programs, pins them and reads what they print; it has no protocol and no data path of its own.
//!
//! Ends with 0 when every row was measured, whatever its ratio.

pub(crate) mod bare_wire;
mod in_memory;
mod json;
mod kernel;
pub(crate) mod kernel_tcp;
mod limits;
mod loss;
mod machine;
mod measures;
pub(crate) mod options;
mod over_vhost;
mod plots;
mod sample;
mod session;
mod table;
mod told;
mod vhost;

use std::process::ExitCode;

use serde_json::Value;
use testing::lab::Result;

use machine::Machine;
use options::CompareOptions;
use session::{Row, Session, Tally};

/// Takes the table.
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

/// Returns whether all that was wanted was measured.
fn take(options: CompareOptions) -> Result<bool> {
    let (machine, session) = (Machine::here(), Session::new(options)?);
    let mut tally = Tally::default();
    over_vhost::measure(&session, &mut tally);
    in_memory::measure(&session, &mut tally);
    loss::measure(&session, &mut tally);
    let (mut rows, mut missing): (Vec<Row>, Vec<(&str, String)>) = Default::default();
    println!("{machine}");
    if session.options.quick {
        println!("quick: {} pair of each, short runs; not for a claim", session.pace.pairs);
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
    // Of all rows together, so not where only some are looked at.
    let limits = match session.options.only.is_empty() {
        true => {
            println!("limits of the wire and the memory, without any protocol:");
            limits::measure(&session)
        }
        false => Value::Null,
    };
    if let Some(path) = &session.options.json {
        let document = json::document(&machine, session.options.quick, &rows, &missing, limits.clone());
        std::fs::write(path, format!("{document:#}\n"))
            .map_err(|error| testing::lab_error!("{}: {error}", path.display()))?;
    }
    if let Some(directory) = &session.options.plots {
        plots::draw(&session, &rows, directory)?;
    }
    Ok(missing.is_empty() && limits::is_complete(&limits))
}
