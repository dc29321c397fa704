//! When a test cannot start, `iwperf` prints one line that tells the user what to do.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs `iwperf` with `options`, which must fail with one line on standard error. Returns this line.
fn told(options: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(options.split_whitespace())
        .output()
        .expect("the binary was built with this test");
    assert_eq!(output.status.code(), Some(1), "{options}: {output:?}");
    let told = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    assert!(told.starts_with("iwperf: ") && !told.contains('\n'), "{options}: {told}");
    told
}

/// Returns the options for a wire in shared memory that only this process uses, and for a short timeout.
fn wire() -> String {
    format!("--wire start-errors-{} --timeout 5", std::process::id())
}

#[test]
fn a_peer_in_another_network_needs_a_gateway() {
    let told = told(&format!("write-bw 10.9.9.9 {} --ip 100.64.0.2/16", wire()));
    assert!(
        told.contains("cannot connect to 10.9.9.9:18515: its address is in no network of --ip"),
        "{told}"
    );
    assert!(told.contains("give --gateway ADDR"), "{told}");
}

#[test]
fn a_peer_that_is_not_there_has_to_be_started_first() {
    let told = told(&format!("write-bw 100.64.0.1 {} --ip 100.64.0.3/16", wire()));
    assert!(told.contains("cannot connect to 100.64.0.1:18515"), "{told}");
    assert!(told.contains("start the server first"), "{told}");
}

#[test]
fn an_interface_that_is_not_there_is_named_with_those_that_are() {
    let told = told("server --packet nope0 --ip 10.0.0.2/24");
    assert!(told.contains("there is no interface nope0 here: there are ") && told.contains("lo"), "{told}");
}

#[test]
fn an_address_in_use_names_the_process_that_has_it() {
    let options = format!("server {} --ip 100.64.0.4/16", wire());
    let mut server = Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(options.split_whitespace())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    let mut line = String::new();
    let out = server.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("it says that it listens");
    let told = std::panic::catch_unwind(|| told(&options));
    server.kill().and_then(|()| server.wait()).expect("it runs");
    let told = told.expect("the second one fails");
    assert!(told.contains(&format!("process {} has this --ip", server.id())), "{told}");
    assert!(told.contains("give another address, or stop it"), "{told}");
}
