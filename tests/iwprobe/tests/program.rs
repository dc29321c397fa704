//! The program as its users have it: exit statuses, one-line errors, JSON, expectation files.

mod small;

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use small::{Flaw, start};

fn iwprobe(address: SocketAddr, options: &[&str]) -> Output {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let program = env!("CARGO_BIN_EXE_iwprobe");
    let quick = ["--quiet", "0.05", "--wait", "0.2"];
    let timeout = if options.contains(&"--timeout") { &[][..] } else { &["--timeout", "2"] };
    let command = ["connect", &ip, &port];
    Command::new(program).args(command).args(quick).args(timeout).args(options).output().unwrap()
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// A file of its own for each test, in the folder that cargo gives for them.
fn file(name: &str, content: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn nothing_that_deviates_is_0_and_something_is_1() {
    let good = iwprobe(start(Flaw::None), &["--case", "queue-4"]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stdout));
    assert!(text(&good.stdout).contains("1 cases: 1 conform, 0 deviate"));
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
        Command::new(env!("CARGO_BIN_EXE_iwprobe")).args(["listen", "nowhere", "1"]).output().unwrap(),
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
fn json_holds_what_passed() {
    let output = iwprobe(start(Flaw::None), &["--case", "queue-4", "--json", "-"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((told["conforms"].as_u64(), told["deviates"].as_u64()), (Some(1), Some(0)));
    let case = &told["cases"][0];
    assert_eq!((case["name"].as_str(), case["verdict"].as_str()), (Some("queue-4"), Some("conforms")));
    let wire = case["wire"].as_array().unwrap();
    let last = wire.iter().rfind(|passed| passed["way"] == "received").unwrap();
    assert!(last["text"].as_str().unwrap().starts_with("Terminate"), "{last}");
    assert!(last["octets"].as_str().unwrap().starts_with("4147"), "{last}");
}

#[test]
fn all_cases_can_be_listed() {
    let output = Command::new(env!("CARGO_BIN_EXE_iwprobe")).arg("--list").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    assert!(said.contains("write-unknown-stag") && said.contains("DDP-180"), "{said}");
}
