//! Checks that a wrong script fails with the right message. The scripts have different kinds of mismatch.

use libtest_mimic::{Failed, Trial};

use crate::runner::run;

/// The opening lines: a connection without SACK and timestamps is established at 0.01.
const OPEN: &str =
    "0 connect\n+0 > S 0:0(0)\n+.01 < S. 0:0(0) ack 1 win 9000 <mss 1000>\n+0 > . 1:1(0) ack 1\n";

/// Name of the error, the lines after the opening lines, and the strings that the message has to contain.
const WRONG: [(&str, &str, &[&str]); 24] = [
    ("sequence_number", "+0 send 500\n+0 > P. 2:502(500) ack 1", &["another sequence number"]),
    ("length", "+0 send 500\n+0 > P. 1:500(499) ack 1", &["another length", "P. 1:501(500) ack 1 win"]),
    ("acknowledgement", "+0 send 500\n+0 > P. 1:501(500) ack 2", &["another acknowledgement", ":6: "]),
    ("flags", "+0 send 500\n+0 > . 1:501(500) ack 1", &["other flags"]),
    ("window", "+0 send 500\n+0 > P. 1:501(500) ack 1 win 7", &["another window"]),
    ("urgent", "+0 send 500\n+0 > P. 1:501(500) ack 1 urg 7", &["another urgent pointer"]),
    ("codepoint", "+0 send 500\n+0 > [ect0] P. 1:501(500) ack 1", &["another codepoint"]),
    ("options", "+0 send 500\n+0 > P. 1:501(500) ack 1 <mss 1000>", &["other options"]),
    ("sack_blocks", "+0 send 500\n+0 > P. 1:501(500) ack 1 <sack 1:2>", &["other SACK blocks"]),
    ("timestamps", "+0 send 500\n+0 > P. 1:501(500) ack 1 <TS val 10 ecr 0>", &["other timestamps"]),
    (
        "too_early",
        "+0 send 500\n+.1 > P. 1:501(500) ack 1",
        &["another time", "0.110000 > P.", "0.010000 > P."],
    ),
    ("too_late", "+0 send 500\n+0 > P. 1:501(500) ack 1\n+.001 > P. 1:501(500) ack 1", &["nothing was sent"]),
    ("outside_of_slack", "+0 send 500\n+.02~.01 > P. 1:501(500) ack 1", &["another time"]),
    ("unexpected", "+0 send 2x500\n+0 > . 1:501(500) ack 1\n+1 close", &["unexpected", "P. 501:1001(500)"]),
    ("unexpected_at_the_end", "+0 send 500", &["an unexpected segment", "what happened", "0.000000 connect"]),
    ("not_quiet", "+0 quiet 50ms\n+0 send 500\n+0 quiet 50ms", &["an unexpected segment", ":7: "]),
    ("other_peer", "+0 send 500\n+0 >@2 P. 1:501(500) ack 1", &["a segment for another peer"]),
    ("no_bytes", "+0 < P. 1:501(500) ack 1\n+0 received 0..400", &["other bytes", "to: 500"]),
    ("bytes_ahead", "+0 < P. 1:501(500) ack 1\n+0 received 0..500 ahead", &["other bytes"]),
    ("event", "+0 event peer-closed", &["no such event"]),
    ("event_reason", "+0 < R 1:1(0)\n+0 event closed graceful", &["another event", "closed reset"]),
    ("unnamed_end", "+0 < R 1:1(0)", &["an unexpected event", "closed reset"]),
    ("state", "+0 state SYN-SENT", &["another state", "ESTABLISHED"]),
    ("value", "+0 cwnd = 7\n", &["another value", "cwnd = 7", "cwnd = 10000"]),
];

/// Lines that the parser has to refuse.
const MEANINGLESS: [&str; 10] = [
    "+0 < . 1:2(2) ack 1",
    "+0 < . 1:1(0)",
    "+0 < X 1:1(0)",
    "+0 < . 1:1(0) ack 1 <sack>",
    "+0 < . 1:1(0) ack 1 <foo>",
    "+x connect",
    "+0 conect",
    "+0 icmp too-big mtu=1000",
    "+0 counter nothing=1",
    "config mtu=1000",
];

pub(crate) fn all() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("runner/right", right),
        Trial::test("runner/cut", cut),
        Trial::test("runner/meaningless", meaningless),
        Trial::test("runner/settings", settings),
    ];
    for (name, rest, complaints) in WRONG {
        trials.push(Trial::test(format!("runner/wrong_{name}"), move || wrong(rest, complaints)));
    }
    trials
}

/// The opening lines succeed alone, and together with correct lines.
fn right() -> Result<(), Failed> {
    let rest = "+0 send 500\n+0 > P. 1:501(500) ack 1\n+.01 < . 1:1(0) ack 501 win 9000\n+0 cwnd = 10000\n\
        +0 state ESTABLISHED\n+0 event established\n+0 counter tx_acks=1\n+0 quiet 5s";
    Ok(run("right", &format!("{OPEN}{rest}"))?)
}

fn wrong(rest: &str, parts: &[&str]) -> Result<(), Failed> {
    complains(&format!("{OPEN}{rest}"), parts)
}

fn complains(script: &str, parts: &[&str]) -> Result<(), Failed> {
    let Err(complaint) = run("wrong", script) else { return Err("it passes".into()) };
    match parts.iter().find(|part| !complaint.contains(**part)) {
        Some(part) => Err(format!("`{part}` is not in\n{complaint}").into()),
        None => Ok(()),
    }
}

/// A part of a segment that the script gave the stack with `send` has to be marked as `cut` when the part is
/// first sent, and only then.
fn cut() -> Result<(), Failed> {
    let cut = format!(
        "{OPEN}+0 send 900\n+0 > P. 1:901(900) ack 1\n+.01 icmp too-big mtu=576 seq=1\n\
        +0 > . 1:537(536) ack 1 CUT\n+0 > P. 537:901(364) ack 1 CUT"
    );
    run("cut", &cut.replace("CUT", "cut"))?;
    complains(&cut.replace("CUT", ""), &["a part of a segment"])?;
    let whole = "+0 send 900\n+0 > P. 1:901(900) ack 1 cut";
    wrong(whole, &["a segment as it was pushed"])
}

fn meaningless() -> Result<(), Failed> {
    MEANINGLESS.iter().try_for_each(|line| wrong(line, &[line]))
}

fn settings() -> Result<(), Failed> {
    run("settings", &format!("config mtu=1400 ip=6 sack=off\n{OPEN}"))?;
    let wrong = ["mtu", "tuna=1", "mtu=x", "sack=maybe", "congestion=vegas"];
    wrong.iter().try_for_each(|setting| complains(&format!("config {setting}\n{OPEN}"), &[setting]))
}
