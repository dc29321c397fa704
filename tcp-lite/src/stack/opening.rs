//! Active opens, and the parameters of new connections that the stack chooses: local port, initial sequence
//! number, and MSS.

use std::net::SocketAddr;

use super::connections::Conn;
use super::{ConnId, ConnectError, Stack};
use crate::facade::{Instant, IpAddress, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::icmp_error::{IPV4_MIN_MTU, IPV6_MIN_MTU};
use crate::ip::{IPV4_BYTES, IPV6_BYTES};
use crate::secrets::EPHEMERAL_PORTS;
use crate::tcp::{OpenParams, Tcb};
use crate::{CloseReason, Deadline};

/// Maximum number of local ports that are tried in search of a port whose frames arrive at our queue. With 64
/// queues, the search fails once in ten million cases.
const CHOOSY_ATTEMPTS: u16 = 1024;

impl Stack {
    /// Starts a connection. `Event::Established` or `Event::Closed` follows.
    ///
    /// # Errors
    /// [`ConnectError::NoRoute`] if there is no path to `remote`, or `remote` cannot be a peer.
    /// [`ConnectError::EventsWait`] if `Limits::events` events wait. [`ConnectError::NoConnection`] if there
    /// are `Limits::connections` connections, and none of them is in TIME-WAIT. [`ConnectError::NoPort`] if
    /// no local port is given and none is free. [`ConnectError::InUse`] if a local port is given, and a
    /// connection with the 4-tuple exists already, both endpoints would be the same socket, or the flow table
    /// of the host has no room for the connection.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local_port: Option<u16>,
    ) -> Result<ConnId, ConnectError> {
        self.advance(now);
        let no_route = ConnectError::NoRoute(remote.ip());
        let address = IpAddress::from(remote.ip().to_canonical());
        let path = self.routes.path(&address).filter(|_| self.may_be_peer(&address)).ok_or(no_route)?;
        if !self.takes_connections() {
            return Err(ConnectError::EventsWait(self.config.limits.events));
        }
        let id = self.reserve().ok_or(ConnectError::NoConnection(self.config.limits.connections))?;
        let mut tuple =
            FourTuple { local: path.local, local_port: 0, remote: address, remote_port: remote.port() };
        tuple.local_port = match local_port {
            None => self.ephemeral_port(tuple).ok_or(ConnectError::NoPort)?,
            Some(port) => {
                tuple.local_port = port;
                let exists = tuple.is_of_one_socket() || self.connections.find(&tuple).is_some();
                if exists || self.claim(&tuple).is_err() {
                    return Err(ConnectError::InUse);
                }
                port
            }
        };
        let params = self.open_params(self.now, &tuple);
        let tcb = Tcb::connect(&mut self.split(self.now).0.ctx(id, None), params);
        let conn = Conn {
            tcb,
            tuple,
            next_hop: path.next_hop,
            listener: None,
            half_open: false,
            in_time_wait: false,
            unresolved_since: Deadline::NONE,
        };
        self.connections.insert(id, conn);
        self.settle(id.slot);
        Ok(id)
    }

    /// Why an active open is not established yet: [`CloseReason::NoNeighbor`] while nobody has answered the
    /// queries for the Ethernet address of the next hop, otherwise [`CloseReason::TimedOut`]. This call is
    /// for a caller whose own time limit is shorter than the stack's.
    pub fn unanswered(&self, conn: ConnId) -> CloseReason {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot));
        match conn.is_some_and(|conn| conn.unresolved_since.is_set()) {
            true => CloseReason::NoNeighbor,
            false => CloseReason::TimedOut,
        }
    }

    /// The parameters of a new connection that the stack chooses.
    pub(super) fn open_params(&self, now: Instant, tuple: &FourTuple) -> OpenParams {
        self.open_params_from(self.secrets.isn(now, tuple), tuple)
    }

    /// Like [`open_params`](Self::open_params), for a connection whose initial sequence number is known.
    pub(super) fn open_params_from(&self, iss: TcpSeqNumber, tuple: &FourTuple) -> OpenParams {
        let ipv6 = matches!(tuple.remote, IpAddress::Ipv6(_));
        let least = if ipv6 { IPV6_MIN_MTU } else { IPV4_MIN_MTU };
        let base = usize::from(self.config.tcp.path_mtu.base_bytes).max(least);
        OpenParams {
            local_port: tuple.local_port,
            remote_port: tuple.remote_port,
            iss,
            timestamp_offset: self.secrets.timestamp_offset(tuple),
            mss: self.own_mss(&tuple.remote),
            base_mss: mss(&tuple.remote, base),
            default_peer_mss: default_peer_mss(&tuple.remote),
        }
    }

    /// The MSS that we announce to `remote`.
    pub(super) fn own_mss(&self, remote: &IpAddress) -> u16 {
        let path = mss(remote, usize::from(self.config.mtu));
        // A segment has to fit a page. If the port lends large buffers, long segments are in such buffers.
        let bulk = self.bulk_pool.as_ref().filter(|bulk| bulk.long_message.is_some());
        let page = self.pool.data_bytes().max(bulk.map_or(0, |bulk| bulk.pool.data_bytes()));
        path.min(u16::try_from(page).unwrap_or(u16::MAX))
    }

    /// Chooses and claims a free local port for `tuple` (RFC 6056 algorithm 3). If we know how the device
    /// chooses queues, the first [`CHOOSY_ATTEMPTS`] attempts accept only ports whose frames arrive at our
    /// queue. Returns `None` if no port is free.
    pub(super) fn ephemeral_port(&mut self, mut tuple: FourTuple) -> Option<u16> {
        for attempt in 0..EPHEMERAL_PORTS {
            let port = self.secrets.ephemeral_port(&tuple.local, &tuple.remote, tuple.remote_port, attempt);
            tuple.local_port = port;
            let is_free = !tuple.is_of_one_socket() && self.connections.find(&tuple).is_none();
            let arrives = || attempt >= CHOOSY_ATTEMPTS || self.arrives_here(&tuple);
            if is_free && arrives() && self.claim(&tuple).is_ok() {
                self.secrets.ephemeral_port_taken(attempt);
                return Some(port);
            }
        }
        None
    }
}

/// The MSS of a peer whose SYN has no MSS option (RFC 9293 section 3.7.1).
pub(super) fn default_peer_mss(remote: &IpAddress) -> u16 {
    if matches!(remote, IpAddress::Ipv6(_)) { 1220 } else { 536 }
}

/// The MSS (RFC 6691): the MTU minus the fixed IP and TCP headers. Options make the payload of a segment
/// smaller.
pub(super) fn mss(remote: &IpAddress, mtu: usize) -> u16 {
    let ip_bytes = if matches!(remote, IpAddress::Ipv6(_)) { IPV6_BYTES } else { IPV4_BYTES };
    mtu.saturating_sub(ip_bytes + crate::tcp::header::MIN_HEADER_BYTES) as u16
}
