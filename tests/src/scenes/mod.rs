//! Our verbs with a target of `tests/iwprobe/TARGET.md`. Our private data request scenes, and the target's
//! report tells what the target observed.
//!
//! [`words`] parses the target's messages. [`Lab`] makes the connections, as the side that connects or as the
//! side that listens.

mod lab;
mod words;

pub use lab::{Lab, Role, Session};
pub use words::{Change, Completion, Report, StagWord, Stage};

use std::time::Duration;

/// Maximum time to wait for an action of the peer, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);
