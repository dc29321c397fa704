//! The order of the exchange for each test, once the data connections are established.
//!
//! | | before | for each size | after |
//! |---|---|---|---|
//! | write-bw, read-bw, atomic-bw | places, places, sync | - (both ways: sync, run, sync with `-a`, reports) | sync, reports (not both ways), close |
//! | send-bw, write-imm-bw | places, sync, places | sync, run, (both ways: reports), sync with `-a` | close |
//! | write-lat | sync, places, places, sync | run | - |
//! | read-lat, atomic-lat | sync, places, places, sync | run | close |
//! | send-lat | places, sync, places | sync, run | close |
//!
//! *Places*: the sides exchange one destination per queue pair. If the test has credits, the first *places*
//! have the destinations of the credit cells. *Sync* and *close* send the destination of the first queue pair
//! again. The run of the target of a one-way test ends when the source's next message arrives. A warm-up is
//! one more run before the first size: in send-bw and write-imm-bw with a sync before and after it, and in
//! send-lat with a sync before it. With a duration instead of a number of messages, tests whose messages
//! consume receives have no reports. If both sides are iwperf, each side sends one more message at the end
//! ([`FinalReport`]).

use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::live::Live;
use crate::params::{Params, Test};
use crate::path::{Path, Purpose};
use crate::perftest::exchange::{Control, nothing};
use crate::perftest::wire::{Dest, Report};
use crate::private_report::FinalReport;
use crate::runs::bandwidth::{self, Ending, Part, RunPlan};
use crate::runs::{BandwidthRow, Figures, OnRow, Row, latency};
use crate::table::Unit;

/// A test whose connections are established.
pub struct Script<'a> {
    /// This side.
    pub end: &'a mut Endpoint,
    /// The control connection.
    pub control: &'a mut Control,
    /// The data connections.
    pub path: &'a mut Path,
    /// Whether the peer is iwperf.
    pub with_iwperf: bool,
    /// The unit of bandwidth in reports.
    pub unit: Unit,
    /// The GID of this side in a destination: the MAC address, followed by zeros, as with siw.
    pub gid: [u8; 16],
}

impl Script<'_> {
    /// Runs the whole test. Returns the peer's final message, if the peer is iwperf.
    ///
    /// # Errors
    /// Returns any error that ends a test.
    pub fn run(&mut self, on_row: OnRow<'_>) -> Result<Option<FinalReport>, Error> {
        self.prepare()?;
        match self.params().test {
            Test::WriteBw | Test::ReadBw | Test::AtomicBw => self.one_sided_bandwidth(on_row)?,
            Test::SendBw | Test::WriteImmBw => self.send_bandwidth(on_row)?,
            Test::WriteLat | Test::ReadLat | Test::SendLat | Test::AtomicLat => self.latency(on_row)?,
        }
        if !self.with_iwperf {
            return Ok(None);
        }
        let ours = FinalReport::of(self.end, self.path).encode();
        // The measurements are done. The data path is not polled, since the peer may already have closed the
        // data connections.
        let theirs = self.control.exchange(self.end, &ours, &mut nothing)?;
        FinalReport::decode(&theirs).map(Some)
    }

    fn params(&self) -> &Params {
        &self.path.params
    }

    fn is_client(&self) -> bool {
        self.control.is_client
    }

    fn own_dest(&self, index: usize, place: Purpose) -> Dest {
        let params = self.params();
        let out_reads = if params.test.verb().is_answered() { params.outs } else { 1 };
        self.path.dest(index, place, out_reads, self.gid)
    }

    fn prepare(&mut self) -> Result<(), Error> {
        let test = self.params().test;
        if matches!(test, Test::WriteLat | Test::ReadLat | Test::AtomicLat) {
            self.sync()?;
        }
        self.places(Purpose::Credit)?;
        if test.verb().uses_receives() {
            self.sync()?;
        }
        self.places(Purpose::Data)?;
        if !test.verb().uses_receives() {
            self.sync()?;
        }
        Ok(())
    }

    /// Exchanges the addresses of memory for each queue pair.
    fn places(&mut self, place: Purpose) -> Result<(), Error> {
        for index in 0..self.path.flows.len() {
            let ours = self.own_dest(index, place);
            let theirs = self.control.dest(self.end, &ours, &mut nothing)?;
            let flow = &mut self.path.flows[index];
            match place {
                Purpose::Credit => flow.credit = theirs,
                Purpose::Data if self.path.params.test == Test::SendBw => {
                    // perftest may send its first destination before it has the location of its credit cell,
                    // so the location in this second destination counts.
                    (flow.credit, flow.remote) = (theirs, theirs);
                }
                Purpose::Data => flow.remote = theirs,
            }
        }
        Ok(())
    }

    /// Waits for the peer, which also waits for this side. Polls the data path during the wait.
    fn sync(&mut self) -> Result<(), Error> {
        let ours = self.own_dest(0, Purpose::Data);
        let path = &mut *self.path;
        self.control.dest(self.end, &ours, &mut || path.poll()).map(drop)
    }

    fn reports(&mut self, ours: &Report) -> Result<Report, Error> {
        let path = &mut *self.path;
        self.control.report(self.end, ours, &mut || path.poll())
    }

    fn part(&self) -> Part {
        let both = self.params().bidirectional;
        Part {
            source: self.is_client() || both,
            target: !self.is_client() || both,
            counts: !self.with_iwperf,
        }
    }

    /// Runs messages of the size that was begun. After an error, passes the results up to the error to
    /// `on_row`, if there are results.
    fn measure(&mut self, warms_up: bool, on_row: OnRow<'_>) -> Result<bandwidth::Run, Error> {
        let (params, with_iwperf) = (self.params(), self.with_iwperf);
        let iters = (params.iters > 0).then_some(u64::from(params.iters));
        let (limit, part) = (if warms_up { Some(params.warm_up_messages()) } else { iters }, self.part());
        // The target has to notice if this side ends the run early. A target whose receives are consumed does
        // not notice this if the target is perftest, which counts messages, or if the target waits for the
        // next size (--all).
        let knows_the_end = !params.test.verb().uses_receives() || (with_iwperf && !params.all);
        let both_end = !params.bidirectional || (params.endless && with_iwperf);
        let course = RunPlan {
            part,
            limit,
            ending: match params.endless && !warms_up {
                true => Ending::Never,
                false => Ending::InTime,
            },
            can_conclude: self.is_client() && both_end && knows_the_end,
        };
        // With --all, a target does not know which size the peer has reached.
        let has_size = part.source || !params.all;
        let mut live = self.live(limit, warms_up || !part.source);
        let (run, ended) = bandwidth::run(self.end, self.control, self.path, &course, &mut live, on_row);
        drop(live);
        if ended.is_err() && !warms_up && has_size {
            let row = run.row(false);
            if row.messages > 0 {
                on_row(&row);
            }
        }
        ended.map(|()| run)
    }

    /// The display of a run of `limit` messages on each queue pair. The display is hidden at a server, or if
    /// `is_hidden` is true.
    fn live(&self, limit: Option<u64>, is_hidden: bool) -> Live {
        let params = self.params();
        if is_hidden || !self.is_client() {
            return Live::hidden();
        }
        let total = limit.map_or(0, |limit| limit * u64::from(params.qps));
        let label = format!("{} of {} bytes", params.test.name(), self.path.size());
        Live::new(&label, total, self.unit, self.end.clock.hz())
    }

    /// The runs in order: the size of each run, and whether the run is only a warm-up. An iwperf target
    /// expects the warm-up. A perftest target does not, so with perftest only operations that need no action
    /// of the target can be warmed up.
    fn courses(&self, target_acts: bool) -> Vec<(u32, bool)> {
        let sizes = self.params().sizes();
        let warms_up = self.params().warm_up && (self.with_iwperf || !target_acts);
        let first = sizes.first().filter(|_| warms_up).map(|&size| (size, true));
        first.into_iter().chain(sizes.into_iter().map(|size| (size, false))).collect()
    }

    fn one_sided_bandwidth(&mut self, on_row: OnRow<'_>) -> Result<(), Error> {
        let Params { bidirectional: both, all, endless, .. } = *self.params();
        // perftest's endless runs begin without a sync.
        let begins_together = both && (self.with_iwperf || !endless);
        if !self.is_client() && !both {
            // The peer does all the work. This side only answers the peer's marks until the peer's next
            // message.
            let run = self.measure(false, on_row)?;
            self.sync()?;
            let theirs = self.reports(&Report::default())?;
            let Row { span, cpu_percent, .. } = run.row(true);
            on_row(&Row { profile: run.profile, span, cpu_percent, ..self.row_of(&theirs) });
            return self.sync();
        }
        let confirmed = self.path.is_confirmed_by_target();
        let mut last = Report::default();
        for (size, warms_up) in self.courses(false) {
            self.path.begin(size)?;
            if warms_up {
                self.measure(true, on_row)?;
                continue;
            }
            if begins_together {
                self.sync()?;
            }
            let row = self.measure(false, on_row)?.row(confirmed);
            if both && all {
                self.sync()?;
            }
            last = self.report_of(&row);
            if both {
                let theirs = self.reports(&last)?;
                on_row(&self.sum(&row, &theirs));
            } else {
                on_row(&row);
            }
            if self.end.driver.is_concluding() {
                break;
            }
        }
        if !both {
            self.sync()?;
            self.reports(&last)?;
        }
        self.sync()
    }

    fn send_bandwidth(&mut self, on_row: OnRow<'_>) -> Result<(), Error> {
        let Params { bidirectional: both, all, duration_s, .. } = *self.params();
        for (size, warms_up) in self.courses(true) {
            self.path.begin(size)?;
            self.sync()?;
            let mut run = self.measure(warms_up, on_row)?;
            if warms_up {
                self.sync()?;
                continue;
            }
            if !self.is_client() && !both {
                run.received(self.path);
            }
            let mut theirs = None;
            if both && duration_s == 0 {
                theirs = Some(self.reports(&self.report_of(&run.row(true)))?);
            }
            if all {
                self.sync()?;
            } else {
                self.close_sends()?;
            }
            if self.is_client() && !self.with_iwperf && !both {
                // perftest's server answers when it has counted all messages, so its answer confirms the
                // messages.
                run.prolong(self.end);
            }
            // In both directions, perftest answers as soon as it has counted its received messages. Such an
            // answer does not confirm our last messages.
            let row = run.row(self.with_iwperf || !both);
            on_row(&theirs.map_or_else(|| row.clone(), |theirs| self.sum(&row, &theirs)));
        }
        if all { self.close_sends() } else { Ok(()) }
    }

    /// Exchanges the last message of a test whose messages consume receives. In a run of a fixed duration,
    /// perftest may close the connection instead of answering.
    fn close_sends(&mut self) -> Result<(), Error> {
        if self.params().duration_s > 0 {
            return match self.sync() {
                Err(Error::Disconnected { error: None, .. }) => Ok(()),
                outcome => outcome,
            };
        }
        // The data path is not polled, since a peer that has answered may already have closed the data
        // connections.
        let ours = self.own_dest(0, Purpose::Data);
        self.control.dest(self.end, &ours, &mut nothing).map(drop)
    }

    fn latency(&mut self, on_row: OnRow<'_>) -> Result<(), Error> {
        let test = self.params().test;
        if test.verb().is_answered() && !self.is_client() {
            // Reads and atomics need only polls of the engine on this side.
            return self.sync();
        }
        for (size, warms_up) in self.courses(!test.verb().is_answered()) {
            self.path.begin(size)?;
            if test == Test::SendLat {
                self.sync()?;
            }
            let iters = (self.params().iters > 0).then_some(u64::from(self.params().iters));
            let limit = if warms_up { Some(self.params().warm_up_messages()) } else { iters };
            let mut live = self.live(limit, warms_up);
            let (row, ended) = latency::run(self.end, self.control, self.path, limit, &mut live);
            drop(live);
            if !warms_up && (ended.is_ok() || row.messages > 0) {
                on_row(&row);
            }
            ended?;
        }
        match test {
            Test::WriteLat => Ok(()),
            Test::SendLat => self.close_sends(),
            _ => self.sync(),
        }
    }

    fn report_of(&self, row: &Row) -> Report {
        let Figures::Bandwidth(bandwidth) = row.figures else { return Report::default() };
        Report {
            size: bandwidth.bytes,
            iters: bandwidth.iterations,
            bw_peak: self.unit.of(bandwidth.peak),
            bw_avg: self.unit.of(bandwidth.average),
            msg_rate_mpps: bandwidth.messages_per_s / 1e6,
        }
    }

    fn row_of(&self, report: &Report) -> Row {
        let bandwidth = BandwidthRow {
            bytes: report.size,
            iterations: report.iters,
            peak: self.unit.to_bytes_per_s(report.bw_peak),
            average: self.unit.to_bytes_per_s(report.bw_avg),
            messages_per_s: report.msg_rate_mpps * 1e6,
        };
        let (size, messages) = (report.size as u32, report.iters);
        Row {
            size,
            messages,
            figures: Figures::Bandwidth(bandwidth),
            confirmed: self.with_iwperf,
            queue_pairs: self.params().qps,
            ..Row::default()
        }
    }

    /// The sum of both directions, as perftest prints it.
    fn sum(&self, ours: &Row, theirs: &Report) -> Row {
        let (Figures::Bandwidth(a), Figures::Bandwidth(b)) = (ours.figures, self.row_of(theirs).figures)
        else {
            return ours.clone();
        };
        let sum = BandwidthRow {
            peak: a.peak + b.peak,
            average: a.average + b.average,
            messages_per_s: a.messages_per_s + b.messages_per_s,
            ..a
        };
        Row { figures: Figures::Bandwidth(sum), ways: Some([a, b]), ..ours.clone() }
    }
}
