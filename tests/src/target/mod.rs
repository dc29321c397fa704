//! The target of `iwprobe` over this stack's verbs. The target sets up the scenes that the probe requests,
//! and reports its observations. `tests/iwprobe/TARGET.md` is the contract between target and probe.
//!
//! The target uses the verbs as any program does, and shares no code with the probe. [`plan`] has the
//! configurations in which the probe and the target are run. They run as two programs, the probe over the
//! kernel's TCP (`tests/tests/devices/probe.rs`), and in one process (`in_memory.rs`).

mod call;
#[cfg(test)]
mod in_memory;
pub mod plan;
mod report;
mod scene;
mod serve;
mod stage;

pub use call::call;
pub use serve::serve;

use std::time::{Duration, Instant};

use benches::endpoint::Endpoint;
use benches::errors::Error;
use iwarp::verbs::ConnParam;

/// Maximum time without activity on a connection.
const IDLE: Duration = Duration::from_secs(20);

/// Options for connecting or accepting, in all scenes.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Depths, markers, CRC, revision, peer-to-peer.
    pub param: ConnParam,
}

/// The work of a target between two polls of its engine.
trait Steps {
    /// Does all work that is due at `now`. Returns whether there was any work.
    fn step(&mut self, now: Instant) -> Result<bool, Error>;

    /// Whether the probe has ended the run (`bye`).
    fn is_done(&self, _now: Instant) -> bool {
        false
    }
}

/// Runs a target on the engine of `end`.
fn run(end: &mut Endpoint, target: &mut impl Steps) -> Result<(), Error> {
    while !target.is_done(Instant::now()) {
        let moved = end.driver.poll()? | target.step(Instant::now())?;
        if moved {
            end.driver.busy();
        } else {
            end.driver.idle()?;
        }
    }
    Ok(())
}

/// Returns private data as text, without the zeros that may follow the text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}
