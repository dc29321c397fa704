//! A profiler of a thread's cycles by layer, for `iwperf --profile`.
//!
//! Code of a layer runs in a [`scope`]. Scopes can be nested. The cycles of an inner scope do not count for
//! the outer scope, so the sum of all figures is the time between [`start`] and [`stop`]. The protocol crates
//! read no clock: they name the layer, and this crate reads the cycle counter.
//!
//! Without the feature `profile`, a scope has no size and no destructor, so it adds no code. With the
//! feature, a thread that has not started to count cycles only checks one flag.

mod cost;
#[cfg(not(feature = "profile"))]
mod off;
#[cfg(feature = "profile")]
mod on;

#[cfg(not(feature = "profile"))]
use off as stamps;
#[cfg(feature = "profile")]
use on as stamps;

pub use cost::{Cost, Layer, Profile};
pub use stamps::Scope;

/// Whether this build contains the profiler.
pub const AVAILABLE: bool = cfg!(feature = "profile");

/// Counts the cycles for `layer` until the returned value is dropped.
#[inline(always)]
pub fn scope(layer: Layer) -> Scope {
    stamps::scope(layer)
}

/// Counts the cycles of `action` for `layer`.
#[inline(always)]
pub fn within<T>(layer: Layer, action: impl FnOnce() -> T) -> T {
    let _scope = scope(layer);
    action()
}

/// Starts counting cycles in the calling thread, from zero. The caller must be outside of all scopes.
pub fn start() {
    stamps::start();
}

/// Stops counting cycles in the calling thread and returns the result. All values are zero if counting was
/// not started.
pub fn stop() -> Profile {
    stamps::stop()
}

/// Marks the end of a poll. A thread that polls in a loop has to call this function between two polls,
/// outside of all scopes. If `idle` is `true`, all cycles since the last mark (or the start) count as
/// [`Layer::Idle`], whichever layer has used them.
#[inline(always)]
pub fn mark(idle: bool) {
    stamps::mark(idle);
}

/// Measures the cycles that a scope itself costs. The figures of a profile include these cycles: about half
/// in the scope's layer and half in the outer layer. The measurement uses empty scopes, and stops counting in
/// the calling thread.
pub fn scope_cycles() -> f64 {
    const SCOPES: u32 = 100_000;
    start();
    for _ in 0..SCOPES {
        let _scope = scope(Layer::Engine);
    }
    stop().busy().cycles as f64 / f64::from(SCOPES)
}

#[cfg(test)]
mod tests;
