//! The rows that `measure pair` measures, which need no device. `measure pair` measures one pair at a time,
//! and prints the figures as JSON.

use std::time::Duration;

use serde::Deserialize;
use testing::lab::Result;
use testing::{ensure, lab_error};

use crate::compare::last_line::last_line;
use crate::compare::measures::{Measure, Sampling, find};
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};

/// Names of the rows that `measure pair` measures.
const IDS: [&str; 14] = [
    "one_core",
    "qps_1k",
    "qps_10k",
    "fair_64",
    "beside_bulk",
    "cores_2",
    "queues_2",
    "engines_8",
    "await_cost",
    "stream_64",
    "stream_1k",
    "stream_64k",
    "idle_qp_bytes",
    "vs_smoltcp",
];

/// The rows that use both cores. Each of their pairs is a single run, in which the two sides alternate.
const TWO_CORES: [&str; 2] = ["cores_2", "queues_2"];

/// The objects of thousands of queue pairs are scattered over the heap. So for `qps_1k` and `qps_10k` this
/// variable makes glibc use huge pages for the heap, on both sides of a pair.
const HUGE_HEAP: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// Time limit for one pair.
const LIMIT: Duration = Duration::from_secs(90);

/// One pair in the form in which `measure pair` prints it.
#[derive(Debug, Deserialize)]
struct Line {
    id: String,
    ours: f64,
    theirs: f64,
    unit: String,
}

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    for measure in IDS.into_iter().filter_map(find).filter(|row| session.options.wants(row.id)) {
        let pairs = if measure.taken == Sampling::Once { 1 } else { session.pace.pairs };
        for _ in 0..pairs {
            let pair = match measure.taken {
                Sampling::AsTheyCome => take(session, measure),
                _ if TWO_CORES.contains(&measure.id) => session
                    .steadiest(|_again| {
                        let pair = session.ranged(|| session.undisturbed(|| take(session, measure)));
                        pair.map(|pair| pair.map(|pair| (pair.ours, pair.theirs)))
                    })
                    .map(Pair::from),
                Sampling::Undisturbed | Sampling::Once => session.undisturbed(|| take(session, measure)),
            };
            let failed = pair.is_err();
            tally.add(measure.id, "memory", pair);
            if failed {
                break;
            }
        }
    }
}

fn take(session: &Session, measure: &Measure) -> Result<Pair> {
    let id = measure.id;
    let cpus = session.cpus.map(|cpu| cpu.to_string()).join(",");
    let mut run = Session::part("pair")?.args([id, "--cpus", &cpus]);
    if id.starts_with("qps") {
        run = run.env(HUGE_HEAP.0, HUGE_HEAP.1);
    }
    parse(measure, &run.args(["--seconds", &session.pace.seconds.to_string()]).check(LIMIT)?)
}

/// Parses the last line of the output of `measure pair`. This line has the pair.
fn parse(measure: &Measure, text: &str) -> Result<Pair> {
    let id = measure.id;
    let Line { id: said, ours, theirs, unit } =
        last_line(text).map_err(|error| lab_error!("measure {id}: {error}"))?;
    ensure!(said == id && unit == measure.unit, "measure {id}: said {said} in {unit}");
    Ok(Pair::new(ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(id: &str, text: &str) -> Result<Pair> {
        super::parse(find(id).unwrap(), text)
    }

    #[test]
    fn a_pair_is_read_from_the_last_line() {
        let text = "warming up\n{\"id\":\"one_core\",\"ours\":8.5,\"theirs\":10,\"unit\":\"GB/s\"}\n";
        assert_eq!(parse("one_core", text).unwrap(), Pair::new(8.5, 10.0));
        assert!(parse("qps_1k", text).is_err());
        assert!(parse("one_core", "").is_err());
    }

    #[test]
    fn a_figure_in_another_unit_is_refused() {
        let line = |unit| format!(r#"{{"id":"idle_qp_bytes","ours":3000,"theirs":4096,"unit":"{unit}"}}"#);
        assert!(parse("idle_qp_bytes", &line("bytes")).is_ok());
        assert!(parse("idle_qp_bytes", &line("KiB")).unwrap_err().to_string().contains("KiB"));
    }

    #[test]
    fn every_row_is_one_of_the_table() {
        assert!(IDS.iter().all(|id| find(id).is_some()));
        assert!(TWO_CORES.iter().all(|id| IDS.contains(id)));
    }
}
