//! The tests of this crate in one program, so that the crate is linked once.
//!
//! | folder | what |
//! |---|---|
//! | `common` | the testbed, and other helpers |
//! | `mpa`, `ddp`, `rdmap`, `ext` | the protocols, byte by byte |
//! | `startup` | MPA startup, and listeners |
//! | `stream` | the messages of a connection, from a bare TCP peer |
//! | `verbs`, `engine` | two engines on a wire |
//! | `security` | hostile peers |
//! | `model` | long random runs against a model |
//!
//! Some tests need a program of their own: `memory` (`scripts/asan` runs this test), `memory_guard` (handles
//! signals of the whole process), `loom_handshakes` (compiles sources again), `local_wire` and `status`
//! (start further processes), `metrics` (installs the recorder of its program), and `examples` (starts the
//! example programs).

#[macro_use]
mod common;

mod ddp;
mod engine;
mod ext;
mod model;
mod mpa;
mod rdmap;
mod security;
mod startup;
mod stream;
mod verbs;
