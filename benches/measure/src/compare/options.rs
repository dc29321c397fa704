//! The options of `compare`, and the durations of all runs.

use std::path::PathBuf;

use clap::Parser;

use crate::compare::measures::{MEASURES, Measure, find};

/// Prints the table of measurements: uwarp next to the kernel's TCP and the machine's own limits.
/// `scripts/compare` builds the programs that it needs
#[derive(Clone, Debug, Parser)]
#[command(name = "compare", version)]
pub(crate) struct CompareOptions {
    /// Fewer and shorter runs, for a first impression; do not quote these figures.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure only these rows.
    #[arg(long, value_name = "ID,...", value_delimiter = ',', value_parser = parse_id)]
    pub(crate) only: Vec<&'static str>,
    /// Write the results to this file: an object for each row, by its name.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw plots (SVG) into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// Run without hugepages.
    #[arg(long)]
    pub(crate) no_huge: bool,
}

impl CompareOptions {
    /// The wanted rows, in the order of the table.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &'static Measure> {
        MEASURES.iter().filter(|measure| self.wants(measure.id))
    }

    /// Whether a row is wanted.
    pub(crate) fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.contains(&id)
    }

    /// The durations of the runs.
    pub(crate) fn pace(&self) -> Pace {
        if self.quick { QUICK } else { WHOLE }
    }
}

/// Numbers of runs and their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Pairs of each row. Odd, so that one of them is the median.
    pub(crate) pairs: usize,
    /// Runs of each setting of the baseline; the setting with the best median is chosen. Odd as well.
    pub(crate) trials: usize,
    /// Maximum repeats of a run whose pollers lost their CPU.
    pub(crate) repeats: u32,
    /// Seconds of one bandwidth run.
    pub(crate) seconds: u32,
    /// Round trips of one latency run.
    pub(crate) round_trips: u32,
    /// Seconds of one run over the lossy wire.
    pub(crate) lossy_seconds: u32,
}

/// For figures that may be quoted.
const WHOLE: Pace =
    Pace { pairs: 5, trials: 5, repeats: 3, seconds: 1, round_trips: 100_000, lossy_seconds: 6 };

/// For `--quick`.
const QUICK: Pace =
    Pace { pairs: 1, trials: 3, repeats: 1, seconds: 1, round_trips: 20_000, lossy_seconds: 4 };

fn parse_id(text: &str) -> Result<&'static str, String> {
    let ids: Vec<&str> = MEASURES.iter().map(|measure| measure.id).collect();
    find(text).map(|measure| measure.id).ok_or_else(|| format!("no such row; use one of {}", ids.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<CompareOptions, clap::Error> {
        CompareOptions::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        CompareOptions::command().debug_assert();
    }

    #[test]
    fn without_a_choice_all_rows_are_wanted() {
        assert_eq!(parse("compare").unwrap().wanted().count(), MEASURES.len());
    }

    #[test]
    fn chosen_rows_come_in_the_order_of_the_table() {
        let options = parse("compare --only rate_64,send --only write_1500").unwrap();
        let ids: Vec<&str> = options.wanted().map(|measure| measure.id).collect();
        assert_eq!(ids, ["write_1500", "send", "rate_64"]);
    }

    #[test]
    fn an_unknown_row_is_refused_with_the_names() {
        let text = parse("compare --only write").unwrap_err().to_string();
        assert!(text.contains("qps_10k"), "{text}");
    }

    #[test]
    fn quick_is_quicker_and_both_have_a_median() {
        let [whole, quick] = ["compare", "compare --quick"].map(|line| parse(line).unwrap().pace());
        assert!(whole.pairs > quick.pairs && whole.trials > quick.trials, "{quick:?}");
        assert!([whole.pairs, whole.trials, quick.pairs, quick.trials].iter().all(|runs| runs % 2 == 1));
        assert!(quick.trials > 1, "one run decides nothing");
    }
}
