//! The table of measures in one run: each is a ratio of two figures taken on the same cores in turn, one of uwarp and one
//! of what it is held against.
//!
//! | file | what |
//! |---|---|
//! | `cli` | the options, and how long everything takes |
//! | `measure` | the rows: unit, which way is better, goal and aim |
//! | `sample` | pairs, their median and spread, verdicts |
//! | `session` | one run: what it has, and what came of it |
//! | `vhost`, `over_vhost` | two `iwperf` on a vhost-user wire, and the rows measured on it |
//! | `kernel` | the kernel's TCP between two namespaces: `iperf3`, and small messages by `kernel-tcp` |
//! | `in_memory` | rows measured by the program `measure` on a wire in memory |
//! | `loss` | the row over a wire that loses, made by `bad-wire` |
//! | `limits` | what the wire and the memory can do: bare frames by `bare-wire`, copies and CRCs |
//! | `told` | what a program's last line says |
//! | `machine`, `table`, `json`, `plots` | what is shown |
//!
//! It runs programs, pins them and reads what they print; it has no protocol and no data path of its own.

#![forbid(unsafe_code)]

pub mod cli;
pub mod in_memory;
pub mod json;
pub mod kernel;
pub mod limits;
pub mod loss;
pub mod machine;
pub mod measure;
pub mod over_vhost;
pub mod plots;
pub mod sample;
pub mod session;
pub mod table;
pub mod told;
pub mod vhost;
