//! The target of `iwprobe` over this stack's verbs: it sets up what the probe asks for, and reports what it
//! saw. `tests/iwprobe/TARGET.md` has the protocol.
//!
//! It uses the verbs like any program, and shares no code with the probe.

mod call;
mod report;
mod scene;
mod serve;
mod stage;

pub use call::call;
pub use serve::serve;

use std::time::Duration;

use iwarp::verbs::ConnParam;

/// Limit of idle time of a connection.
const IDLE: Duration = Duration::from_secs(20);

/// The parameters of all connections, whatever the scene.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Depths, markers, CRC, revision, peer-to-peer.
    pub param: ConnParam,
}

/// Private data without trailing zeros.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}
