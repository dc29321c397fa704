//! What `iwperf` prints when a test cannot start: one line that says what to do.

use std::process::Command;

/// What it prints for `options`, which fail.
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

/// A wire of this process alone, in memory.
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
