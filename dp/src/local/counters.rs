//! The counters of a port, except the frame counters.

/// Counters of connections to other stations
/// ([`LocalPort::local_counters`](super::LocalPort::local_counters)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Pairs of rings that were made.
    pub pairs: u64,
    /// Stations that have ended or do not exist.
    pub departed: u64,
    /// Pairs that ended because the other process wrote something invalid.
    pub broken: u64,
    /// Processes that connected and were refused, since they belong to another user or sent an invalid hello.
    pub refused: u64,
    /// Processes that connected and then had to connect again, because they sent no hello for two seconds, or
    /// because other processes were waiting.
    pub put_off: u64,
    /// Frames that the port has accepted and then dropped, since their station has ended or does not read.
    pub lost: u64,
}
