//! iWARP on tcp-lite: an engine on each side, turned by hand.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use dp::Port;
use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, Keepalive,
    ProtectionDomain, QpInit, QueuePair, WcOpcode, WcStatus, WorkCompletion,
};
use tcp_lite::Instant;

use crate::pattern::Pattern;
use crate::sim::setup::{HostSetup, address, cidr};
use crate::sim::watch::{Condition, Watch};

use super::operations::{Kind, Layout, Memory, Operation, request};
use super::{CLIENT_PORT, Moved, Progress, World, repairs};

/// The port that both hosts listen on.
const PORT: u16 = 7174;

/// Longer than any run: only TCP's own timers end a connection.
const FOREVER: Duration = Duration::from_secs(3600);

/// How long an engine waits for what the peer no longer sends, where somebody closes before all is done.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// One side disconnects when all is done.
    By(usize),
    /// Both do.
    Both,
    /// One side disconnects in the midst of it, after so many completions.
    Early(usize, u64),
    /// One side aborts, after so many completions.
    Abort(usize, u64),
}

/// One connection.
#[derive(Clone, Debug)]
pub struct RdmaPlan {
    /// Who connects.
    pub opener: usize,
    /// Who asks for markers.
    pub markers: [bool; 2],
    /// CRCs.
    pub crc: bool,
    /// Reads and atomics outstanding, each way.
    pub depth: u16,
    /// Requests outstanding.
    pub outstanding: usize,
    /// What each side does.
    pub operations: [Vec<Operation>; 2],
    /// How it ends.
    pub close: Close,
    /// Whether the payload may be damaged unseen: then the connection may end by its CRC.
    pub poison: bool,
}

impl RdmaPlan {
    fn ends_early(&self) -> bool {
        matches!(self.close, Close::Early(..))
    }

    /// The longest that the users and engines of this connection pause by themselves.
    pub fn pause_us(&self) -> u64 {
        let thinks = self.operations.iter().flatten().map(|operation| operation.think_us).max().unwrap_or(0);
        if self.ends_early() { thinks.max(CLOSE_TIMEOUT.as_micros() as u64) } else { thinks }
    }
}

struct Host {
    setup: HostSetup,
    engine: Engine,
    context: Context,
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    listener: Option<CmId>,
    /// Connections by queue pair.
    numbers: HashMap<u32, usize>,
}

struct End {
    qp: Option<QueuePair>,
    id: Option<CmId>,
    memory: Memory,
    posted: usize,
    completed: usize,
    /// Messages of the peer received.
    received: usize,
    /// Operations of the peer whose effect here was checked: all in front of this one.
    checked: usize,
    /// What the peer's counter should hold.
    added: u64,
    post_again_us: u64,
    established: bool,
    closing: bool,
    over: bool,
}

struct Connection {
    plan: RdmaPlan,
    layout: Layout,
    ends: [End; 2],
    seed: u64,
    /// It may end in any way: somebody aborted or closed early, or a payload was damaged.
    doomed: bool,
    steps: u64,
}

/// Two hosts with iWARP.
pub struct RdmaWorld {
    hosts: [Host; 2],
    connections: Vec<Connection>,
    moved: Moved,
    /// Something was done in the last turn of each host: its users may have asked its engine for more.
    again: [bool; 2],
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Host {
    fn new(
        side: usize,
        setup: &HostSetup,
        port: Box<dyn Port>,
        close_timeout: Duration,
    ) -> Result<Self, String> {
        let context =
            Context::new(ContextConfig { seed: Some(setup.key), ..Default::default() }).map_err(text)?;
        let mut config = EngineConfig::new(&*port, &[&cidr(side, setup.ipv6)]).map_err(text)?;
        config.stack = setup.stack_config(side);
        config.turn_octets = setup.turn_octets;
        config.close_timeout = close_timeout;
        let engine = Engine::new(&context, port, config).map_err(text)?;
        Ok(Self {
            setup: setup.clone(),
            engine,
            channel: context.create_event_channel().map_err(text)?,
            pd: context.alloc_pd().map_err(text)?,
            cq: context.create_cq(4096, None).map_err(text)?,
            listener: None,
            numbers: HashMap::new(),
            context,
        })
    }

    fn queue_pair(&mut self, number: usize) -> Result<QueuePair, String> {
        let init = QpInit { max_send_wr: 512, max_recv_wr: 512, ..QpInit::new(&self.cq) };
        let qp = self.pd.create_qp(&init).map_err(text)?;
        self.numbers.insert(qp.qp_num(), number);
        Ok(qp)
    }
}

impl Connection {
    fn new(plan: &RdmaPlan, hosts: &mut [Host; 2], number: usize, seed: u64) -> Result<Self, String> {
        let layout = Layout::new(&plan.operations);
        let mut ends = Vec::new();
        for (side, host) in hosts.iter_mut().enumerate() {
            ends.push(End {
                qp: Some(host.queue_pair(number)?),
                id: None,
                memory: Memory::new(&host.pd, layout.octets[side]).map_err(text)?,
                posted: 0,
                completed: 0,
                received: 0,
                checked: 0,
                added: 0,
                post_again_us: 0,
                established: false,
                closing: false,
                over: false,
            });
        }
        let ends = ends.try_into().map_err(|_| "two ends")?;
        let seed = seed.wrapping_add((number as u64) << 32);
        let connection = Self { plan: plan.clone(), layout, ends, seed, doomed: false, steps: 0 };
        connection.prepare()?;
        Ok(connection)
    }

    fn pattern(&self, side: usize, operation: usize) -> Pattern {
        Pattern::new(self.seed ^ (2 * operation + side) as u64)
    }

    /// Fills what is sent and read, and posts the receives.
    fn prepare(&self) -> Result<(), String> {
        for side in [0, 1] {
            for (number, operation) in self.plan.operations[side].iter().enumerate() {
                let places = self.layout.places[side][number];
                let pattern = self.pattern(side, number);
                match operation.kind {
                    Kind::Send | Kind::Write | Kind::WriteImmediate => {
                        self.ends[side].memory.fill(places.own, operation.octets, pattern)?;
                    }
                    Kind::Read => {
                        self.ends[1 - side].memory.fill(places.peer, operation.octets, pattern)?;
                    }
                    Kind::FetchAdd(_) => {}
                }
                if operation.is_message() {
                    let octets = if operation.kind == Kind::Send { operation.octets } else { 8 };
                    let peer = &self.ends[1 - side];
                    let receive = peer.memory.receive(number as u64, places.receive, octets);
                    peer.qp.as_ref().ok_or("a queue pair")?.post_recv(&receive).map_err(text)?;
                }
            }
        }
        Ok(())
    }

    fn param(&self, side: usize, number: usize) -> ConnParam {
        let probing = self.plan.poison || matches!(self.plan.close, Close::Abort(..) | Close::Early(..));
        let (idle, interval) = (Duration::from_secs(2), Duration::from_secs(1));
        ConnParam {
            responder_resources: self.plan.depth,
            initiator_depth: self.plan.depth,
            markers: self.plan.markers[side],
            crc: self.plan.crc,
            timeout: FOREVER,
            keepalive: if probing {
                Keepalive::Probe { idle, interval, probes: 200 }
            } else {
                Keepalive::Off
            },
            local_port: (side == self.plan.opener).then_some(CLIENT_PORT + number as u16),
            ..ConnParam::default()
        }
    }

    /// A message of the peer has been received: it is checked, and so are the Writes in front of it.
    fn received(&mut self, side: usize, wc: &WorkCompletion) -> Result<u64, String> {
        let message = wc.wr_id as usize;
        let mut octets = 0;
        while self.ends[side].checked <= message {
            let number = self.ends[side].checked;
            let operation = self.plan.operations[1 - side][number];
            let (places, pattern) = (self.layout.places[1 - side][number], self.pattern(1 - side, number));
            if operation.is_message() && number < message {
                return Err(format!("message {number} is not there, but {message} is"));
            }
            let memory = &mut self.ends[side].memory;
            match operation.kind {
                Kind::Send => {
                    if wc.opcode != WcOpcode::Recv || wc.byte_len as usize != operation.octets {
                        return Err(format!("message {number} of {} octets: {wc:?}", operation.octets));
                    }
                    memory.check(places.receive, operation.octets, pattern)?;
                }
                Kind::Write => memory.check(places.peer, operation.octets, pattern)?,
                Kind::WriteImmediate => {
                    if wc.immediate != Some((number as u64).to_be_bytes()) {
                        return Err(format!("message {number} with the wrong immediate data: {wc:?}"));
                    }
                    memory.check(places.peer, operation.octets, pattern)?;
                    memory.spend(places.receive, 8)?;
                }
                Kind::Read | Kind::FetchAdd(_) => {}
            }
            octets += operation.octets as u64;
            self.ends[side].checked += 1;
        }
        self.ends[side].received += 1;
        Ok(octets)
    }

    /// An operation of this side is complete.
    fn completed(&mut self, side: usize, wc: &WorkCompletion) -> Result<u64, String> {
        let number = wc.wr_id as usize;
        let operation = self.plan.operations[side][number];
        let (places, pattern) = (self.layout.places[side][number], self.pattern(side, number));
        let end = &mut self.ends[side];
        match operation.kind {
            Kind::Read => {
                end.memory.check(places.own, operation.octets, pattern)?;
                return Ok(operation.octets as u64);
            }
            Kind::FetchAdd(add) => {
                let found = end.memory.counter(places.own)?;
                if found != end.added {
                    return Err(format!("atomic {number} found {found}, {} was there", end.added));
                }
                end.added = end.added.wrapping_add(add);
                end.memory.spend(places.own, 8)?;
            }
            Kind::Send | Kind::Write | Kind::WriteImmediate => {}
        }
        Ok(0)
    }

    fn completion(&mut self, side: usize, wc: &WorkCompletion, moved: &mut Moved) -> Result<(), String> {
        self.steps += 1;
        let receives = matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvImmediate);
        if !receives {
            let end = &mut self.ends[side];
            if wc.wr_id != end.completed as u64 {
                return Err(format!("operation {} completes, {} is next", wc.wr_id, end.completed));
            }
            end.completed += 1;
        }
        if wc.status != WcStatus::Success {
            return if self.doomed { Ok(()) } else { Err(format!("failed without a cause: {wc:?}")) };
        }
        let octets = if receives { self.received(side, wc)? } else { self.completed(side, wc)? };
        moved.octets += octets;
        moved.operations += 1;
        Ok(())
    }

    fn is_through(&self, side: usize) -> bool {
        let messages =
            self.plan.operations[1 - side].iter().filter(|operation| operation.is_message()).count();
        let end = &self.ends[side];
        end.completed == self.plan.operations[side].len() && end.received == messages
    }

    /// Posts what is due, and ends the connection when it is time.
    fn work(&mut self, side: usize, now_us: u64) -> Result<bool, String> {
        if !self.ends[side].established || self.ends[side].over || self.ends[side].closing {
            return Ok(false);
        }
        let mut busy = false;
        while self.ends[side].posted < self.plan.operations[side].len()
            && self.ends[side].posted < self.ends[side].completed + self.plan.outstanding
            && self.ends[side].post_again_us <= now_us
        {
            let number = self.ends[side].posted;
            let operation = self.plan.operations[side][number];
            let places = self.layout.places[side][number];
            let counter = self.layout.counter[1 - side];
            let (own, peer) = (&self.ends[side].memory, &self.ends[1 - side].memory);
            let posted = request(number as u64, &operation, places, own, peer, counter);
            let qp = self.ends[side].qp.as_ref().ok_or("a queue pair")?;
            if let Err(error) = qp.post_send(&posted) {
                return Err(format!("operation {number} is refused: {error}"));
            }
            self.ends[side].posted += 1;
            self.ends[side].post_again_us = now_us + operation.think_us;
            busy = true;
        }
        let done = (self.ends[side].completed + self.ends[side].received) as u64;
        let Some(id) = self.ends[side].id.clone() else { return Ok(busy) };
        let both = self.is_through(0) && self.is_through(1);
        match self.plan.close {
            Close::By(who) if both && who == side => id.disconnect(),
            Close::Both if both => id.disconnect(),
            Close::Early(who, after) if who == side && (done >= after || both) => {
                self.doomed |= !both;
                id.disconnect();
            }
            Close::Abort(who, after) if who == side && (done >= after || both) => {
                self.doomed = true;
                id.abort();
            }
            _ => return Ok(busy),
        }
        self.ends[side].closing = true;
        Ok(true)
    }

    fn next_us(&self, side: usize) -> Option<u64> {
        let end = &self.ends[side];
        let waits = end.established
            && !end.closing
            && !end.over
            && end.posted < self.plan.operations[side].len()
            && end.posted < end.completed + self.plan.outstanding;
        waits.then_some(end.post_again_us)
    }

    fn finish(&self) -> Result<(), String> {
        for side in [0, 1] {
            self.ends[side].memory.check_spent()?;
            if !self.doomed {
                let counter = self.ends[side].memory.counter(self.layout.counter[side])?;
                if counter != self.ends[1 - side].added {
                    return Err(format!(
                        "a counter holds {counter}, {} was added",
                        self.ends[1 - side].added
                    ));
                }
            }
        }
        Ok(())
    }
}

impl RdmaWorld {
    /// Hosts as `setups` say, each on its port, about to carry out `plans`.
    ///
    /// # Errors
    /// When a host cannot be made.
    pub fn new(
        setups: &[HostSetup; 2],
        plans: &[RdmaPlan],
        ports: [Box<dyn Port>; 2],
        seed: u64,
    ) -> Result<Self, String> {
        let [a, b] = ports;
        let patience = if plans.iter().any(RdmaPlan::ends_early) { CLOSE_TIMEOUT } else { FOREVER };
        let mut hosts = [Host::new(0, &setups[0], a, patience)?, Host::new(1, &setups[1], b, patience)?];
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
            let qp = connection.ends[side].qp.as_ref().ok_or("a queue pair")?;
            id.connect(qp, remote, &connection.param(side, number)).map_err(text)?;
            connection.ends[side].id = Some(id);
            connections.push(connection);
        }
        Ok(Self { hosts, connections, moved: Moved::default(), again: [false; 2] })
    }

    fn on_event(&mut self, side: usize, event: CmEvent) -> Result<(), String> {
        let CmEvent { id, kind, .. } = event;
        if let CmEventKind::ConnectRequest { remote, .. } = &kind {
            let number = usize::from(remote.port() - CLIENT_PORT);
            let connection = self.connections.get_mut(number).ok_or("a connection nobody asked for")?;
            let qp = connection.ends[side].qp.as_ref().ok_or("a queue pair")?;
            id.accept(qp, &connection.param(side, number)).map_err(text)?;
            connection.ends[side].id = Some(id);
            connection.steps += 1;
            return Ok(());
        }
        let find = |connection: &Connection| connection.ends[side].id.as_ref() == Some(&id);
        let Some(number) = self.connections.iter().position(find) else {
            return Err(format!("an event of nobody: {kind:?}"));
        };
        let connection = &mut self.connections[number];
        connection.steps += 1;
        let end = &mut connection.ends[side];
        if end.over {
            return Err(format!("connection {number}, an event after its end: {kind:?}"));
        }
        match kind {
            CmEventKind::Established { .. } if !end.established => end.established = true,
            CmEventKind::Disconnected { error, .. } => {
                end.over = true;
                let through = connection.is_through(0) && connection.is_through(1);
                if (error.is_some() || !through) && !connection.doomed {
                    return Err(format!("connection {number} ends without anybody's will: {error:?}"));
                }
                // Its requests were flushed: their completions are in the queue already.
                connection.ends[side].id = None;
            }
            CmEventKind::ConnectError { .. } if connection.doomed => end.over = true,
            other => return Err(format!("connection {number}, an event out of place: {other:?}")),
        }
        Ok(())
    }

    /// Takes what has completed. Receives first: the peer's requests rest on them.
    fn completions(&mut self, side: usize) -> Result<bool, String> {
        let mut busy = false;
        while let Some(wc) = self.hosts[side].cq.poll_one() {
            busy = true;
            let number = self.hosts[side].numbers.get(&wc.qp_num).ok_or("a completion of no queue pair")?;
            self.connections[*number]
                .completion(side, &wc, &mut self.moved)
                .map_err(|what| format!("host {side}, connection {number}: {what}"))?;
        }
        Ok(busy)
    }
}

impl World for RdmaWorld {
    fn turn(&mut self, side: usize, now_us: u64, _watch: &mut Watch) -> Result<bool, String> {
        let now = Instant::from_micros(now_us as i64);
        let mut busy = false;
        for connection in &mut self.connections {
            busy |= connection.work(side, now_us)?;
        }
        busy |= self.hosts[side].engine.turn(now);
        busy |= self.completions(side)?;
        while let Some(event) = self.hosts[side].channel.poll() {
            busy = true;
            self.on_event(side, event)?;
        }
        self.again[side] = busy;
        Ok(busy)
    }

    fn next_us(&mut self, side: usize, now_us: u64) -> Option<u64> {
        if self.again[side] {
            return Some(now_us);
        }
        let deadline = self.hosts[side].engine.next_deadline(Instant::from_micros(now_us as i64));
        let deadline_us = deadline.map(|at| at.total_micros() as u64);
        let posts = self.connections.iter().filter_map(|connection| connection.next_us(side)).min();
        [deadline_us, posts].into_iter().flatten().min()
    }

    fn condition(&self, side: usize) -> Condition {
        let counters = self.hosts[side].engine.counters().stack;
        Condition {
            is_ours: true,
            timeouts: counters.rto_expired,
            cuts: counters.tx_cut_by_emss + counters.tx_cut_by_persist,
            probes: counters.path_mtu_probes,
        }
    }

    fn poisoned(&mut self, port: u16) {
        if let Some(connection) = self.connections.get_mut(usize::from(port - CLIENT_PORT)) {
            connection.doomed = true;
        }
    }

    fn connections(&self) -> usize {
        self.connections.len()
    }

    fn progress(&self, connection: usize) -> Progress {
        let connection = &self.connections[connection];
        Progress { steps: connection.steps, done: connection.ends.iter().all(|end| end.over) }
    }

    fn finish(&mut self) -> Result<Moved, String> {
        let mut moved = self.moved;
        for side in [0, 1] {
            self.completions(side)?;
            let counters = self.hosts[side].engine.counters();
            moved.early += counters.rx_fpdus_early;
            moved.retransmits += repairs(&counters.stack);
            moved.timeouts += counters.stack.rto_expired;
            moved.raises += counters.stack.path_mtu_probes_answered;
            moved.cuts += self.condition(side).cuts;
        }
        for (number, connection) in self.connections.iter().enumerate() {
            connection.finish().map_err(|what| format!("connection {number}: {what}"))?;
        }
        Ok(moved)
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (number, connection) in self.connections.iter().enumerate() {
            for (side, end) in connection.ends.iter().enumerate() {
                let qp = end.qp.as_ref().map(QueuePair::query);
                text += &format!(
                    "host {side}, connection {number}: posted {} completed {} of {}, received {}, checked {}, \
                     established {}, closing {}, over {}, doomed {}, {qp:?}\n",
                    end.posted,
                    end.completed,
                    connection.plan.operations[side].len(),
                    end.received,
                    end.checked,
                    end.established,
                    end.closing,
                    end.over,
                    connection.doomed,
                );
            }
        }
        for (side, host) in self.hosts.iter().enumerate() {
            text += &format!("host {side}, MTU {}: {:?}\n", host.setup.mtu, host.engine.counters());
        }
        text
    }
}
