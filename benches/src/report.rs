//! `--report DIR`: the results as a page of plots.
//!
//! The plots depend on the results: bandwidth and message rate over the message size if there were several,
//! latency over it likewise, and each distribution of latencies that was recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::description::description;
use crate::errors::Error;
use crate::latency::LatencySummary;
use crate::params::Params;
use crate::plot::{Axis, Chart, DrawError, Page, Series, bytes};
use crate::provenance::Provenance;
use crate::runs::{BandwidthRow, Figures, Row};
use crate::table::Unit;

/// Most distributions in one plot: more lines could not be distinguished.
const DISTRIBUTIONS: usize = 6;

/// Writes the page to `path`, or the page and its plots into that directory, which is created if it is missing.
///
/// # Errors
/// [`Error::System`] if they cannot be written.
pub(crate) fn write(
    path: &Path,
    params: &Params,
    unit: Unit,
    rows: &[Row],
    provenance: &Provenance,
) -> Result<(), Error> {
    let what = format!("cannot write {}", path.display());
    let failed = |source| Error::System { what: what.clone(), source };
    let page = page(params, unit, rows, provenance).map_err(|error| failed(std::io::Error::other(error)))?;
    if is_page(path) { std::fs::write(path, page.html()) } else { page.write(path) }.map_err(failed)
}

/// Whether the page itself has this name; otherwise it is that of a directory.
pub(crate) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"))
}

fn page(params: &Params, unit: Unit, rows: &[Row], provenance: &Provenance) -> Result<Page, DrawError> {
    let mut page = Page::new(format!("iwperf {}", params.test.name()));
    page.paragraph(&description(params));
    page.paragraph(&provenance.line());
    page.verbatim(&provenance.command_line);
    let bandwidth: Vec<&BandwidthRow> = rows.iter().filter_map(bandwidth_of).collect();
    let latency: Vec<(&Row, &LatencySummary)> = rows.iter().filter_map(latency_of).collect();
    // A sweep of queue pairs or cores has its own axis. Sizes are plotted if only they change.
    let (by_queue_pairs, by_cores) = (distinct(rows, queue_pairs) > 1, distinct(rows, cores) > 1);
    let by_size = !by_queue_pairs && !by_cores && distinct(rows, |row| row.size.into()) > 1;
    if by_queue_pairs {
        page.chart("queue-pairs", &sweep_chart(unit, rows, "queue pairs", (queue_pairs, cores, "cores")))?;
    }
    if by_cores {
        page.chart("cores", &sweep_chart(unit, rows, "cores", (cores, queue_pairs, "queue pairs")))?;
    }
    if by_size && !bandwidth.is_empty() {
        page.chart("bandwidth", &bandwidth_chart(unit, &bandwidth))?;
        page.chart("message-rate", &rate_chart(&bandwidth))?;
    }
    if by_size && !latency.is_empty() {
        page.chart("latency", &latency_chart(&latency))?;
    }
    if let Some(chart) = distribution_chart(rows) {
        page.chart("latency-distribution", &chart)?;
    }
    if !bandwidth.is_empty() {
        bandwidth_table(&mut page, unit, rows);
    }
    if !latency.is_empty() {
        latency_table(&mut page, &latency);
    }
    Ok(page)
}

fn bandwidth_of(row: &Row) -> Option<&BandwidthRow> {
    match &row.figures {
        Figures::Bandwidth(figures) => Some(figures),
        Figures::Latency(_) => None,
    }
}

fn latency_of(row: &Row) -> Option<(&Row, &LatencySummary)> {
    match (&row.figures, &row.load) {
        (Figures::Latency(figures), _) => Some((row, figures)),
        (Figures::Bandwidth(_), Some(load)) => Some((row, &load.latency)),
        (Figures::Bandwidth(_), None) => None,
    }
}

/// A property of a row that a sweep varies.
type Count = fn(&Row) -> u64;

fn queue_pairs(row: &Row) -> u64 {
    row.queue_pairs.into()
}

fn cores(row: &Row) -> u64 {
    row.cores.len() as u64
}

fn distinct(rows: &[Row], what: impl Fn(&Row) -> u64) -> usize {
    rows.iter().map(what).collect::<BTreeSet<_>>().len()
}

/// Goodput over the swept property, with a line for each message size and value of the other property.
fn sweep_chart(
    unit: Unit,
    rows: &[Row],
    title: &str,
    (swept, other, other_name): (Count, Count, &str),
) -> Chart {
    let mut lines: BTreeMap<(u64, u32), Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        if let Some(figures) = bandwidth_of(row) {
            let point = (swept(row) as f64, unit.of(figures.average));
            lines.entry((other(row), row.size)).or_default().push(point);
        }
    }
    let several = distinct(rows, other) > 1;
    let name = |(other, size): (u64, u32)| {
        let size = format!("{} bytes", bytes(size.into()));
        if several { format!("{other} {other_name}, {size}") } else { size }
    };
    let series = lines.into_iter().map(|(key, mut points)| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series::new(name(key), points)
    });
    Chart {
        title: format!("Goodput over {title}"),
        x: Axis::count(title),
        y: Axis::linear(unit.name()),
        series: series.collect(),
    }
}

fn message_axis() -> Axis {
    Axis::bytes("message, bytes")
}

fn bandwidth_chart(unit: Unit, rows: &[&BandwidthRow]) -> Chart {
    let line = |name, figure: fn(&BandwidthRow) -> f64| {
        Series::new(name, rows.iter().map(|row| (row.bytes as f64, unit.of(figure(row)))).collect())
    };
    Chart {
        title: "Bandwidth".into(),
        x: message_axis(),
        y: Axis::linear(unit.name()),
        series: vec![line("average", |row| row.average), line("peak (best tenth)", |row| row.peak)],
    }
}

fn rate_chart(rows: &[&BandwidthRow]) -> Chart {
    let points = rows.iter().map(|row| (row.bytes as f64, row.messages_per_s)).collect();
    Chart {
        title: "Message rate".into(),
        x: message_axis(),
        y: Axis::log10("messages/s"),
        series: vec![Series::new("average", points)],
    }
}

fn latency_chart(rows: &[(&Row, &LatencySummary)]) -> Chart {
    let line = |name, figure: fn(&LatencySummary) -> f64| {
        Series::new(name, rows.iter().map(|(row, l)| (f64::from(row.size), figure(l))).collect())
    };
    Chart {
        title: "Latency".into(),
        x: message_axis(),
        y: Axis::log10("microseconds"),
        series: vec![
            line("median", |l| l.typical_us),
            line("99%", |l| l.p99_us),
            line("99.9%", |l| l.p999_us),
        ],
    }
}

/// The distributions of some of `rows`, the first and the last included; `None` if no latencies were
/// recorded.
fn distribution_chart(rows: &[Row]) -> Option<Chart> {
    let recorded: Vec<&Row> = rows.iter().filter(|row| !row.distribution.is_empty()).collect();
    let series = evenly(recorded.len(), DISTRIBUTIONS)
        .map(|index| recorded[index])
        .map(|row| Series::new(format!("{} bytes", bytes(row.size.into())), row.distribution.clone()))
        .collect::<Vec<_>>();
    let y = Axis::log10("microseconds");
    (!series.is_empty()).then(|| Chart {
        title: "Latency by percentile".into(),
        x: Axis::quantiles(),
        y,
        series,
    })
}

/// At most `most` of the numbers below `count`, evenly spaced, the first and the last included.
fn evenly(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(most);
    (0..shown).map(move |n| if shown == 1 { 0 } else { n * (count - 1) / (shown - 1) })
}

fn bandwidth_table(page: &mut Page, unit: Unit, rows: &[Row]) {
    let (peak, average) = (format!("peak, {}", unit.name()), format!("average, {}", unit.name()));
    let cells = |row: &Row| {
        let BandwidthRow { bytes, iterations, peak, average, messages_per_s } = *bandwidth_of(row)?;
        Some(vec![
            bytes.to_string(),
            row.queue_pairs.to_string(),
            cores(row).max(1).to_string(),
            iterations.to_string(),
            format!("{:.2}", unit.of(peak)),
            format!("{:.2}", unit.of(average)),
            format!("{messages_per_s:.0}"),
        ])
    };
    let rows: Vec<Vec<String>> = rows.iter().filter_map(cells).collect();
    page.table(&["bytes", "queue pairs", "cores", "messages", &peak, &average, "messages/s"], &rows);
}

fn latency_table(page: &mut Page, rows: &[(&Row, &LatencySummary)]) {
    let cells = |(row, l): &(&Row, &LatencySummary)| {
        let figures = [l.min_us, l.typical_us, l.p90_us, l.p99_us, l.p999_us, l.p9999_us, l.max_us];
        let mut cells = vec![row.size.to_string(), row.messages.to_string()];
        cells.extend(figures.iter().map(|us| format!("{us:.2}")));
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let heads = ["bytes", "messages", "least, us", "50%", "90%", "99%", "99.9%", "99.99%", "most, us"];
    page.table(&heads, &rows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Test, example};

    fn bandwidth_row(size: u32) -> Row {
        let figures = BandwidthRow {
            bytes: size.into(),
            iterations: 10,
            peak: 2e9,
            average: 1e9,
            messages_per_s: 1e9 / f64::from(size),
        };
        let figures = Figures::Bandwidth(figures);
        Row { size, messages: 10, figures, confirmed: true, busy_cycles: 1, ..Row::default() }
    }

    fn latency_row(size: u32) -> Row {
        let figures = Figures::Latency(LatencySummary { typical_us: 5.0, p99_us: 9.0, ..Default::default() });
        let distribution = vec![(0.0, 4.0), (0.5, 5.0), (0.99, 9.0)];
        Row { size, messages: 10, figures, confirmed: true, busy_cycles: 1, distribution, ..Row::default() }
    }

    fn html(test: Test, rows: &[Row]) -> String {
        page(&example(test), Unit::GigabitsPerSecond, rows, &Provenance::here()).unwrap().html()
    }

    #[test]
    fn a_sweep_of_sizes_is_plotted_over_the_size() {
        let html = html(Test::WriteBw, &[bandwidth_row(64), bandwidth_row(65536)]);
        for word in
            ["Bandwidth", "Message rate", "64K", "<td>65536</td>", "<td>8.00</td>", "write-bw: 1 queue pair"]
        {
            assert!(html.contains(word), "{word}");
        }
        assert!(!html.contains("percentile"));
    }

    #[test]
    fn latencies_are_plotted_by_percentile_and_over_the_size() {
        let html = html(Test::SendLat, &[latency_row(64), latency_row(128)]);
        for word in ["Latency by percentile", "99%", "128 bytes", "99.99%", "<td>9.00</td>", "median"] {
            assert!(html.contains(word), "{word}");
        }
        assert!(!html.contains("Bandwidth"));
    }

    #[test]
    fn sweeps_are_plotted_over_what_was_swept() {
        let core = crate::runs::CoreFigures::default();
        let run = |queue_pairs, cores| Row { queue_pairs, cores: vec![core; cores], ..bandwidth_row(64) };
        let by_queue_pairs = html(Test::WriteBw, &[run(1, 0), run(1024, 0)]);
        assert!(
            by_queue_pairs.contains("Goodput over queue pairs") && !by_queue_pairs.contains("over cores")
        );
        assert!(by_queue_pairs.contains("<td>1024</td>") && !by_queue_pairs.contains("Message rate"));
        let by_cores = html(Test::WriteBw, &[run(8, 1), run(8, 2)]);
        assert!(by_cores.contains("Goodput over cores") && !by_cores.contains("over queue pairs"));
        let both = html(Test::WriteBw, &[run(8, 1), run(8, 2), run(16, 1), run(16, 2)]);
        assert!(both.contains("2 cores, 64 bytes") && both.contains("16 queue pairs, 64 bytes"));
    }

    #[test]
    fn one_row_is_a_table_without_a_plot_over_sizes() {
        let html = html(Test::WriteBw, &[bandwidth_row(64)]);
        assert!(html.contains("<table>") && !html.contains("<svg"));
    }

    #[test]
    fn some_of_many_distributions_are_the_first_the_last_and_between() {
        assert_eq!(evenly(23, 6).collect::<Vec<_>>(), [0, 4, 8, 13, 17, 22]);
        assert_eq!(evenly(1, 6).collect::<Vec<_>>(), [0]);
        assert_eq!(evenly(0, 6).count(), 0);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = write(
            Path::new("/proc/nowhere"),
            &example(Test::WriteBw),
            Unit::default(),
            &[],
            &Provenance::here(),
        )
        .unwrap_err();
        assert!(error.to_string().starts_with("cannot write /proc/nowhere"), "{error}");
    }
}
