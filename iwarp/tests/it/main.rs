//! The tests of this crate in one program, so that the crate is linked once.
//!
//! | folder | what |
//! |---|---|
//! | `common` | the testbed, and other helpers |
//! | `mpa`, `ddp`, `rdmap`, `ext` | the protocols and their extensions, mostly byte by byte |
//! | `startup` | MPA startup, streaming mode, and listeners |
//! | `stream` | the messages of a connection, mostly from a bare TCP peer |
//! | `verbs`, `engine` | the verbs and the engine, mostly with two engines on a wire |
//! | `security` | hostile peers |
//! | `status` | the status that processes report |
//! | `model` | long random runs against a model |
//!
//! Some tests need a program of their own: `memory` (`scripts/asan` runs this test), `memory_guard` (handles
//! signals of the whole process), `loom_handshakes` (compiles sources again), `metrics` (installs the
//! recorder of its program), and `examples` (needs the example programs, but not this crate).

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
#[cfg(all(feature = "status", target_os = "linux"))]
mod status;
mod stream;
mod verbs;
