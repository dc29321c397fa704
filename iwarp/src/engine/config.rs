//! The configuration of an engine.

use std::time::Duration;

use dp::Port;
use tcp_lite::facade::{EthernetAddress, IpCidr};
use tcp_lite::{Limits, StackConfig, TcpConfig};

use crate::verbs::{VerbsError, entropy};

/// Default of [`EngineConfig::request_records`]. The default is enough for 64 connections of the default
/// depths, if the peer of each connection has 128 Reads and 128 atomics outstanding. The records need about
/// two megabytes.
const REQUEST_RECORDS: usize = 16_384;

/// The default time for which connections survive the loss of the link to their only peer. The time is long
/// enough for a device that takes its link down for a moment while the device is reconfigured. A longer time
/// would delay the report of a lost peer.
const POINT_TO_POINT_LINK_TIMEOUT: tcp_lite::Duration = tcp_lite::Duration::from_millis(500);

/// The parameters of a new engine. [`EngineConfig::new`] has the defaults for a port.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Whether this side requests CRCs on all its connections.
    ///
    /// RFC 5044 section 4.4 (MPA-080, MPA-084): this is a setting for administrators. No call on an engine or
    /// a connection changes or returns the setting.
    ///
    /// If the setting is off, CRCs are used only if the peer requests CRCs.
    /// [`EngineCounters::connections_without_crc`](super::EngineCounters::connections_without_crc) counts the
    /// connections without CRCs. Turn the setting off only where the path is protected at least as well as by
    /// an end-to-end CRC32c. Default: `true`.
    pub crc: bool,
    /// Addresses, limits and TCP settings. [`EngineConfig::new`] copies `mac`, `mtu` and `offloads` from the
    /// port.
    pub stack: StackConfig,
    /// About the maximum number of bytes that one queue pair hands to TCP before other queue pairs send. The
    /// default is about one train of segments: the cost of the cache misses on a switch to another connection
    /// is spread over a train. Default: 64 KiB.
    pub quantum_bytes: usize,
    /// Maximum number of received buffers, on all connections together, that are held, for example until the
    /// rest of their FPDU or startup frame arrives. If a connection needs more, the connection ends; in Full
    /// Operation it ends with code 5 (RFC 6581 section 8). `None`: the number of the port's buffers. Default:
    /// `None`.
    pub held_buffers: Option<usize>,
    /// Maximum number of outstanding Reads and atomics on all connections together for which memory is
    /// allocated when connections begin. The limit applies to our requests, and again to the peers' requests.
    /// If the connections' depths allow more requests, more memory is allocated when it is needed
    /// ([`EngineCounters::request_growths`](super::EngineCounters::request_growths)). Default: 16,384.
    pub request_records: usize,
    /// Maximum time that the end of a connection waits for one step. Such a step is the sending of a
    /// Terminate, the peer's FIN after our FIN, or progress of a graceful close, for example an answer to a
    /// Read. After this time the connection is reset. While the peer acknowledges the bytes before our FIN,
    /// the time for its FIN restarts. Default: 5 s.
    pub close_timeout: Duration,
    /// Whether messages of a peer with InfiniBand's semantics
    /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)) are acknowledged in the poll in
    /// which they arrive. If not, the acknowledgement waits at least until the next poll, so that it can be
    /// sent together with the user's answer. If an engine is polled only in calls of a user, set this field,
    /// since the user might not call again for a long time. Default: `false`.
    pub acknowledge_at_once: bool,
}

impl EngineConfig {
    /// Returns the defaults for `port` with the addresses `addresses` (`10.0.0.1/24`, `fd00::1/64`), and a
    /// seed from the operating system. Keepalives are on: a silent peer is detected within ten seconds. If
    /// the link is lost, connections end after ten seconds, or after half a second if the port has only one
    /// peer ([`PortInfo::point_to_point`](dp::PortInfo::point_to_point), [`TcpConfig::link_timeout`]).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if an address cannot be parsed or if there are too many addresses.
    /// [`VerbsError::System`] if the system has no entropy.
    pub fn new(port: &dyn Port, addresses: &[&str]) -> Result<Self, VerbsError> {
        let info = port.info();
        let defaults = TcpConfig::default();
        let link_timeout =
            if port.info().point_to_point { POINT_TO_POINT_LINK_TIMEOUT } else { defaults.link_timeout };
        let mut stack = StackConfig {
            mac: EthernetAddress(info.mac),
            vlan: None,
            addresses: Default::default(),
            gateways: Default::default(),
            address_probing: Default::default(),
            derived_neighbors: None,
            loopback: false,
            mtu: info.mtu,
            offloads: info.offloads,
            limits: Limits::default(),
            tcp: TcpConfig {
                // 5 s and 4 probes at intervals of 1 s: a silent peer is detected within ten seconds.
                keepalive_idle: Some(tcp_lite::Duration::from_secs(5)),
                keepalive_interval: tcp_lite::Duration::from_secs(1),
                keepalive_probes: 4,
                link_timeout,
                ..defaults
            },
            seed: entropy()?,
        };
        for address in addresses {
            let cidr: IpCidr = address.parse().map_err(|()| {
                VerbsError::Invalid(format!("{address} is no address with a prefix length, like 10.0.0.1/24"))
            })?;
            stack.addresses.try_push(cidr).map_err(|_| {
                VerbsError::Invalid(format!("at most {} addresses", stack.addresses.capacity()))
            })?;
        }
        // A longer time helps a slow peer to close gracefully; a shorter time frees the connection earlier.
        let close_timeout = Duration::from_secs(5);
        Ok(Self {
            // RFC 5044 sections 2.2 and 4.4 (MPA-021, MPA-078, MPA-081): CRCs are used unless the
            // administrator disables them.
            crc: true,
            stack,
            quantum_bytes: 64 << 10,
            held_buffers: None,
            request_records: REQUEST_RECORDS,
            close_timeout,
            acknowledge_at_once: false,
        })
    }
}
