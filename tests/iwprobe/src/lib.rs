//! `iwprobe`: a conformance suite for iWARP endpoints of any kind.
//!
//! `iwprobe` plays one side of a connection byte by byte, over an ordinary TCP socket or a network in memory,
//! and compares the endpoint's answers with RFC 5040, 5041, 5042, 5044, 6581 and 7306. A case checks MUST and
//! MUST NOT. Where the RFCs leave a choice, every choice conforms. Each case names the rows of
//! `tests/conformance/spec` that it checks.
//!
//! | file | what |
//! |---|---|
//! | `wire` | the bytes of MPA, DDP and RDMAP, and their descriptions |
//! | `net`, `socket` | the network and the clock: of the operating system, or of a test |
//! | `conn`, `session` | a TCP connection, and a connection in full operation |
//! | `scene` | the texts exchanged with a target (TARGET.md) |
//! | `probe` | the endpoint under test, as initiator or responder |
//! | `case`, `cases` | the test cases |
//! | `watch` | rules for every segment, in all cases |
//! | `log` | the messages on the wire in one case |
//! | `cli` | the command line |
//! | `run`, `table`, `json`, `expect` | running the cases, printing and comparing the outcomes |
//!
//! iwprobe shares no code with the stack in this repository, so a bug in the stack's code is not also in
//! iwprobe.
#![forbid(unsafe_code)]

pub mod case;
pub mod cases;
pub mod cli;
pub mod conn;
pub mod expect;
pub mod json;
pub mod log;
pub mod net;
pub mod probe;
pub mod run;
pub mod scene;
pub mod session;
pub mod socket;
pub mod table;
pub mod watch;
pub mod wire;
