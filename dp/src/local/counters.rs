//! The counters of a port on a local wire, except the frame counters.

/// Counters of connections to other stations
/// ([`LocalPort::local_counters`](super::LocalPort::local_counters)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Number of pairs of rings that were made.
    pub pairs: u64,
    /// Number of stations that have ended, do not exist, do not answer or broke the rules.
    pub departed: u64,
    /// Number of pairs of rings that ended because the other process wrote something invalid.
    pub broken: u64,
    /// Number of connecting processes that the port has refused, for example because they belong to another
    /// user or sent an invalid hello.
    pub refused: u64,
    /// Number of connecting processes that had to connect again. Either the port received no hello that it
    /// could answer within two seconds, or other processes were waiting.
    pub put_off: u64,
    /// Number of frames that the port has accepted and then dropped, for example because their station has
    /// ended, does not answer or does not read.
    pub lost: u64,
}
