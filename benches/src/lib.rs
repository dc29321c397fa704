//! `iwperf`: bandwidth and latency of iWARP, with perftest's options and tables.
//!
//! | file | what |
//! |---|---|
//! | `cli`, `app` | the command line, and the commands |
//! | `errors`, `lines` | the errors that end a run, and lines of output |
//! | `params` | a test with all defaults resolved |
//! | `net`, `driver`, `endpoint`, `interrupt`, `silence` | a port, the thread that polls its engine, connections and time limits, Ctrl-C, silent peers |
//! | `perftest` | the exchange of `ib_* -R`, as client and as server |
//! | `private`, `private_report` | messages between two iwperfs |
//! | `path`, `validate` | queue pairs, memory, credits; patterns and their check |
//! | `runs`, `rendezvous`, `latency`, `rate` | the measurements; the common start of several cores; the due times of messages at a given rate |
//! | `ping` | rping |
//! | `local` | both ends in one process |
//! | `cores`, `several` | a test on several cores at once; client and server on several queues of one device |
//! | `table`, `description`, `json`, `output`, `live`, `profile`, `report` | the output |
//! | `documents` | completions for shells, and man pages |
//! | `machine`, `provenance` | the place, time and method of a measurement |
//! | `shown`, `metrics` | the views of other programs on a run: `uwarp status`, `--metrics` |
//! | `log` | `--log`: events on standard error |
//! | `callgrind` | counts a program's instructions, for results that do not depend on the load of the machine |
//! | `two_hosts` | two hosts on a wire in memory, to count or time parts of the data path |
//! | `plot` | charts and pages, for `report` and other measurements |
//!
//! The crate has no code of the iWARP protocols: both sides are ordinary users of [`iwarp::verbs`].

#![forbid(unsafe_code)]

pub mod app;
pub mod callgrind;
pub mod cli;
pub mod cores;
mod description;
pub mod documents;
pub mod driver;
pub mod endpoint;
pub mod errors;
pub mod interrupt;
pub mod json;
pub mod latency;
pub mod lines;
pub mod live;
pub mod local;
pub mod log;
pub mod machine;
pub mod metrics;
pub mod net;
pub mod output;
pub mod params;
pub mod path;
pub mod perftest;
pub mod ping;
pub mod plot;
pub mod private;
pub mod private_report;
pub mod profile;
mod provenance;
pub mod rate;
pub mod rendezvous;
pub mod report;
pub mod runs;
pub mod several;
pub mod shown;
pub mod silence;
pub mod table;
pub mod two_hosts;
pub mod validate;
