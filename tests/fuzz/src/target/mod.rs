//! The fuzz targets, by name.

pub mod connection;
pub mod frames;
mod gate;
mod host;
mod ledger;
mod rig;
pub mod roce;
pub mod startup;
pub mod stream;
mod trace;
pub mod verbs;
#[cfg(target_os = "linux")]
pub mod wire;

pub use rig::take_general_way;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target and of its archive, and the argument of `scripts/fuzz`.
    pub name: &'static str,
    /// Runs one input.
    ///
    /// # Panics
    /// If a rule is broken.
    pub run: fn(&[u8]),
    /// Maximum length in bytes of an input that the fuzzer tries.
    pub max_bytes: usize,
}

/// All targets.
pub const ALL: &[Target] = &[
    Target { name: "frames", run: frames::run, max_bytes: 1024 },
    Target { name: "connection", run: connection::run, max_bytes: 768 },
    Target { name: "startup", run: startup::run, max_bytes: 512 },
    Target { name: "stream", run: stream::run, max_bytes: 768 },
    Target { name: "roce", run: roce::run, max_bytes: 256 },
    Target { name: "verbs", run: verbs::run, max_bytes: 1024 },
    #[cfg(target_os = "linux")]
    Target { name: "wire", run: wire::run, max_bytes: 512 },
];

/// Returns the target of this name.
pub fn named(name: &str) -> Option<Target> {
    ALL.iter().copied().find(|target| target.name == name)
}
