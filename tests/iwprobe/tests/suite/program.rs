//! Tests of the program as users see it, for example its exit statuses, one-line errors, JSON, and
//! expectation files.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::small::{Flaw, start};

fn iwprobe(address: SocketAddr, options: &[&str]) -> Output {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let program = env!("CARGO_BIN_EXE_iwprobe");
    let quick = ["--quiet", "0.05", "--wait", "0.2"];
    let timeout = if options.contains(&"--timeout") { &[][..] } else { &["--timeout", "2"] };
    let command = ["connect", &ip, &port];
    Command::new(program).args(command).args(quick).args(timeout).args(options).output().unwrap()
}

fn bare(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_iwprobe")).args(arguments).output().unwrap()
}

/// Starts a server that is no iWARP endpoint, and calls `serve` with each connection.
fn other(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    address
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a file of one test in cargo's directory for temporary files (`CARGO_TARGET_TMPDIR`), and returns
/// its path.
fn file(name: &str, content: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn nothing_that_deviates_is_0_and_something_is_1() {
    let good = iwprobe(start(Flaw::None), &["--case", "queue-4"]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stdout));
    assert!(text(&good.stdout).contains("1 case: 1 conform, 0 deviate"));
    let bad = iwprobe(start(Flaw::NoTerminate), &["--case", "queue-4"]);
    assert_eq!(bad.status.code(), Some(1));
    let said = text(&bad.stdout);
    assert!(said.contains("expected Terminate 1/2/01, got FIN") && said.contains("> Send QN 4"), "{said}");
}

#[test]
fn nobody_there_and_wrong_usage_are_2_in_one_line() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unknown = file("unknown", "no-such-case\n");
    for output in [
        iwprobe(nobody, &[]),
        iwprobe(start(Flaw::None), &["--case", "no-such-case"]),
        iwprobe(start(Flaw::None), &["--expect", &unknown]),
        iwprobe(start(Flaw::None), &["--expect", "/nonexistent/file"]),
        iwprobe(start(Flaw::None), &["--timeout", "soon"]),
        iwprobe(start(Flaw::None), &["--row", "XYZ-001"]),
        iwprobe(start(Flaw::None), &["--case", "queue-4", "--json", "/nonexistent/file"]),
        iwprobe(SocketAddr::new(nobody.ip(), 0), &[]),
        bare(&["listen", "nowhere", "1"]),
        bare(&["connect"]),
        bare(&["dance"]),
        bare(&["--row", "DDP-047"]),
    ] {
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        let said = text(&output.stderr);
        assert!(said.starts_with("iwprobe: ") && said.trim_end().lines().count() == 1, "{said}");
    }
}

#[test]
fn an_expectation_is_held_against_both_directions() {
    let listed = file("listed", "# known\nqueue-4   closes without a word\n");
    let cases = ["--case", "queue-", "--expect", &listed];
    let known = iwprobe(start(Flaw::NoTerminate), &["--case", "queue-4", "--expect", &listed]);
    assert_eq!(known.status.code(), Some(0), "{}", text(&known.stdout));
    assert!(text(&known.stdout).contains("deviates (expected)"));
    let more = iwprobe(start(Flaw::NoTerminate), &cases);
    assert_eq!(more.status.code(), Some(1));
    assert!(text(&more.stderr).contains("iwprobe: queue-largest deviates"), "{}", text(&more.stderr));
    let fewer = iwprobe(start(Flaw::None), &cases);
    assert_eq!(fewer.status.code(), Some(1));
    assert!(text(&fewer.stderr).contains("iwprobe: queue-4 conforms now"), "{}", text(&fewer.stderr));
}

#[test]
fn an_endpoint_that_is_gone_is_given_up() {
    let output = iwprobe(start(Flaw::Dies), &["--timeout", "0.1", "--case", "write", "--case", "queue"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("the endpoint is not there any more"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("cannot connect"), "{}", text(&output.stdout));
}

#[test]
fn what_speaks_no_mpa_is_told_in_its_own_words() {
    let http = other(|mut stream| {
        let mut request = [0; 1024];
        // The content of the request does not matter.
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let output = iwprobe(http, &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    let wanted = format!("iwprobe: {} port {}: expected an accepting MPA Reply, got", http.ip(), http.port());
    assert!(said.starts_with(&wanted) && said.contains("\"HTTP/1.1 400 Bad Request\""), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn what_hangs_is_left_in_bounded_time() {
    let begun = Instant::now();
    // The endpoint hangs from the start.
    let output = iwprobe(other(std::mem::forget), &["--timeout", "0.2"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("got nothing"), "{}", text(&output.stderr));
    // The endpoint hangs in the middle of the run.
    let output = iwprobe(start(Flaw::Hangs), &["--timeout", "0.2", "--case", "fpdu", "--case", "write"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("cases not run"), "{}", text(&output.stderr));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let program = env!("CARGO_BIN_EXE_iwprobe");
    let mut child =
        Command::new(program).arg("--list").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn cases_are_chosen_by_name_and_by_row() {
    let names = |arguments: &[&str]| -> Vec<String> {
        let output = bare(&[&["--list"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let entries = text(&output.stdout);
        let first = entries.lines().filter(|line| !line.starts_with(' '));
        first.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    assert_eq!(names(&["--case", "queue-4"]), ["queue-4"]);
    assert_eq!(names(&["--row", "RDMAP-134"]), ["terminate-bit-order"]);
    assert_eq!(names(&["--row", "RDMAP-134", "--case", "queue-4"]), ["queue-4", "terminate-bit-order"]);
    assert!(names(&["--row", "MPA2-"]).len() > 10);
}

/// The JSON has exactly the names that README.md lists, since readers rely on them.
#[test]
fn json_has_the_names_that_are_documented() {
    let output = iwprobe(start(Flaw::None), &["--case", "queue-4", "--json", "-"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let readme = include_str!("../../README.md");
    let mut known = Vec::new();
    for value in [&told, &told["cases"][0], &told["cases"][0]["wire"][0]] {
        known.extend(value.as_object().unwrap().keys().cloned());
    }
    let rows = readme.split("## JSON").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut documented: Vec<String> = rows
        .flat_map(|row| {
            let cell = row.split('|').next().unwrap();
            cell.split(", ").map(|name| name.trim().trim_matches('`').to_owned()).collect::<Vec<_>>()
        })
        .collect();
    known.sort();
    documented.sort();
    assert_eq!(known, documented);
    assert_eq!(told["format"], 1);
}

#[test]
fn json_holds_what_passed() {
    let output = iwprobe(start(Flaw::None), &["--case", "queue-4", "--json", "-"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((told["conforms"].as_u64(), told["deviates"].as_u64()), (Some(1), Some(0)));
    let case = &told["cases"][0];
    assert_eq!((case["name"].as_str(), case["verdict"].as_str()), (Some("queue-4"), Some("conforms")));
    let wire = case["wire"].as_array().unwrap();
    let last = wire.iter().rfind(|passed| passed["way"] == "received").unwrap();
    assert!(last["text"].as_str().unwrap().starts_with("Terminate"), "{last}");
    assert!(last["bytes"].as_str().unwrap().starts_with("4147"), "{last}");
}

#[test]
fn all_cases_can_be_listed() {
    let output = Command::new(env!("CARGO_BIN_EXE_iwprobe")).arg("--list").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    assert!(said.contains("write-unknown-stag") && said.contains("DDP-180"), "{said}");
}
