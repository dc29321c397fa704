//! Events of `tracing` (feature `tracing`), for example about engines, connections, MPA startup, Terminates
//! and links.
//!
//! `engine` is the index of the engine in its context; `local` and `remote` identify a connection. FPDUs and
//! segments generate no events. The crate `tcp_lite` has its own feature `tracing`, which reports the SYNs
//! for which listeners create connections, the connections made by SYN cookies, and retransmission timeouts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dp::{LinkState, PortInfo};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{ConnId, StackConfig};

use super::state::EngineState;
use crate::mpa::Negotiated;
use crate::mpa::startup::ConnectRequest;
use crate::queues::QpShared;
use crate::stream::Failure;
use crate::verbs::{CmShared, ConnParam, ConnectionError};

dp::events! {
    /// Reports that an engine begins.
    fn engine_started(engine: usize, info: &PortInfo, stack: &StackConfig) {
        let PortInfo { name, mtu, .. } = info;
        let addresses: Vec<_> = stack.addresses.iter().map(ToString::to_string).collect();
        let (mac, addresses) = (colons(stack.mac), addresses.join(","));
        tracing::info!(engine, port = name, mac, mtu, addresses, "engine started");
    }

    /// Reports that an engine with `connections` connections ends.
    fn engine_ended(engine: usize, connections: usize) {
        tracing::info!(engine, connections, "engine ended");
    }

    /// Reports that this side opens a TCP connection.
    fn syn_sent(state: &EngineState, conn: ConnId) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::debug!(engine, local, remote, "SYN sent");
    }

    /// Reports that a connection could not begin.
    fn connect_failed(state: &EngineState, remote: SocketAddr, error: ConnectionError) {
        tracing::debug!(engine = state.handle.index(), %remote, %error, "connect failed");
    }

    /// Reports that the TCP handshake is complete.
    fn tcp_established(state: &EngineState, conn: ConnId) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::debug!(engine, local, remote, "TCP established");
    }

    /// Reports that a listener has refused a connection because one of the listener's limits is reached.
    fn tcp_refused(state: &EngineState, conn: ConnId) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::warn!(engine, local, remote, "TCP connection refused by a limit of the listener");
    }

    /// Reports that the connection has ended. `id` is the user's identifier, which has the addresses.
    fn ended(
        state: &EngineState,
        id: Option<&Arc<CmShared>>,
        qp: Option<&Arc<QpShared>>,
        error: Option<ConnectionError>,
    ) {
        let (engine, qp_num) = (state.handle.index(), num(qp));
        let (local, remote) = printed(id.and_then(|id| id.addresses()));
        match error {
            Some(error) => {
                let mpa_code = error.mpa_code();
                tracing::info!(engine, local, remote, qp_num, %error, mpa_code, "connection ended");
            }
            None => tracing::info!(engine, local, remote, qp_num, "connection ended"),
        }
    }

    /// Reports that the port has refused to receive the multicast groups of the stack.
    fn groups_refused(state: &EngineState, groups: usize, error: &std::io::Error) {
        tracing::warn!(engine = state.handle.index(), groups, %error, "multicast groups refused by the port");
    }

    /// Reports that MPA's Request is sent.
    fn request_sent(state: &EngineState, conn: ConnId, param: &ConnParam) {
        let (engine, (local, remote)) = of(state, conn);
        let config = param.mpa_config(state.config.crc);
        let crate::mpa::MpaConfig { revision, markers, crc, peer_to_peer, ird, ord, .. } = config;
        tracing::debug!(
            engine, local, remote, ?revision, markers, crc, peer_to_peer, ird, ord, "MPA Request sent"
        );
    }

    /// Reports that the peer made its offer of InfiniBand's semantics on a different TCP connection, so a
    /// proxy is on the path.
    fn proxy_found(state: &EngineState, conn: ConnId) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::warn!(
            engine,
            local,
            remote,
            "no semantics of InfiniBand: a proxy between the two ends has a TCP connection of its own to each"
        );
    }

    /// Reports that the peer's Request is complete.
    fn request_received(state: &EngineState, conn: ConnId, request: &ConnectRequest) {
        let (engine, (local, remote)) = of(state, conn);
        let ConnectRequest { revision, markers, crc, peer_to_peer, .. } = request;
        let private_data = request.private_data.len();
        tracing::debug!(
            engine, local, remote, revision, markers, crc, peer_to_peer, private_data, "MPA Request received"
        );
    }

    /// Reports that an accepting Reply is sent.
    fn reply_sent(state: &EngineState, conn: ConnId, negotiated: &Negotiated) {
        let (engine, (local, remote)) = of(state, conn);
        let Negotiated { revision, tx_markers, rx_markers, crc, ird, ord, .. } = negotiated;
        tracing::debug!(
            engine, local, remote, revision, tx_markers, rx_markers, crc, ird, ord, "MPA Reply sent"
        );
    }

    /// Reports that a rejecting Reply is sent.
    fn reject_sent(state: &EngineState, conn: ConnId, why: &'static str) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::debug!(engine, local, remote, why, "MPA Reply sent that rejects");
    }

    /// Reports that the peer's Reply accepts the connection.
    fn reply_received(state: &EngineState, conn: ConnId, negotiated: &Negotiated) {
        let (engine, (local, remote)) = of(state, conn);
        let Negotiated { revision, tx_markers, rx_markers, crc, ird, ord, .. } = negotiated;
        tracing::debug!(
            engine, local, remote, revision, tx_markers, rx_markers, crc, ird, ord, "MPA Reply received"
        );
    }

    /// Reports that the peer's Reply rejects the connection.
    fn rejected(state: &EngineState, conn: ConnId, revision: u8, private_data: usize) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::debug!(engine, local, remote, revision, private_data, "MPA Reply received that rejects");
    }

    /// Reports that MPA startup has failed.
    fn startup_failed(state: &EngineState, conn: ConnId, error: ConnectionError) {
        let (engine, (local, remote)) = of(state, conn);
        tracing::debug!(engine, local, remote, %error, "MPA startup failed");
    }

    /// Reports that the RDMA stream is established.
    fn established(state: &EngineState, conn: ConnId, qp: Option<&Arc<QpShared>>, negotiated: &Negotiated) {
        let ((engine, (local, remote)), qp_num) = (of(state, conn), num(qp));
        let Negotiated { revision, crc, ird, ord, .. } = negotiated;
        tracing::info!(engine, local, remote, qp_num, revision, crc, ird, ord, "connection established");
    }

    /// Reports that a Terminate was handed to TCP.
    fn terminate_sent(state: &EngineState, conn: ConnId, qp: Option<&Arc<QpShared>>, error: Option<ConnectionError>) {
        let ((engine, (local, remote)), qp_num) = (of(state, conn), num(qp));
        if let Some(ConnectionError::Stream(crate::verbs::StreamError { layer, etype, code, .. })) = error {
            tracing::warn!(engine, local, remote, qp_num, layer, etype, code, "Terminate sent");
        }
    }

    /// Reports that a Terminate was received.
    fn terminate_received(state: &EngineState, conn: ConnId, qp: Option<&Arc<QpShared>>, failure: &Failure) {
        let ((engine, (local, remote)), qp_num) = (of(state, conn), num(qp));
        let crate::verbs::StreamError { layer, etype, code, .. } = failure.stream_error();
        tracing::warn!(engine, local, remote, qp_num, layer, etype, code, "Terminate received");
    }

    /// Reports that the link of the port has changed.
    fn link_changed(state: &EngineState, link: LinkState) {
        let engine = state.handle.index();
        match link {
            LinkState::Up => tracing::info!(engine, state = ?link, "link changed"),
            LinkState::Down | LinkState::Gone => tracing::warn!(engine, state = ?link, "link changed"),
        }
    }

    /// Reports that another host uses one of our addresses. If `lost` is set, this host no longer uses the
    /// address.
    fn address_conflict(state: &EngineState, address: IpAddr, mac: EthernetAddress, lost: bool) {
        let mac = colons(mac);
        tracing::warn!(engine = state.handle.index(), %address, mac, lost, "address conflict");
    }
}

/// Returns the index of the engine, and the addresses of the connection `conn`.
#[cfg(feature = "tracing")]
fn of(state: &EngineState, conn: ConnId) -> (usize, (Option<String>, Option<String>)) {
    let addresses = state.tcp.info(conn).map(|info| (info.local, info.remote));
    (state.handle.index(), printed(addresses))
}

/// Formats an Ethernet address with colons, as Linux does. The `Display` of the type uses dashes.
#[cfg(feature = "tracing")]
fn colons(mac: EthernetAddress) -> String {
    mac.to_string().replace('-', ":")
}

#[cfg(feature = "tracing")]
fn num(qp: Option<&Arc<QpShared>>) -> Option<u32> {
    qp.map(|qp| qp.config.num)
}

/// Formats addresses for events, which omit unknown addresses.
#[cfg(feature = "tracing")]
fn printed(addresses: Option<(SocketAddr, SocketAddr)>) -> (Option<String>, Option<String>) {
    addresses.map(|(local, remote)| (local.to_string(), remote.to_string())).unzip()
}
