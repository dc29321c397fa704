//! perftest's tables, and a table for runs at a given rate. Our tables of bandwidth and latency have
//! perftest's columns in the same places, so that programs that parse perftest's output can parse ours.

use crate::latency::LatencySummary;
use crate::runs::{BandwidthRow, LoadFigures};

/// The line above and below a table.
pub const LINE: &str =
    "---------------------------------------------------------------------------------------";

/// The header of a latency table.
pub const LATENCY_HEADER: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    \
     t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] ";

/// The header of the column of `--cpu_util`.
pub const CPU_HEADER: &str = "    CPU_Util[%]";

/// The cell of the column of `--cpu_util`.
pub fn cpu_cell(percent: f64) -> String {
    format!("         {percent:<7.2}")
}

/// The unit of bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// MiB/s (perftest calls it MB/sec).
    #[default]
    MebibytesPerSecond,
    /// Gb/s (`--report_gbits`).
    GigabitsPerSecond,
}

impl Unit {
    /// Bytes per second of one unit.
    fn factor(self) -> f64 {
        match self {
            Self::MebibytesPerSecond => 1_048_576.0,
            Self::GigabitsPerSecond => 125_000_000.0,
        }
    }

    /// The name of the unit in a heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::MebibytesPerSecond => "MiB/sec",
            Self::GigabitsPerSecond => "Gb/sec",
        }
    }

    /// Converts `bytes_per_s` to this unit.
    pub fn of(self, bytes_per_s: f64) -> f64 {
        bytes_per_s / self.factor()
    }

    /// Converts a value in this unit to bytes per second.
    pub fn to_bytes_per_s(self, value: f64) -> f64 {
        value * self.factor()
    }
}

/// The header of a bandwidth table.
pub fn bandwidth_header(unit: Unit) -> String {
    let unit = unit.name();
    format!(" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
}

/// A row of a bandwidth table.
pub fn bandwidth_row(row: &BandwidthRow, unit: Unit) -> String {
    let BandwidthRow { bytes, iterations, peak, average, messages_per_s } = *row;
    let (peak, average, rate) = (unit.of(peak), unit.of(average), messages_per_s / 1e6);
    // perftest writes more digits if a value in Gb/s would be shown as 0.0.
    if unit == Unit::GigabitsPerSecond && average < 0.1 {
        return format!(
            " {bytes:<7}    {iterations:<10}       {peak:<7.6}            {average:<7.6}            {rate:<7.6}"
        );
    }
    format!(" {bytes:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\t\t   {rate:<7.6}")
}

/// The header of a table of runs at a given rate.
pub fn load_header(unit: Unit) -> String {
    let average = format!("BW average[{}]", unit.name());
    format!(
        " #bytes  #iterations {average:>20} {:>14} {:>14} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "asked[Mpps]", "MsgRate[Mpps]", "50%[usec]", "90%", "99%", "99.9%", "99.99%", "t_max"
    )
}

/// A row of a table of runs at a given rate.
pub fn load_row(row: &BandwidthRow, load: &LoadFigures, unit: Unit) -> String {
    let (average, rate, asked) =
        (unit.of(row.average), row.messages_per_s / 1e6, load.asked_messages_per_s / 1e6);
    let l = &load.latency;
    format!(
        " {:<7} {:>11} {average:>20.3} {asked:>14.6} {rate:>14.6} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>10.2}",
        row.bytes, row.iterations, l.typical_us, l.p90_us, l.p99_us, l.p999_us, l.p9999_us, l.max_us
    )
}

/// A row of a latency table.
pub fn latency_row(bytes: u64, summary: &LatencySummary) -> String {
    let LatencySummary { iterations, min_us, max_us, typical_us, avg_us, stdev_us, p99_us, p999_us, .. } =
        *summary;
    format!(
        " {bytes:<7} {iterations}          {min_us:<7.2}        {max_us:<7.2}      {typical_us:<7.2}  \t       \
         {avg_us:<7.2}     \t{stdev_us:<7.2}\t\t{p99_us:<7.2} \t\t{p999_us:<7.2}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_table_reads_like_perftests() {
        let row = BandwidthRow {
            bytes: 65536,
            iterations: 5000,
            peak: 2_097_152_000.0,
            average: 1_048_576_000.0,
            messages_per_s: 16000.0,
        };
        assert_eq!(
            bandwidth_header(Unit::MebibytesPerSecond),
            " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
        );
        assert_eq!(
            bandwidth_row(&row, Unit::MebibytesPerSecond),
            " 65536      5000             2000.00            1000.00\t\t   0.016000"
        );
        assert_eq!(
            bandwidth_row(&row, Unit::GigabitsPerSecond),
            " 65536      5000             16.78              8.39   \t\t   0.016000"
        );
    }

    #[test]
    fn a_slow_run_in_gigabits_keeps_its_digits() {
        let row = BandwidthRow {
            bytes: 2,
            iterations: 1000,
            average: 2e6,
            messages_per_s: 1e6,
            ..Default::default()
        };
        assert_eq!(
            bandwidth_row(&row, Unit::GigabitsPerSecond),
            " 2          1000             0.000000            0.016000            1.000000"
        );
    }

    #[test]
    fn a_latency_table_reads_like_perftests() {
        let summary = LatencySummary {
            iterations: 1000,
            min_us: 1.0,
            max_us: 20.5,
            typical_us: 1.25,
            avg_us: 1.3,
            stdev_us: 0.1,
            p99_us: 2.0,
            p999_us: 15.0,
            ..LatencySummary::default()
        };
        assert_eq!(
            latency_row(2, &summary),
            " 2       1000          1.00           20.50        1.25     \t       1.30        \t0.10   \t\t2.00    \t\t15.00  "
        );
        assert!(
            LATENCY_HEADER.starts_with(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]")
        );
    }

    #[test]
    fn a_table_of_loads_lines_up_with_its_header() {
        let row = BandwidthRow { bytes: 64, iterations: 1000, messages_per_s: 1e6, ..Default::default() };
        let latency = LatencySummary { typical_us: 5.5, max_us: 1234.5, ..Default::default() };
        let load = LoadFigures { asked_messages_per_s: 2e6, latency, ..Default::default() };
        for unit in [Unit::MebibytesPerSecond, Unit::GigabitsPerSecond] {
            let (header, line) = (load_header(unit), load_row(&row, &load, unit));
            assert_eq!(header.len(), line.len(), "{header}\n{line}");
            assert!(
                line.ends_with("1234.50") && line.contains(" 2.000000       1.000000       5.50"),
                "{line}"
            );
        }
    }

    #[test]
    fn units_go_there_and_back() {
        for unit in [Unit::MebibytesPerSecond, Unit::GigabitsPerSecond] {
            assert!((unit.to_bytes_per_s(unit.of(123e6)) - 123e6).abs() < 1e-3);
        }
    }
}
