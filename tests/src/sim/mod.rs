//! The simulator: two hosts on a wire with seeded faults, and rules for their behaviour.
//!
//! Time is virtual and events are discrete. A scenario and a number (the seed) replay a whole run: the same
//! bytes at the same microseconds. Most rules do not look into the stacks: they check frames, at their sender
//! and at their receiver, and the events that users get. The other rules check invariants, limits and states
//! of a stack.
//!
//! | file | what |
//! |---|---|
//! | `dice.rs` | the random numbers of each part of a run |
//! | `queue.rs`, `trace.rs` | future events, and a hash of all frames |
//! | `port.rs`, `steering.rs` | the ports of the hosts, and the queues of their devices; `testkit::packet` parses the frames |
//! | `link.rs`, `middlebox.rs`, `forge.rs` | one direction of the wire, a middlebox that splits and joins segments, forged frames |
//! | `world/` | hosts and their workloads: tcp-lite, smoltcp, iWARP on tcp-lite |
//! | `watch/` | the rules on the wire |
//! | `setup.rs`, `scenario/` | the parameters of a run, and the scenarios that draw them |
//! | `run.rs` | the clock, and the rules about time |
//! | `progress_bound.rs` | how long a connection may make no progress |
//! | `coverage.rs` | counts of faults and events |
//! | `report.rs` | many runs, and captures of failed runs |
//! | `defect.rs`, `defect_trial.rs` | defects that the simulator has to find, and their trials |
//!
//! # Defects
//!
//! A rule that finds no defect is useless. `defect.rs` describes the defects that the simulator has to find,
//! so that they can be tried again.

pub mod coverage;
pub mod defect;
pub mod defect_trial;
pub mod dice;
pub mod forge;
pub mod link;
pub mod middlebox;
pub mod port;
mod progress_bound;
pub mod queue;
pub mod report;
pub mod run;
pub mod scenario;
pub mod setup;
pub mod steering;
pub mod trace;
pub mod watch;
pub mod world;
