//! Counters of a port other than the frame counters.

/// The fates of other stations ([`LocalPort::local_counters`](super::LocalPort::local_counters)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Pairs of rings that were made.
    pub pairs: u64,
    /// Stations that were found to be gone, or not to exist.
    pub departed: u64,
    /// Pairs that ended because the other process wrote something invalid.
    pub broken: u64,
    /// Processes that connected and were refused: they belong to another user, or sent an invalid hello.
    pub refused: u64,
    /// Processes that connected and were told to connect again, because they sent no hello for two seconds,
    /// or sent none while other processes waited.
    pub put_off: u64,
    /// Frames that were dropped after the port took them: their station is gone or does not read.
    pub lost: u64,
}
