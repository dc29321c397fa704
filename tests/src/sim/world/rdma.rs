//! iWARP on tcp-lite: one or more engines on each side, polled by the simulator.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use dp::Port;
use iwarp::engine::{Engine, EngineConfig, EngineCounters};
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, Context, ContextConfig, EventChannel, ProtectionDomain,
    QpInit, QueuePair,
};
use tcp_lite::Instant;

use crate::sim::coverage::{Coverage, Occurrence};
use crate::sim::setup::{HostSetup, address, cidr};
use crate::sim::watch::{Condition, Watch};

use super::connection::{CLOSE_TIMEOUT, Connection, FOREVER, RdmaPlan, text};
use super::{CLIENT_PORT, Progress, Transferred, World, cover_stack, repairs};

/// The port on which both hosts listen.
const PORT: u16 = 7174;

pub(super) struct Host {
    setup: HostSetup,
    /// The engines of the host, one for each queue of its device.
    engines: Vec<Engine>,
    context: Context,
    channel: EventChannel,
    pub(super) pd: ProtectionDomain,
    cq: CompletionQueue,
    listener: Option<CmId>,
    /// The number of each connection, by the number of its queue pair.
    numbers: HashMap<u32, usize>,
}

/// Two hosts that run iWARP.
pub struct RdmaWorld {
    hosts: [Host; 2],
    connections: Vec<Connection>,
    transferred: Transferred,
    /// Whether the last poll of each host did something. In such a poll, the host's users may have given its
    /// engine more work.
    again: [bool; 2],
    /// The time that [`World::set_last_fault`] has set.
    last_fault_us: u64,
}

impl Host {
    fn new(
        side: usize,
        setup: &HostSetup,
        ports: Vec<Box<dyn Port>>,
        close_timeout: Duration,
        crc: bool,
    ) -> Result<Self, String> {
        let context =
            Context::new(ContextConfig { seed: Some(setup.key), ..Default::default() }).map_err(text)?;
        let mut config = EngineConfig::new(&*ports[0], &[&cidr(side, setup.ipv6)]).map_err(text)?;
        config.stack = setup.stack_config(side);
        config.quantum_bytes = setup.quantum_bytes;
        config.close_timeout = close_timeout;
        config.crc = crc;
        let engines = Engine::on_queues(&context, ports, &config, &[]).map_err(text)?;
        Ok(Self {
            setup: setup.clone(),
            engines,
            channel: context.create_event_channel().map_err(text)?,
            pd: context.alloc_pd().map_err(text)?,
            cq: context.create_cq(4096, None).map_err(text)?,
            listener: None,
            numbers: HashMap::new(),
            context,
        })
    }

    /// Returns the sums of the counters of the host's engines.
    fn counters(&self) -> EngineCounters {
        let mut all = EngineCounters::default();
        self.engines.iter().for_each(|engine| all += engine.counters());
        all
    }

    pub(super) fn queue_pair(&mut self, number: usize) -> Result<QueuePair, String> {
        let init = QpInit { max_send_wr: 512, max_recv_wr: 512, ..QpInit::new(&self.cq) };
        let qp = self.pd.create_qp(&init).map_err(text)?;
        self.numbers.insert(qp.qp_num(), number);
        Ok(qp)
    }
}

impl RdmaWorld {
    /// Creates hosts with these setups, each on its ports. Both hosts listen, and a connection is opened for
    /// each plan.
    ///
    /// # Errors
    /// If a host cannot be created, listen or connect.
    pub fn new(
        setups: &[HostSetup; 2],
        plans: &[RdmaPlan],
        ports: [Vec<Box<dyn Port>>; 2],
        seed: u64,
    ) -> Result<Self, String> {
        let [a, b] = ports;
        let close_timeout = if plans.iter().any(RdmaPlan::ends_early) { CLOSE_TIMEOUT } else { FOREVER };
        let crc = plans.iter().any(|plan| plan.crc);
        let mut hosts = [
            Host::new(0, &setups[0], a, close_timeout, crc)?,
            Host::new(1, &setups[1], b, close_timeout, crc)?,
        ];
        for host in &mut hosts {
            let listener = host.context.create_id(&host.channel);
            listener.listen(PORT, 16, FOREVER).map_err(text)?;
            host.listener = Some(listener);
        }
        let mut connections = Vec::new();
        for (number, plan) in plans.iter().enumerate() {
            let mut connection = Connection::new(plan, &mut hosts, number, seed)?;
            let side = plan.opener;
            let id = hosts[side].context.create_id(&hosts[side].channel);
            let remote = SocketAddr::new(address(1 - side, setups[side].ipv6), PORT);
            let qp = connection.ends[side].qp.as_ref().ok_or("the queue pair is missing")?;
            id.connect(qp, remote, &connection.param(side, number)).map_err(text)?;
            connection.ends[side].id = Some(id);
            connections.push(connection);
        }
        Ok(Self {
            hosts,
            connections,
            transferred: Transferred::default(),
            again: [false; 2],
            last_fault_us: 0,
        })
    }

    fn on_event(&mut self, side: usize, now_us: u64, event: CmEvent) -> Result<(), String> {
        let CmEvent { id, kind, .. } = event;
        if let CmEventKind::ConnectRequest { remote, .. } = &kind {
            let number = usize::from(remote.port() - CLIENT_PORT);
            let connection = self.connections.get_mut(number).ok_or("an unexpected connection")?;
            let qp = connection.ends[side].qp.as_ref().ok_or("the queue pair is missing")?;
            id.accept(qp, &connection.param(side, number)).map_err(text)?;
            connection.ends[side].id = Some(id);
            connection.steps += 1;
            return Ok(());
        }
        let find = |connection: &Connection| connection.ends[side].id.as_ref() == Some(&id);
        let Some(number) = self.connections.iter().position(find) else {
            return Err(format!("an event of an unknown identifier: {kind:?}"));
        };
        let of = |what: String| format!("connection {number}, {what}");
        self.connections[number].on_event(side, kind, now_us - self.last_fault_us).map_err(of)
    }

    /// Polls completions, and checks each of them. Returns whether there were any.
    fn completions(&mut self, side: usize) -> Result<bool, String> {
        let mut busy = false;
        while let Some(wc) = self.hosts[side].cq.poll_one() {
            busy = true;
            let number =
                self.hosts[side].numbers.get(&wc.qp_num).ok_or("a completion of an unknown queue pair")?;
            self.connections[*number]
                .completion(side, &wc, &mut self.transferred)
                .map_err(|what| format!("host {side}, connection {number}: {what}"))?;
        }
        Ok(busy)
    }
}

impl World for RdmaWorld {
    fn poll(&mut self, side: usize, now_us: u64, _watch: &mut Watch) -> Result<bool, String> {
        let now = Instant::from_micros(now_us as i64);
        let mut busy = false;
        let before: Vec<u64> = self.connections.iter().map(|connection| connection.steps).collect();
        for connection in &mut self.connections {
            busy |= connection.work(side, now_us)?;
        }
        for engine in &mut self.hosts[side].engines {
            busy |= engine.poll_at(now);
        }
        busy |= self.completions(side)?;
        while let Some(event) = self.hosts[side].channel.poll() {
            busy = true;
            self.on_event(side, now_us, event)?;
        }
        for (connection, before) in self.connections.iter_mut().zip(before) {
            connection.note_steps(before, now_us);
        }
        self.again[side] = busy;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            connection
                .check_state(side)
                .map_err(|what| format!("host {side}, connection {number}: {what}"))?;
        }
        let host = &self.hosts[side];
        for engine in &host.engines {
            host.setup.check_usage(&engine.stack_usage()).map_err(|what| format!("host {side}: {what}"))?;
            engine.check_invariants().map_err(|what| format!("host {side}: {what}"))?;
        }
        Ok(busy)
    }

    fn next_us(&mut self, side: usize, now_us: u64) -> Option<u64> {
        if self.again[side] {
            return Some(now_us);
        }
        let now = Instant::from_micros(now_us as i64);
        let engines = self.hosts[side].engines.iter_mut();
        let deadline = engines.filter_map(|engine| engine.next_deadline(now)).min();
        let deadline_us = deadline.map(|at| at.total_micros() as u64);
        let posts = self.connections.iter().filter_map(|connection| connection.next_us(side)).min();
        [deadline_us, posts].into_iter().flatten().min()
    }

    fn is_due(&self, side: usize) -> bool {
        self.connections.iter().any(|connection| connection.may_close(side))
    }

    fn condition(&self, side: usize) -> Condition {
        let host = &self.hosts[side];
        let reorders = host.engines.len() > 1;
        Condition { reorders, ..Condition::of(&host.counters().stack, host.setup.tcp.time_wait) }
    }

    fn set_last_fault(&mut self, last_fault_us: u64) {
        self.last_fault_us = last_fault_us;
    }

    fn poisoned(&mut self, port: u16) {
        if let Some(connection) = self.connections.get_mut(usize::from(port - CLIENT_PORT)) {
            connection.poison();
        }
    }

    fn connections(&self) -> usize {
        self.connections.len()
    }

    fn port(&self, connection: usize) -> u16 {
        CLIENT_PORT + connection as u16
    }

    fn is_over(&self, side: usize, connection: usize) -> bool {
        self.connections[connection].ends[side].over
    }

    fn cover(&self, coverage: &mut Coverage) {
        let timestamps = self.hosts.iter().all(|host| host.setup.tcp.timestamps);
        for host in &self.hosts {
            let counters = host.counters();
            cover_stack(coverage, &host.setup, &counters.stack, timestamps);
            coverage.count(Occurrence::HandedOver, counters.stack.rx_handed_over);
            coverage.count(Occurrence::PlacedEarly, counters.rx_fpdus_early);
            coverage.count(Occurrence::ReceiverNotReady, counters.rx_not_ready);
            coverage.count(Occurrence::TerminateSent, counters.tx_terminates);
            coverage.count(Occurrence::TerminateReceived, counters.rx_terminates);
        }
        self.connections.iter().for_each(|connection| connection.cover(coverage));
    }

    fn progress(&self, connection: usize) -> Progress {
        let connection = &self.connections[connection];
        Progress { steps: connection.steps, done: connection.ends.iter().all(|end| end.over) }
    }

    fn finish(&mut self) -> Result<Transferred, String> {
        let mut transferred = self.transferred;
        for side in [0, 1] {
            self.completions(side)?;
            let counters = self.hosts[side].counters();
            transferred.early += counters.rx_fpdus_early;
            transferred.retransmits += repairs(&counters.stack);
            transferred.timeouts += counters.stack.rto_expired;
            transferred.raises += counters.stack.path_mtu_probes_answered;
            transferred.cuts += self.condition(side).cuts;
            if counters.stack.handed_over_dropped > 0 {
                return Err(format!("host {side} has lost frames between its engines: {:?}", counters.stack));
            }
        }
        for (number, connection) in self.connections.iter().enumerate() {
            connection.finish().map_err(|what| format!("connection {number}: {what}"))?;
        }
        Ok(transferred)
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (number, connection) in self.connections.iter().enumerate() {
            for side in [0, 1] {
                text += &format!("host {side}, connection {number}: {}", connection.describe(side));
            }
        }
        for (side, host) in self.hosts.iter().enumerate() {
            text += &format!("host {side}, MTU {}: {:?}\n", host.setup.mtu, host.counters());
        }
        text
    }
}
