//! Namespaces, links, processes and virtual machines for tests. Dropping the value of such an object removes
//! the object.
//!
//! This module needs root and Linux. A suite first checks what the machine lacks ([`missing`]); then it can
//! report this, and count as skipped.

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
pub use siw::{Siw, SiwConfig};
pub use suite::{Prerequisite, Suite, missing};

/// An error for people: with the command and its output.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LabError(pub String);

impl LabError {
    /// An error with this text.
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

/// Results of this module.
pub type Result<T> = std::result::Result<T, LabError>;

/// An error from a format string.
#[macro_export]
macro_rules! lab_error {
    ($($arg:tt)*) => { $crate::lab::LabError(format!($($arg)*)) };
}

/// Leaves the function with an error unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($arg:tt)*) => {
        if !$condition {
            return Err($crate::lab_error!($($arg)*));
        }
    };
}
