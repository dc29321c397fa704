//! The tests of `iwperf`, and of its open loop, in one program, so that the crates are linked once.
//!
//! | module | what |
//! |---|---|
//! | `common` | runs `iwperf` |
//! | `local` | `iwperf local`, all tests in one process |
//! | `wire`, `interrupted` | client and server in two processes |
//! | `output`, `log`, `terminal`, `start_errors` | what a run prints, and on a terminal shows |
//! | `documents` | completions and man pages |
//! | `inside` | the view of other programs on a run |
//! | `open_loop` | load at a given rate |

mod common;

mod documents;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod interrupted;
mod local;
#[cfg(feature = "tracing")]
mod log;
mod open_loop;
mod output;
mod start_errors;
#[cfg(target_os = "linux")]
mod terminal;
mod wire;
