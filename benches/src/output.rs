//! The output of a test, such as headings, rows, costs, and the requested files. Rows are printed as they are
//! measured, unless all lines are held until the end.

pub(crate) mod files;
mod limits;
mod perftest_json;
mod stats;

use std::cell::RefCell;

use dp::{DeviceStat, DeviceStats};
use iwarp::engine::EngineCounters;

use crate::cli::TestArgs;
use crate::description::description;
use crate::errors::Error;
use crate::json;
use crate::lines::{self, say};
use crate::params::{Params, Test};
use crate::perftest::client::Outcome;
use crate::profile::Breakdown;
use crate::provenance::Provenance;
use crate::report;
use crate::runs::repeats::{Spread, grouped};
use crate::runs::{BandwidthRow, Figures, LoadFigures, Row};
use crate::table::{self, Unit};

/// Collects rows and prints them.
pub struct Output<'a> {
    test: Test,
    args: &'a TestArgs,
    unit: Unit,
    /// Whether rows have latencies under a given rate.
    loaded: bool,
    rows: Vec<Row>,
    target: Vec<Row>,
    /// The lines so far, if all lines are printed together at the end.
    held: Option<RefCell<String>>,
}

/// The results at the end of a test.
pub struct Conclusion<'a> {
    /// The parameters of the first run of the test.
    pub params: &'a Params,
    /// The counters of each engine.
    pub counters: &'a [EngineCounters],
    /// Cycles per second.
    pub hz: u64,
    /// The results besides the rows.
    pub outcome: &'a Outcome,
    /// The error that ended the test early.
    pub ended: Result<(), Error>,
}

impl<'a> Output<'a> {
    /// Makes an output without rows.
    pub fn new(test: Test, args: &'a TestArgs) -> Self {
        let unit = args.unit();
        Self { test, args, unit, loaded: false, rows: Vec::new(), target: Vec::new(), held: None }
    }

    /// Like [`new`](Self::new), but prints all lines together at the end, since other threads also print.
    pub fn held(test: Test, args: &'a TestArgs) -> Self {
        Self { held: Some(RefCell::default()), ..Self::new(test, args) }
    }

    /// Prints the heading of a run. `is_source` is true for a side that posts messages, and false for a side
    /// that only receives.
    pub fn heading(&mut self, params: &Params, is_source: bool) {
        self.loaded = params.rate.is_some() && is_source;
        self.print(&heading(params));
        self.print(table::LINE);
        self.print(&self.header());
    }

    fn header(&self) -> String {
        let header = if self.test.is_latency() {
            table::LATENCY_HEADER.to_owned()
        } else if self.loaded {
            table::load_header(self.unit)
        } else {
            table::bandwidth_header(self.unit)
        };
        header + if self.args.cpu_util { table::CPU_HEADER } else { "" }
    }

    /// Adds and prints a row.
    pub fn row(&mut self, row: &Row) {
        let mut row = row.clone();
        if let (Figures::Bandwidth(figures), true) = (&mut row.figures, self.args.no_peak) {
            figures.peak = 0.0;
        }
        self.samples(&row);
        let mut text = match (&row.figures, &row.load) {
            (Figures::Bandwidth(figures), Some(load)) => table::load_row(figures, load, self.unit),
            (Figures::Bandwidth(figures), None) => table::bandwidth_row(figures, self.unit),
            (Figures::Latency(figures), _) => table::latency_row(u64::from(row.size), figures),
        };
        if self.args.cpu_util {
            text += &table::cpu_cell(row.cpu_percent);
        }
        self.print(&text);
        if let (Some(ways), true) = (&row.ways, self.args.report_both) {
            self.ways(ways);
        }
        self.rows.push(row);
    }

    /// Prints each latency, as perftest does, and the header again.
    fn samples(&self, row: &Row) {
        let print = |samples: &[f64]| {
            let lines = samples.iter().enumerate().map(|(index, us)| format!("{}, {us:.3}\n", index + 1));
            self.print(&format!("#, usec\n{}", lines.collect::<String>().trim_end()));
        };
        if row.samples_us.is_empty() {
            return;
        }
        if self.args.report_unsorted {
            print(&row.samples_us);
        }
        if self.args.report_histogram {
            let mut sorted = row.samples_us.clone();
            sorted.sort_by(f64::total_cmp);
            print(&sorted);
        }
        self.print(table::LINE);
        self.print(&self.header());
    }

    /// Prints the figures of each direction under perftest's names.
    fn ways(&self, ways: &[BandwidthRow; 2]) {
        for (name, way) in ["Local", "Remote"].iter().zip(ways) {
            self.print(table::LINE);
            self.print(&format!("\n {name} results: "));
            self.print(table::LINE);
            self.print(&table::bandwidth_header(self.unit));
            self.print(&table::bandwidth_row(way, self.unit));
        }
    }

    /// Adds the target's rows, if the target is in the same process.
    pub fn target(&mut self, rows: impl Iterator<Item = Row>) {
        self.target.extend(rows);
    }

    /// Prints the counts of the device that are not zero, if the user wants counters.
    pub fn device(&self, stats: Option<&DeviceStats>) {
        let wanted = stats.filter(|_| self.args.stats);
        wanted.into_iter().flat_map(|stats| device_lines(&stats.read())).for_each(|line| self.print(&line));
    }

    /// Prints the lines after the last row, for example the result of validation and the counters, and writes
    /// the requested files. If the test ended early without a row, this function only prints the lines that
    /// were held, and returns the error.
    ///
    /// # Errors
    /// Returns the error that ended the test, [`Error::System`] if a file or standard output cannot be
    /// written, or [`Error::Limit`] if the test was slower than the limit of the options.
    pub fn end(&self, end: Conclusion<'_>) -> Result<(), Error> {
        let Conclusion { params, counters, hz, outcome, ended } = end;
        if ended.is_err() && self.rows.is_empty() {
            self.release();
            return ended;
        }
        self.print(table::LINE);
        if let Some(note) = ending_note(&ended, params.endless, outcome, &self.rows) {
            self.print(&note);
        }
        self.cores();
        repeat_lines(&self.rows, self.unit).iter().for_each(|line| self.print(line));
        for note in self.rows.iter().filter_map(|row| row.load.as_ref()).filter_map(load_note) {
            self.print(&note);
        }
        if params.validate && ended.is_ok() {
            let theirs = outcome.peer.as_ref().map_or(0, |peer| peer.messages_checked);
            self.print(&format!(
                " validated: {} messages here, {theirs} at the peer, every byte as sent",
                outcome.messages_checked
            ));
        }
        if params.zero_copy {
            self.print(&zero_copy_note(counters));
        }
        self.profiles(hz);
        if self.args.stats {
            self.print(&cost_lines(&self.rows, hz).join("\n"));
            let all = counters.iter().copied().sum();
            stats::lines(&all, measured_cycles(&self.rows) as f64 / hz as f64)
                .iter()
                .for_each(|line| self.print(line));
            spread_lines(counters).iter().for_each(|line| self.print(line));
        }
        self.files(params, counters, hz, outcome, &ended)?;
        self.release();
        ended?;
        lines::check()?;
        limits::check(self.args, &self.rows)
    }

    fn files(
        &self,
        params: &Params,
        counters: &[EngineCounters],
        hz: u64,
        outcome: &Outcome,
        ended: &Result<(), Error>,
    ) -> Result<(), Error> {
        let provenance = Provenance::here();
        if let Some(path) = &self.args.json {
            let results = json::Results {
                params,
                unit: self.unit,
                rows: &self.rows,
                target: &self.target,
                outcome,
                counters,
                hz,
                provenance: &provenance,
                ended_early: ended.as_ref().err().map(Error::to_string),
            };
            json::write(path, &results)?;
        }
        if let (Some(path), Some(row)) = (&self.args.perftest_json(), self.rows.last()) {
            perftest_json::write(path, params, self.unit, row, self.args.cpu_util)?;
        }
        match &self.args.report {
            Some(path) => report::write(path, params, self.unit, &self.rows, &provenance),
            None => Ok(()),
        }
    }

    /// Prints the lines that were held.
    fn release(&self) {
        if let Some(held) = &self.held {
            let text = held.take();
            if !text.is_empty() {
                say(text.trim_end());
            }
        }
    }

    /// Prints the load and the number of messages of each of several cores.
    fn cores(&self) {
        for row in &self.rows {
            for core in &row.cores {
                self.print(&format!(
                    " core {}, {} B: {} queue pairs, {} messages, {:.2} {}, {:.6} Mpps",
                    core.cpu,
                    row.size,
                    core.queue_pairs,
                    core.messages,
                    self.unit.of(core.bytes_per_s),
                    self.unit.name(),
                    core.messages_per_s / 1e6
                ));
            }
        }
    }

    /// Prints the cost of an FPDU by layer on this side and at the target.
    fn profiles(&self, hz: u64) {
        let profiled = |row: &'_ Row| row.profile.is_some();
        if !self.rows.iter().any(profiled) {
            return;
        }
        let scope_cycles = dp::profile::scope_cycles();
        for (end, rows) in [("here", &self.rows), ("target", &self.target)] {
            for (row, profiled) in rows.iter().filter_map(|row| Some((row, row.profile.as_ref()?))) {
                let title = format!("{end}, {} bytes", row.size);
                self.print(&Breakdown::new(profiled, hz, scope_cycles).lines(&title).join("\n"));
            }
        }
    }

    fn print(&self, line: &str) {
        match &self.held {
            Some(held) => held.borrow_mut().extend([line, "\n"]),
            None => say(line),
        }
    }
}

/// A note on how the test ended, if the test did not end as planned.
///
/// An endless run has a row for each interval, and then a row for the whole run, since the peer confirms the
/// run as a whole.
fn ending_note(
    ended: &Result<(), Error>,
    is_endless: bool,
    outcome: &Outcome,
    rows: &[Row],
) -> Option<String> {
    let measured = match is_endless {
        true => ": the last row is the whole run",
        false => ": the last row is what was measured",
    };
    let partial = if rows.last().is_some_and(|row| row.is_partial) { measured } else { "" };
    match ended {
        Err(Error::Interrupted) => Some(format!(" interrupted{partial}")),
        Err(error) => Some(format!(" ended early{partial} ({error})")),
        Ok(()) => outcome
            .peer
            .as_ref()
            .filter(|peer| peer.interrupted)
            .map(|_| format!(" the peer was interrupted{measured}")),
    }
}

/// The number of measured cycles. The last row of an endless run covers the earlier rows. Cycles that several
/// rows cover are counted only once.
fn measured_cycles(rows: &[Row]) -> u64 {
    let mut spans: Vec<_> = rows.iter().map(|row| row.span).collect();
    spans.sort_unstable();
    let (mut cycles, mut seen) = (0, 0);
    for (from, to) in spans {
        cycles += to.saturating_sub(from.max(seen));
        seen = seen.max(to);
    }
    cycles
}

fn heading(params: &Params) -> String {
    format!("                    {}", description(params))
}

/// A remark on the figures of a run at a given rate, or `None` if all is well.
fn load_note(load: &LoadFigures) -> Option<String> {
    // It is normal that up to 1 % of the messages are not posted, since a few messages have just become due
    // at the end of any run.
    if load.unsent * 100 > load.latency.iterations {
        return Some(format!(
            " too much: {} messages that were due were not posted in time; their latency is the wait so far",
            load.unsent
        ));
    }
    (!load.confirmed)
        .then(|| " latency until TCP took the message: only an iwperf target confirms arrival".into())
}

/// The cost of a message and of a byte on this side, in a line per row.
fn cost_lines(rows: &[Row], hz: u64) -> Vec<String> {
    let line = |row: &Row| {
        let cycles = row.busy_cycles as f64;
        let messages = row.messages.max(1) as f64;
        let bytes = messages * f64::from(row.size);
        format!(
            " cost of {} B: {:.0} cycles a message, {:.3} cycles a byte, {:.3} s of one core at {:.2} GHz",
            row.size,
            cycles / messages,
            cycles / bytes,
            cycles / hz as f64,
            hz as f64 / 1e9
        )
    };
    rows.iter().map(line).collect()
}

/// Lines with the spread of repeated runs.
fn repeat_lines(rows: &[Row], unit: Unit) -> Vec<String> {
    let line = |group: &Vec<&Row>| {
        let figure = |row: &&Row| match &row.figures {
            Figures::Bandwidth(figures) => unit.of(figures.average),
            Figures::Latency(figures) => figures.typical_us,
        };
        let what = match group[0].figures {
            Figures::Bandwidth(_) => unit.name(),
            Figures::Latency(_) => "usec (medians)",
        };
        let Spread { least, median, greatest } = Spread::of(group.iter().map(figure))?;
        let (count, size, qps) = (group.len(), group[0].size, group[0].queue_pairs);
        Some(format!(
            " {count} rows of {size} B, {qps} queue pairs: {median:.2} {what}, from {least:.2} to {greatest:.2}"
        ))
    };
    let whole = rows.iter().filter(|row| !row.is_partial);
    grouped(whole).iter().filter(|group| group.len() > 1).filter_map(line).collect()
}

/// Lines that show how the work is spread over several engines.
fn spread_lines(counters: &[EngineCounters]) -> Vec<String> {
    type Count = fn(&EngineCounters) -> u64;
    let line = |(name, count): (&str, Count)| {
        let each: Vec<u64> = counters.iter().map(count).collect();
        let (least, most) = (each.iter().min().copied()?, each.iter().max().copied()?);
        let all: u64 = each.iter().sum();
        Some(format!(" {name} of each of {} engines: {least} to {most}, {all} in all", each.len()))
    };
    let counts: [(&str, Count); 4] = [
        ("connections", |counters| counters.connections),
        ("FPDUs received", |counters| counters.rx_fpdus),
        ("FPDUs sent", |counters| counters.tx_fpdus),
        ("frames handed to other engines", |counters| counters.stack.handed_over),
    ];
    if counters.len() > 1 { counts.into_iter().filter_map(line).collect() } else { Vec::new() }
}

/// The counts of a device that are not zero, in the driver's order.
fn device_lines(stats: &[DeviceStat]) -> Vec<String> {
    let told = stats.iter().filter(|stat| stat.value != 0);
    told.map(|DeviceStat { name, value }| format!(" device: {name} {value}")).collect()
}

/// The share of the payload that was sent without a copy.
fn zero_copy_note(counters: &[EngineCounters]) -> String {
    let sum = |count: fn(&EngineCounters) -> u64| counters.iter().map(count).sum::<u64>();
    match (sum(|counters| counters.tx_zero_copy_bytes), sum(|counters| counters.tx_fetched_bytes)) {
        (0, 1..) => {
            " zero copy: none. The messages or the frames are too short, there are CRCs or markers, or the \
             port sends its own memory only (see --help)"
                .to_owned()
        }
        (without, all) => {
            format!(" zero copy: {:.1} % of the payload", 100.0 * without as f64 / all.max(1) as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::example;

    #[test]
    fn the_spread_over_several_engines_has_the_least_and_the_most() {
        let of = |connections| EngineCounters { connections, ..EngineCounters::default() };
        assert!(spread_lines(&[of(3)]).is_empty());
        let lines = spread_lines(&[of(3), of(1), of(5)]);
        assert_eq!(lines[0], " connections of each of 3 engines: 1 to 5, 9 in all");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn the_counts_of_a_device_are_told_unless_they_are_zero() {
        let stat = |name: &str, value| DeviceStat { name: name.into(), value };
        let stats = [stat("rx_good_packets", 7), stat("rx_crc_errors", 0), stat("rx_missed_errors", 1)];
        assert_eq!(device_lines(&stats), [" device: rx_good_packets 7", " device: rx_missed_errors 1"]);
    }

    #[test]
    fn the_note_on_an_interrupted_run_says_what_its_last_row_covers() {
        let rows = [Row::default(), Row { is_partial: true, ..Row::default() }];
        let note = |is_endless, rows: &[Row]| {
            ending_note(&Err(Error::Interrupted), is_endless, &Outcome::default(), rows).unwrap()
        };
        assert_eq!(note(false, &rows), " interrupted: the last row is what was measured");
        assert_eq!(note(true, &rows), " interrupted: the last row is the whole run");
        assert_eq!(note(true, &rows[..1]), " interrupted");
    }

    #[test]
    fn time_that_two_rows_span_counts_once() {
        let row = |span| Row { span, ..Row::default() };
        assert_eq!(measured_cycles(&[]), 0);
        assert_eq!(measured_cycles(&[row((10, 30)), row((40, 50))]), 30);
        assert_eq!(measured_cycles(&[row((10, 30)), row((30, 50)), row((10, 60))]), 50);
    }

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
        let row =
            Row { size: 100, messages: 10, figures, confirmed: true, busy_cycles: 2000, ..Row::default() };
        assert_eq!(
            cost_lines(&[row], 1_000_000_000),
            [" cost of 100 B: 200 cycles a message, 2.000 cycles a byte, 0.000 s of one core at 1.00 GHz"]
        );
    }
}
