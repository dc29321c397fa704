//! A function that runs `iwperf`.

use std::process::{Command, Output};

/// Runs `iwperf local TEST OPTIONS`, and returns the output when the program has ended.
pub(crate) fn local(test: &str, options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(["local", test])
        .args(options.split_whitespace())
        .env_remove("RUST_LOG")
        .output()
        .expect("the binary was built with this test")
}
