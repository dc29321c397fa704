//! A scenario: an attack with its name, and the checks that most of them use.

use iwarp::engine::EngineConfig;
use iwarp::verbs::ListenOptions;

use super::arena::{Actor, Arena, HONEST};
use super::victim::PORT;

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
    /// The name of the scenario.
    pub name: &'static str,
    /// A description of the attack.
    pub about: &'static str,
    /// Changes the victim's default configuration.
    pub configure: fn(&mut EngineConfig, &mut ListenOptions),
    /// Makes the attacker.
    pub attack: fn(&Arena) -> Box<dyn Attack>,
}

/// The default configuration.
pub(super) fn as_it_is(_config: &mut EngineConfig, _options: &mut ListenOptions) {}

/// Checks the limit of failed connections for an address, which is on by default, with this many attempts at
/// a time.
pub(super) fn refusals(arena: &Arena, at_a_time: usize) -> Result<String, String> {
    let stats = arena.victim.listener_stats();
    let limit = ListenOptions::new(PORT).failures_per_address.ok_or("there is no limit")?;
    let seconds = arena.now_us() / 1_000_000 + 1;
    // Connections in progress when the last one fails fail as well.
    let most = seconds * (u64::from(limit) + at_a_time as u64) + HONEST as u64;
    check(stats.accepted <= most, || format!("{} connections in {seconds} seconds", stats.accepted))?;
    check(stats.syns.blocked > 0, || "no address was blocked".into())?;
    Ok(format!("{} SYNs not answered", stats.syns.blocked))
}

/// `Err` with this text unless `holds`.
pub(super) fn check(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}
