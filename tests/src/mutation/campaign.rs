//! Chooses the mutations of a suite, tries them, and records and prints the results.

use std::ops::Range;

use clap::Args;

use crate::lab::Result;

/// The mutations to try.
#[derive(Args, Clone, Debug, Default)]
pub struct Choice {
    /// Text in the names of the mutations to try [default: all].
    #[arg(default_value = "")]
    pub pattern: String,
    /// Try only mutations that have changed since their last trial, or were never tried.
    #[arg(long)]
    pub new: bool,
    /// Try only this many recorded mutations, chosen by `--seed`, each with the test that found it, and
    /// record nothing.
    #[arg(long, value_name = "COUNT", requires = "seed", conflicts_with = "new")]
    pub slice: Option<usize>,
    /// Seed of a slice: any text, such as a commit.
    #[arg(long)]
    pub seed: Option<String>,
}

/// Mutations, and the means to find them.
pub trait Suite {
    /// Returns the names of all mutations, in order.
    fn names(&self) -> Vec<String>;

    /// Whether the record says that this mutation was found.
    fn is_recorded(&self, name: &str) -> bool;

    /// Whether the mutation has not changed since the trial in the record.
    fn is_current(&self, name: &str) -> bool;

    /// Tries a mutation with all tests that may find it or, with `again`, with tests that found it before.
    /// Returns how the mutation was found.
    ///
    /// # Errors
    /// If the mutation was not found or cannot be tried.
    fn attempt(&mut self, name: &str, again: bool) -> Result<String>;

    /// Writes the record: the result of the last [`attempt`](Self::attempt) without `again`, for each
    /// mutation that this attempt has found.
    ///
    /// # Errors
    /// If the record cannot be written.
    fn record(&self) -> Result<()>;
}

/// Tries the chosen mutations. Returns whether all chosen mutations were found.
///
/// # Errors
/// If the record cannot be written.
pub fn run(suite: &mut impl Suite, choice: &Choice) -> Result<bool> {
    let chosen = chosen(suite, choice);
    let again = choice.slice.is_some();
    let mut missed = 0;
    for name in &chosen {
        match suite.attempt(name, again) {
            Ok(line) => println!("{name}: {line}"),
            Err(error) => {
                missed += 1;
                println!("{name}: {error}");
            }
        }
        // The record is written after each mutation, so that an interrupted run keeps its results.
        if !again {
            suite.record()?;
        }
    }
    if again {
        // The line has the format of `cargo test`.
        let (verdict, found) = (if missed == 0 { "ok" } else { "FAILED" }, chosen.len() - missed);
        println!("test result: {verdict}. {found} passed; {missed} failed; 0 ignored");
    } else {
        println!("tried: {}, not found: {missed}", chosen.len());
    }
    Ok(missed == 0)
}

fn chosen(suite: &impl Suite, choice: &Choice) -> Vec<String> {
    let mut names = suite.names();
    names.retain(|name| name.contains(&choice.pattern));
    if let (Some(count), Some(seed)) = (choice.slice, &choice.seed) {
        names.retain(|name| suite.is_recorded(name));
        return names[slice(seed, count, names.len())].to_vec();
    }
    names.retain(|name| !choice.new || !suite.is_current(name));
    names
}

/// Returns the slice for `seed`: at most `count` adjacent indices below `len`. Over many seeds, all indices
/// occur.
fn slice(seed: &str, count: usize, len: usize) -> Range<usize> {
    if count == 0 || len == 0 {
        return 0..0;
    }
    let start = crc32c::crc32c(seed.as_bytes()) as usize % len.div_ceil(count) * count;
    start..len.min(start + count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::LabError;

    /// Three mutations. The first was found and has not changed since then; the second was found and has
    /// changed since then; the third was never tried.
    #[derive(Default)]
    struct Three {
        tried: Vec<(String, bool)>,
        records: std::cell::Cell<usize>,
    }

    impl Suite for Three {
        fn names(&self) -> Vec<String> {
            ["current", "changed", "never"].map(str::to_owned).into()
        }

        fn is_recorded(&self, name: &str) -> bool {
            name != "never"
        }

        fn is_current(&self, name: &str) -> bool {
            name == "current"
        }

        fn attempt(&mut self, name: &str, again: bool) -> Result<String> {
            self.tried.push((name.to_owned(), again));
            if name == "never" { Err(LabError::new("survives")) } else { Ok("found".into()) }
        }

        fn record(&self) -> Result<()> {
            self.records.set(self.records.get() + 1);
            Ok(())
        }
    }

    fn tried(choice: Choice) -> (bool, Vec<(String, bool)>, usize) {
        let mut suite = Three::default();
        let all_found = run(&mut suite, &choice).unwrap();
        (all_found, suite.tried, suite.records.get())
    }

    #[test]
    fn all_are_tried_and_recorded_where_nothing_is_chosen() {
        let (all_found, names, records) = tried(Choice::default());
        assert_eq!((all_found, names.len(), records), (false, 3, 3));
        assert!(names.iter().all(|(_, again)| !again));
    }

    #[test]
    fn those_that_have_not_been_tried_as_they_are_are_new() {
        let (all_found, names, _) = tried(Choice { new: true, ..Choice::default() });
        assert_eq!((all_found, names), (false, vec![("changed".into(), false), ("never".into(), false)]));
        let (all_found, names, _) = tried(Choice { new: true, pattern: "ch".into(), ..Choice::default() });
        assert_eq!((all_found, names), (true, vec![("changed".into(), false)]));
    }

    #[test]
    fn a_slice_is_of_those_on_record_and_records_nothing() {
        let choice = Choice { slice: Some(3), seed: Some("abc".into()), ..Choice::default() };
        let (all_found, names, records) = tried(choice);
        assert_eq!((all_found, records), (true, 0));
        assert_eq!(names, [("current".into(), true), ("changed".into(), true)]);
    }

    #[test]
    fn each_thing_has_its_turn() {
        let mut seen = [false; 38];
        for seed in 0..500 {
            let slice = slice(&format!("{seed:08x}"), 3, seen.len());
            assert!((1..=3).contains(&slice.len()), "{slice:?}");
            seen[slice].fill(true);
        }
        assert_eq!(seen, [true; 38]);
        assert_eq!((slice("a", 5, 3), slice("a", 0, 3)), (0..3, 0..0));
    }
}
