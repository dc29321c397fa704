//! Runs the reference models as subprocesses.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Runs a Python script with `input` on its standard input, and returns the script's output. The script can
/// import the reference models. Panics if the script fails or if the machine has no Python 3.
pub(crate) fn oracle(script: &str, input: &str) -> String {
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference");
    let mut child = Command::new("python3")
        .args(["-B", "-c", script])
        .env("PYTHONPATH", reference)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed to run the reference models (`scripts/install test`)");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("the model ends");
    writer.join().unwrap().expect("the model reads its input");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("hexadecimal")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
