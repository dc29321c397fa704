//! Coverage-guided fuzzing. A target is a pure function of its input: virtual time, fixed seeds, everything
//! made anew but packet buffers, which each execution has to give back. It panics where a rule is broken, and
//! does nothing else with what it finds.
//!
//! | file | what |
//! |---|---|
//! | `input.rs` | bytes read as choices: every input is a program, however it was cut |
//! | `archive.rs` | a corpus as one file |
//! | `sim.rs` | the parser of frames and the rules on the wire, which are the simulator's |
//! | `target/` | the targets: what they do with an input, and what must hold |
//! | `bin/fuzz.rs` | libFuzzer on a target, by `scripts/fuzz` |
//! | `bin/corpus.rs` | corpora between files and archives, the record of all runs |
//! | `../tests/replay.rs` | the corpora, and inputs nobody chose, in the ordinary test run |

pub mod archive;
pub mod input;
pub mod sim;
pub mod target;

pub use target::{Target, named};
