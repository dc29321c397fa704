//! Outcomes as JSON (`--json`).

use serde_json::{Value, json};

use crate::log::{Passed, Way};
use crate::run::{Outcome, count};
use crate::{case::Verdict, wire::describe};

/// All of a run.
pub fn run(endpoint: &str, outcomes: &[Outcome]) -> Value {
    json!({
        "endpoint": endpoint,
        "conforms": count(outcomes, Verdict::Conforms),
        "deviates": count(outcomes, Verdict::Deviates),
        "not_applicable": count(outcomes, Verdict::NotApplicable),
        "needs_target": count(outcomes, Verdict::NeedsTarget),
        "cases": outcomes.iter().map(case).collect::<Vec<_>>(),
    })
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
    let way = match passed.way {
        Way::Sent => "sent",
        Way::Received => "received",
    };
    json!({ "way": way, "text": passed.text, "octets": describe::hex(&passed.octets) })
}
