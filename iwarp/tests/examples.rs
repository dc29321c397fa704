//! Runs the examples, and compares their output. `cargo test` builds the examples together with the tests.

use std::path::PathBuf;
use std::process::Command;

fn run(name: &str) -> String {
    // target/PROFILE/deps/examples-HASH -> target/PROFILE/examples/NAME
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    let output = Command::new(&path).output().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {stdout}{stderr}");
    stdout.into_owned()
}

#[test]
fn write_read() {
    assert_eq!(run("write_read"), "written and read back\n");
}

#[test]
fn echo() {
    let text = run("echo");
    assert_eq!(text.lines().count(), 5);
    assert!(text.ends_with("5: 12 bytes, \"hello, hello\"\n"), "{text}");
}

#[test]
fn engine_thread() {
    assert_eq!(run("engine_thread"), "16 Writes of 1048576 bytes, the last one of 15\n");
}

#[test]
fn server() {
    assert_eq!(run("server"), "8 loans: 4 given back, 4 taken back\n");
}

#[test]
fn tickets() {
    let drawn: String = (0..6).map(|n| format!("client {} draws {n}\n", n % 2)).collect();
    assert_eq!(run("tickets"), drawn + "all done\n");
}
