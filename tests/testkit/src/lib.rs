//! Shared by the tests of several crates, each of which has it as a dev-dependency. Without its features it
//! depends on no crate of the workspace.
//!
//! | module | contents |
//! |---|---|
//! | `chapter` | the blocks of code in a chapter of the guide |
//! | `dice` | seeded random numbers |
//! | `idle` | whether processes rest that have nothing to do |
//! | `packet` | frames: a parser, builders, and the reports of routers (feature `packet`) |
//! | `process` | the time of a process on processors, and how often it wakes |

#![forbid(unsafe_code)]

pub mod chapter;
pub mod dice;
pub mod idle;
#[cfg(feature = "packet")]
pub mod packet;
pub mod process;
