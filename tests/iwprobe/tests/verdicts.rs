//! The verdicts can be relied on: a small endpoint without a flaw conforms, and each flaw is found by the cases that are
//! there for it.

mod small;

use std::time::Duration;

use iwprobe::case::Verdict;
use iwprobe::cases;
use iwprobe::probe::{Mode, Probe};
use iwprobe::run::{self, Outcome};
use iwprobe::session::Patience;
use small::{Flaw, start};

/// The cases with one of `patterns` in their names, against an endpoint with this flaw.
fn outcomes(flaw: Flaw, patterns: &[&str]) -> Vec<Outcome> {
    let patience = Patience { timeout: Duration::from_secs(2), quiet: Duration::from_millis(60) };
    let mut probe = Probe::new(Mode::Connect(vec![start(flaw)]), patience, false);
    if let Err(reason) = probe.meet(Duration::from_secs(5)) {
        panic!("{flaw:?}: {reason}");
    }
    assert!(!probe.has_target());
    let wanted = cases::all().into_iter().filter(|case| patterns.iter().any(|part| case.name.contains(part)));
    wanted.map(|case| run::run(&case, &mut probe)).collect()
}

fn deviating(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes.iter().filter(|o| o.verdict == Verdict::Deviates).map(|o| o.name).collect()
}

/// The case deviates with this flaw.
#[track_caller]
fn found(flaw: Flaw, name: &str) {
    let outcomes = outcomes(flaw, &[name]);
    assert!(deviating(&outcomes).contains(&name), "{flaw:?} was not found by {name}: {outcomes:#?}");
}

#[test]
fn without_a_flaw_nothing_deviates() {
    let outcomes = outcomes(Flaw::None, &[""]);
    let wrong: Vec<_> = outcomes
        .iter()
        .filter(|o| o.verdict == Verdict::Deviates)
        .map(|o| (o.name, &o.reason, &o.passed))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let conform = run::count(&outcomes, Verdict::Conforms);
    assert!(conform >= 90, "only {conform} cases apply to an endpoint without a target");
    assert!(run::count(&outcomes, Verdict::NeedsTarget) >= 90);
}

#[test]
fn flaws_of_startup_are_found() {
    found(Flaw::AnyKey, "request-wrong-key");
    found(Flaw::AnyLength, "request-length-513");
    found(Flaw::ForgetsEnhanced, "revision-2-enhanced");
    found(Flaw::NoRtrKind, "peer-to-peer-model");
    found(Flaw::NoRtrKind, "rtr-by-send-only");
    found(Flaw::TalksFirst, "reply-nothing-behind");
}

#[test]
fn flaws_of_framing_are_found() {
    found(Flaw::IgnoresCrc, "fpdu-bad-crc");
    found(Flaw::BadCrc, "crc-asked-for");
    let all = outcomes(Flaw::BadCrc, &["read-of-no-octets", "all-"]);
    assert_eq!(deviating(&all), ["all-fpdus"]);
}

#[test]
fn flaws_of_errors_are_found() {
    for name in
        ["write-unknown-stag", "queue-4", "read-unknown-stag", "write-ddp-version-2", "opcode-12-tagged"]
    {
        found(Flaw::NoTerminate, name);
        found(Flaw::OneCode, name);
    }
    found(Flaw::WrongEcho, "terminate-echoes-a-write");
    found(Flaw::ShortLength, "terminate-echoes-a-send");
    found(Flaw::NeverStops, "terminate-is-the-last");
    found(Flaw::AnswersTerminate, "terminate-not-answered");
    found(Flaw::MsnFromZero, "terminate-on-queue-2");
}

#[test]
fn flaws_of_headers_are_found() {
    found(Flaw::ChecksReserved, "read-reserved-fields");
    found(Flaw::ChecksEmptyWrites, "write-of-no-octets");
    found(Flaw::WrongSink, "read-of-no-octets");
    let all = outcomes(Flaw::SetsReserved, &["read-of-no-octets", "all-"]);
    assert_eq!(deviating(&all), ["all-ddp-headers"]);
}

/// siw's order of bits is one deviation, not one of every case with a Terminate.
#[test]
fn swapped_bits_are_one_deviation() {
    let outcomes = outcomes(Flaw::Swapped, &[""]);
    let found = deviating(&outcomes);
    assert_eq!(found, ["terminate-bit-order"]);
}
