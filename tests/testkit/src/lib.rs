//! Code that the tests of several crates share as a dev-dependency. Without features, this crate depends on
//! no crate of the workspace.
//!
//! | module | contents |
//! |---|---|
//! | `chapter` | the blocks of code in a chapter of the guide |
//! | `dice` | seeded random numbers |
//! | `folder` | a folder among the temporary files, for one test |
//! | `idle` | whether idle processes use no processor |
//! | `packet` | frames: a parser, builders, and the reports of routers (feature `packet`) |
//! | `process` | the processor time of a process, and the number of its wake-ups |
//! | `stream` | the bytes of a test stream, by their offsets |

#![forbid(unsafe_code)]

pub mod chapter;
pub mod dice;
pub mod folder;
pub mod idle;
#[cfg(feature = "packet")]
pub mod packet;
pub mod process;
pub mod stream;
