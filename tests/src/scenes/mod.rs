//! Our verbs against a target of `tests/iwprobe/TARGET.md`: private data requests scenes, and the target's
//! report has the observations of the other end.
//!
//! [`words`] parses the target's messages. [`Lab`] makes the connections in either direction.

mod lab;
mod words;

pub use lab::{Lab, Role, Session};
pub use words::{Change, Completion, Report, StagWord, Stage};

use std::time::Duration;

/// Time limit for actions of the peer, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);
