//! Client and server in two processes on a wire: every test runs with `--validate`. Also, wrong names of a
//! server are refused before the run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server that is killed when the value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn iwperf(wire: &str, last: u8, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_iwperf"));
    command.args(words.split_whitespace());
    command.args(["--wire", wire, "--ip", &format!("100.64.0.{last}/16"), "--timeout", "30"]);
    command
}

fn serve(wire: &str, words: &str) -> Server {
    let mut command = iwperf(wire, 1, words);
    let mut server =
        Server(command.stdout(Stdio::piped()).spawn().expect("the binary was built with this test"));
    let mut lines = BufReader::new(server.0.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert!(first.contains("listening"), "{first}");
    // The rest of the pipe is read, since the server continues to write to it.
    std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
    server
}

#[test]
fn every_test_runs_between_two_processes() {
    let wire = format!("tests-{}", std::process::id());
    let _server = serve(&wire, "server -P -p 4321");
    for test in [
        "write-bw",
        "read-bw",
        "send-bw",
        "write-imm-bw",
        "atomic-bw",
        "write-lat",
        "read-lat",
        "send-lat",
        "atomic-lat",
    ] {
        for options in ["-n 50", "-n 50 --perform_warm_up", "-D 1"] {
            let words = format!("{test} 100.64.0.1 -p 4321 --validate {options}");
            let output = iwperf(&wire, 2, &words).output().unwrap();
            let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            assert!(output.status.success() && out.contains("every byte as sent"), "{words}: {err}\n{out}");
        }
    }
}

#[test]
fn a_name_without_an_address_of_our_family_is_refused_before_the_run() {
    for (name, word) in [("no-such-host.invalid", "no address of this name"), ("10.0.0.1:99", "already")] {
        let output = iwperf("unused", 2, &format!("write-bw {name} -p 4321")).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(word) && err.lines().count() == 1, "{err}");
    }
}
