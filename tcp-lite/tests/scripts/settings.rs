//! The settings of `config` lines.

use tcp_lite::facade::{Duration, EthernetAddress};
use tcp_lite::{
    AddressProbing, CongestionAlgorithm, EcnMode, Limits, PathMtuConfig, PathMtuProbing, StackConfig,
    TcpConfig,
};

use crate::script::{Script, parse_span};
use crate::segment::number;
use crate::wire::{Addresses, OUR_MAC};

/// The configuration of the stack, and properties of the peer.
pub(crate) struct Settings {
    pub(crate) stack: StackConfig,
    pub(crate) addresses: Addresses,
    /// The sequence number of the peer's SYN.
    pub(crate) peer_isn: u32,
    /// If set, bytes that are delivered beyond a hole are released at once.
    pub(crate) releases: bool,
}

impl Settings {
    pub(crate) fn new(script: &Script) -> Result<Self, String> {
        let mut settings = Self {
            stack: StackConfig {
                mac: EthernetAddress(OUR_MAC),
                vlan: None,
                addresses: Default::default(),
                gateways: Default::default(),
                address_probing: AddressProbing::Off,
                derived_neighbors: None,
                loopback: false,
                mtu: 1500,
                offloads: Default::default(),
                limits: Limits { connections: 64, neighbors: 8, tx_segments: 2048, ..Limits::default() },
                // Scripts assume these sizes and no path MTU probing, whatever the stack's defaults are.
                tcp: TcpConfig {
                    recv_window_bytes: 1 << 20,
                    send_buffer_bytes: 1 << 20,
                    // With probing, the second retransmission would be sent together with a probe that
                    // distinguishes black holes from dead paths.
                    path_mtu: PathMtuConfig { probing: PathMtuProbing::Never, ..PathMtuConfig::default() },
                    ..TcpConfig::default()
                },
                seed: [7; 32],
            },
            addresses: Addresses::new(4),
            peer_isn: 0x3000_0000,
            releases: true,
        };
        for (line, key, value) in &script.settings {
            settings.set(key, value).map_err(|reason| format!("line {line}: {key}={value}: {reason}"))?;
        }
        let prefix = if settings.addresses.is_v4() { 24 } else { 64 };
        let ours = format!("{}/{prefix}", settings.addresses.ours);
        settings.stack.addresses = [ours.parse().map_err(|()| "no address")?].into_iter().collect();
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let span = |value: &str| parse_span(value).map(Duration::from_micros);
        let tcp = &mut self.stack.tcp;
        match key {
            "timestamps" => tcp.timestamps = switch(value)?,
            "sack" => tcp.sack = switch(value)?,
            "recv_window" => tcp.recv_window_bytes = number(value)?,
            "send_buffer" => tcp.send_buffer_bytes = number(value)?,
            "congestion" => {
                tcp.congestion = match value {
                    "newreno" => CongestionAlgorithm::NewReno,
                    "cubic" => CongestionAlgorithm::Cubic,
                    "dctcp" => CongestionAlgorithm::Dctcp,
                    _ => return Err("newreno, cubic or dctcp".into()),
                }
            }
            "ecn" => {
                tcp.ecn = match value {
                    "off" => EcnMode::Off,
                    "accept" => EcnMode::Accept,
                    "request" => EcnMode::Request,
                    _ => return Err("off, accept or request".into()),
                }
            }
            "rto_initial" => tcp.rto_initial = span(value)?,
            "rto_min" => tcp.rto_min = span(value)?,
            "rto_max" => tcp.rto_max = span(value)?,
            "tail_probe_min" => tcp.tail_probe_min = span(value)?,
            "syn_retries" => tcp.syn_retries = number(value)?,
            "user_timeout" => tcp.user_timeout = span(value)?,
            "delayed_ack" => tcp.delayed_ack = span(value)?,
            "keepalive_idle" => tcp.keepalive_idle = Some(span(value)?),
            "keepalive_interval" => tcp.keepalive_interval = span(value)?,
            "keepalive_probes" => tcp.keepalive_probes = number(value)?,
            "time_wait" => tcp.time_wait = span(value)?,
            "mtu" => self.stack.mtu = number(value)?,
            "backlog" => self.stack.limits.backlog = number(value)?,
            "syn_cookies" => self.stack.limits.syn_cookies = switch(value)?,
            "ip" => self.addresses = Addresses::new(number(value)?),
            "peer_isn" => self.peer_isn = number(value)?,
            "release" => self.releases = switch(value)?,
            _ => return Err("no such key".into()),
        }
        Ok(())
    }
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off".into()),
    }
}
