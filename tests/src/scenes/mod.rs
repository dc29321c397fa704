//! Our verbs against a target of `tests/iwprobe/TARGET.md`: scenes are asked for in private data, what the
//! other end saw is told by its report.
//!
//! [`words`] reads what a target says; [`Lab`] makes the connections, whoever listens.

mod lab;
mod words;

pub use lab::{Lab, Role, Session};
pub use words::{Change, Completion, Report, StagWord, Stage};

use std::time::Duration;

/// Longest wait for anything that a peer does, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);
