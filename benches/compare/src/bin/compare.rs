//! Takes the table of measures, prints it, and writes it as JSON. `scripts/compare` builds what it runs, and calls it.
//!
//! Ends with 0 when every row was measured, whatever its ratio.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use compare::cli::Options;
use compare::machine::Machine;
use compare::session::{Row, Session, Tally};
use compare::{in_memory, json, limits, loss, over_vhost, plots, table};
use serde_json::Value;
use testing::lab::Result;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all that was wanted was measured.
fn run(options: Options) -> Result<bool> {
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
