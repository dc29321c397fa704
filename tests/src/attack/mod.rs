//! Attacks, with figures. For each it checks the victim's answers and the memory it holds, and measures the
//! goodput that honest connections of the same engine keep.
//!
//! Everything runs in one thread, in memory. There are three hosts: the victim, an engine with a server; an
//! honest client with its own engine, whose Writes, Reads and Sends are checked byte by byte; and, behind a
//! router, the attacker, which sends as many frames as the client. The same runs again with as many harmless
//! frames of the same lengths (`harmless.rs`). The clock is the processor time of the victim (`arena.rs`).
//!
//! | file | what |
//! |---|---|
//! | `segment.rs`, `crafted_peer.rs`, `crafted_peers.rs` | handmade frames, TCP and MPA |
//! | `far_end.rs`, `victim.rs`, `honest.rs`, `arena.rs` | the three hosts and the clock |
//! | `harmless.rs`, `measure.rs` | the baseline, and pairs of rounds |
//! | `counted.rs` | the same pair of rounds in instructions, under callgrind |
//! | `reconnects.rs` | connections that are made, ended and made again |
//! | the others | a scenario each, or a few of one kind |

pub mod ack_storm;
pub mod arena;
pub mod blind;
pub mod counted;
pub mod crafted_peer;
pub mod crafted_peers;
pub mod far_end;
pub mod harmless;
pub mod honest;
pub mod measure;
pub mod out_of_order;
pub mod packet_too_big;
pub mod read_flood;
pub mod reconnects;
pub mod segment;
pub mod slow_startup;
pub mod stag_guess;
pub mod syn_flood;
pub mod terminate_loop;
pub mod tiny_segments;
pub mod victim;
pub mod zero_window;

use iwarp::engine::EngineConfig;
use iwarp::verbs::ListenOptions;

use arena::{Actor, Arena};

/// An attacker, with the checks of its outcome.
pub trait Attack: Actor {
    /// After the rounds: describes the answers and counters of the victim.
    ///
    /// # Errors
    /// The first check that failed.
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String>;
}

/// An attack, by name.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What the attacker does.
    pub about: &'static str,
    /// Changes the victim's default configuration.
    pub configure: fn(&mut EngineConfig, &mut ListenOptions),
    /// Makes the attacker.
    pub attack: fn(&Arena) -> Box<dyn Attack>,
}

impl Scenario {
    /// The scenario of this name.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }
}

/// The default configuration.
fn as_it_is(_config: &mut EngineConfig, _options: &mut ListenOptions) {}

/// Checks the limit of failed connections for an address, which is on by default, with this many attempts at
/// a time.
fn refusals(arena: &Arena, at_a_time: usize) -> Result<String, String> {
    let stats = arena.victim.listener_stats();
    let limit = ListenOptions::new(victim::PORT).failures_per_address.ok_or("there is no limit")?;
    let seconds = arena.now_us() / 1_000_000 + 1;
    // Connections in progress when the last one fails fail as well.
    let most = seconds * (u64::from(limit) + at_a_time as u64) + arena::HONEST as u64;
    check(stats.accepted <= most, || format!("{} connections in {seconds} seconds", stats.accepted))?;
    check(stats.syns.blocked > 0, || "no address was blocked".into())?;
    Ok(format!("{} SYNs not answered", stats.syns.blocked))
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    syn_flood::SCENARIO,
    blind::RESETS,
    blind::SYNS,
    blind::DATA,
    ack_storm::UNSENT,
    ack_storm::DUPLICATE,
    ack_storm::DIVISION,
    tiny_segments::IN_ORDER,
    tiny_segments::OUT_OF_ORDER,
    tiny_segments::SMALL_MSS,
    zero_window::SCENARIO,
    out_of_order::SCENARIO,
    packet_too_big::SCENARIO,
    slow_startup::SCENARIO,
    stag_guess::SCENARIO,
    read_flood::SCENARIO,
    terminate_loop::SCENARIO,
];

/// `Err` with this text unless `holds`.
fn check(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}
