//! Ctrl-C on either side of a test over a wire between two processes. Both sides print the results so far.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::folder::Folder;

/// Maximum duration of any step, even if other programs use the processors.
const PATIENCE: Duration = Duration::from_secs(30);

/// Minimum number of FPDUs of a test that is in progress. Fewer FPDUs are outstanding at a time, so some
/// messages are complete.
const FPDUS: u64 = 1000;

/// The folder of a wire, and of the status sockets of its processes.
struct WireFolder(Folder);

impl WireFolder {
    fn new() -> Self {
        Self(Folder::new("iwperf-interrupted"))
    }

    fn start(&self, last: u8, words: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_iwperf"))
            .args(words.split_whitespace())
            .args(["--wire", "wire", "--ip", &format!("100.64.0.{last}/16"), "--timeout", "30"])
            .env("UWARP_DIR", &*self.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built with this test")
    }

    /// Returns the number of FPDUs that both processes together have received so far.
    fn fpdus(&self) -> u64 {
        let processes = iwarp::status::processes(&self.0.join(".status")).unwrap().answered;
        let engines = processes.iter().flat_map(|process| &process.engines);
        engines.map(|engine| engine.counters["uwarp_rx_fpdus_total"]).sum()
    }

    /// Waits until messages of the test arrive.
    fn wait_for_messages(&self) {
        let (begun, before) = (Instant::now(), self.fpdus());
        while self.fpdus() < before + FPDUS {
            assert!(begun.elapsed() < PATIENCE, "{} FPDUs", self.fpdus());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The exit status of a process, and its output.
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

/// Whether a line is the row of a message of this size.
fn is_row(line: &str, size: &str) -> bool {
    line.split_whitespace().next() == Some(size)
}

/// Waits until a process has ended. The process has printed `so_far`, and prints the rest of its output to
/// `out`.
fn finish(mut child: Child, so_far: String, mut out: impl Read) -> Ran {
    let mut ran = Ran { status: None, out: so_far, err: String::new() };
    out.read_to_string(&mut ran.out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut ran.err).unwrap();
    ran.status = child.wait().unwrap().code();
    ran
}

/// Runs the client's test, and interrupts one side when messages have arrived. If `row` is given, the client
/// must first have printed a row for messages of this size. Returns the client and the server.
fn interrupt(side: Side, test: &str, row: Option<&str>) -> [Ran; 2] {
    let folder = WireFolder::new();
    let mut server = folder.start(1, "server");
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert!(first.contains("listening"), "{first}");
    let mut client = folder.start(2, test);
    let mut output = BufReader::new(client.stdout.take().unwrap());
    let mut printed = String::new();
    while row.is_some_and(|size| printed.lines().all(|line| !is_row(line, size))) {
        assert!(output.read_line(&mut printed).unwrap() > 0, "the client has ended: {printed}");
    }
    folder.wait_for_messages();
    let id = if side == Side::Client { client.id() } else { server.id() };
    kill_process(Pid::from_raw(id as i32).unwrap(), Signal::INT).unwrap();
    [finish(client, printed, output), finish(server, first, lines)]
}

/// Returns the number of messages in the last row.
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
        let [client, server] = interrupt(Side::Client, test, None);
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
        let ran = interrupt(side, test, None);
        let (here, there) = if side == Side::Client { (0, 1) } else { (1, 0) };
        assert_eq!((ran[here].status, ran[there].status), (Some(130), Some(1)), "{test}");
        assert!(ran[here].out.contains("interrupted"), "{test}: {}", ran[here].out);
        assert!(ran[there].out.contains("ended early"), "{test}: {}", ran[there].out);
        assert!(
            ran[there].err.ends_with("the peer was interrupted, by Ctrl-C or SIGTERM\n"),
            "{test}: {}",
            ran[there].err
        );
        assert!(messages(&ran[0]) > 0.0 && messages(&ran[1]) > 0.0, "{test}");
    }
}

/// Interrupts the client of an endless test. The client has printed a row every second, and ends the test in
/// an orderly way.
fn end_endless(test: &str) {
    let size = test.split_once("-s ").map_or("65536", |(_, rest)| rest.split(' ').next().unwrap());
    let [client, server] = interrupt(Side::Client, &format!("{test} --run_infinitely -D 1"), Some(size));
    assert_eq!((client.status, server.status), (Some(130), Some(0)), "{test}: {}", server.err);
    let rows = |ran: &Ran| ran.out.lines().filter(|line| is_row(line, size)).count();
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
