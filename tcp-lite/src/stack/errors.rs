//! Errors of `connect`.

/// Why a connection could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// `Limits::connections` reached.
    #[error("no free connection (limit {0})")]
    NoConnection(usize),
    /// `Limits::events` reached: take them first.
    #[error("events wait to be taken (limit {0})")]
    EventsWait(usize),
    /// Every local port towards this endpoint is in use.
    #[error("no free local port towards this endpoint")]
    NoPort,
    /// The 4-tuple exists, or both its ends are one socket.
    #[error("this connection exists already")]
    InUse,
    /// No address of the peer's family, or no route.
    #[error("no local address or route for {0}")]
    NoRoute(std::net::IpAddr),
}
