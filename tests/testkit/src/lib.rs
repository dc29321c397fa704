//! Shared by the tests of several crates, each of which has it as a dev-dependency. It depends on no crate of
//! the workspace.
//!
//! | module | contents |
//! |---|---|
//! | `chapter` | the blocks of code in a chapter of the guide |
//! | `dice` | seeded random numbers |
//! | `idle` | whether processes rest that have nothing to do |
//! | `process` | the time of a process on processors, and how often it wakes |

#![forbid(unsafe_code)]

pub mod chapter;
pub mod dice;
pub mod idle;
pub mod process;
