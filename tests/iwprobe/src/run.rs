//! Runs a test case, and counts the verdicts of several test cases.

use crate::case::{Case, CaseError, Check, Side, Verdict};
use crate::log::Passed;
use crate::probe::Probe;

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The name of the case.
    pub name: &'static str,
    /// The rows of the case.
    pub rows: Vec<&'static str>,
    /// The behaviour of a conforming endpoint.
    pub about: &'static str,
    /// The verdict on this endpoint.
    pub verdict: Verdict,
    /// The reason for the verdict, unless the endpoint conforms.
    pub reason: String,
    /// The messages on the wire.
    pub passed: Vec<Passed>,
}

/// Runs one case. A case for the other role does not apply to the endpoint.
pub fn run(case: &Case, probe: &mut Probe) -> Outcome {
    let check = match (case.side, probe.is_initiator()) {
        (Side::Responder, false) => away("the endpoint has to be listening (iwprobe connect)"),
        (Side::Initiator, true) => away("the endpoint has to be connecting (iwprobe listen)"),
        _ => (case.run)(probe),
    };
    let verdict = Verdict::from(&check);
    let reason = match check {
        Ok(()) => String::new(),
        Err(CaseError::Deviates(reason) | CaseError::NotApplicable(reason)) => reason,
        Err(CaseError::NeedsTarget) => "arranged or seen by a target only (TARGET.md)".into(),
    };
    let Case { name, about, .. } = *case;
    Outcome { name, rows: case.rows(), about, verdict, reason, passed: probe.take_log() }
}

fn away(reason: &str) -> Check {
    Err(CaseError::NotApplicable(reason.into()))
}

/// Returns the number of outcomes that have this verdict.
pub fn count(outcomes: &[Outcome], verdict: Verdict) -> usize {
    outcomes.iter().filter(|outcome| outcome.verdict == verdict).count()
}
