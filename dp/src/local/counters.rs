//! Counters of a port beside those of frames.

/// The fates of other stations ([`LocalPort::local_counters`](super::LocalPort::local_counters)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Pairs of rings that were made.
    pub pairs: u64,
    /// Stations that were found to be gone, or not there.
    pub departed: u64,
    /// Pairs that ended because the other process wrote what it cannot have written.
    pub broken: u64,
    /// Processes that connected and were refused: of another user, or without a proper hello.
    pub refused: u64,
    /// Processes that connected and were told to connect again, as they sent no hello while others waited, or
    /// for two seconds.
    pub put_off: u64,
    /// Frames that were dropped after the port took them: their station is gone or takes nothing.
    pub lost: u64,
}
