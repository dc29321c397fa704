//! Hosts with several engines, which share one address. The engines use the queues of one device that
//! distributes frames by a hash.

mod many;
mod stopped;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant as WallClock};

use dp::link::{self, LinkConfig, LinkSteering};
use dp::{Flow, Rss};
use iwarp::engine::{Engine, EngineConfig, EngineThread, ThreadOptions};
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, ContextLimits,
    EventChannel, ListenOptions, MemoryRegion, ProtectionDomain, QpInit, QueuePair, SendOp, SendRequest,
    WcStatus,
};
use tcp_lite::Instant;

use crate::common::{ALL, PORT, pattern, read_bytes, remote_addr};

/// Bytes that a connection uses in each region.
const SLOT: usize = 256;

/// Maximum number of outstanding requests of a connection.
const DEPTH: usize = 4;

/// Maximum number of connections that are begun and not yet established, which is below a listener's backlog.
const AT_A_TIME: usize = 100;

/// Maximum time that any step may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// The engines of a host: either the test polls the engines in virtual time, or they run in threads, some of
/// which may have ended.
enum Engines {
    Polled(Vec<Engine>),
    Threads(Vec<Option<EngineThread>>),
}

/// A host with several engines.
struct Host {
    engines: Engines,
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    context: Context,
    source: MemoryRegion,
    sink: MemoryRegion,
    rss: Option<Rss>,
}

/// One endpoint of a connection.
struct End {
    qp: QueuePair,
    id: CmId,
    established: bool,
    /// Whether the connection ended gracefully; `None` if the connection has not ended.
    ended: Option<bool>,
    /// Number of requests that have completed, including flushed requests.
    completed: usize,
    flushed: usize,
}

/// Two hosts, A and B. Both endpoints of a connection have the connection's number.
struct Hosts {
    hosts: [Host; 2],
    /// The endpoints by host and connection. At B, an endpoint is `None` until its connect request has
    /// arrived.
    ends: [Vec<Option<End>>; 2],
    /// For each host, the connection of the last event. The next event often belongs to the next connection.
    last: [usize; 2],
    /// Number of requests of all connections that have completed without a flush.
    carried_out: usize,
    now_us: i64,
    _listener: CmId,
}

impl Host {
    fn new(number: u8, ports: link::QueuePorts, connections: usize, threads: bool) -> Self {
        // All connections may end in one poll.
        let limits = ContextLimits { max_cm_events: 4 * connections, ..ContextLimits::default() };
        let seed = Some([number; 32]);
        let context = Context::new(ContextConfig { seed, limits, ..ContextConfig::default() }).unwrap();
        let addresses = [format!("10.0.0.{number}/24"), format!("fd00::{number}/64")];
        let mut config = EngineConfig::new(&*ports[0], &addresses.each_ref().map(|text| &**text)).unwrap();
        config.stack.seed = [number; 32];
        config.stack.address_probing = tcp_lite::AddressProbing::Off;
        let rss = ports[0].info().queue.rss.clone();
        let engines = if threads {
            let engines =
                EngineThread::on_queues(&context, ports, &config, &[], ThreadOptions::default()).unwrap();
            Engines::Threads(engines.into_iter().map(Some).collect())
        } else {
            Engines::Polled(Engine::on_queues(&context, ports, &config, &[]).unwrap())
        };
        let pd = context.alloc_pd().unwrap();
        Self {
            engines,
            channel: context.create_event_channel().unwrap(),
            cq: context.create_cq(2 * DEPTH * connections, None).unwrap(),
            source: pd.reg_mr(SLOT * connections, ALL).unwrap(),
            sink: pd.reg_mr(SLOT * connections, ALL).unwrap(),
            pd,
            context,
            rss,
        }
    }

    fn queue_pair(&self) -> QueuePair {
        let init = QpInit { max_send_wr: DEPTH, max_recv_wr: 1, ..QpInit::new(&self.cq) };
        self.pd.create_qp(&init).unwrap()
    }
}

impl Hosts {
    /// Returns two hosts with `engines` engines each, for `connections` connections.
    fn new(engines: usize, connections: usize, threads: bool) -> Self {
        let (a, b) = link::queues(&LinkConfig::default(), engines, LinkSteering::Rss);
        let hosts = [Host::new(1, a, connections, threads), Host::new(2, b, connections, threads)];
        let listener = hosts[1].context.create_id(&hosts[1].channel);
        listener.listen_with(&ListenOptions::new(PORT)).unwrap();
        Self {
            hosts,
            ends: [Vec::new(), Vec::new()],
            last: [0; 2],
            carried_out: 0,
            now_us: 0,
            _listener: listener,
        }
    }

    /// Returns the engines of a host whose engines the test polls.
    fn polled(&mut self, host: usize) -> &mut [Engine] {
        match &mut self.hosts[host].engines {
            Engines::Polled(engines) => engines,
            Engines::Threads(_) => &mut [],
        }
    }

    /// Polls all engines, or lets their threads run, and handles events and completions.
    fn poll(&mut self) {
        let now = Instant::from_micros(self.now_us);
        let engines = |hosts: &mut [Host; 2], act: &mut dyn FnMut(&mut Engine)| {
            for host in hosts {
                if let Engines::Polled(engines) = &mut host.engines {
                    engines.iter_mut().for_each(&mut *act);
                }
            }
        };
        let mut busy = false;
        engines(&mut self.hosts, &mut |engine| busy |= engine.poll_at(now));
        let mut next = None;
        if !busy {
            engines(&mut self.hosts, &mut |engine| {
                next = [next, engine.next_deadline(now)].into_iter().flatten().min();
            });
            std::thread::yield_now();
        }
        self.now_us = next.map_or(self.now_us + 1, |at| at.total_micros().max(self.now_us + 1));
        for host in [0, 1] {
            while let Some(event) = self.hosts[host].channel.poll() {
                self.handle(host, event);
            }
            while let Some(done) = self.hosts[host].cq.poll_one() {
                let end = self.ends[host][done.wr_id as usize].as_mut().unwrap();
                match done.status {
                    WcStatus::Success => self.carried_out += 1,
                    WcStatus::WrFlushError => end.flushed += 1,
                    other => panic!("{other:?}"),
                }
                end.completed += 1;
            }
        }
    }

    fn handle(&mut self, host: usize, event: CmEvent) {
        if let CmEventKind::ConnectRequest { private_data, .. } = &event.kind {
            let number = u32::from_be_bytes((**private_data).try_into().unwrap()) as usize;
            let qp = self.hosts[host].queue_pair();
            event.id.accept(&qp, &ConnParam::default()).unwrap();
            self.set_end(host, number, qp, event.id);
            return;
        }
        let (first, count) = (self.last[host], self.ends[host].len());
        let is_its = |at: &usize| self.ends[host][*at].as_ref().is_some_and(|end| end.id == event.id);
        self.last[host] = (first..count).chain(0..first).find(is_its).unwrap();
        let end = self.ends[host][self.last[host]].as_mut().unwrap();
        match event.kind {
            CmEventKind::Established { .. } => end.established = true,
            CmEventKind::Disconnected { error, .. } => end.ended = Some(error.is_none()),
            other => panic!("{other:?}"),
        }
    }

    fn set_end(&mut self, host: usize, number: usize, qp: QueuePair, id: CmId) {
        let ends = &mut self.ends[host];
        if ends.len() <= number {
            ends.resize_with(number + 1, || None);
        }
        ends[number] = Some(End { qp, id, established: false, ended: None, completed: 0, flushed: 0 });
    }

    /// Polls until `done` returns `true`. Panics with the text `what` if this takes longer than [`PATIENCE`].
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = WallClock::now() + PATIENCE;
        while !done(self) {
            assert!(WallClock::now() < deadline, "{what}");
            self.poll();
        }
    }

    fn begin(&mut self, number: usize, remote: SocketAddr, param: ConnParam) {
        let host = &self.hosts[0];
        let (qp, id) = (host.queue_pair(), host.context.create_id(&host.channel));
        let param = param.with_private_data(&(number as u32).to_be_bytes()).unwrap();
        id.connect(&qp, remote, &param).unwrap();
        self.set_end(0, number, qp, id);
    }

    fn is_established(&self, number: usize) -> bool {
        let end = |host: &Vec<Option<End>>| {
            host.get(number).and_then(Option::as_ref).is_some_and(|end| end.established)
        };
        self.ends.iter().all(end)
    }

    /// Posts a Write of the slot of a connection from `host` to the other host.
    fn post(&mut self, host: usize, number: usize) {
        let [from, to] = [host, 1 - host].map(|host| &self.hosts[host]);
        let at = SLOT * number;
        let op = SendOp::Write { remote: remote_addr(&to.sink, at) };
        let end = self.ends[host][number].as_ref().unwrap();
        end.qp.post_send(&SendRequest::new(number as u64, op, from.source.sge(at, SLOT))).unwrap();
    }

    /// Writes new bytes on the connections `numbers` in both directions, and checks each byte.
    fn exchange(&mut self, numbers: &[usize], seed: u64) {
        let bytes = |host: usize, number: usize| pattern(seed + (2 * number + host) as u64, SLOT);
        let all = self.carried_out + 2 * numbers.len();
        for host in [0, 1] {
            for &number in numbers {
                self.hosts[host].source.write_at(SLOT * number, &bytes(host, number)).unwrap();
                self.post(host, number);
            }
        }
        self.until("the Writes complete", |hosts| hosts.carried_out >= all);
        // A Write completes when TCP has accepted the data, so the bytes may still be under way.
        let arrived = |hosts: &Self, host: usize, number: usize| {
            read_bytes(&hosts.hosts[1 - host].sink, SLOT * number, SLOT) == bytes(host, number)
        };
        for host in [0, 1] {
            for &number in numbers {
                self.until("the bytes arrive", |hosts| arrived(hosts, host, number));
            }
        }
    }
}

/// Returns a local port for a connection from A whose frames arrive at the queues `queues` of A and B.
fn local_port(hosts: &Hosts, remote: SocketAddr, local: IpAddr, queues: [u16; 2], from: u16) -> u16 {
    let [a, b] = hosts.hosts.each_ref().map(|host| host.rss.as_ref().unwrap());
    let remote = (remote.ip(), remote.port());
    let fits = |port: &u16| {
        let local = (local, *port);
        a.queue(&Flow { src: remote, dst: local }) == queues[0]
            && b.queue(&Flow { src: local, dst: remote }) == queues[1]
    };
    (from..u16::MAX).find(fits).unwrap()
}
