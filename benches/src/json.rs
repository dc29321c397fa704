//! `--json FILE`: the results in JSON.

use std::path::Path;

use iwarp::engine::EngineCounters;
use serde::Serialize;

use crate::errors::Error;
use crate::latency::{Distribution, LatencySummary};
use crate::lines;
use crate::params::{AtomicKind, Params, Test, Verb};
use crate::perftest::client::Outcome;
use crate::profile::Breakdown;
use crate::provenance::Provenance;
use crate::runs::{CoreFigures, Figures, Row};
use crate::table::Unit;

/// The document that is written.
pub(crate) struct Results<'a> {
    pub(crate) params: &'a Params,
    pub(crate) unit: Unit,
    pub(crate) rows: &'a [Row],
    pub(crate) target: &'a [Row],
    pub(crate) outcome: &'a Outcome,
    pub(crate) counters: &'a [EngineCounters],
    pub(crate) hz: u64,
    pub(crate) provenance: &'a Provenance,
    pub(crate) ended_early: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    iwperf: &'a Provenance,
    test: Test,
    peer: &'static str,
    parameters: Parameters,
    /// The error that ended the test before all runs were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_early: Option<&'a str>,
    results: Vec<Entry>,
    /// The profile of each of the target's rows, if both sides are in this process and are profiled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    target_profiles: Vec<Breakdown>,
    validation: Option<Validation>,
    peer_cost: Option<Cost>,
    counters: Counters,
    /// The counters of each engine, if there are several engines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    engines: Vec<Counters>,
}

#[derive(Serialize)]
struct Parameters {
    queue_pairs: u32,
    tx_depth: u32,
    cq_mod: u32,
    post_list: u32,
    inline_bytes: u32,
    outstanding_reads: u32,
    bidirectional: bool,
    events: bool,
    zero_copy: bool,
    markers: bool,
    crc: bool,
    duration_s: u32,
    seed: u64,
    rx_depth: u32,
    recv_post_list: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic: Option<AtomicKind>,
    warm_up: bool,
}

#[derive(Serialize)]
struct Entry {
    bytes: u32,
    iterations: u64,
    queue_pairs: u32,
    /// The figures of each core. The other figures of the entry are sums over the cores.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cores: Vec<CoreFigures>,
    #[serde(flatten)]
    figures: EntryFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<LoadEntry>,
    /// Quantiles with their latencies in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    distribution: Distribution,
    cost: Cost,
    /// CPU time of this process in percent of one CPU.
    cpu_percent: f64,
    /// True if an interrupt or an error ended the run early.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    /// Bytes per second that were sent and received, if both sides sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    ways_bytes_per_s: Option<[f64; 2]>,
    /// Each latency in microseconds, in the order of measurement (-U, -H).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples_us: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Breakdown>,
}

/// Figures of a run at a given rate.
#[derive(Serialize)]
struct LoadEntry {
    asked_messages_per_s: f64,
    confirmed_by_target: bool,
    unsent: u64,
    /// Latencies, measured from the time at which each message was due.
    latency: LatencySummary,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EntryFigures {
    Bandwidth {
        bw_unit: &'static str,
        bw_peak: f64,
        bw_average: f64,
        bytes_per_s: f64,
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

/// The most useful counters. `--stats` prints all counters.
#[derive(Serialize)]
struct Counters {
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    tx_ring_full: u64,
    rx_no_mbuf: u64,
    tx_segments: u64,
    tx_trains: u64,
    tx_retransmits: u64,
    rto_expired: u64,
    fast_retransmits: u64,
    rx_bad_checksum: u64,
    rx_fpdus: u64,
    rx_fpdus_early: u64,
    tx_fpdus: u64,
    rx_placed_bytes: u64,
    tx_fetched_bytes: u64,
    tx_zero_copy_bytes: u64,
    busy_polls: u64,
    polls: u64,
    connections: u64,
    handed_over: u64,
    handed_over_dropped: u64,
}

/// Writes the document.
///
/// # Errors
/// Returns [`Error::System`] if the file cannot be written.
pub(crate) fn write(path: &Path, results: &Results<'_>) -> Result<(), Error> {
    let Results { params, unit, rows, target, outcome, counters, hz, .. } = *results;
    let profiled = |rows: &[Row]| rows.iter().any(|row| row.profile.is_some());
    // Measuring the cost of a scope takes some milliseconds, so the cost is measured only if a row has a
    // profile.
    let scope_cycles = if profiled(rows) { dp::profile::scope_cycles() } else { 0.0 };
    let document = Document {
        iwperf: results.provenance,
        test: params.test,
        peer: if outcome.with_iwperf { "iwperf" } else { "perftest" },
        parameters: parameters(params),
        ended_early: results.ended_early.as_deref(),
        results: rows.iter().map(|row| entry(row, unit, hz, scope_cycles)).collect(),
        target_profiles: breakdowns(target, hz, scope_cycles),
        validation: params.validate.then(|| Validation {
            messages_checked_here: outcome.messages_checked,
            messages_checked_by_peer: outcome.peer.as_ref().map_or(0, |peer| peer.messages_checked),
        }),
        peer_cost: outcome.peer.as_ref().map(|p| Cost { busy_cycles: p.busy_cycles, cycles_per_s: p.hz }),
        counters: counters_of(&counters.iter().copied().sum()),
        engines: if counters.len() > 1 { counters.iter().map(counters_of).collect() } else { Vec::new() },
    };
    let failed = |source| Error::System { what: format!("cannot write {}", path.display()), source };
    let text = serde_json::to_string_pretty(&document).map_err(|error| failed(error.into()))?;
    lines::save(path, (text + "\n").as_bytes())
}

fn parameters(params: &Params) -> Parameters {
    Parameters {
        queue_pairs: params.qps,
        tx_depth: params.tx_depth,
        cq_mod: params.cq_mod,
        post_list: params.post_list,
        inline_bytes: params.inline,
        outstanding_reads: params.outs,
        bidirectional: params.bidirectional,
        events: params.events,
        zero_copy: params.zero_copy,
        markers: params.markers,
        crc: params.crc,
        duration_s: params.duration_s,
        seed: params.seed,
        rx_depth: params.rx_depth,
        recv_post_list: params.recv_post_list,
        atomic: (params.test.verb() == Verb::Atomic).then_some(params.atomic),
        warm_up: params.warm_up,
    }
}

fn entry(row: &Row, unit: Unit, hz: u64, scope_cycles: f64) -> Entry {
    let figures = match row.figures {
        Figures::Bandwidth(figures) => EntryFigures::Bandwidth {
            bw_unit: unit.name(),
            bw_peak: unit.of(figures.peak),
            bw_average: unit.of(figures.average),
            bytes_per_s: figures.average,
            msg_rate_mpps: figures.messages_per_s / 1e6,
            confirmed_by_target: row.confirmed,
        },
        Figures::Latency(latency) => EntryFigures::Latency { latency },
    };
    let cost = Cost { busy_cycles: row.busy_cycles, cycles_per_s: hz };
    let load = row.load.as_ref().map(|load| LoadEntry {
        asked_messages_per_s: load.asked_messages_per_s,
        confirmed_by_target: load.confirmed,
        unsent: load.unsent,
        latency: load.latency,
    });
    let profile = row.profile.as_ref().map(|profiled| Breakdown::new(profiled, hz, scope_cycles));
    Entry {
        bytes: row.size,
        iterations: row.messages,
        queue_pairs: row.queue_pairs,
        cores: row.cores.clone(),
        figures,
        load,
        distribution: row.distribution.clone(),
        cost,
        cpu_percent: row.cpu_percent,
        partial: row.is_partial,
        ways_bytes_per_s: row.ways.map(|ways| ways.map(|way| way.average)),
        samples_us: row.samples_us.clone(),
        profile,
    }
}

fn breakdowns(rows: &[Row], hz: u64, scope_cycles: f64) -> Vec<Breakdown> {
    let profiled = rows.iter().filter_map(|row| row.profile.as_ref());
    profiled.map(|profiled| Breakdown::new(profiled, hz, scope_cycles)).collect()
}

fn counters_of(counters: &EngineCounters) -> Counters {
    let (port, stack) = (&counters.port, &counters.stack);
    Counters {
        rx_frames: port.rx_frames,
        rx_bytes: port.rx_bytes,
        tx_frames: port.tx_frames,
        tx_bytes: port.tx_bytes,
        tx_ring_full: port.tx_ring_full,
        rx_no_mbuf: port.rx_no_mbuf,
        tx_segments: stack.tx_segments,
        tx_trains: stack.tx_trains,
        tx_retransmits: stack.tx_retransmits,
        rto_expired: stack.rto_expired,
        fast_retransmits: stack.fast_retransmits,
        rx_bad_checksum: stack.rx_bad_checksum,
        rx_fpdus: counters.rx_fpdus,
        rx_fpdus_early: counters.rx_fpdus_early,
        tx_fpdus: counters.tx_fpdus,
        rx_placed_bytes: counters.rx_placed_bytes,
        tx_fetched_bytes: counters.tx_fetched_bytes,
        tx_zero_copy_bytes: counters.tx_zero_copy_bytes,
        busy_polls: counters.busy_polls,
        polls: counters.polls,
        connections: counters.connections,
        handed_over: stack.handed_over,
        handed_over_dropped: stack.handed_over_dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::example;
    use crate::runs::BandwidthRow;

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
            distribution: vec![(0.5, 2.5)],
            ..Row::default()
        };
        let value = serde_json::to_value(entry(&row, Unit::GigabitsPerSecond, 3, 0.0)).unwrap();
        assert_eq!(value["bytes"], 4096);
        assert_eq!(value["bw_average"], 8.0);
        assert_eq!(value["confirmed_by_target"], true);
        assert_eq!(value["cost"]["busy_cycles"], 77);
        assert_eq!(value["distribution"][0][1], 2.5);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = Path::new("/nonexistent/x.json");
        let results = Results {
            params: &example(Test::WriteLat),
            unit: Unit::default(),
            rows: &[],
            target: &[],
            outcome: &Outcome::default(),
            counters: &[EngineCounters::default()],
            hz: 1,
            provenance: &Provenance::here(),
            ended_early: None,
        };
        let error = write(path, &results).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.json"), "{error}");
    }
}
