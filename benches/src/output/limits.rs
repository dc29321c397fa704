//! `-w` and `-y`: a run that is too slow fails.

use crate::cli::TestArgs;
use crate::errors::Error;
use crate::runs::{Figures, Row};

/// Checks the best bandwidth and the best message rate of all complete rows against the limits, as perftest
/// does.
///
/// # Errors
/// Returns [`Error::Limit`] with the difference if a limit is not reached.
pub(super) fn check(args: &TestArgs, rows: &[Row]) -> Result<(), Error> {
    let figures = || {
        rows.iter().filter(|row| !row.is_partial).filter_map(|row| match &row.figures {
            Figures::Bandwidth(figures) => Some(figures),
            Figures::Latency(_) => None,
        })
    };
    let unit = args.unit();
    let bandwidth = figures().map(|figures| unit.of(figures.average)).fold(0.0, f64::max);
    let rate = figures().map(|figures| figures.messages_per_s / 1e6).fold(0.0, f64::max);
    below("bandwidth", bandwidth, unit.name(), args.limit_bw)?;
    below("message rate", rate, "Mpps", args.limit_msgrate)
}

fn below(what: &str, value: f64, unit: &str, limit: Option<f64>) -> Result<(), Error> {
    match limit {
        Some(limit) if value < limit => {
            let missing = 100.0 * (1.0 - value / limit);
            Err(Error::Limit(format!(
                "the {what} of {value:.4} {unit} is {missing:.1} % below the limit of {limit} {unit}"
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::BandwidthRow;

    #[test]
    fn the_best_row_has_to_reach_the_limit() {
        let row = |average: f64| Row {
            figures: Figures::Bandwidth(BandwidthRow { average, messages_per_s: 5e5, ..Default::default() }),
            ..Row::default()
        };
        let rows = [row(1e9), row(2e9)];
        let args = |bw, rate| TestArgs {
            report_gbits: true,
            limit_bw: bw,
            limit_msgrate: rate,
            ..Default::default()
        };
        assert!(check(&args(Some(16.0), Some(0.5)), &rows).is_ok());
        assert!(check(&args(None, None), &[]).is_ok());
        let error = check(&args(Some(20.0), None), &rows).unwrap_err();
        let expected = "the bandwidth of 16.0000 Gb/sec is 20.0 % below the limit of 20 Gb/sec";
        assert_eq!((error.to_string().as_str(), error.exit_code()), (expected, 1));
        assert!(check(&args(None, Some(1.0)), &rows).unwrap_err().to_string().contains("50.0 % below"));
        let partial = Row { is_partial: true, ..row(9e9) };
        assert!(check(&args(Some(16.0), None), &[partial]).is_err());
    }
}
