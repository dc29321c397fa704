//! Objects for tests, such as namespaces, links, processes and virtual machines. Each object is a Rust value.
//! When the value is dropped, the object is removed.
//!
//! This module needs Linux, and its namespaces need root. A suite first checks what the machine lacks
//! ([`missing`]). If something is missing, the suite reports this and counts as skipped.

pub mod evidence;
pub mod namespace;
pub mod nic;
pub mod process;
pub mod programs;
pub mod scratch;
pub mod siw;
pub mod suite;

pub use evidence::Evidence;
pub use namespace::{Namespace, Wire, veth};
pub use nic::{NicConfig, NicLab, NicMachine};
pub use process::{Ended, Process, Run};
pub use scratch::Scratch;
pub use siw::{Driver, Siw, SiwConfig, tcp_listeners};
pub use suite::{Prerequisite, Suite, missing};

/// An error as text for people, with the command that failed and its output.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct LabError(pub String);

impl LabError {
    /// Returns an error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<std::io::Error> for LabError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<iwarp::verbs::VerbsError> for LabError {
    fn from(error: iwarp::verbs::VerbsError) -> Self {
        Self(error.to_string())
    }
}

/// The result of this module's functions.
pub type Result<T> = std::result::Result<T, LabError>;

/// Returns an error from a format string.
#[macro_export]
macro_rules! lab_error {
    ($($arg:tt)*) => { $crate::lab::LabError(format!($($arg)*)) };
}

/// Returns from the function with an error unless the condition is true.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($arg:tt)*) => {
        if !$condition {
            return Err($crate::lab_error!($($arg)*));
        }
    };
}
