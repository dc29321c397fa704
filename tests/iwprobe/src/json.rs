//! Outcomes as JSON (`--json`). The section "JSON" of README.md describes the format.

use serde_json::{Value, json};

use crate::log::{Direction, Passed};
use crate::run::{Outcome, count};
use crate::{case::Verdict, wire::describe};

/// Version of the format. The number is incremented when a name or a meaning changes, but not when a name is
/// added.
const FORMAT: u32 = 1;

/// A run, as written to the JSON file.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The endpoint, as given on the command line.
    pub endpoint: &'a str,
    /// The endpoint's first answer, as text.
    pub found: &'a str,
    /// Whether the endpoint has a target.
    pub target: bool,
    /// The outcomes of the cases that were run.
    pub outcomes: &'a [Outcome],
    /// Number of cases that were not run because the endpoint was gone.
    pub not_run: usize,
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = json!({
            "format": FORMAT,
            "endpoint": self.endpoint,
            "found": self.found,
            "target": self.target,
            "conforms": count(self.outcomes, Verdict::Conforms),
            "deviates": count(self.outcomes, Verdict::Deviates),
            "not_applicable": count(self.outcomes, Verdict::NotApplicable),
            "needs_target": count(self.outcomes, Verdict::NeedsTarget),
            "not_run": self.not_run,
            "cases": self.outcomes.iter().map(case).collect::<Vec<_>>(),
        });
        writeln!(f, "{value:#}")
    }
}

fn case(outcome: &Outcome) -> Value {
    json!({
        "name": outcome.name,
        "rows": outcome.rows,
        "about": outcome.about,
        "verdict": outcome.verdict.name(),
        "reason": outcome.reason,
        "wire": outcome.passed.iter().map(passed).collect::<Vec<_>>(),
    })
}

fn passed(passed: &Passed) -> Value {
    let direction = match passed.direction {
        Direction::Sent => "sent",
        Direction::Received => "received",
    };
    json!({ "way": direction, "text": passed.text, "bytes": describe::hex(&passed.bytes) })
}
