//! Attacks, with figures: for each, whether the victim answers as specified, what it holds at most, and what
//! goodput is left to honest connections of the same engine.
//!
//! All of it runs in one thread, in memory. Three hosts are there: the victim, an engine and a server; an
//! honest client with an engine of its own, whose Writes, Reads and Sends are looked at byte by byte; and
//! behind a router whoever else sends, frame by frame, as many frames as the client. The same runs again with
//! as many frames of the same lengths that are harmless (`harmless.rs` says what those are). The clock is the
//! processor time of the victim (`arena.rs`).
//!
//! | file | what |
//! |---|---|
//! | `segment.rs`, `puppet.rs`, `troupe.rs` | frames, TCP and MPA made by hand |
//! | `dock.rs`, `victim.rs`, `honest.rs`, `arena.rs` | the three hosts and the clock |
//! | `harmless.rs`, `measure.rs` | the yardstick, and pairs of rounds |
//! | `counted.rs` | the same pair of rounds in instructions, under callgrind |
//! | `siege.rs` | connections that are made, used up and made again |
//! | the others | one scenario, or a few of one kind, in each |

pub mod ack_storm;
pub mod arena;
pub mod blind;
pub mod counted;
pub mod dock;
pub mod harmless;
pub mod honest;
pub mod measure;
pub mod out_of_order;
pub mod packet_too_big;
pub mod puppet;
pub mod read_flood;
pub mod segment;
pub mod siege;
pub mod slow_startup;
pub mod stag_guess;
pub mod syn_flood;
pub mod terminate_loop;
pub mod tiny_segments;
pub mod troupe;
pub mod victim;
pub mod zero_window;

use iwarp::engine::EngineConfig;
use iwarp::verbs::ListenOptions;

use arena::{Actor, Arena};

/// Who attacks, and knows what has to come of it.
pub trait Attack: Actor {
    /// When the rounds are over: what the victim answered and counted.
    ///
    /// # Errors
    /// What is not as it should be.
    fn judge(&mut self, arena: &mut Arena) -> Result<String, String>;
}

/// An attack, by name.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What is done.
    pub about: &'static str,
    /// What the victim has otherwise than by default.
    pub configure: fn(&mut EngineConfig, &mut ListenOptions),
    /// Who does it.
    pub attack: fn(&Arena) -> Box<dyn Attack>,
}

impl Scenario {
    /// The scenario of this name.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }
}

/// As the library is by default.
fn as_it_is(_config: &mut EngineConfig, _options: &mut ListenOptions) {}

/// What the bound on connections that fail did, which is on by default, where so many are tried at a time.
fn refusals(arena: &Arena, at_a_time: usize) -> Result<String, String> {
    let stats = arena.victim.listener_stats();
    let limit = ListenOptions::new(victim::PORT).failures_per_address.ok_or("there is no bound")?;
    let seconds = arena.now_us() / 1_000_000 + 1;
    // Those that are under way when the last one fails do so as well.
    let most = seconds * (u64::from(limit) + at_a_time as u64) + arena::HONEST as u64;
    check(stats.accepted <= most, || format!("{} connections in {seconds} seconds", stats.accepted))?;
    check(stats.syns.blocked > 0, || "nobody was blocked".into())?;
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

/// `Err` with a text unless `holds`.
fn check(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}
