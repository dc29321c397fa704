//! Errors of `connect`.

/// Why a connection could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// There are `Limits::connections` connections already, and none of them is in TIME-WAIT.
    #[error("no free connection (limit {0})")]
    NoConnection(usize),
    /// `Limits::events` events wait. The user has to take events first.
    #[error("events wait to be taken (limit {0})")]
    EventsWait(usize),
    /// No port of the dynamic range is free for a connection to this endpoint.
    #[error("no free local port towards this endpoint")]
    NoPort,
    /// A connection with this 4-tuple exists already, both endpoints would be the same socket, or the flow
    /// table of the host has no room for the connection.
    #[error("this connection exists already")]
    InUse,
    /// We have no address of the peer's family, no route to the peer, or the address cannot be a peer's
    /// address (for example, it is a broadcast address).
    #[error("no local address or route for {0}")]
    NoRoute(std::net::IpAddr),
}
