//! Time for those outside the sans-I/O core: the TSC, calibrated once.
//!
//! Protocol code never calls this; it is handed the time.

/// A monotonic clock that starts near zero when it is made.
#[derive(Clone, Debug)]
pub struct Clock {}

impl Clock {
    /// Calibrates against the system's monotonic clock (once per process, some milliseconds).
    pub fn new() -> Self {
        todo!()
    }

    /// Microseconds since the clock was made.
    pub fn now_us(&self) -> u64 {
        todo!()
    }

    /// The raw cycle counter (nanoseconds on machines without one).
    pub fn cycles() -> u64 {
        todo!()
    }

    /// Cycles per second of [`Clock::cycles`].
    pub fn hz(&self) -> u64 {
        todo!()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
