//! The layout of the crates' sources: a type name stands for one type ([`names`]), and file modules use each
//! other in one direction only ([`circles`]).
//!
//! The order of the folders of `iwarp` and `tcp-lite` is not checked here, but by a test of each.

mod circles;
mod names;
#[path = "../../../iwarp/tests/layout/paths.rs"]
#[expect(dead_code, reason = "only its words are used, not its paths")]
mod paths;
mod source;
