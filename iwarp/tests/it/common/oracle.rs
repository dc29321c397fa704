//! The reference models, which run as subprocesses, and helpers of the tests that use them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Runs a Python script over `input`, with the reference models in its path, and returns its output. The
/// test fails with a message if the machine has no Python 3.
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

/// A seeded generator: a failure can be repeated.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Less than `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// True once in `n` draws.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}
