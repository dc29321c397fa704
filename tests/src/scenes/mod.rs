//! Our verbs against a target of `tests/iwprobe/TARGET.md`: scenes are asked for in private data, what the other end
//! saw is told by its report.
//!
//! [`words`] reads what a target says; [`Lab`] makes the connections, whoever listens.

mod lab;
mod words;

pub use lab::{Lab, Role, Session};
pub use words::{Change, Completion, Report, StagWord, Stage};

use std::time::Duration;

/// The longest message of the protocol.
pub const MAX_TEXT: usize = 192;
/// Longest wait for anything that a peer does, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);
/// The pattern of what a target sends and writes.
pub const SOURCE: u64 = 100;

/// Octet `i` of pattern `k`.
pub fn pattern(k: u64, i: usize) -> u8 {
    let i = i as u64;
    ((i + 7 * (i / 256) + 59 * k + 13) % 256) as u8
}

/// The first `length` octets of pattern `k`.
pub fn patterned(k: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| pattern(k, i)).collect()
}

/// The first `length` octets of what differs from pattern `k` in each octet, and shows where it was cut.
pub fn contrary(k: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| pattern(k, i) ^ (0x80 | (i % 127) as u8)).collect()
}
