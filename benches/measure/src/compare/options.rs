//! The options of `compare`, and the durations of all runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::compare::distance::Repeats;
use crate::compare::measures::{MEASURES, Measure, find};

/// Prints the table of measurements: uwarp next to the kernel's TCP and the machine's own limits.
/// `scripts/compare` builds the programs that it needs
#[derive(Clone, Debug, Parser)]
#[command(name = "compare", version)]
pub(crate) struct CompareOptions {
    /// Make fewer and shorter runs, for a first impression. Do not quote the figures of such runs.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure only these rows.
    #[arg(long, value_name = "ID,...", value_delimiter = ',', value_parser = parse_id)]
    pub(crate) only: Vec<&'static str>,
    /// Write the results to this file, with an object for each row under the name of the row.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw plots (SVG) into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// Also measure the rows `valkey_*`, with the programs in this folder (of a build with BUILD_RDMA=yes).
    #[arg(long, value_name = "DIR")]
    pub(crate) valkey: Option<PathBuf>,
    /// Put the figures into the file of this kind of machine in this folder, which is docs/performance.
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    pub(crate) keep: Option<PathBuf>,
    /// Run without hugepages.
    #[arg(long)]
    pub(crate) no_huge: bool,
}

impl CompareOptions {
    /// Returns the wanted rows, in the order of the table.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &'static Measure> {
        MEASURES.iter().filter(|measure| self.wants(measure.id))
    }

    /// Whether the user wants a row. Without a choice of rows, the rows of programs that are not there are
    /// not wanted.
    pub(crate) fn wants(&self, id: &str) -> bool {
        let can_be_measured = self.valkey.is_some() || !id.starts_with("valkey_");
        if self.only.is_empty() { can_be_measured } else { self.only.contains(&id) }
    }

    pub(crate) fn pace(&self) -> Pace {
        if self.quick { QUICK } else { WHOLE }
    }
}

/// The numbers of runs, and the lengths of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Number of pairs of each row. The number is odd, so that one of the pairs is the median.
    pub(crate) pairs: usize,
    /// Number of runs of each setting of the baseline. The number is odd. The setting with the best median is
    /// chosen.
    pub(crate) trials: usize,
    /// Maximum number of repeats of a run whose pollers lost their CPU.
    pub(crate) repeats: u32,
    /// The limits of the repeats of pairs during which the two cores moved.
    pub(crate) moved: Repeats,
    /// Duration in seconds of one bandwidth run.
    pub(crate) seconds: u32,
    /// Number of round trips of one latency run.
    pub(crate) round_trips: u32,
    /// Duration in seconds of one run over the lossy wire.
    pub(crate) lossy_seconds: u32,
}

/// The pace for figures that may be quoted.
const WHOLE: Pace = Pace {
    pairs: 5,
    trials: 5,
    repeats: 3,
    moved: Repeats { pair: 3, time: Duration::from_secs(300) },
    seconds: 1,
    round_trips: 100_000,
    lossy_seconds: 6,
};

const QUICK: Pace = Pace {
    pairs: 1,
    trials: 3,
    repeats: 1,
    moved: Repeats { pair: 1, time: Duration::from_secs(30) },
    seconds: 1,
    round_trips: 20_000,
    lossy_seconds: 4,
};

/// The pace of `measure overview`, which has to take 90 seconds in all.
pub(crate) const OVERVIEW: Pace =
    Pace { trials: 1, repeats: 0, moved: Repeats { pair: 0, time: Duration::ZERO }, ..QUICK };

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
        assert_eq!(parse("compare --valkey src").unwrap().wanted().count(), MEASURES.len());
        let without = parse("compare").unwrap();
        let left_out: Vec<&str> = MEASURES.iter().map(|row| row.id).filter(|id| !without.wants(id)).collect();
        let of_valkey =
            ["valkey_64", "valkey_50", "valkey_pipe", "valkey_100k", "valkey_busy_64", "valkey_busy_100k"];
        assert_eq!(left_out, of_valkey);
        assert!(parse("compare --only valkey_50").unwrap().wants("valkey_50"));
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
