//! FPDUs between two engines on a wire in memory, in one thread and a time of their own: the same on every machine and in
//! every run. What either end does is counted apart.

use benches::endpoint::checked;
use dp::link::{self, LinkConfig, LinkTso};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, ListenOptions,
    MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest,
};
use tcp_lite::Instant;

use crate::Result;
use crate::counted::Side;

/// Between two turns of an engine, microseconds: a round trip is one or two of them.
const TURN_US: u64 = 20;

/// Receives that are posted for Sends.
const RECEIVES: usize = 128;

/// Turns after which something is wrong.
const PATIENCE: u64 = 1_000_000;

const PORT: u16 = 7471;

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write,
    Send,
    Read,
}

/// What lies between the hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wire {
    /// As between virtual machines: checksums left out, trains of segments passed as they are.
    Virtual { mtu: u16 },
    /// Without any offload.
    Plain { mtu: u16 },
}

impl Wire {
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

/// What goes over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    /// Of a message.
    pub(crate) octets: usize,
    /// Messages under way.
    pub(crate) depth: usize,
    pub(crate) wire: Wire,
    /// In both directions.
    pub(crate) markers: bool,
    /// Messages before counting begins: windows are open by then, and what is filled once is filled.
    pub(crate) warm_up: u64,
    /// Messages that are counted.
    pub(crate) counted: u64,
}

/// One of the two.
struct Host {
    context: Context,
    engine: Engine,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    events: EventChannel,
}

impl Host {
    fn new(port: Box<dyn dp::Port>, number: u8) -> Result<Self> {
        let context = Context::new(ContextConfig { seed: Some([number; 32]), ..ContextConfig::default() })?;
        let mut config = EngineConfig::new(&*port, &[&format!("10.0.0.{number}/24")])?;
        config.stack.seed = [number; 32];
        Ok(Self {
            engine: Engine::new(&context, port, config)?,
            pd: context.alloc_pd()?,
            cq: context.create_cq(1024, None)?,
            events: context.create_event_channel()?,
            context,
        })
    }

    fn turn(&mut self, now_us: u64) {
        self.engine.turn(Instant::from_micros(now_us as i64));
    }
}

/// The end whose program posts the messages.
struct Requester {
    host: Host,
    qp: QueuePair,
    memory: MemoryRegion,
    remote: RemoteAddr,
    load: Load,
    open: usize,
    completed: u64,
}

impl Requester {
    /// What a program and its engine do in a turn.
    fn turn(&mut self, now_us: u64) -> Result<()> {
        while self.open < self.load.depth {
            self.post()?;
        }
        self.finish(now_us)
    }

    fn post(&mut self) -> Result<()> {
        let remote = self.remote;
        let op = match self.load.op {
            Op::Write => SendOp::Write { remote },
            Op::Send => SendOp::Send,
            Op::Read => SendOp::Read { remote },
        };
        self.qp.post_send(&SendRequest::new(0, op, self.memory.sge(0, self.load.octets)))?;
        self.open += 1;
        Ok(())
    }

    /// A turn that begins nothing.
    fn finish(&mut self, now_us: u64) -> Result<()> {
        self.host.turn(now_us);
        while let Some(completion) = self.host.cq.poll_one() {
            checked(&completion, "the request")?;
            self.open -= 1;
            self.completed += 1;
        }
        Ok(())
    }
}

/// The other end.
struct Responder {
    host: Host,
    qp: QueuePair,
    memory: MemoryRegion,
    load: Load,
    /// Sends that have arrived.
    arrived: u64,
}

impl Responder {
    fn turn(&mut self, now_us: u64) -> Result<()> {
        self.host.turn(now_us);
        while let Some(completion) = self.host.cq.poll_one() {
            checked(&completion, "a receive")?;
            self.arrived += 1;
            self.receive()?;
        }
        Ok(())
    }

    fn receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(&RecvRequest::new(0, self.memory.sge(0, self.load.octets)))?)
    }
}

/// Both, connected.
struct Pair {
    requester: Requester,
    responder: Responder,
    now_us: u64,
    _ids: [CmId; 3],
}

impl Pair {
    fn connect(load: Load) -> Result<Self> {
        let (port_a, port_b) = link::pair(&load.wire.config());
        let (mut a, mut b) = (Host::new(port_a, 1)?, Host::new(port_b, 2)?);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (here, there) = (a.pd.reg_mr(load.octets, rights)?, b.pd.reg_mr(load.octets, rights)?);
        let depths = |cq| QpInit { max_send_wr: 128, max_recv_wr: RECEIVES, ..QpInit::new(cq) };
        let (qp_a, qp_b) = (a.pd.create_qp(&depths(&a.cq))?, b.pd.create_qp(&depths(&b.cq))?);
        let param = ConnParam { markers: load.markers, ..ConnParam::default() };
        let listener = b.context.create_id(&b.events);
        listener.listen_with(&ListenOptions::new(PORT))?;
        let id = a.context.create_id(&a.events);
        id.connect(&qp_a, ([10, 0, 0, 2], PORT).into(), &param)?;
        let (mut now_us, mut accepted, mut established) = (0, None, 0);
        while established < 2 {
            now_us = tick(now_us)?;
            a.turn(now_us);
            b.turn(now_us);
            while let Some(event) = a.events.poll().or_else(|| b.events.poll()) {
                match event.kind {
                    CmEventKind::ConnectRequest { .. } => {
                        event.id.accept(&qp_b, &param)?;
                        accepted = Some(event.id);
                    }
                    CmEventKind::Established { .. } => established += 1,
                    other => return Err(format!("{other:?}").into()),
                }
            }
        }
        let accepted = accepted.ok_or("established without a request")?;
        let remote = RemoteAddr { addr: there.addr(), rkey: there.rkey() };
        let requester = Requester { host: a, qp: qp_a, memory: here, remote, load, open: 0, completed: 0 };
        let responder = Responder { host: b, qp: qp_b, memory: there, load, arrived: 0 };
        if load.op == Op::Send {
            (0..RECEIVES).try_for_each(|_| responder.receive())?;
        }
        Ok(Self { requester, responder, now_us, _ids: [listener, id, accepted] })
    }

    /// Turns both until as many requests have completed in all, and counts.
    fn until(&mut self, completed: u64, mut count: impl FnMut(End, &mut dyn FnMut())) -> Result<()> {
        while self.requester.completed < completed {
            self.now_us = tick(self.now_us)?;
            let Self { requester, responder, now_us, .. } = self;
            let mut result = Ok(());
            count(End::Requester, &mut || result = requester.turn(*now_us));
            result?;
            let mut result = Ok(());
            count(End::Responder, &mut || result = responder.turn(*now_us));
            result?;
        }
        Ok(())
    }

    /// Lets end what is under way, then checks every octet.
    fn validate(&mut self, octets: &[u8]) -> Result<()> {
        let mut quiet = 0;
        while self.requester.open > 0 || quiet < 4 {
            self.now_us = tick(self.now_us)?;
            self.requester.finish(self.now_us)?;
            self.responder.turn(self.now_us)?;
            quiet += 1;
        }
        let mut found = vec![0; octets.len()];
        self.sink().read_at(0, &mut found)?;
        if found != octets {
            return Err("what arrived is not what was sent".into());
        }
        if self.requester.load.op == Op::Send && self.responder.arrived != self.requester.completed {
            return Err("a Send has been lost".into());
        }
        Ok(())
    }

    fn source(&self) -> &MemoryRegion {
        if self.requester.load.op == Op::Read { &self.responder.memory } else { &self.requester.memory }
    }

    fn sink(&self) -> &MemoryRegion {
        if self.requester.load.op == Op::Read { &self.requester.memory } else { &self.responder.memory }
    }

    /// FPDUs that the end with the source has sent, and the other has received.
    fn fpdus(&self) -> [u64; 2] {
        let (requester, responder) =
            (self.requester.host.engine.counters(), self.responder.host.engine.counters());
        match self.requester.load.op {
            Op::Read => [responder.tx_fpdus, requester.rx_fpdus],
            Op::Write | Op::Send => [requester.tx_fpdus, responder.rx_fpdus],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Requester,
    Responder,
}

impl End {
    /// What it does for `op`.
    fn side(self, op: Op) -> Side {
        if (self == Self::Requester) == (op == Op::Read) { Side::Received } else { Side::Sent }
    }
}

fn tick(now_us: u64) -> Result<u64> {
    if now_us > PATIENCE * TURN_US {
        return Err(format!("no progress in {PATIENCE} turns").into());
    }
    Ok(now_us + TURN_US)
}

/// Runs `load`; the FPDUs that were sent and received while its instructions were counted.
///
/// # Errors
/// Of the engines; where octets arrive wrong or not.
pub(crate) fn run(load: Load) -> Result<[u64; 2]> {
    let octets: Vec<u8> = (0..load.octets).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut pair = Pair::connect(load)?;
    pair.source().write_at(0, &octets)?;
    pair.until(load.warm_up, |_, turn| turn())?;
    let before = pair.fpdus();
    pair.until(load.warm_up + load.counted, |end, turn| end.side(load.op).count(turn))?;
    let after = pair.fpdus();
    pair.validate(&octets)?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{ROWS, Work};

    #[test]
    fn every_load_brings_its_octets_over_in_as_many_fpdus_each_time() {
        for row in ROWS {
            let Work::Stream(load) = row.work else { continue };
            let load = Load { warm_up: 8, counted: if load.octets == 64 { 256 } else { 8 }, ..load };
            let fpdus = run(load).unwrap();
            assert!(fpdus.iter().all(|count| *count >= load.counted), "{}: {fpdus:?}", row.name);
            assert_eq!(run(load).unwrap(), fpdus, "{}", row.name);
        }
    }
}
