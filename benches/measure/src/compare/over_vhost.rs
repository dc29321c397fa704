//! The rows measured between two processes on a vhost-user wire. Each direction is measured separately.
//!
//! Separate runs before the measured runs check the data byte by byte.

use serde_json::Value;
use testing::ensure;
use testing::lab::Result;

use crate::compare::distance::Ranged;
use crate::compare::kernel::baseline::{Small, Stream};
use crate::compare::kernel::iperf3::{self, StreamLoad};
use crate::compare::kernel::program::RoundTrips;
use crate::compare::kernel::sockets::SocketWrites;
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};
use crate::compare::vhost::{self, EndReports, SendingEnd, Test, number};

/// Number of bytes of a small message.
pub(crate) const SMALL: u32 = 64;

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    validate(session, tally);
    bulk(session, tally, &AT_1500);
    bulk(session, tally, &AT_9000);
    round_trip(session, tally);
    rate(session, tally);
}

/// The rows of large messages at one MTU.
struct Bulk {
    mtu: u16,
    /// The row of Writes against the kernel's TCP with its best settings.
    write: &'static str,
    /// The row that compares our Writes with the kernel's TCP with its defaults.
    default: &'static str,
    /// The row that compares our Writes with Writes over the kernel's sockets.
    sockets: &'static str,
    /// Rows that are compared with these Writes. Each element has the name of the row, the test and the
    /// options.
    others: &'static [(&'static str, &'static str, &'static str)],
}

const AT_1500: Bulk =
    Bulk { mtu: 1500, write: "write_1500", default: "default_1500", sockets: "sockets_1500", others: &[] };
const AT_9000: Bulk = Bulk {
    mtu: 9000,
    write: "write_9000",
    default: "default_9000",
    sockets: "sockets_9000",
    others: &[("send", "send-bw", ""), ("read", "read-bw", ""), ("markers", "write-bw", "--markers")],
};

/// Runs in which the side that receives the data checks every byte. Each run has the names of its rows, the
/// test, the MTU and the options.
const CHECKED: [(&[&str], &str, u16, &str); 7] = [
    (&["write_1500", "default_1500", "sockets_1500"], "write-bw", 1500, "-s 1M -n 100"),
    (&["write_9000", "default_9000", "sockets_9000"], "write-bw", 9000, "-s 1M -n 100"),
    (&["send"], "send-bw", 9000, "-s 1M -n 100"),
    (&["read"], "read-bw", 9000, "-s 1M -n 100"),
    (&["markers"], "write-bw", 9000, "-s 1M -n 100 --markers"),
    (&["pingpong_64", "pingpong_p99", "pingpong_p999", "sockets_64"], "write-lat", 1500, "-s 64 -n 2000"),
    (&["rate_64"], "write-bw", 1500, "-s 64 -Q 64 -n 20000"),
];

fn validate(session: &Session, tally: &mut Tally) {
    for (ids, name, mtu, options) in CHECKED {
        let wanted: Vec<&str> = ids.iter().copied().filter(|id| session.options.wants(id)).collect();
        if wanted.is_empty() {
            continue;
        }
        let test = Test::new(name, mtu, &format!("{options} --validate"));
        let checked: Result<u64> = SendingEnd::BOTH
            .into_iter()
            .map(|sender| messages_checked(&vhost::run(session, &test, sender)?))
            .sum();
        for id in wanted {
            match &checked {
                Ok(messages) => tally.note(id, "messages_validated", *messages),
                Err(error) => tally.fail(id, error),
            }
        }
    }
}

/// Returns the number of messages whose bytes were checked, added up over both sides. Fails if no message was
/// checked.
fn messages_checked(reports: &EndReports) -> Result<u64> {
    let checked = |at: &str| reports.client.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let checked =
        checked("/validation/messages_checked_here") + checked("/validation/messages_checked_by_peer");
    ensure!(checked > 0, "no message was checked");
    Ok(checked)
}

/// The name of a row with which large Writes are compared, and a function that measures the row's figure in
/// Gb/s.
type Baseline<'a> = (&'static str, Box<dyn Fn() -> Result<f64> + 'a>);

/// Measures the goodput of large Writes against the kernel, and the rows that are compared with these Writes.
fn bulk(session: &Session, tally: &mut Tally, rows: &Bulk) {
    let seconds = session.pace.seconds;
    let test = |name, options| Test::new(name, rows.mtu, &format!("-s 1M -D {seconds} {options}"));
    let others: Vec<_> = rows.others.iter().filter(|(id, ..)| session.options.wants(id)).collect();
    let baselines = baselines(session, tally, rows);
    if baselines.is_empty() && others.is_empty() {
        return;
    }
    for _ in 0..session.pace.pairs {
        for sender in SendingEnd::BOTH {
            let writes = || goodput(session, &test("write-bw", ""), sender);
            let first = session.ranged(writes);
            for (id, theirs) in &baselines {
                tally.add(id, sender.name(), session.beside(&first, writes, theirs).map(Pair::from));
            }
            for (id, name, options) in &others {
                let other = || goodput(session, &test(name, options), sender);
                let both = session.beside(&first, writes, other);
                let pair = both.map(|both| both.map(|(writes, other)| (other, writes)).into());
                tally.add(id, sender.name(), pair);
            }
        }
    }
}

/// Sets up the baselines of the wanted rows. If a baseline cannot be set up, its row has failed.
fn baselines<'a>(session: &'a Session, tally: &mut Tally, rows: &Bulk) -> Vec<Baseline<'a>> {
    let (mut all, seconds): (Vec<Baseline<'a>>, _) = (Vec::new(), session.pace.seconds);
    let load = StreamLoad { connections: 1, bytes: None, seconds };
    if session.options.wants(rows.write) {
        match Stream::new(session, rows.mtu) {
            Ok(stream) => {
                tally.note(rows.write, "kernel", stream.name());
                tally.note(rows.write, "kernel_tried", stream.tried.clone());
                tally.note(rows.write, "kernel_runs", stream.runs.clone());
                tally.note(rows.write, "kernel_sendfile", stream.sendfile.clone());
                all.push((rows.write, Box::new(move || stream.goodput(load))));
            }
            Err(error) => tally.fail(rows.write, &error),
        }
    }
    if session.options.wants(rows.default) {
        match Stream::with(session, rows.mtu, iperf3::DEFAULT) {
            Ok(stream) => {
                tally.note(rows.default, "kernel", stream.name());
                all.push((rows.default, Box::new(move || stream.goodput(load))));
            }
            Err(error) => tally.fail(rows.default, &error),
        }
    }
    if session.options.wants(rows.sockets) {
        match SocketWrites::for_bulk(session, rows.mtu) {
            Ok(sockets) => {
                tally.note(rows.sockets, "kernel", sockets.name());
                tally.note(rows.sockets, "kernel_tried", sockets.tried.clone());
                all.push((rows.sockets, Box::new(move || sockets.goodput(seconds.into()))));
            }
            Err(error) => tally.fail(rows.sockets, &error),
        }
    }
    all
}

/// Measures the goodput in Gb/s that the target confirmed.
///
/// # Errors
/// Fails if a program fails, or if the target confirmed nothing.
pub(crate) fn goodput(session: &Session, test: &Test, sender: SendingEnd) -> Result<f64> {
    let reports = session.undisturbed(|| vhost::run(session, test, sender))?;
    ensure!(
        reports.client["results"][0]["confirmed_by_target"] == true,
        "the target did not confirm the result"
    );
    Ok(number(&reports.client, "/results/0/bytes_per_s")? * 8.0 / 1e9)
}

/// A row of the round trips of one run. The row names a figure in the JSON of `iwperf`, and the corresponding
/// figure of the kernel. `iwperf` reports half a round trip, as perftest does.
struct Percentile {
    id: &'static str,
    ours: &'static str,
    theirs: fn(&RoundTrips) -> f64,
}

/// The rows against the kernel's TCP. One run measures all these rows.
const PERCENTILES: [Percentile; 3] = [
    Percentile { id: "pingpong_64", ours: "typical_us", theirs: |trips| trips.median_us },
    Percentile { id: "pingpong_p99", ours: "p99_us", theirs: |trips| trips.p99_us },
    Percentile { id: "pingpong_p999", ours: "p999_us", theirs: |trips| trips.p999_us },
];

/// The row that compares the median of our round trips with that of Writes over the kernel's sockets.
const OVER_SOCKETS: Percentile =
    Percentile { id: "sockets_64", ours: "typical_us", theirs: |trips| trips.median_us };

impl Percentile {
    /// Returns the figures of one run of ours and of one run of theirs. Each figure is a whole round trip in
    /// microseconds. iwperf reports half a round trip, so our figure is doubled.
    fn pair(&self, both: &Result<Ranged<(EndReports, RoundTrips)>>) -> Result<Pair> {
        let Ranged { result: (reports, trips), distances } = both.as_ref().map_err(Clone::clone)?;
        let half = number(&reports.client, &format!("/results/0/latency/{}", self.ours))?;
        let result = (2.0 * half, (self.theirs)(trips));
        Ok(Ranged { result, distances: *distances }.into())
    }
}

/// Measures the whole round trip of two small Writes. The percentiles of the round trip are compared with the
/// kernel's TCP, and the median with Writes over the kernel's sockets.
fn round_trip(session: &Session, tally: &mut Tally) {
    let count = session.pace.round_trips;
    let test = Test::new("write-lat", 1500, &format!("-s {SMALL} -n {count}"));
    let rows: Vec<&Percentile> = PERCENTILES.iter().filter(|row| session.options.wants(row.id)).collect();
    let kernel = (!rows.is_empty()).then(|| Small::for_round_trips(session, SMALL));
    let kernel = set_up(tally, &rows, kernel, Small::name);
    let over_sockets: Vec<&Percentile> =
        Some(&OVER_SOCKETS).into_iter().filter(|row| session.options.wants(row.id)).collect();
    let sockets = (!over_sockets.is_empty()).then(|| SocketWrites::for_round_trips(session, 1500, SMALL));
    let sockets = set_up(tally, &over_sockets, sockets, SocketWrites::name);
    if kernel.is_none() && sockets.is_none() {
        return;
    }
    for _ in 0..session.pace.pairs {
        for sender in SendingEnd::BOTH {
            let ours = || session.undisturbed(|| vhost::run(session, &test, sender));
            let first = session.ranged(ours);
            if let Some(kernel) = &kernel {
                let theirs = || session.undisturbed(|| kernel.round_trips(SMALL, count));
                let both = session.beside(&first, ours, theirs);
                rows.iter().for_each(|row| tally.add(row.id, sender.name(), row.pair(&both)));
            }
            if let Some(sockets) = &sockets {
                let theirs = || session.undisturbed(|| sockets.round_trips(SMALL, count));
                let both = session.beside(&first, ours, theirs);
                tally.add(OVER_SOCKETS.id, sender.name(), OVER_SOCKETS.pair(&both));
            }
        }
    }
}

/// Returns the baseline of `rows` if the user wants the baseline and it was set up. If the baseline could not
/// be set up, records the error for each of `rows`.
fn set_up<T>(
    tally: &mut Tally,
    rows: &[&Percentile],
    baseline: Option<Result<T>>,
    name: impl Fn(&T) -> String,
) -> Option<T> {
    match baseline? {
        Ok(baseline) => {
            rows.iter().for_each(|row| tally.note(row.id, "kernel", name(&baseline)));
            Some(baseline)
        }
        Err(error) => {
            rows.iter().for_each(|row| tally.fail(row.id, &error));
            None
        }
    }
}

/// Measures the rate of small Writes that the target has confirmed.
fn rate(session: &Session, tally: &mut Tally) {
    let seconds = session.pace.seconds;
    let row = SmallRow {
        id: "rate_64",
        test: Test::new("write-bw", 1500, &format!("-s {SMALL} -Q 64 -t 1024 -D {seconds}")),
        ours: &counted_rate,
        kernel: &|| Small::for_rate(session, 1500, SMALL),
        theirs: &|small| small.messages_per_s(SMALL, f64::from(seconds)).map(|rate| rate / 1e6),
    };
    row.measure(session, tally);
}

/// A row that compares our small messages with the kernel's small messages.
struct SmallRow<'a> {
    id: &'static str,
    test: Test,
    ours: &'a dyn Fn(&EndReports) -> Result<f64>,
    kernel: &'a dyn Fn() -> Result<Small>,
    theirs: &'a dyn Fn(&Small) -> Result<f64>,
}

impl SmallRow<'_> {
    fn measure(&self, session: &Session, tally: &mut Tally) {
        if !session.options.wants(self.id) {
            return;
        }
        let small = match (self.kernel)() {
            Ok(small) => small,
            Err(error) => return tally.fail(self.id, &error),
        };
        tally.note(self.id, "kernel", small.name());
        for _ in 0..session.pace.pairs {
            for sender in SendingEnd::BOTH {
                let ours = || {
                    let reports = session.undisturbed(|| vhost::run(session, &self.test, sender));
                    reports.and_then(|reports| (self.ours)(&reports))
                };
                tally.add(self.id, sender.name(), session.pair(ours, || (self.theirs)(&small)));
            }
        }
    }
}

/// Millions of messages per second: the number of sent messages, divided by the time until the target's
/// confirmation. Fails if the target's engine counted fewer FPDUs than messages: a small Write is one FPDU.
fn counted_rate(reports: &EndReports) -> Result<f64> {
    let sent = number(&reports.client, "/results/0/iterations")?;
    let rate = number(&reports.client, "/results/0/msg_rate_mpps")?;
    let counted = number(&reports.server, "/counters/rx_fpdus")?;
    ensure!(
        reports.client["results"][0]["confirmed_by_target"] == true,
        "the target did not confirm the result"
    );
    ensure!(counted >= sent, "{sent} messages were sent, but the target counted {counted} FPDUs");
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testing::lab::LabError;

    use super::*;
    use crate::compare::distance::Distances;

    fn reports(confirmed: bool, counted: u64) -> EndReports {
        let result = json!({ "iterations": 1000, "msg_rate_mpps": 2.5, "confirmed_by_target": confirmed });
        let client = json!({ "results": [result], "validation": { "messages_checked_by_peer": 7 } });
        EndReports { client, server: json!({ "counters": { "rx_fpdus": counted } }) }
    }

    #[test]
    fn a_rate_counts_if_the_target_counted_as_much() {
        assert_eq!(counted_rate(&reports(true, 1010)).unwrap(), 2.5);
        assert!(counted_rate(&reports(true, 999)).unwrap_err().to_string().contains("999"));
        assert!(counted_rate(&reports(false, 1010)).is_err());
    }

    #[test]
    fn a_percentile_of_halves_is_that_of_whole_round_trips() {
        let latency = json!({ "typical_us": 2.0, "p99_us": 3.0, "p999_us": 5.0 });
        let client = json!({ "results": [{ "latency": latency }] });
        let ours = EndReports { client, server: Value::Null };
        let [median_us, p99_us, p999_us] = [8.0, 9.0, 20.0];
        let theirs = RoundTrips { count: 1, median_us, p99_us, p999_us, distribution: Vec::new() };
        let distances = Some(Distances::of(80.0));
        let both = Ok(Ranged { result: (ours, theirs), distances });
        let pairs = PERCENTILES.map(|row| row.pair(&both).unwrap());
        assert!(pairs.iter().all(|pair| pair.distances == distances));
        assert_eq!(pairs.map(|pair| pair.ours), [4.0, 6.0, 10.0]);
        assert_eq!(pairs.map(|pair| pair.theirs), [8.0, 9.0, 20.0]);
        let no = PERCENTILES[1].pair(&Err(LabError::new("no"))).unwrap_err();
        assert_eq!(no.to_string(), "no");
    }

    #[test]
    fn a_validation_that_looked_at_nothing_is_none() {
        assert_eq!(messages_checked(&reports(true, 0)).unwrap(), 7);
        let unchecked = EndReports { client: json!({ "validation": null }), server: Value::Null };
        assert!(messages_checked(&unchecked).is_err());
    }

    #[test]
    fn every_checked_run_belongs_to_a_row() {
        let ids = CHECKED.iter().flat_map(|(ids, ..)| ids.iter());
        assert!(ids.clone().all(|id| crate::compare::measures::find(id).is_some()));
        assert_eq!(ids.count(), 14, "each row over vhost has a checked run");
    }
}
