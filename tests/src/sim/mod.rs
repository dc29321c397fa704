//! The simulator: two hosts on a wire that goes wrong by a seeded plan, and everything they do held against rules.
//!
//! Time is virtual, events are discrete, one number replays all of a run: the same scenario and seed give the same octets at
//! the same microseconds. Nothing here looks into the stacks: rules are checked on frames, where they are sent and where
//! they arrive, and on what users are told.
//!
//! | file | what |
//! |---|---|
//! | `dice.rs` | everything random |
//! | `queue.rs`, `trace.rs` | what happens next, and the hash of what happened |
//! | `packet.rs`, `port.rs` | frames, and the ports they come from |
//! | `link.rs`, `middlebox.rs` | one direction of the wire, and what cuts and joins segments on it |
//! | `world/` | hosts and their workloads: tcp-lite, smoltcp, iWARP on tcp-lite |
//! | `watch/` | the rules on the wire |
//! | `setup.rs`, `scenario/` | what a run is made of, and who draws it |
//! | `run.rs` | the clock, and the rules about time |
//! | `report.rs` | many runs, and captures of those that fail |
//!
//! # Defects it was seen to find
//!
//! Each was put into a copy of the code by hand; this many of 192 runs (12 seeds of each scenario) failed.
//!
//! | defect | runs | what is said |
//! |---|---|---|
//! | SACK blocks are not learned | 3 | sent again, though selectively acknowledged |
//! | the peer's window is not looked at | 18 | octets beyond the peer's window |
//! | a frozen segment is cut in two when sent again | 67 | what must stay whole was cut |
//! | a cut by EMSS is not counted | 5 | what must stay whole was cut |
//! | octets behind a hole are handed up again | 6 | delivered twice |
//! | the timer is not set again after a timeout | 24 | stands still |
//! | a lost FIN is not sent again | 17 | stands still |
//! | a timeout forgets the oldest segment | 32 | stands still |
//! | ICMP's Packet Too Big is not heard | 4 | the peer does not answer |
//! | the persist timer neither probes nor cuts | 1 | stands still |
//! | a delayed ACK is never sent | 12 of 600 | sent again, none was lost |
//! | every segment is acknowledged, bare ones, too | all | a storm |
//! | a marker points four octets too far | 64 | the marker points wrong |
//! | MPA's CRC is not checked | 31 of 400 | delivered is altered |
//! | TCP's checksum is not checked | 7 | the stream is altered |
//! | the right edge of the window may go back | 1 | the right edge goes back |
//! | a duplicate is reported one octet too long | 9 | selectively acknowledged, has not arrived |
//! | the frontier is one octet too far behind a hole that closes | 43 | the frontier is said to be |
//! | a FIN behind a hole counts at once | 14 | acknowledged, has not arrived |
//! | a packet buffer leaks for each bad checksum | 2 | has kept packet buffers |
//! | the next deadline is always now | 192 | asks for turns in which it has nothing to do |

pub mod dice;
pub mod link;
pub mod middlebox;
pub mod packet;
pub mod port;
pub mod queue;
pub mod report;
pub mod run;
pub mod scenario;
pub mod setup;
pub mod trace;
pub mod watch;
pub mod world;
