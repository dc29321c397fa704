//! Outcomes for people.

use crate::case::{Case, Side, Verdict};
use crate::log::Way;
use crate::run::{Outcome, count};
use crate::wire::describe;

/// Octets of one frame that `-v` shows.
const SHOWN: usize = 96;

/// One outcome: a line, and below it what explains a deviation (always, with `verbose`).
pub fn outcome(outcome: &Outcome, expected: bool, verbose: bool) -> String {
    let verdict = if expected {
        format!("{} (expected)", outcome.verdict.name())
    } else {
        outcome.verdict.name().into()
    };
    let mut text = format!("{verdict:<15} {:<36} {}\n", outcome.name, outcome.rows.join(" "));
    let deviates = outcome.verdict == Verdict::Deviates;
    if deviates || verbose {
        text += &format!("    wanted: {}\n", outcome.about);
    }
    if !outcome.reason.is_empty() && (deviates || verbose) {
        text += &format!("    {}\n", outcome.reason);
    }
    if deviates || verbose {
        for passed in &outcome.passed {
            let arrow = if passed.way == Way::Sent { ">" } else { "<" };
            text += &format!("    {arrow} {}\n", passed.text);
            if verbose && !passed.octets.is_empty() {
                let octets = &passed.octets[..passed.octets.len().min(SHOWN)];
                let more = if passed.octets.len() > SHOWN { "..." } else { "" };
                text += &format!("      {}{more}\n", describe::hex(octets));
            }
        }
    }
    text
}

/// The last line.
pub fn summary(outcomes: &[Outcome]) -> String {
    format!(
        "{} cases: {} conform, {} deviate, {} not applicable, {} need a target",
        outcomes.len(),
        count(outcomes, Verdict::Conforms),
        count(outcomes, Verdict::Deviates),
        count(outcomes, Verdict::NotApplicable),
        count(outcomes, Verdict::NeedsTarget),
    )
}

/// A line of `--list`.
pub fn listed(case: &Case) -> String {
    let side = match case.side {
        Side::Any => "either",
        Side::Responder => "responder",
        Side::Initiator => "initiator",
    };
    format!("{:<36} {side:<10} {}\n    {}", case.name, case.rows.join(" "), case.about)
}
