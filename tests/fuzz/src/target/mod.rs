//! The targets, by name.

pub mod connection;
pub mod frames;
mod gate;
mod host;
mod ledger;
mod packet;
mod rig;
pub mod startup;
pub mod stream;
pub mod verbs;

/// Prints what happens, where `UWARP_FUZZ_TRACE` is set: for one input that broke a rule.
fn trace(what: std::fmt::Arguments<'_>) {
    static WANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("UWARP_FUZZ_TRACE").is_some()) {
        println!("{what}");
    }
}

/// Something to fuzz.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: that of its archive, and what `scripts/fuzz` takes.
    pub name: &'static str,
    /// Runs one input.
    ///
    /// # Panics
    /// Where a rule is broken.
    pub run: fn(&[u8]),
    /// The longest input that is tried.
    pub max_bytes: usize,
}

/// All of them.
pub const ALL: &[Target] = &[
    Target { name: "frames", run: frames::run, max_bytes: 1024 },
    Target { name: "connection", run: connection::run, max_bytes: 768 },
    Target { name: "startup", run: startup::run, max_bytes: 512 },
    Target { name: "stream", run: stream::run, max_bytes: 768 },
    Target { name: "verbs", run: verbs::run, max_bytes: 1024 },
];

/// The target of this name.
pub fn named(name: &str) -> Option<Target> {
    ALL.iter().copied().find(|target| target.name == name)
}
