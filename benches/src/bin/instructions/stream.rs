//! FPDUs between two engines. The instructions of each side are counted separately.

use benches::endpoint::checked;
use benches::two_hosts::{Config, TwoHosts};
use dp::link::{LinkConfig, LinkSteering, LinkTso};
use iwarp::verbs::{MemoryRegion, QueuePair, RecvRequest, SendOp, SendRequest};

use crate::Result;
use crate::counted::Side;

/// Number of polls without a completion after which the load fails.
const MAX_POLLS: u64 = 10_000;

/// Number of polls in which all requests in flight complete.
const DRAIN: u64 = 256;

/// The requests that are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write,
    Send,
    Read,
}

/// The wire between the hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WireKind {
    /// A wire like that between virtual machines: with checksum offload, and with trains of segments that are
    /// not cut into frames.
    Virtual { mtu: u16 },
    /// A wire without offloads.
    Plain { mtu: u16 },
}

impl WireKind {
    fn config(self) -> LinkConfig {
        match self {
            Self::Virtual { mtu } => LinkConfig {
                mtu,
                bulk_mbufs: 512,
                checksum_offload: true,
                tso: LinkTso::Whole,
                ..LinkConfig::default()
            },
            Self::Plain { mtu } => LinkConfig { mtu, ..LinkConfig::default() },
        }
    }
}

/// The parameters of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    /// Number of bytes of a message.
    pub(crate) bytes: usize,
    /// Number of messages in flight.
    pub(crate) depth: usize,
    pub(crate) wire: WireKind,
    /// Whether both directions have markers.
    pub(crate) markers: bool,
    /// Number of messages before counting starts. After these messages, windows are open and lazy allocations
    /// are done.
    pub(crate) warm_up: u64,
    /// Number of messages that are counted.
    pub(crate) counted: u64,
    /// Whether both sides have agreed on InfiniBand's semantics.
    pub(crate) ib_semantics: bool,
    /// Number of engines of each host, on queues of one device. The last engine has the load, and the other
    /// engines are idle.
    pub(crate) engines: usize,
}

/// One of the two sides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Requester,
    Responder,
}

impl Role {
    /// The side for which the work of this role counts, if the load posts `op`.
    fn side(self, op: Op) -> Side {
        if (self == Self::Requester) == (op == Op::Read) { Side::Received } else { Side::Sent }
    }
}

/// A running load, in which host A posts the messages.
struct Stream {
    hosts: TwoHosts,
    /// The other engines of both hosts. The load polls these engines as often as its own engine, but does not
    /// count their instructions, as if these engines ran on other cores.
    others: Vec<TwoHosts>,
    /// The queue pairs of hosts A and B.
    qps: [QueuePair; 2],
    load: Load,
    open: usize,
    completed: u64,
    /// Number of Sends that have arrived.
    arrived: u64,
}

impl Stream {
    fn new(load: Load) -> Result<Self> {
        let Load { markers, ib_semantics, .. } = load;
        let config = Config { markers, ib_semantics, ..Config::new(load.wire.config(), load.bytes) };
        let depth = config.depth;
        let mut others = match load.engines {
            1 => vec![TwoHosts::new(config)?],
            // A device with [`LinkSteering::SenderQueue`] does no work of its own to choose a queue.
            several => TwoHosts::on_queues(&config, several, LinkSteering::SenderQueue)?,
        };
        TwoHosts::connect_all(&mut others, 1)?;
        let hosts = others.pop().ok_or("a load has an engine")?;
        let qps = [&hosts.a, &hosts.b].map(|host| host.qps[0].clone());
        let stream = Self { hosts, others, qps, load, open: 0, completed: 0, arrived: 0 };
        if load.op == Op::Send {
            (0..depth).try_for_each(|_| stream.post_receive())?;
        }
        Ok(stream)
    }

    /// Polls both sides until `completed` requests have completed since the start. Passes the work of each
    /// side to `count`.
    fn until(&mut self, completed: u64, mut count: impl FnMut(Role, &mut dyn FnMut())) -> Result<()> {
        let mut polls = 0;
        while self.completed < completed {
            let before = self.completed;
            self.others.iter_mut().for_each(TwoHosts::poll);
            let now_us = self.hosts.tick();
            let mut result = Ok(());
            count(Role::Requester, &mut || result = self.request(now_us));
            result?;
            let mut result = Ok(());
            count(Role::Responder, &mut || result = self.respond(now_us));
            result?;
            polls = if self.completed == before { polls + 1 } else { 0 };
            if polls > MAX_POLLS {
                return Err(format!("no completion in {MAX_POLLS} polls").into());
            }
        }
        Ok(())
    }

    /// Does the work of A's program and of A's engine in one poll.
    fn request(&mut self, now_us: u64) -> Result<()> {
        while self.open < self.load.depth {
            self.post()?;
        }
        self.finish(now_us)
    }

    fn post(&mut self) -> Result<()> {
        let TwoHosts { a, b, .. } = &self.hosts;
        let op = match self.load.op {
            Op::Write => SendOp::Write { remote: b.remote() },
            Op::Send => SendOp::Send,
            Op::Read => SendOp::Read { remote: b.remote() },
        };
        self.qps[0].post_send(&SendRequest::new(0, op, a.memory.sge(0, self.load.bytes)))?;
        self.open += 1;
        Ok(())
    }

    /// Like [`request`](Self::request), but posts nothing.
    fn finish(&mut self, now_us: u64) -> Result<()> {
        let a = &mut self.hosts.a;
        a.poll_at(now_us);
        while let Some(completion) = a.cq.poll_one() {
            checked(&completion, "the request")?;
            self.open -= 1;
            self.completed += 1;
        }
        Ok(())
    }

    /// Does the work of B's program and of B's engine in one poll.
    fn respond(&mut self, now_us: u64) -> Result<()> {
        self.hosts.b.poll_at(now_us);
        while let Some(completion) = self.hosts.b.cq.poll_one() {
            checked(&completion, "a receive")?;
            self.arrived += 1;
            self.post_receive()?;
        }
        Ok(())
    }

    fn post_receive(&self) -> Result<()> {
        let local = self.hosts.b.memory.sge(0, self.load.bytes);
        Ok(self.qps[1].post_recv(&RecvRequest::new(0, local))?)
    }

    /// Completes all requests in flight, and then checks every byte.
    fn validate(&mut self, bytes: &[u8]) -> Result<()> {
        for _ in 0..DRAIN {
            let now_us = self.hosts.tick();
            self.finish(now_us)?;
            self.respond(now_us)?;
        }
        let mut found = vec![0; bytes.len()];
        self.sink().read_at(0, &mut found)?;
        if self.open > 0 || found != bytes {
            return Err("the received bytes differ from those sent".into());
        }
        if self.load.op == Op::Send && self.arrived != self.completed {
            return Err("a Send was lost".into());
        }
        Ok(())
    }

    fn source(&self) -> &MemoryRegion {
        let TwoHosts { a, b, .. } = &self.hosts;
        if self.load.op == Op::Read { &b.memory } else { &a.memory }
    }

    fn sink(&self) -> &MemoryRegion {
        let TwoHosts { a, b, .. } = &self.hosts;
        if self.load.op == Op::Read { &a.memory } else { &b.memory }
    }

    /// The numbers of FPDUs that the data source has sent and that the other side has received.
    fn fpdus(&self) -> [u64; 2] {
        let (a, b) = (self.hosts.a.engine.counters(), self.hosts.b.engine.counters());
        match self.load.op {
            Op::Read => [b.tx_fpdus, a.rx_fpdus],
            Op::Write | Op::Send => [a.tx_fpdus, b.rx_fpdus],
        }
    }
}

/// Runs `load`. Returns the numbers of FPDUs sent and received while instructions were counted.
///
/// # Errors
/// Returns errors of the engines, and fails if bytes are wrong or missing.
pub(crate) fn run(load: Load) -> Result<[u64; 2]> {
    let bytes: Vec<u8> = (0..load.bytes).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut stream = Stream::new(load)?;
    stream.source().write_at(0, &bytes)?;
    stream.until(load.warm_up, |_, poll| poll())?;
    let before = stream.fpdus();
    stream.until(load.warm_up + load.counted, |end, poll| end.side(load.op).count(poll))?;
    let after = stream.fpdus();
    stream.validate(&bytes)?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{ROWS, Work};

    #[test]
    fn every_load_brings_its_bytes_over_in_as_many_fpdus_each_time() {
        for row in ROWS {
            let Work::Stream(load) = row.work else { continue };
            let load = Load { warm_up: 8, counted: if load.bytes == 64 { 256 } else { 8 }, ..load };
            let fpdus = run(load).unwrap();
            assert!(fpdus.iter().all(|count| *count >= load.counted), "{}: {fpdus:?}", row.name);
            assert_eq!(run(load).unwrap(), fpdus, "{}", row.name);
        }
    }
}
