//! How an engine is made.

use std::time::Duration;

use dp::Port;
use tcp_lite::facade::{EthernetAddress, IpCidr};
use tcp_lite::{Limits, StackConfig, TcpConfig};

use crate::verbs::{VerbsError, entropy};

/// Room for all that 64 connections of the usual depths may have under way, in about two megabytes.
const REQUEST_RECORDS: usize = 16_384;

/// How long connections outlive the link where it is the connection to the only peer: a device that is set up
/// anew takes the link down for a moment.
const POINT_TO_POINT_LINK_TIMEOUT: tcp_lite::Duration = tcp_lite::Duration::from_millis(500);

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Whether this end asks for CRCs, on all its connections: a setting of administrators, which is in no
    /// call of an application, and which no application sees (RFC 5044 section 4.4). Without, they are used
    /// only where the peer asks for them, and
    /// [`EngineCounters::connections_without_crc`](super::EngineCounters::connections_without_crc) tells
    /// where they are not. Off only where the path is protected at least as well as by a CRC32c end to end.
    pub crc: bool,
    /// Addresses, limits and TCP. [`EngineConfig::new`] takes `mac`, `mtu` and `offloads` from the port.
    pub stack: StackConfig,
    /// Bytes of payload one queue pair may hand to TCP in a turn before the others have theirs. About a train
    /// of segments by default: then a visit to its connection, which may be cold in the cache, pays for a
    /// whole frame.
    pub turn_bytes: usize,
    /// Received buffers that may wait, on all connections together, for the rest of their FPDU or startup
    /// frame; a connection that finds no place ends with code 5 (RFC 6581 section 8). `None`: as many as the
    /// port has.
    pub held_buffers: Option<usize>,
    /// Reads and atomics under way on all connections together, those of the peers and as many of ours, that
    /// there is memory for from when connections are made. What the connections' depths allow beyond it takes
    /// more memory when it comes to that
    /// ([`EngineCounters::request_growths`](super::EngineCounters::request_growths)).
    pub request_records: usize,
    /// How long before RST a Terminate may take, a FIN of ours may wait for the peer's, and a graceful close
    /// may wait for the next answer to a Read. While there is something to send, TCP's own timeouts hold.
    pub close_timeout: Duration,
}

impl EngineConfig {
    /// Defaults for `port` with the addresses `addresses` (`10.0.0.1/24`, `fd00::1/64`), and OS entropy.
    /// Peers that fall silent are noticed within ten seconds: keepalives are on. So is a link that goes, but
    /// where there is one peer only ([`Port::is_point_to_point`]) within one ([`TcpConfig::link_timeout`]).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for an address that cannot be read or too many, [`VerbsError::System`] without
    /// entropy.
    pub fn new(port: &dyn Port, addresses: &[&str]) -> Result<Self, VerbsError> {
        let info = port.info();
        let defaults = TcpConfig::default();
        let link_timeout =
            if port.is_point_to_point() { POINT_TO_POINT_LINK_TIMEOUT } else { defaults.link_timeout };
        let mut stack = StackConfig {
            mac: EthernetAddress(info.mac),
            vlan: None,
            addresses: Default::default(),
            gateways: Default::default(),
            address_probing: Default::default(),
            mtu: info.mtu,
            offloads: info.offloads,
            limits: Limits::default(),
            tcp: TcpConfig {
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
        let close_timeout = Duration::from_secs(5);
        Ok(Self {
            crc: true,
            stack,
            turn_bytes: 64 << 10,
            held_buffers: None,
            request_records: REQUEST_RECORDS,
            close_timeout,
        })
    }
}
