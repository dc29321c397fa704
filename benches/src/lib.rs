//! `iwperf`: bandwidth and latency of iWARP, for people who know perftest.
//!
//! | file | what |
//! |---|---|
//! | `cli` | the command line |
//! | `params` | a test with nothing left to default |
//! | `net`, `driver`, `endpoint` | a port, who polls its engine, connections and time-outs |
//! | `perftest` | the exchange of `ib_* -R`, as client and as server |
//! | `private`, `private_report` | what only two iwperfs say to each other |
//! | `path`, `validate` | queue pairs, memory, credits; patterns and their check |
//! | `runs`, `gate`, `latency`, `rate` | the measurements; when cores begin; when messages of a given rate are due |
//! | `ping` | rping |
//! | `local` | both ends in one process |
//! | `table`, `description`, `json`, `output`, `progress`, `profile`, `report` | what is shown |
//! | `callgrind` | counts a program's instructions, for what must not depend on how busy the machine is |
//! | `two_hosts` | two hosts on a wire in memory, for what counts or times parts of the data path |
//! | `plot` | charts and pages of them, for `report` and other measurements |
//!
//! Nothing here is a protocol: both ends are users of [`iwarp::verbs`] like any other.

#![forbid(unsafe_code)]

pub mod app;
pub mod callgrind;
pub mod cli;
mod description;
pub mod driver;
pub mod endpoint;
pub mod errors;
pub mod gate;
pub mod json;
pub mod latency;
pub mod local;
pub mod net;
pub mod output;
pub mod params;
pub mod path;
pub mod patience;
pub mod perftest;
pub mod ping;
pub mod plot;
pub mod private;
pub mod private_report;
pub mod profile;
pub mod progress;
pub mod rate;
pub mod report;
pub mod runs;
pub mod table;
pub mod two_hosts;
pub mod validate;
