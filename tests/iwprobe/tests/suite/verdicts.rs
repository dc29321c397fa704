//! Tests of the verdicts. Without a flaw, the small endpoint conforms. With a flaw, the cases that check for
//! this flaw report a deviation. Most tests also check that no other case reports a deviation.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::small::{Flaw, call, start, start_target};
use iwprobe::case::Verdict;
use iwprobe::cases;
use iwprobe::probe::Probe;
use iwprobe::run::{self, Outcome};
use iwprobe::session::Patience;
use iwprobe::socket::Mode;

/// The role of the endpoint.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// The endpoint listens, without a target.
    Responder,
    /// The endpoint listens, with a target.
    RespondingTarget,
    /// The endpoint connects, without a target.
    Initiator,
    /// The endpoint connects, with a target.
    InitiatingTarget,
}

use Role::{InitiatingTarget, Initiator, Responder, RespondingTarget};

/// Runs the cases with one of `patterns` in their names against an endpoint with this flaw.
fn outcomes(role: Role, flaw: Flaw, patterns: &[&str]) -> Vec<Outcome> {
    let mode = match role {
        Responder => Mode::Connect(vec![start(flaw)]),
        RespondingTarget => Mode::Connect(vec![start_target(flaw)]),
        Initiator | InitiatingTarget => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            call(flaw, matches!(role, InitiatingTarget), listener.local_addr().unwrap());
            Mode::Listen(listener)
        }
    };
    let patience = Patience { timeout: Duration::from_secs(2), quiet: Duration::from_millis(60) };
    let mut probe = Probe::new(mode, patience, false);
    if let Err(reason) = probe.meet(Duration::from_secs(5)) {
        panic!("{role:?} {flaw:?}: {reason}");
    }
    assert_eq!(probe.has_target(), matches!(role, RespondingTarget | InitiatingTarget));
    let wanted = cases::all().into_iter().filter(|case| patterns.iter().any(|part| case.name.contains(part)));
    wanted.map(|case| run::run(&case, &mut probe)).collect()
}

fn deviating(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes.iter().filter(|o| o.verdict == Verdict::Deviates).map(|o| o.name).collect()
}

/// A flaw, the roles in which the endpoint is tried with it, and the cases that have to deviate. A case with
/// `?` before its name deviates only if the endpoint is so slow that several requests wait at once.
type Found = (&'static [Role], Flaw, &'static str);

/// Endpoints with a target, in both roles.
const TARGETS: &[Role] = &[RespondingTarget, InitiatingTarget];

/// Checks for each flaw and role that exactly the listed cases deviate. A case with `?` may deviate or not.
#[track_caller]
fn found(flaws: &[Found]) {
    let one = |role: &Role, flaw: &Flaw, names: &str| {
        let outcomes = outcomes(*role, *flaw, &[""]);
        let told = outcomes.iter().filter(|o| o.verdict == Verdict::Deviates);
        let told: Vec<String> = told.map(|o| format!("{}: {}", o.name, o.reason)).collect();
        let (by_timing, names): (Vec<&str>, Vec<&str>) =
            names.split_whitespace().partition(|name| name.starts_with('?'));
        let is_certain = |name: &&str| !by_timing.iter().any(|other| other.trim_start_matches('?') == *name);
        let certain: Vec<&str> = deviating(&outcomes).into_iter().filter(is_certain).collect();
        (certain != names).then(|| format!("{role:?} {flaw:?}: wanted {names:?}, got {told:#?}"))
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let runs =
            flaws.iter().flat_map(|(roles, flaw, names)| roles.iter().map(move |role| (role, flaw, names)));
        let running: Vec<_> =
            runs.map(|(role, flaw, names)| scope.spawn(move || one(role, flaw, names))).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checks that the case deviates with this flaw. Other cases may also deviate.
#[track_caller]
fn found_by(role: Role, flaw: Flaw, name: &str) {
    let outcomes = outcomes(role, flaw, &[name]);
    assert!(deviating(&outcomes).contains(&name), "{flaw:?} was not found by {name}: {outcomes:#?}");
}

#[test]
fn without_a_flaw_nothing_deviates() {
    for (role, conforming, in_need) in
        [(Responder, 120, 160), (Initiator, 100, 160), (RespondingTarget, 290, 0), (InitiatingTarget, 265, 0)]
    {
        let outcomes = outcomes(role, Flaw::None, &[""]);
        let wrong: Vec<_> = outcomes.iter().filter(|o| o.verdict == Verdict::Deviates).collect();
        assert!(wrong.is_empty(), "{role:?}: {wrong:#?}");
        let conform = run::count(&outcomes, Verdict::Conforms);
        assert!(conform >= conforming, "{role:?}: only {conform} cases apply");
        let need = run::count(&outcomes, Verdict::NeedsTarget);
        assert!(need >= in_need && (need == 0) == (in_need == 0), "{role:?}: {need} need a target");
    }
}

/// With these flaws hardly any connection is established. The case that checks for the flaw has to report it.
#[test]
fn flaws_that_leave_no_connection_are_found() {
    found_by(Responder, Flaw::ForgetsEnhanced, "revision-2-enhanced");
    found_by(Responder, Flaw::TalksFirst, "reply-nothing-behind");
    found_by(Responder, Flaw::ChecksEmptyWrites, "write-of-no-bytes");
    found_by(Responder, Flaw::WrongSink, "read-of-no-bytes");
    found_by(InitiatingTarget, Flaw::LateRtr, "initiator-sends-one-rtr");
    found_by(Initiator, Flaw::TwoRtrs, "initiator-sends-one-rtr");
    found_by(InitiatingTarget, Flaw::NoTerminate, "initiator-no-common-rtr");
    found_by(InitiatingTarget, Flaw::OneCode, "initiator-no-common-rtr");
}

/// The cases named here wait for a Terminate, and detect a missing or wrong Terminate.
#[test]
fn terminates_that_are_missing_or_wrong_are_found() {
    for name in
        ["write-unknown-stag", "queue-4", "read-unknown-stag", "write-ddp-version-2", "opcode-12-tagged"]
    {
        for flaw in [Flaw::NoTerminate, Flaw::OneCode] {
            found_by(Responder, flaw, name);
            found_by(InitiatingTarget, flaw, name);
        }
    }
}

/// A probe that listens waits longer than its time limit for the next connection, since a target keeps a
/// hanging connection for 20 s (TARGET.md).
#[test]
fn an_endpoint_that_connects_may_take_its_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let patience = Patience { timeout: Duration::from_millis(10), quiet: Duration::from_millis(10) };
    let probe = Probe::new(Mode::Listen(listener), patience, false);
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        TcpStream::connect(address)
    });
    assert!(probe.tcp().is_ok());
    late.join().unwrap().unwrap();
}

#[test]
fn flaws_of_a_responders_startup_are_found() {
    found(&[
        (&[RespondingTarget], Flaw::AnyKey, "request-wrong-key request-wrong-key-end request-with-reply-key"),
        (&[RespondingTarget], Flaw::AnyLength, "request-length-513 request-length-65535"),
        (&[RespondingTarget], Flaw::AnyRevision, "request-revision-3 request-revision-255"),
        (&[RespondingTarget], Flaw::ReservedFlag, "reply-well-formed"),
        (
            &[RespondingTarget],
            Flaw::SwapsDepths,
            "revision-2-enhanced ord-within-our-ird ord-left-to-the-application ird-left-to-the-application",
        ),
        (
            &[RespondingTarget],
            Flaw::GreedyDepths,
            "revision-2-enhanced ord-within-our-ird ord-with-our-ird-0",
        ),
        (&[RespondingTarget], Flaw::NoRtrKind, "peer-to-peer-model rtr-by-send-only"),
        (&[RespondingTarget], Flaw::NoMarkers, "markers-asked-for"),
    ]);
}

#[test]
fn flaws_of_an_initiators_startup_are_found() {
    found(&[
        (&[InitiatingTarget], Flaw::AnyKey, "reply-wrong-key reply-with-request-key"),
        (&[InitiatingTarget], Flaw::AnyLength, "reply-length-513 reply-length-65535"),
        (&[InitiatingTarget], Flaw::AnyRevision, "reply-revision-3"),
        (&[InitiatingTarget], Flaw::ReservedFlag, "request-well-formed"),
        (&[InitiatingTarget], Flaw::RequestRejects, "request-r-clear"),
        (&[InitiatingTarget], Flaw::RtrAlwaysWrite, "initiator-rtr-by-read"),
        (
            &[InitiatingTarget],
            Flaw::TalksAfterReject,
            "reply-wrong-key reply-with-request-key reply-revision-3 reply-length-513 reply-length-65535 \
             reply-rejects",
        ),
        (&[InitiatingTarget], Flaw::NoMarkers, "reply-asks-for-markers all-fpdus all-ddp-headers"),
    ]);
}

#[test]
fn flaws_of_framing_are_found() {
    found(&[
        (
            &[RespondingTarget],
            Flaw::BadCrc,
            "crc-asked-for crc-asked-for-by-the-endpoint markers-asked-for fpdus-all-well-framed all-fpdus",
        ),
        (
            &[InitiatingTarget],
            Flaw::BadCrc,
            "crc-asked-for reply-crc-decides reply-asks-for-markers fpdus-all-well-framed all-fpdus",
        ),
        (TARGETS, Flaw::BadPad, "fpdus-all-well-framed all-fpdus"),
        (
            &[RespondingTarget],
            Flaw::IgnoresCrc,
            "first-fpdu-bad-crc crc-asked-for crc-asked-for-by-the-endpoint fpdu-bad-crc fpdu-crc-of-zero \
             fpdu-length-short-of-true fpdu-bad-crc-of-a-write fpdu-bad-crc-before-bad-stag \
             terminate-of-mpa-echoes-nothing",
        ),
        (
            &[InitiatingTarget],
            Flaw::IgnoresCrc,
            "crc-asked-for reply-crc-decides fpdu-bad-crc fpdu-crc-of-zero fpdu-length-short-of-true \
             fpdu-bad-crc-of-a-write fpdu-bad-crc-before-bad-stag terminate-of-mpa-echoes-nothing",
        ),
        (TARGETS, Flaw::PlacesBeforeCrc, "fpdu-bad-crc fpdu-crc-of-zero fpdu-bad-crc-of-a-write"),
    ]);
}

#[test]
fn flaws_of_what_an_endpoint_sends_are_found() {
    found(&[
        (TARGETS, Flaw::MsnStands, "does-several-sends atomic-response-on-queue-3 all-sequence-numbers"),
        (&[RespondingTarget], Flaw::WrongQueue, "does-send does-long-send does-send-se all-rdmap-headers"),
        (
            &[InitiatingTarget],
            Flaw::WrongQueue,
            "does-send does-long-send does-send-se all-rdmap-headers all-sequence-numbers",
        ),
        (
            TARGETS,
            Flaw::NoLast,
            "read-many-segments read-response-one-message read-segments-in-order reads-in-order \
             reads-beyond-ird does-long-write does-long-send all-sequence-numbers",
        ),
        (
            TARGETS,
            Flaw::AlwaysLast,
            "read-many-segments read-response-one-message reads-in-order does-long-write does-long-send \
             all-sequence-numbers",
        ),
        (TARGETS, Flaw::StagInSends, "does-send does-long-send does-send-se all-rdmap-headers"),
        (
            TARGETS,
            Flaw::OffsetStands,
            "read-many-segments read-response-one-message read-segments-in-order reads-in-order \
             does-long-write does-long-send all-sequence-numbers",
        ),
        (TARGETS, Flaw::VersionZero, "all-rdmap-headers"),
        (TARGETS, Flaw::SetsReserved, "all-ddp-headers"),
        (TARGETS, Flaw::PostsInReverse, "does-several-sends does-all-in-order does-fenced-write"),
        (TARGETS, Flaw::ImmediateSwapped, "does-immediate"),
        (&[RespondingTarget], Flaw::IgnoresOrd, "does-reads-within-ord"),
        (&[InitiatingTarget], Flaw::IgnoresOrd, "initiator-lowers-its-ord"),
        (TARGETS, Flaw::IgnoresFence, "does-fenced-write"),
        (TARGETS, Flaw::ClosesEarly, "endpoint-closes-after-its-sends"),
    ]);
}

#[test]
fn flaws_of_what_an_endpoint_answers_are_found() {
    found(&[
        (
            &[RespondingTarget],
            Flaw::AnswersInReverse,
            "ird-as-asked ?fpdu-byte-by-byte ?fpdu-in-pieces-of-7 fpdus-in-one-piece reads-in-order \
             reads-and-sends-mixed atomics-in-order atomics-and-reads-in-order all-sequence-numbers",
        ),
        (
            &[InitiatingTarget],
            Flaw::AnswersInReverse,
            "?fpdu-byte-by-byte ?fpdu-in-pieces-of-7 fpdus-in-one-piece reads-in-order \
             reads-and-sends-mixed atomics-in-order atomics-and-reads-in-order all-sequence-numbers",
        ),
        (TARGETS, Flaw::CarriesOver, "fetch-add"),
        (
            TARGETS,
            Flaw::NoIdentifier,
            "fetch-add cmp-swap fetch-add-compare-ignored atomic-response-on-queue-3 \
             atomic-reserved-fields atomics-in-order atomics-and-reads-in-order \
             atomic-not-told-to-the-target",
        ),
    ]);
}

#[test]
fn flaws_of_protection_are_found() {
    found(&[
        (TARGETS, Flaw::AtomicsWithoutRight, "atomic-without-the-right"),
        (TARGETS, Flaw::ReadsWithoutRight, "read-without-the-right read-of-local-region"),
        (TARGETS, Flaw::WritesWithoutRight, "write-without-the-right write-to-local-region"),
        (
            TARGETS,
            Flaw::NoEnd,
            "write-past-end write-longer-than-region write-second-segment-past-end read-past-end \
             read-4-gib response-beyond-its-sink",
        ),
        (
            TARGETS,
            Flaw::NeverInvalidates,
            "send-invalidate send-se-invalidate send-invalidate-twice read-after-invalidate",
        ),
    ]);
}

#[test]
fn flaws_of_delivery_are_found() {
    found(&[
        (
            TARGETS,
            Flaw::DeliversEarly,
            "mo-plus-length-too-long mo-plus-length-fits no-l-no-delivery rsvdulp-differs-in-a-message \
             send-in-two-segments send-in-many-segments send-of-65536-bytes send-last-segment-empty \
             write-behind-a-send immediate-in-two-segments",
        ),
        (
            TARGETS,
            Flaw::TakesTwoReceives,
            "no-buffer-left send-raises-no-solicited-event send-se-raises-a-solicited-event \
             send-of-no-bytes sends-in-order sends-take-receives-in-order sends-in-one-piece \
             send-invalidate-twice reads-and-sends-mixed immediate-between-sends",
        ),
        (
            TARGETS,
            Flaw::DeliversWrites,
            "write-placed write-behind-a-send send-invalidate send-se-invalidate write-then-send \
             send-behind-a-long-write write-then-immediate",
        ),
        (TARGETS, Flaw::CompletesEarly, "does-read-not-complete-before-last"),
        (TARGETS, Flaw::AlwaysSolicited, "send-raises-no-solicited-event send-se-raises-a-solicited-event"),
        (TARGETS, Flaw::DeliversAfterError, "nothing-placed-after-an-error"),
    ]);
}

/// siw's bit order is one deviation, and not a deviation of every case with a Terminate.
#[test]
fn flaws_of_terminates_are_found() {
    found(&[
        (TARGETS, Flaw::Swapped, "terminate-bit-order"),
        (
            TARGETS,
            Flaw::WrongEcho,
            "terminate-echoes-a-write terminate-echoes-a-send terminate-echoes-a-read \
             terminate-echoes-a-version-error",
        ),
        (
            TARGETS,
            Flaw::ShortEcho,
            "terminate-echoes-a-write terminate-echoes-a-send terminate-echoes-a-read \
             terminate-echoes-a-version-error",
        ),
        (
            TARGETS,
            Flaw::ShortLength,
            "terminate-echoes-a-write terminate-echoes-a-send terminate-echoes-a-read \
             terminate-echoes-a-version-error",
        ),
        (
            TARGETS,
            Flaw::NeverStops,
            "fpdu-bad-crc-of-a-write nothing-placed-after-an-error terminate-is-the-last",
        ),
        (
            TARGETS,
            Flaw::AnswersTerminate,
            "terminate-received terminate-not-answered terminate-first-of-all terminate-with-headers \
             terminate-of-no-known-code terminate-zero-filled terminate-too-short \
             terminate-of-a-wrong-version terminate-twice",
        ),
        (TARGETS, Flaw::MsnFromZero, "terminate-on-queue-2 all-sequence-numbers"),
    ]);
}
