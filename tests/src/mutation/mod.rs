//! Mutations: edits that break the code on purpose, one at a time in a copy of the tree, to check that tests
//! find them.
//!
//! | file | what |
//! |---|---|
//! | `edit.rs` | one edit of one file |
//! | `tree.rs` | the copy |
//! | `campaign.rs` | the choice of edits, and the output |
//!
//! There are two suites: [`conformance::trial`](crate::conformance::trial) breaks requirements, which the
//! tests that name them have to find; [`sim::defect_trial`](crate::sim::defect_trial) breaks the protocols,
//! which the simulator has to find.

mod campaign;
mod edit;
mod tree;

pub use campaign::{Choice, Suite, run};
pub use edit::{Edit, digest, function_text};
pub use tree::Tree;
