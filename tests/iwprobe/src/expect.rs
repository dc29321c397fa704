//! Known deviations of an endpoint (`--expect FILE`).
//!
//! Each line has the name of a case and any remark. Empty lines and text after `#` are ignored. The listed
//! cases have to deviate. It is an error if a case that is not listed deviates, or if a listed case conforms.
//! If the outcome of a case depends on timing, `?` after its name allows both outcomes.

use crate::case::Verdict;
use crate::run::Outcome;

/// The cases that are known to deviate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected(Vec<Known>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    name: String,
    always: bool,
}

impl Expected {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// If a line names a case that is not in `known`, or names a case for the second time.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self, String> {
        let mut listed: Vec<Known> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("");
            let Some(word) = line.split_whitespace().next() else { continue };
            let name = word.strip_suffix('?').unwrap_or(word);
            if !known.contains(&name) {
                return Err(format!("line {}: no case is named {name} (see --list)", index + 1));
            }
            if listed.iter().any(|other| other.name == name) {
                return Err(format!("line {}: {name} is listed twice", index + 1));
            }
            listed.push(Known { name: name.to_owned(), always: name == word });
        }
        Ok(Self(listed))
    }

    /// Whether this case is known to deviate.
    pub fn contains(&self, name: &str) -> bool {
        self.known(name).is_some()
    }

    fn known(&self, name: &str) -> Option<&Known> {
        self.0.iter().find(|known| known.name == name)
    }

    /// Returns the differences between `outcomes` and the expectations, one line for each.
    pub fn differences(&self, outcomes: &[Outcome]) -> Vec<String> {
        let difference = |outcome: &Outcome| match (self.known(outcome.name), outcome.verdict) {
            (None, Verdict::Deviates) => Some(format!("{} deviates: {}", outcome.name, outcome.reason)),
            (Some(known), Verdict::Conforms) if known.always => {
                Some(format!("{} conforms now: take it from the list", outcome.name))
            }
            _ => None,
        };
        outcomes.iter().filter_map(difference).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &'static str, verdict: Verdict) -> Outcome {
        Outcome { name, rows: Vec::new(), about: "", verdict, reason: "because".into(), passed: Vec::new() }
    }

    #[test]
    fn differences_are_errors_in_both_directions() {
        let expected =
            Expected::parse("# known\na  remark\n\nb # another\nc", &["a", "b", "c", "d"]).unwrap();
        let outcomes = [
            outcome("a", Verdict::Deviates),
            outcome("b", Verdict::Conforms),
            outcome("c", Verdict::NotApplicable),
            outcome("d", Verdict::Deviates),
        ];
        assert_eq!(
            expected.differences(&outcomes),
            ["b conforms now: take it from the list", "d deviates: because"]
        );
        assert!(expected.differences(&outcomes[..1]).is_empty());
    }

    #[test]
    fn a_matter_of_timing_is_no_difference() {
        let expected = Expected::parse("a? now and then", &["a", "b"]).unwrap();
        for verdict in [Verdict::Deviates, Verdict::Conforms] {
            assert!(expected.differences(&[outcome("a", verdict)]).is_empty());
        }
        assert!(Expected::parse("a?\na", &["a"]).is_err());
    }

    #[test]
    fn names_that_are_none_are_refused() {
        assert!(Expected::parse("x", &["a"]).unwrap_err().contains("line 1"));
        assert!(Expected::parse("a\na", &["a"]).unwrap_err().contains("twice"));
    }
}
