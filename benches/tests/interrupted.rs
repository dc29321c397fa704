//! Ctrl-C at either end of a test over a wire between two processes: both print what was measured so far.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A process, and what it has printed.
struct Ran {
    status: Option<i32>,
    out: String,
    err: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

fn start(wire: &str, last: u8, words: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(words.split_whitespace())
        .args(["--wire", wire, "--ip", &format!("100.64.0.{last}/16")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built with this test")
}

/// The end of a process whose output is `out`.
fn finish(mut child: Child, mut out: impl Read) -> Ran {
    let mut ran = Ran { status: None, out: String::new(), err: String::new() };
    out.read_to_string(&mut ran.out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut ran.err).unwrap();
    ran.status = child.wait().unwrap().code();
    ran
}

/// Runs the client's test, and interrupts one side when it has run for a while. Returns client and server.
fn interrupt(side: Side, test: &str) -> [Ran; 2] {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let wire = format!("int-{}-{number}", std::process::id());
    let mut server = start(&wire, 1, "server --timeout 30");
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert!(first.contains("listening"), "{first}");
    let mut client = start(&wire, 2, &format!("{test} --timeout 30"));
    let mut accepted = String::new();
    lines.read_line(&mut accepted).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let id = if side == Side::Client { client.id() } else { server.id() };
    kill_process(Pid::from_raw(id as i32).unwrap(), Signal::INT).unwrap();
    let output = client.stdout.take().unwrap();
    [finish(client, output), finish(server, lines)]
}

/// The messages of the last row.
fn messages(ran: &Ran) -> f64 {
    let numbers = |line: &str| line.split_whitespace().map(|w| w.parse().ok()).collect::<Option<Vec<f64>>>();
    let rows: Vec<_> = ran.out.lines().filter_map(numbers).filter(|row| row.len() >= 5).collect();
    rows.last().unwrap_or_else(|| panic!("no row: {}\n{}", ran.out, ran.err))[1]
}

#[test]
fn a_client_ends_a_test_in_one_direction_in_order() {
    for test in
        ["write-bw 100.64.0.1 -D 60", "send-bw 100.64.0.1 -n 100000000", "read-bw 100.64.0.1 -a -n 100000000"]
    {
        let [client, server] = interrupt(Side::Client, test);
        assert_eq!((client.status, server.status), (Some(130), Some(0)), "{test}: {}", server.err);
        assert!(
            client.out.contains("interrupted: the last row") && messages(&client) > 0.0,
            "{}",
            client.out
        );
        assert!(server.out.contains("the peer was interrupted"), "{test}: {}", server.out);
        assert_eq!(messages(&client), messages(&server), "{test}");
    }
}

#[test]
fn other_tests_tell_what_was_measured_at_both_ends() {
    for (side, test) in [
        (Side::Client, "write-bw 100.64.0.1 -b -D 60"),
        (Side::Client, "send-lat 100.64.0.1 -D 60"),
        (Side::Server, "write-bw 100.64.0.1 -D 60"),
        (Side::Server, "write-lat 100.64.0.1 -n 100000000"),
        (Side::Server, "read-bw 100.64.0.1 -D 60"),
    ] {
        let ran = interrupt(side, test);
        let (here, there) = if side == Side::Client { (0, 1) } else { (1, 0) };
        assert_eq!((ran[here].status, ran[there].status), (Some(130), Some(1)), "{test}");
        assert!(ran[here].out.contains("interrupted"), "{test}: {}", ran[here].out);
        assert!(ran[there].out.contains("ended early"), "{test}: {}", ran[there].out);
        assert!(ran[there].err.ends_with("reset by the peer\n"), "{test}: {}", ran[there].err);
        assert!(messages(&ran[0]) > 0.0 && messages(&ran[1]) > 0.0, "{test}");
    }
}

/// Interrupts the client of an endless test: it has shown a row every second, and ends the test in order.
fn end_endless(test: &str) {
    let [client, server] = interrupt(Side::Client, &format!("{test} --run_infinitely -D 1"));
    assert_eq!((client.status, server.status), (Some(130), Some(0)), "{test}: {}", server.err);
    let size = test.split_once("-s ").map_or("65536", |(_, rest)| rest.split(' ').next().unwrap());
    let rows =
        |ran: &Ran| ran.out.lines().filter(|line| line.split_whitespace().next() == Some(size)).count();
    assert!(rows(&client) >= 2 && rows(&server) >= 1, "{test}: {}{}", client.out, server.out);
    assert!(messages(&client) > 0.0 && messages(&server) > 0.0, "{test}");
    assert!(server.out.contains("the peer was interrupted"), "{test}: {}", server.out);
}

#[test]
fn an_endless_run_in_one_direction_has_a_row_every_period() {
    for test in ["write-bw", "read-bw", "send-bw", "write-imm-bw"] {
        end_endless(&format!("{test} 100.64.0.1"));
    }
    end_endless("atomic-bw 100.64.0.1 -s 8 -q 2");
}

#[test]
fn an_endless_run_of_both_ends_stops_both() {
    for test in ["write-bw", "read-bw", "send-bw", "write-imm-bw"] {
        end_endless(&format!("{test} 100.64.0.1 -b"));
    }
    end_endless("send-bw 100.64.0.1 -b -s 5000 --validate -q 3 -r 40");
}
