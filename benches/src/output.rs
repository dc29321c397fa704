//! What the user sees: headings, rows as they come, what it cost, and the files asked for.

use std::io::Write;

use crate::cli::TestArgs;
use crate::driver::Driver;
use crate::errors::Error;
use crate::json;
use crate::params::{Params, Test};
use crate::perftest::client::Outcome;
use crate::runs::{Figures, Row};
use crate::table::{self, Unit};

/// Collects rows and prints them, unless this end is quiet.
pub struct Output {
    test: Test,
    unit: Unit,
    quiet: bool,
    rows: Vec<Row>,
}

impl Output {
    /// Prints the heading.
    pub fn begin(params: &Params, unit: Unit, quiet: bool) -> Self {
        let output = Self { test: params.test, unit, quiet, rows: Vec::new() };
        if !quiet {
            output.print(&heading(params));
            output.print(table::LINE);
            output.print(&output.header());
        }
        output
    }

    fn header(&self) -> String {
        if self.test.is_latency() {
            table::LATENCY_HEADER.to_owned()
        } else {
            table::bandwidth_header(self.unit)
        }
    }

    /// One more row.
    pub fn row(&mut self, row: &Row) {
        self.rows.push(*row);
        if !self.quiet {
            self.print(&match &row.figures {
                Figures::Bandwidth(figures) => table::bandwidth_row(figures, self.unit),
                Figures::Latency(figures) => table::latency_row(u64::from(row.size), figures),
            });
        }
    }

    /// The rest: what was checked, the counters, the file.
    ///
    /// # Errors
    /// [`Error::System`] when the file cannot be written.
    pub fn end(
        &self,
        args: &TestArgs,
        params: &Params,
        driver: &Driver,
        hz: u64,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        if !self.quiet {
            self.print(table::LINE);
            if params.validate {
                let theirs = outcome.peer.as_ref().map_or(0, |peer| peer.messages_checked);
                self.print(&format!(
                    " validated: {} messages here, {theirs} at the peer, every octet as sent",
                    outcome.messages_checked
                ));
            }
        }
        let counters = driver.counters();
        if args.stats && !self.quiet {
            self.print(&cost_lines(&self.rows, hz).join("\n"));
            self.print(&format!("{counters:#?}"));
        }
        match &args.json {
            Some(path) => json::write(path, params, self.unit, &self.rows, outcome, &counters, hz),
            None => Ok(()),
        }
    }

    /// A line on standard output. A reader that has gone away is no reason to fail a test.
    fn print(&self, line: &str) {
        let mut out = std::io::stdout().lock();
        let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

fn heading(params: &Params) -> String {
    let Params { test, qps, tx_depth, cq_mod, bidirectional, duration_s, outs, .. } = params;
    let ways = if *bidirectional { ", both ways" } else { "" };
    let time = if *duration_s > 0 { format!(", {duration_s} s") } else { String::new() };
    let reads =
        if test.name().starts_with("read") { format!(", outstanding reads {outs}") } else { String::new() };
    let checks = if params.validate { ", every octet checked" } else { "" };
    format!(
        "                    {}{ways}: {qps} queue pair{}, depth {tx_depth}, CQ moderation {cq_mod}{reads}{time}{checks}",
        test.name(),
        if *qps == 1 { "" } else { "s" },
    )
}

/// What a message and an octet cost here, row by row.
fn cost_lines(rows: &[Row], hz: u64) -> Vec<String> {
    let line = |row: &Row| {
        let cycles = row.busy_cycles as f64;
        let messages = row.messages.max(1) as f64;
        let octets = messages * f64::from(row.size);
        format!(
            " cost of {} B: {:.0} cycles a message, {:.3} cycles an octet, {:.3} s of one core at {:.2} GHz",
            row.size,
            cycles / messages,
            cycles / octets,
            cycles / hz as f64,
            hz as f64 / 1e9
        )
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::example;

    #[test]
    fn a_heading_says_what_is_run() {
        let params = Params { bidirectional: true, qps: 2, ..example(Test::ReadBw) };
        let text = heading(&params);
        assert!(text.contains("read-bw, both ways: 2 queue pairs, depth 128"), "{text}");
        assert!(text.contains("outstanding reads 16"), "{text}");
    }

    #[test]
    fn cost_is_that_of_the_busy_cycles() {
        let figures = Figures::Latency(Default::default());
        let row = Row { size: 100, messages: 10, figures, confirmed: true, busy_cycles: 2000 };
        assert_eq!(
            cost_lines(&[row], 1_000_000_000),
            [" cost of 100 B: 200 cycles a message, 2.000 cycles an octet, 0.000 s of one core at 1.00 GHz"]
        );
    }
}
