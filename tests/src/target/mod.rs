//! The target of `iwprobe` over this stack's verbs: it arranges what the probe asks for, and tells what it
//! saw. The contract is `tests/iwprobe/TARGET.md`.
//!
//! It uses the verbs as any program does, and shares no code with the probe.

mod call;
mod report;
mod scene;
mod serve;
mod stage;

pub use call::call;
pub use serve::serve;

use std::time::Duration;

use iwarp::verbs::ConnParam;

/// How long a connection may do nothing.
const IDLE: Duration = Duration::from_secs(20);

/// How connections are made or accepted, whatever the scene.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Depths, markers, CRC, revision, peer-to-peer.
    pub param: ConnParam,
}

/// Private data without the zeros that may follow it.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}
