//! `--report`: the results as a page of tables and plots.
//!
//! The plots depend on the results. If there are several numbers of queue pairs or of cores, there is a plot
//! of the goodput over this number. Otherwise, if there are several message sizes, there are plots of
//! bandwidth, message rate and latency over the message size, as far as these were measured. If distributions
//! of latencies were recorded, there is a plot of the distributions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::description::of_rows;
use crate::errors::Error;
use crate::latency::LatencySummary;
use crate::lines;
use crate::params::Params;
use crate::plot::{Axis, Chart, DrawError, Page, Series, bytes};
use crate::provenance::Provenance;
use crate::runs::repeats::{Spread, grouped};
use crate::runs::{BandwidthRow, Figures, Row};
use crate::table::Unit;

/// Maximum number of distributions in one plot. Readers could not distinguish more lines.
const DISTRIBUTIONS: usize = 6;

/// Writes the page to the file `path`, or the page and its plots into the directory `path`, which is created
/// if it is missing.
///
/// # Errors
/// Returns [`Error::System`] if the files cannot be written.
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
    if path == Path::new(lines::STDOUT) || is_page(path) {
        return lines::save(path, page.html().as_bytes());
    }
    page.write(path).map_err(failed)
}

/// Whether `path` names the page itself (true) or a directory (false).
pub(crate) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"))
}

fn page(params: &Params, unit: Unit, rows: &[Row], provenance: &Provenance) -> Result<Page, DrawError> {
    let mut page = Page::new(format!("iwperf {}", params.test.name()));
    let mut notes = vec![of_rows(params, rows), provenance.line()];
    notes.iter().for_each(|note| page.paragraph(note));
    page.verbatim(&provenance.command_line);
    let groups = grouped(rows);
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    if most > 1 {
        notes.push(format!("The median of {most} runs; the band is from the least to the greatest"));
    }
    let noted = |chart: Chart| Chart { notes: notes.clone(), ..chart };
    let has_bandwidth = rows.iter().any(|row| bandwidth_of(row).is_some());
    let has_latency = rows.iter().any(|row| latency_of(row).is_some());
    // A sweep of queue pairs or cores has its own axis. The message size is an axis only if nothing else
    // changes.
    let (by_queue_pairs, by_cores) = (distinct(rows, queue_pairs) > 1, distinct(rows, cores) > 1);
    let by_size = !by_queue_pairs && !by_cores && distinct(rows, |row| row.size.into()) > 1;
    if by_queue_pairs {
        let chart = sweep_chart(unit, &groups, "queue pairs", (queue_pairs, cores, "cores"));
        page.chart("queue-pairs", &noted(chart))?;
    }
    if by_cores {
        let chart = sweep_chart(unit, &groups, "cores", (cores, queue_pairs, "queue pairs"));
        page.chart("cores", &noted(chart))?;
    }
    if by_size && has_bandwidth {
        page.chart("bandwidth", &noted(bandwidth_chart(unit, &groups)))?;
        page.chart("message-rate", &noted(rate_chart(&groups)))?;
    }
    if by_size && has_latency {
        page.chart("latency", &noted(latency_chart(&groups)))?;
    }
    if let Some(chart) = distribution_chart(rows) {
        page.chart("latency-distribution", &noted(chart))?;
    }
    if has_bandwidth {
        bandwidth_table(&mut page, unit, rows);
    }
    if has_latency {
        latency_table(&mut page, rows);
    }
    Ok(page)
}

fn bandwidth_of(row: &Row) -> Option<&BandwidthRow> {
    match &row.figures {
        Figures::Bandwidth(figures) => Some(figures),
        Figures::Latency(_) => None,
    }
}

fn latency_of(row: &Row) -> Option<&LatencySummary> {
    match (&row.figures, &row.load) {
        (Figures::Latency(figures), _) => Some(figures),
        (Figures::Bandwidth(_), Some(load)) => Some(&load.latency),
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

/// Rows of one kind.
type Group<'a> = Vec<&'a Row>;

/// A line with a point for each group. The point is the median of the group's runs. If there are several
/// runs, a band shows their spread.
fn line(
    name: impl Into<String>,
    groups: &[&Group<'_>],
    x: impl Fn(&Row) -> f64,
    figure: impl Fn(&Row) -> Option<f64>,
) -> Series {
    let spread = |group: &&Group<'_>| {
        let spread = Spread::of(group.iter().filter_map(|row| figure(row)))?;
        Some((x(group[0]), spread, group.len()))
    };
    let mut spreads: Vec<_> = groups.iter().filter_map(spread).collect();
    spreads.sort_by(|a, b| a.0.total_cmp(&b.0));
    let points = spreads.iter().map(|(x, spread, _)| (*x, spread.median)).collect();
    let repeated = spreads.iter().any(|(_, _, runs)| *runs > 1);
    let band = spreads.iter().filter(|_| repeated).map(|(x, spread, _)| (*x, spread.least, spread.greatest));
    Series::new(name, points).with_band(band.collect())
}

/// Goodput over the swept property, with a line for each message size and value of the other property.
fn sweep_chart(
    unit: Unit,
    groups: &[Group<'_>],
    title: &str,
    (swept, other, other_name): (Count, Count, &str),
) -> Chart {
    let mut lines: BTreeMap<(u64, u32), Vec<&Group<'_>>> = BTreeMap::new();
    for group in groups.iter().filter(|group| bandwidth_of(group[0]).is_some()) {
        lines.entry((other(group[0]), group[0].size)).or_default().push(group);
    }
    let several = lines.keys().map(|(other, _)| other).collect::<BTreeSet<_>>().len() > 1;
    let name = |(other, size): (u64, u32)| {
        let size = format!("{} bytes", bytes(size.into()));
        if several { format!("{other} {other_name}, {size}") } else { size }
    };
    let average = |row: &Row| bandwidth_of(row).map(|figures| unit.of(figures.average));
    let series =
        lines.into_iter().map(|(key, groups)| line(name(key), &groups, |row| swept(row) as f64, average));
    Chart {
        title: format!("Goodput over {title}"),
        notes: Vec::new(),
        x: Axis::count(title),
        y: Axis::linear(unit.name()),
        series: series.collect(),
    }
}

fn message_axis() -> Axis {
    Axis::bytes("message, bytes")
}

/// A figure of a row, by its name in the legend.
type Figure<'a> = (&'a str, &'a dyn Fn(&Row) -> Option<f64>);

/// A chart over the message size, with a line for each figure.
fn size_chart(title: &str, y: Axis, groups: &[Group<'_>], figures: &[Figure<'_>]) -> Chart {
    let groups: Vec<&Group<'_>> = groups.iter().collect();
    let series = figures.iter().map(|(name, figure)| line(*name, &groups, |row| f64::from(row.size), figure));
    Chart { title: title.into(), notes: Vec::new(), x: message_axis(), y, series: series.collect() }
}

fn bandwidth_chart(unit: Unit, groups: &[Group<'_>]) -> Chart {
    let average = |row: &Row| bandwidth_of(row).map(|figures| unit.of(figures.average));
    // With -N, the peak in a row is 0, and is not plotted.
    let peak = |row: &Row| bandwidth_of(row).map(|f| unit.of(f.peak)).filter(|peak| *peak > 0.0);
    let figures: [Figure<'_>; 2] = [("average", &average), ("peak (best tenth)", &peak)];
    let shown = if groups.iter().flatten().any(|row| peak(row).is_some()) { 2 } else { 1 };
    size_chart("Bandwidth", Axis::linear(unit.name()), groups, &figures[..shown])
}

fn rate_chart(groups: &[Group<'_>]) -> Chart {
    let rate = |row: &Row| bandwidth_of(row).map(|figures| figures.messages_per_s);
    size_chart("Message rate", Axis::log10("messages/s"), groups, &[("average", &rate)])
}

fn latency_chart(groups: &[Group<'_>]) -> Chart {
    let figure = |pick: fn(&LatencySummary) -> f64| move |row: &Row| latency_of(row).map(pick);
    let (median, p99, p999) = (figure(|l| l.typical_us), figure(|l| l.p99_us), figure(|l| l.p999_us));
    let figures: [Figure<'_>; 3] = [("median", &median), ("99%", &p99), ("99.9%", &p999)];
    size_chart("Latency", Axis::log10("microseconds"), groups, &figures)
}

/// The distributions of at most [`DISTRIBUTIONS`] of the `rows` that have one, including the first and the
/// last of these rows. Returns `None` if no latencies were recorded.
fn distribution_chart(rows: &[Row]) -> Option<Chart> {
    let recorded: Vec<&Row> = rows.iter().filter(|row| !row.distribution.is_empty()).collect();
    let series = evenly(recorded.len(), DISTRIBUTIONS)
        .map(|index| recorded[index])
        .map(|row| Series::new(format!("{} bytes", bytes(row.size.into())), row.distribution.clone()))
        .collect::<Vec<_>>();
    let y = Axis::log10("microseconds");
    (!series.is_empty()).then(|| Chart {
        title: "Latency by percentile".into(),
        notes: Vec::new(),
        x: Axis::quantiles(),
        y,
        series,
    })
}

/// At most `most` of the numbers below `count`. The numbers are evenly spaced, and include the first and the
/// last number.
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

fn latency_table(page: &mut Page, rows: &[Row]) {
    let cells = |row: &Row| {
        let l = latency_of(row)?;
        let figures = [l.min_us, l.typical_us, l.p90_us, l.p99_us, l.p999_us, l.p9999_us, l.max_us];
        let mut cells = vec![row.size.to_string(), row.messages.to_string()];
        cells.extend(figures.iter().map(|us| format!("{us:.2}")));
        Some(cells)
    };
    let rows: Vec<Vec<String>> = rows.iter().filter_map(cells).collect();
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
        Row { size, messages: 10, queue_pairs: 1, figures, confirmed: true, busy_cycles: 1, ..Row::default() }
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
    fn repeated_runs_are_one_line_with_a_band() {
        let rows: Vec<Row> = [64, 65536, 64, 65536].map(bandwidth_row).to_vec();
        let html = html(Test::WriteBw, &rows);
        assert!(html.contains("The median of 2 runs") && html.contains("<polygon"), "{html}");
        assert_eq!(html.matches("<td>65536</td>").count(), 2);
    }

    #[test]
    fn a_plot_says_what_was_measured_and_where() {
        let html = html(Test::WriteBw, &[bandwidth_row(64), bandwidth_row(128)]);
        let svg = &html[html.find("<svg").unwrap()..];
        for word in ["write-bw: 1 queue pair", "iwperf 0.", "cores"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
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
