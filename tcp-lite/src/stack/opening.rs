//! The parameters of a new connection that the stack decides: its local port and numbers, and the MSS.

use super::Stack;
use crate::facade::{Instant, IpAddress, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::icmp_error::{IPV4_MIN_MTU, IPV6_MIN_MTU};
use crate::ip::{IPV4_BYTES, IPV6_BYTES};
use crate::secrets::EPHEMERAL_PORTS;
use crate::tcp::OpenParams;

impl Stack {
    /// The parameters of a new connection that the stack decides.
    pub(super) fn open_params(&self, now: Instant, tuple: &FourTuple) -> OpenParams {
        self.open_params_from(self.secrets.isn(now, tuple), tuple)
    }

    /// As [`open_params`](Self::open_params), for a connection whose initial sequence number is known.
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
        path.min(u16::try_from(self.pool.data_bytes()).unwrap_or(u16::MAX))
    }

    /// A free local port for `tuple` (RFC 6056 algorithm 3).
    pub(super) fn ephemeral_port(&mut self, mut tuple: FourTuple) -> Option<u16> {
        for attempt in 0..EPHEMERAL_PORTS {
            let port = self.secrets.ephemeral_port(&tuple.local, &tuple.remote, tuple.remote_port, attempt);
            tuple.local_port = port;
            if !tuple.is_of_one_socket() && self.connections.find(&tuple).is_none() {
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

/// MSS (RFC 6691): the MTU less the fixed IP and TCP headers. Options, if any, come out of it.
pub(super) fn mss(remote: &IpAddress, mtu: usize) -> u16 {
    let ip_bytes = if matches!(remote, IpAddress::Ipv6(_)) { IPV6_BYTES } else { IPV4_BYTES };
    mtu.saturating_sub(ip_bytes + crate::tcp::header::MIN_HEADER_BYTES) as u16
}
