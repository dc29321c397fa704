//! The simulator: two hosts on a wire that goes wrong by a seeded plan, and everything they do held against
//! rules.
//!
//! Time is virtual, events are discrete, one number replays all of a run: the same scenario and seed give the
//! same bytes at the same microseconds. Nothing here looks into the stacks: rules are checked on frames,
//! where they are sent and where they arrive, and on what users are told.
//!
//! | file | what |
//! |---|---|
//! | `dice.rs` | everything random |
//! | `queue.rs`, `trace.rs` | what happens next, and the hash of what happened |
//! | `packet.rs`, `port.rs` | frames, and the ports they come from |
//! | `link.rs`, `middlebox.rs`, `forge.rs` | one direction of the wire, what cuts and joins segments on it, and what forges some |
//! | `world/` | hosts and their workloads: tcp-lite, smoltcp, iWARP on tcp-lite |
//! | `watch/` | the rules on the wire |
//! | `setup.rs`, `scenario/` | what a run is made of, and who draws it |
//! | `run.rs` | the clock, and the rules about time |
//! | `patience.rs` | how long a connection may stand still |
//! | `coverage.rs` | what happened, by name |
//! | `report.rs` | many runs, and captures of those that fail |
//! | `defect.rs` | defects that it has to find |
//!
//! # Defects
//!
//! A rule that finds no defect is no rule. Those that the simulator has to find are kept, to be tried again:
//! `defect.rs`.

pub mod coverage;
pub mod defect;
pub mod defect_trial;
pub mod dice;
pub mod forge;
pub mod link;
pub mod middlebox;
pub mod packet;
mod patience;
pub mod port;
pub mod queue;
pub mod report;
pub mod run;
pub mod scenario;
pub mod setup;
pub mod trace;
pub mod watch;
pub mod world;
