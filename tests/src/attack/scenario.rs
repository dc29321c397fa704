//! A scenario: an attack with its name, and the checks that most attacks use.

use iwarp::engine::EngineConfig;
use iwarp::verbs::ListenOptions;

use super::arena::{Actor, Arena, HONEST};
use super::victim::PORT;

/// An attacker, with the checks of its outcome.
pub trait Attack: Actor {
    /// Checks the victim's answers and counters after the rounds, and returns a description of these values.
    ///
    /// # Errors
    /// The first check that failed.
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String>;
}

/// An attack that has a name.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name of the scenario.
    pub name: &'static str,
    /// A description of the attack.
    pub about: &'static str,
    /// Changes the victim's default configuration.
    pub configure: fn(&mut EngineConfig, &mut ListenOptions),
    /// Creates the attacker.
    pub attack: fn(&Arena) -> Box<dyn Attack>,
}

/// Leaves the default configuration as it is.
pub(super) fn as_it_is(_config: &mut EngineConfig, _options: &mut ListenOptions) {}

/// Checks that the limit of failed connections for each address, which is on by default, has blocked
/// connections. Returns a text with the number of SYNs that were not answered. `at_a_time`: the number of
/// connections that the attacker attempts at a time.
pub(super) fn refusals(arena: &Arena, at_a_time: usize) -> Result<String, String> {
    let stats = arena.victim.listener_stats();
    let limit = ListenOptions::new(PORT).failures_per_address.ok_or("there is no limit")?;
    let seconds = arena.now_us() / 1_000_000 + 1;
    // Connections that are in progress when the last allowed failure happens may also fail.
    let most = seconds * (u64::from(limit) + at_a_time as u64) + HONEST as u64;
    check(stats.accepted <= most, || format!("{} connections in {seconds} seconds", stats.accepted))?;
    check(stats.syns.blocked > 0, || "no address was blocked".into())?;
    Ok(format!("{} SYNs not answered", stats.syns.blocked))
}

/// Returns `Err` with this text unless `holds` is true.
pub(super) fn check(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}
