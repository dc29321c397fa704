//! Merges the rows of several cores, which were measured at the same time, into one row.

use dp::Clock;

use super::figures::{BandwidthRow, CoreFigures, Figures, LoadFigures, Row};
use crate::profile::Profiled;

/// The sum of `rows`, which has one row per core. The sum has all messages, and covers the time from the
/// start of the first core to the end of the last core. A core that ends early lowers the rate, as an idle
/// core would in practice.
pub fn merge(rows: &[(usize, Row)], hz: u64) -> Row {
    let began = rows.iter().map(|(_, row)| row.span.0).min().unwrap_or(0);
    let ended = rows.iter().map(|(_, row)| row.span.1).max().unwrap_or(0);
    let seconds = ended.saturating_sub(began).max(1) as f64 / hz as f64;
    let messages: u64 = rows.iter().map(|(_, row)| row.messages).sum();
    let size = rows.first().map_or(0, |(_, row)| row.size);
    let figures = rows.iter().filter_map(|(_, row)| bandwidth(row));
    let peak: f64 = figures.map(|figures| figures.peak).sum();
    let messages_per_s = messages as f64 / seconds;
    let average = messages_per_s * f64::from(size);
    let sum = BandwidthRow {
        bytes: size.into(),
        iterations: messages,
        peak: peak.max(average),
        average,
        messages_per_s,
    };
    Row {
        size,
        messages,
        queue_pairs: rows.iter().map(|(_, row)| row.queue_pairs).sum(),
        figures: Figures::Bandwidth(sum),
        confirmed: rows.iter().all(|(_, row)| row.confirmed),
        busy_cycles: rows.iter().map(|(_, row)| row.busy_cycles).sum(),
        load: rows.iter().filter_map(|(_, row)| row.load.clone()).reduce(LoadFigures::merged),
        profile: rows.iter().filter_map(|(_, row)| row.profile.clone()).reduce(Profiled::merged),
        span: (began, ended),
        cores: rows.iter().map(|(cpu, row)| of_core(*cpu, row)).collect(),
        is_partial: rows.iter().any(|(_, row)| row.is_partial),
        // Each core has measured the CPU time of the whole process.
        cpu_percent: rows.iter().map(|(_, row)| row.cpu_percent).fold(0.0, f64::max),
        ways: rows.iter().filter_map(|(_, row)| row.ways).reduce(sum_of_ways),
        ..Row::default()
    }
    .with_distribution()
}

fn sum_of_ways(a: [BandwidthRow; 2], b: [BandwidthRow; 2]) -> [BandwidthRow; 2] {
    [0, 1].map(|way| BandwidthRow {
        iterations: a[way].iterations + b[way].iterations,
        peak: a[way].peak + b[way].peak,
        average: a[way].average + b[way].average,
        messages_per_s: a[way].messages_per_s + b[way].messages_per_s,
        ..a[way]
    })
}

fn bandwidth(row: &Row) -> Option<&BandwidthRow> {
    match &row.figures {
        Figures::Bandwidth(figures) => Some(figures),
        Figures::Latency(_) => None,
    }
}

fn of_core(cpu: usize, row: &Row) -> CoreFigures {
    let figures = bandwidth(row).copied().unwrap_or_default();
    CoreFigures {
        cpu,
        queue_pairs: row.queue_pairs,
        messages: row.messages,
        bytes_per_s: figures.average,
        messages_per_s: figures.messages_per_s,
        busy_cycles: row.busy_cycles,
    }
}

/// The frequency of the clock that measures spans, in cycles per second.
pub fn span_hz() -> u64 {
    Clock::new().hz()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(messages: u64, span: (u64, u64)) -> Row {
        let average = messages as f64 * 100.0 / (span.1 - span.0) as f64 * 1000.0;
        let figures = Figures::Bandwidth(BandwidthRow { peak: 1.0, average, ..Default::default() });
        Row {
            size: 100,
            messages,
            queue_pairs: 3,
            figures,
            confirmed: true,
            busy_cycles: 5,
            span,
            ..Row::default()
        }
    }

    #[test]
    fn a_sum_runs_from_the_first_start_to_the_last_end() {
        let merged = merge(&[(0, row(1000, (1000, 2000))), (7, row(500, (1500, 3000)))], 1000);
        let Figures::Bandwidth(sum) = merged.figures else { panic!() };
        assert_eq!((merged.messages, merged.queue_pairs, merged.busy_cycles), (1500, 6, 10));
        // The expected rate is that of 1500 messages of 100 bytes in 2 s.
        assert!(
            (sum.messages_per_s - 750.0).abs() < 1e-9 && (sum.average - 75_000.0).abs() < 1e-6,
            "{sum:?}"
        );
        let cores: Vec<_> = merged.cores.iter().map(|core| (core.cpu, core.messages)).collect();
        assert_eq!(cores, [(0, 1000), (7, 500)]);
        assert!((merged.cores[0].bytes_per_s - 100_000.0).abs() < 1e-6);
    }
}
