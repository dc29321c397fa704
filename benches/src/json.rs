//! `--json FILE`: the results for programs.

use std::fs::File;
use std::path::Path;

use iwarp::engine::EngineCounters;
use serde::Serialize;

use crate::errors::Error;
use crate::latency::LatencySummary;
use crate::params::{Params, Test};
use crate::perftest::client::Outcome;
use crate::runs::{Figures, Row};
use crate::table::Unit;

#[derive(Serialize)]
struct Document {
    test: Test,
    peer: &'static str,
    parameters: Parameters,
    results: Vec<Entry>,
    validation: Option<Validation>,
    peer_cost: Option<Cost>,
    counters: Counters,
}

#[derive(Serialize)]
struct Parameters {
    queue_pairs: u32,
    tx_depth: u32,
    cq_mod: u32,
    post_list: u32,
    inline_octets: u32,
    outstanding_reads: u32,
    bidirectional: bool,
    events: bool,
    markers: bool,
    crc: bool,
    duration_s: u32,
    seed: u64,
}

#[derive(Serialize)]
struct Entry {
    bytes: u32,
    iterations: u64,
    #[serde(flatten)]
    figures: EntryFigures,
    cost: Cost,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EntryFigures {
    Bandwidth {
        bw_unit: &'static str,
        bw_peak: f64,
        bw_average: f64,
        octets_per_s: f64,
        msg_rate_mpps: f64,
        confirmed_by_target: bool,
    },
    Latency {
        latency: LatencySummary,
    },
}

#[derive(Serialize)]
struct Cost {
    busy_cycles: u64,
    cycles_per_s: u64,
}

#[derive(Serialize)]
struct Validation {
    messages_checked_here: u64,
    messages_checked_by_peer: u64,
}

/// The counters that say most; `--stats` prints them all.
#[derive(Serialize)]
struct Counters {
    rx_frames: u64,
    rx_octets: u64,
    tx_frames: u64,
    tx_octets: u64,
    tx_ring_full: u64,
    rx_no_mbuf: u64,
    tx_segments: u64,
    tx_retransmits: u64,
    rto_expired: u64,
    fast_retransmits: u64,
    rx_bad_checksum: u64,
    rx_fpdus: u64,
    rx_fpdus_early: u64,
    tx_fpdus: u64,
    rx_placed_octets: u64,
    tx_fetched_octets: u64,
    busy_turns: u64,
    turns: u64,
}

/// Writes the document.
///
/// # Errors
/// [`Error::System`] when the file cannot be written.
pub fn write(
    path: &Path,
    params: &Params,
    unit: Unit,
    rows: &[Row],
    outcome: &Outcome,
    counters: &EngineCounters,
    hz: u64,
) -> Result<(), Error> {
    let document = Document {
        test: params.test,
        peer: if outcome.with_iwperf { "iwperf" } else { "perftest" },
        parameters: parameters(params),
        results: rows.iter().map(|row| entry(row, unit, hz)).collect(),
        validation: params.validate.then(|| Validation {
            messages_checked_here: outcome.messages_checked,
            messages_checked_by_peer: outcome.peer.as_ref().map_or(0, |peer| peer.messages_checked),
        }),
        peer_cost: outcome.peer.as_ref().map(|p| Cost { busy_cycles: p.busy_cycles, cycles_per_s: p.hz }),
        counters: counters_of(counters),
    };
    let failed = |source| Error::System { what: format!("cannot write {}", path.display()), source };
    let file = File::create(path).map_err(failed)?;
    serde_json::to_writer_pretty(file, &document).map_err(|error| failed(error.into()))
}

fn parameters(params: &Params) -> Parameters {
    Parameters {
        queue_pairs: params.qps,
        tx_depth: params.tx_depth,
        cq_mod: params.cq_mod,
        post_list: params.post_list,
        inline_octets: params.inline,
        outstanding_reads: params.outs,
        bidirectional: params.bidirectional,
        events: params.events,
        markers: params.markers,
        crc: params.crc,
        duration_s: params.duration_s,
        seed: params.seed,
    }
}

fn entry(row: &Row, unit: Unit, hz: u64) -> Entry {
    let figures = match row.figures {
        Figures::Bandwidth(figures) => EntryFigures::Bandwidth {
            bw_unit: unit.name(),
            bw_peak: unit.of(figures.peak),
            bw_average: unit.of(figures.average),
            octets_per_s: figures.average,
            msg_rate_mpps: figures.messages_per_s / 1e6,
            confirmed_by_target: row.confirmed,
        },
        Figures::Latency(latency) => EntryFigures::Latency { latency },
    };
    let cost = Cost { busy_cycles: row.busy_cycles, cycles_per_s: hz };
    Entry { bytes: row.size, iterations: row.messages, figures, cost }
}

fn counters_of(counters: &EngineCounters) -> Counters {
    let (port, stack) = (&counters.port, &counters.stack);
    Counters {
        rx_frames: port.rx_frames,
        rx_octets: port.rx_octets,
        tx_frames: port.tx_frames,
        tx_octets: port.tx_octets,
        tx_ring_full: port.tx_ring_full,
        rx_no_mbuf: port.rx_no_mbuf,
        tx_segments: stack.tx_segments,
        tx_retransmits: stack.tx_retransmits,
        rto_expired: stack.rto_expired,
        fast_retransmits: stack.fast_retransmits,
        rx_bad_checksum: stack.rx_bad_checksum,
        rx_fpdus: counters.rx_fpdus,
        rx_fpdus_early: counters.rx_fpdus_early,
        tx_fpdus: counters.tx_fpdus,
        rx_placed_octets: counters.rx_placed_octets,
        tx_fetched_octets: counters.tx_fetched_octets,
        busy_turns: counters.busy_turns,
        turns: counters.turns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::example;
    use crate::table::BandwidthRow;

    #[test]
    fn a_program_finds_the_figures() {
        let figures =
            BandwidthRow { bytes: 4096, iterations: 10, peak: 2e9, average: 1e9, messages_per_s: 244_140.0 };
        let row = Row {
            size: 4096,
            messages: 10,
            figures: Figures::Bandwidth(figures),
            confirmed: true,
            busy_cycles: 77,
        };
        let value = serde_json::to_value(entry(&row, Unit::GigabitsPerSecond, 3)).unwrap();
        assert_eq!(value["bytes"], 4096);
        assert_eq!(value["bw_average"], 8.0);
        assert_eq!(value["confirmed_by_target"], true);
        assert_eq!(value["cost"]["busy_cycles"], 77);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = Path::new("/nonexistent/x.json");
        let error = write(
            path,
            &example(Test::WriteLat),
            Unit::default(),
            &[],
            &Outcome::default(),
            &EngineCounters::default(),
            1,
        )
        .unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.json"), "{error}");
    }
}
