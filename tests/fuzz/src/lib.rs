//! Coverage-guided fuzzing. A target is a pure function of its input, with virtual time and fixed seeds. Each
//! execution creates all its objects, except packet buffers, which it has to return. A target panics when a
//! rule is broken.
//!
//! | file | what |
//! |---|---|
//! | `input.rs` | interprets bytes as choices, so that every input is a valid program |
//! | `archive.rs` | a corpus as one file |
//! | `sim.rs` | the simulator's parser of frames and rules on the wire |
//! | `target/` | the targets: how they run an input, and their rules |
//! | `bin/fuzz.rs` | libFuzzer on a target, by `scripts/fuzz` |
//! | `bin/corpus.rs` | corpora between files and archives, the record of all runs |
//! | `../tests/replay.rs` | replays the corpora and random inputs, in the ordinary test run |

pub mod archive;
pub mod input;
pub mod sim;
pub mod target;

pub use target::{Target, named};
