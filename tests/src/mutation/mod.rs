//! Mutations: edits that break the code on purpose, to check that tests find them. The edits are applied one
//! at a time, in a copy of the tree.
//!
//! | file | what |
//! |---|---|
//! | `edit.rs` | one edit of one file |
//! | `tree.rs` | the copy |
//! | `campaign.rs` | the choice of edits, and the output |
//!
//! There are two suites. [`conformance::trial`](crate::conformance::trial) breaks requirements; for each
//! requirement, at least one of the tests that name it has to fail.
//! [`sim::defect_trial`](crate::sim::defect_trial) breaks the protocols; a run of the simulator has to fail.

mod campaign;
mod edit;
mod tree;

pub use campaign::{Choice, Suite, run};
pub use edit::{Edit, digest, function_text};
pub use tree::Tree;
