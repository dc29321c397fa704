//! Two engines on the simulator's ports, polled by the caller: side 0 sends and side 1 receives.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, KeepalivePolicy,
    ProtectionDomain, QpInit, QueuePair,
};
use tcp_lite::{Instant, TcpConfig};

use super::text;
use crate::sim::port::{Socket, mac, port};
use crate::sim::setup::{Setup, address, cidr};

const PORT: u16 = 7174;

/// Longer than a run, so that only TCP's own timers end a connection.
const FOREVER: Duration = Duration::from_secs(3600);

/// Limit of polls until a connection is established.
const CONNECT_TURNS: u32 = 10_000;

/// Depth of a work queue.
const DEPTH: usize = 4096;

/// The parameters of both hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostsConfig {
    pub(crate) mtu: u16,
    /// Packet buffers of each port.
    pub(crate) mbufs: usize,
    pub(crate) tcp: TcpConfig,
    pub(crate) seed: u64,
    /// Round-trip time of the wire while connections are made, microseconds.
    pub(crate) exchange_us: u64,
}

pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) context: Context,
    pub(crate) channel: EventChannel,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) socket: Socket,
}

/// Both hosts, and the time.
pub(crate) struct Hosts {
    pub(crate) hosts: [Host; 2],
    pub(crate) now_us: u64,
    exchange_us: u64,
    _listener: CmId,
}

/// Both ends of a connection.
pub(crate) struct Connected {
    pub(crate) qps: [QueuePair; 2],
    _ids: [CmId; 2],
}

impl Host {
    fn new(side: usize, config: &HostsConfig) -> Result<Self, String> {
        let (port, socket) = port(side, config.mtu, config.mbufs);
        let key = Setup::keys(config.seed)[side];
        let context = Context::new(ContextConfig { seed: Some(key), ..Default::default() }).map_err(text)?;
        let mut engine = EngineConfig::new(&*port, &[&cidr(side, false)]).map_err(text)?;
        engine.stack.seed = key;
        engine.stack.tcp = config.tcp;
        debug_assert_eq!(engine.stack.mac.0, mac(side));
        Ok(Self {
            engine: Engine::new(&context, port, engine).map_err(text)?,
            channel: context.create_event_channel().map_err(text)?,
            pd: context.alloc_pd().map_err(text)?,
            cq: context.create_cq(4 * DEPTH, None).map_err(text)?,
            socket,
            context,
        })
    }

    pub(crate) fn poll(&mut self, now_us: u64) -> bool {
        self.engine.poll_at(Instant::from_micros(now_us as i64))
    }

    /// When it wants its next poll.
    pub(crate) fn next_us(&mut self, now_us: u64) -> Option<u64> {
        let deadline = self.engine.next_deadline(Instant::from_micros(now_us as i64));
        deadline.map(|at| (at.total_micros() as u64).max(now_us))
    }

    /// Bytes of packet buffers that are not free.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let pool = self.socket.pool();
        (pool.capacity() - pool.available()) as u64 * pool.data_bytes() as u64
    }

    fn queue_pair(&self) -> Result<QueuePair, String> {
        let init = QpInit { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpInit::new(&self.cq) };
        self.pd.create_qp(&init).map_err(text)
    }
}

impl Hosts {
    /// Two hosts, the second of which listens.
    pub(crate) fn new(config: &HostsConfig) -> Result<Self, String> {
        let hosts = [Host::new(0, config)?, Host::new(1, config)?];
        let listener = hosts[1].context.create_id(&hosts[1].channel);
        listener.listen(PORT, 64, FOREVER).map_err(text)?;
        Ok(Self { hosts, now_us: 1_000_000, exchange_us: config.exchange_us, _listener: listener })
    }

    /// Polls both hosts, with a wire without faults between them. Passes the frames sent to `see`.
    pub(crate) fn exchange(&mut self, see: &mut dyn FnMut(usize, &[u8])) {
        self.now_us += self.exchange_us;
        for side in [0, 1] {
            self.hosts[side].poll(self.now_us);
            for frame in self.hosts[side].socket.take_sent() {
                see(side, &frame);
                self.hosts[1 - side].socket.deliver(frame);
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
        let qps = [self.hosts[0].queue_pair()?, self.hosts[1].queue_pair()?];
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
