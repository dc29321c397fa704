//! Lines of output. A reader that has gone away, as the other end of a closed pipe, is no reason to end a
//! test or a server. `println!` and `eprintln!` would panic.

use std::io::{Write, stderr, stdout};

/// Prints a line on standard output and flushes it.
pub fn say(line: &str) {
    let mut out = stdout().lock();
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints a line on standard error.
pub fn tell(line: &str) {
    let _gone = writeln!(stderr().lock(), "{line}");
}
