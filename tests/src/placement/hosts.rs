//! Two engines on the simulator's ports, polled by the caller: side 0 sends and side 1 receives.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hosts::{Host, PORT, context};
use iwarp::verbs::{CmEventKind, CmId, ConnParam, KeepalivePolicy, QpInit, QueuePair};
use tcp_lite::TcpConfig;

use super::text;
use crate::sim::port::{Socket, mac, port};
use crate::sim::setup::{Setup, address, cidr};

/// A time limit that is longer than a run, so that only TCP's own timers end a connection.
const FOREVER: Duration = Duration::from_secs(3600);

/// Maximum number of polls until a connection is established.
const CONNECT_TURNS: u32 = 10_000;

/// Depth of a work queue.
const DEPTH: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct HostsConfig {
    pub(crate) mtu: u16,
    /// Number of packet buffers of each port.
    pub(crate) mbufs: usize,
    pub(crate) tcp: TcpConfig,
    pub(crate) seed: u64,
    /// Round-trip time in microseconds of the wire while connections are made.
    pub(crate) exchange_us: u64,
}

/// Two hosts, and the time.
pub(crate) struct Hosts {
    pub(crate) hosts: [Host; 2],
    pub(crate) sockets: [Socket; 2],
    pub(crate) now_us: u64,
    exchange_us: u64,
    _listener: CmId,
}

/// Both endpoints of a connection.
pub(crate) struct Connected {
    pub(crate) qps: [QueuePair; 2],
    _ids: [CmId; 2],
}

/// Creates one host, and the socket for its frames.
fn host(side: usize, config: &HostsConfig) -> (Host, Socket) {
    let (port, socket) = port(side, config.mtu, config.mbufs);
    let key = Setup::keys(config.seed)[side];
    let host = Host::new(context(key), port, &[&cidr(side, false)], 4 * DEPTH, |engine| {
        engine.stack.seed = key;
        engine.stack.tcp = config.tcp;
        debug_assert_eq!(engine.stack.mac.0, mac(side));
    });
    (host, socket)
}

impl Hosts {
    /// Creates two hosts, the second of which listens.
    pub(crate) fn new(config: &HostsConfig) -> Result<Self, String> {
        let [(a, socket_a), (b, socket_b)] = [0, 1].map(|side| host(side, config));
        let (hosts, sockets) = ([a, b], [socket_a, socket_b]);
        let listener = hosts[1].context.create_id(&hosts[1].channel);
        listener.listen(PORT, 64, FOREVER).map_err(text)?;
        Ok(Self { hosts, sockets, now_us: 1_000_000, exchange_us: config.exchange_us, _listener: listener })
    }

    /// Polls both hosts, with a wire without faults between them. Calls `see` with each frame that a host
    /// sends.
    pub(crate) fn exchange(&mut self, see: &mut dyn FnMut(usize, &[u8])) {
        self.now_us += self.exchange_us;
        for side in [0, 1] {
            self.hosts[side].poll_us(self.now_us);
            for frame in self.sockets[side].take_sent() {
                see(side, &frame);
                self.sockets[1 - side].deliver(frame);
            }
        }
    }

    /// Connects the sender from its port `local_port`. With `markers`, the receiver asks for markers.
    pub(crate) fn connect(
        &mut self,
        local_port: u16,
        markers: bool,
        see: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<Connected, String> {
        let qp = |host: &Host| {
            let init = QpInit { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpInit::new(&host.cq) };
            host.pd.create_qp(&init).map_err(text)
        };
        let qps = [qp(&self.hosts[0])?, qp(&self.hosts[1])?];
        let id = self.hosts[0].context.create_id(&self.hosts[0].channel);
        let param = ConnParam { timeout: FOREVER, keepalive: KeepalivePolicy::Off, ..ConnParam::default() };
        let remote: IpAddr = address(1, false);
        let active = ConnParam { local_port: Some(local_port), ..param.clone() };
        id.connect(&qps[0], SocketAddr::new(remote, PORT), &active).map_err(text)?;
        let mut peer = None;
        let mut established = 0;
        for _ in 0..CONNECT_TURNS {
            self.exchange(see);
            for side in [0, 1] {
                let Some(event) = self.hosts[side].channel.poll() else { continue };
                match event.kind {
                    CmEventKind::ConnectRequest { .. } => {
                        event.id.accept(&qps[1], &ConnParam { markers, ..param.clone() }).map_err(text)?;
                        peer = Some(event.id);
                    }
                    CmEventKind::Established { .. } => established += 1,
                    other => return Err(format!("no connection: {other:?}")),
                }
            }
            if let (2, Some(peer)) = (established, &peer) {
                return Ok(Connected { qps, _ids: [id, peer.clone()] });
            }
        }
        Err("the connection was not established".into())
    }
}
