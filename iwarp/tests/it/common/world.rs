//! A server, honest clients and a hostile client on one network. One engine serves all clients.

use super::{ALL, PORT, pattern, read_bytes, remote_addr};
use std::time::Duration;

use dp::link::LinkConfig;
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::rdmap::TerminateError;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, CqOptions, EventChannel,
    MemoryRegion, MrOptions, ProtectionDomain, QpInit, QueuePair, RecvRequest, SendOp, SendRequest,
    SharedReceiveQueue, SrqInit, StreamError, WcOpcode, WcStatus, WorkCompletion, cqe_for,
};
use tcp_lite::facade::EthernetAddress;

use super::catalogue::{Attack, Name, Names, catalogue};
use super::hub::hub;
use super::raw::{EMPTY_WRITE, RawPair, fpdu, request};
use super::testbed::Testbed;

pub(crate) const WRITE_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
pub(crate) const REGION: usize = 4096;
/// Size of a receive buffer in bytes.
const SLOT: usize = 64;
/// Number of buffers of the shared receive queue.
const SLOTS: usize = 32;
pub(crate) const HONEST: usize = 2;

/// Which objects the streams of a set share (RFC 5042 section 2.2).
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) one_domain: bool,
    pub(crate) one_completion_queue: bool,
    /// Maximum number of buffers of the shared receive queue that one stream may hold.
    pub(crate) one_receive_queue: Option<usize>,
    /// True if each STag is valid on one stream only.
    pub(crate) single_stream: bool,
    /// True if the hostile client's streams belong to the set.
    pub(crate) hostile_inside: bool,
}

/// Streams share no objects, as with `QpInit::new` and one domain per stream.
pub(crate) const NOTHING_SHARED: Model = Model {
    one_domain: false,
    one_completion_queue: false,
    one_receive_queue: None,
    single_stream: false,
    hostile_inside: false,
};
/// Clients that do not trust each other share objects. For protection, each stream may hold at most one
/// shared buffer, each STag is valid on one stream, and the completion queue cannot overflow.
pub(crate) const SHARED_UNTRUSTED: Model = Model {
    one_domain: true,
    one_completion_queue: true,
    one_receive_queue: Some(1),
    single_stream: true,
    hostile_inside: true,
};
/// Streams that trust each other share objects. The hostile client's stream has separate objects.
pub(crate) const SHARED_TRUSTED: Model =
    Model { one_receive_queue: Some(SLOTS), single_stream: false, hostile_inside: false, ..SHARED_UNTRUSTED };

/// The objects of a set of streams. [`Model`] says which of these objects the streams share.
pub(crate) struct Set {
    pub(crate) domain: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) srq: SharedReceiveQueue,
    /// The buffers of `srq`.
    pub(crate) slots: MemoryRegion,
}

/// The server's side of a stream.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) region: MemoryRegion,
    pub(crate) unreadable: MemoryRegion,
    pub(crate) inbox: MemoryRegion,
    pub(crate) shares_receives: bool,
    pub(crate) id: Option<CmId>,
}

impl End {
    pub(crate) fn name(region: &MemoryRegion) -> Name {
        Name { stag: region.rkey(), to: region.addr() }
    }
}

/// An honest client's stream, and the bytes that the client wrote last.
pub(crate) struct Honest {
    pub(crate) qp: QueuePair,
    pub(crate) _id: CmId,
    pub(crate) end: End,
    pub(crate) bytes: Vec<u8>,
}

/// A server (10.0.0.1), a raw hostile peer (10.0.0.2), and a host of honest clients (10.0.0.3) on one
/// network.
pub(crate) struct World {
    pub(crate) raw: RawPair,
    pub(crate) model: Model,
    pub(crate) channel: EventChannel,
    pub(crate) _listener: CmId,
    pub(crate) set: Set,
    pub(crate) clients: Context,
    pub(crate) clients_cq: CompletionQueue,
    pub(crate) local: MemoryRegion,
    pub(crate) honest: Vec<Honest>,
}

impl World {
    pub(crate) fn new(model: Model) -> Self {
        Self::with(model, &LinkConfig::default())
    }

    /// Returns a world in which `wire` connects the hostile client. In `wire`, `a_to_b` is the direction from
    /// the server to the hostile client.
    pub(crate) fn with(model: Model, wire: &LinkConfig) -> Self {
        let (near, [raw_port, clients_port]) = hub([wire, &LinkConfig::default()]);
        let context =
            |seed| Context::new(ContextConfig { seed: Some([seed; 32]), ..Default::default() }).unwrap();
        let mut raw = Testbed::over((near, raw_port)).peer();
        let clients = context(4);
        let mut config = EngineConfig::new(&*clients_port, &["10.0.0.3/24"]).unwrap();
        config.stack.mac = EthernetAddress([2, 0, 0, 0, 0, 0x0c]);
        config.stack.seed = [5; 32];
        raw.beside.push(Engine::new(&clients, clients_port, config).unwrap());
        let channel = raw.context.create_event_channel().unwrap();
        let listener = raw.context.create_id(&channel);
        listener.listen(PORT, 16, Duration::from_secs(5)).unwrap();
        let domain = raw.context.alloc_pd().unwrap();
        // The size suffices for all requests that can be outstanding. `strict` makes the queue refuse queue
        // pairs that could overflow it.
        let size = cqe_for([128; HONEST + 1]) + cqe_for([SLOTS]) + cqe_for([128; HONEST + 1]);
        let cq =
            raw.context.create_cq_with(&CqOptions { strict: Some(true), ..CqOptions::new(size) }).unwrap();
        let srq = domain.create_srq(&SrqInit { max_wr: SLOTS, ..SrqInit::default() }).unwrap();
        let slots = domain.reg_mr(SLOTS * SLOT, Access::LOCAL_WRITE).unwrap();
        let set = Set { domain, cq, srq, slots };
        for slot in 0..SLOTS {
            set.post(slot as u64);
        }
        let clients_cq = clients.create_cq(1024, None).unwrap();
        let clients_pd = clients.alloc_pd().unwrap();
        let local = clients_pd.reg_mr(2 * REGION, Access::LOCAL_WRITE).unwrap();
        let mut world = Self {
            raw,
            model,
            channel,
            _listener: listener,
            set,
            clients,
            clients_cq,
            local,
            honest: Vec::new(),
        };
        for _ in 0..HONEST {
            let qp = clients_pd.create_qp(&QpInit::new(&world.clients_cq)).unwrap();
            let id = world.clients.create_id(&world.channel_of_clients());
            id.connect(&qp, format!("10.0.0.1:{PORT}").parse().unwrap(), &ConnParam::default()).unwrap();
            let mut end = world.end(true);
            world.accept(&mut end);
            world.honest.push(Honest { qp, _id: id, end, bytes: vec![0; REGION] });
        }
        for client in 0..HONEST {
            world.exchange(client, 1);
        }
        world
    }

    /// Creates an event channel that nobody reads. A test needs no events to see that a stream works, since
    /// the test uses the stream.
    pub(crate) fn channel_of_clients(&self) -> EventChannel {
        self.clients.create_event_channel().unwrap()
    }

    /// Creates the objects for a stream inside or outside of the set.
    pub(crate) fn end(&self, inside: bool) -> End {
        let context = &self.raw.context;
        let Model { one_domain, one_completion_queue, one_receive_queue, single_stream, .. } = self.model;
        let domain = if inside && one_domain { self.set.domain.clone() } else { context.alloc_pd().unwrap() };
        let cq = if inside && one_completion_queue {
            self.set.cq.clone()
        } else {
            context.create_cq(256, None).unwrap()
        };
        let cap = one_receive_queue.filter(|_| inside);
        let init = QpInit { srq: cap.map(|_| &self.set.srq), ..QpInit::new(&cq) };
        let qp = domain.create_qp(&QpInit { max_recv_wr: cap.unwrap_or(init.max_recv_wr), ..init }).unwrap();
        let region = |access| {
            let options = MrOptions { qp: single_stream.then_some(&qp), ..MrOptions::new(access) };
            domain.reg_mr_with(REGION, &options).unwrap()
        };
        let (region, unreadable) = (region(ALL), region(WRITE_ONLY));
        let inbox = domain.reg_mr(SLOT, Access::LOCAL_WRITE).unwrap();
        let end = End { qp, cq, domain, region, unreadable, inbox, shares_receives: cap.is_some(), id: None };
        end.post();
        end
    }

    pub(crate) fn accept(&mut self, end: &mut End) {
        let id = loop {
            let event = self.raw.next_event(&self.channel, 1_000_000).expect("no connect request");
            if matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
                break event.id;
            }
        };
        id.accept(&end.qp, &ConnParam::default()).unwrap();
        end.id = Some(id);
    }

    /// Connects the hostile client again, and sends the first FPDU.
    pub(crate) fn connect_hostile(&mut self) -> (End, Framer) {
        self.raw.connect();
        self.raw.send(&request(true));
        let mut end = self.end(self.model.hostile_inside);
        self.accept(&mut end);
        assert!(self.raw.until(1_000_000, |raw| raw.inbox.len() >= 24), "no Reply");
        self.raw.inbox.clear();
        let mut framer = Framer::new(false, true);
        let ready = fpdu(&mut framer, &EMPTY_WRITE);
        self.raw.send(&ready);
        (end, framer)
    }

    /// An honest client checks that the server's memory contains the bytes of the client's last Write. Then
    /// the client writes and reads new bytes, and sends a message.
    pub(crate) fn exchange(&mut self, client: usize, round: u64) {
        let honest = &mut self.honest[client];
        let mut bytes = vec![0; REGION];
        honest.end.region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, honest.bytes, "somebody else wrote here");
        honest.bytes = pattern(round * 16 + client as u64, REGION);
        self.local.write_at(0, &honest.bytes).unwrap();
        let remote = remote_addr(&honest.end.region, 0);
        let sent = [
            SendRequest::new(1, SendOp::Write { remote }, self.local.sge(0, REGION)),
            SendRequest::new(2, SendOp::Read { remote }, self.local.sge(REGION, REGION)),
            SendRequest::new(3, SendOp::Send, self.local.sge(0, SLOT)),
        ];
        honest.qp.post_send_list(&sent).unwrap();
        for wr_id in 1..4 {
            let wc = next(&mut self.raw, &self.clients_cq);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        self.local.read_at(REGION, &mut bytes).unwrap();
        let honest = &self.honest[client];
        assert_eq!(bytes, honest.bytes, "what was written is read");
        // Completions of other streams of the set may precede the message's completion.
        loop {
            let wc = next(&mut self.raw, &honest.end.cq);
            if honest.end.shares_receives && wc.opcode == WcOpcode::Recv {
                let mut message = [0; SLOT];
                self.set.slots.read_at(wc.wr_id as usize * SLOT, &mut message).unwrap();
                self.set.post(wc.wr_id);
                if wc.qp_num == honest.end.qp.qp_num() {
                    assert_eq!((wc.status, &message[..]), (WcStatus::Success, &bytes[..SLOT]));
                    break;
                }
            } else if wc.qp_num == honest.end.qp.qp_num() {
                let message = read_bytes(&honest.end.inbox, 0, SLOT);
                assert_eq!((wc.status, &message[..]), (WcStatus::Success, &bytes[..SLOT]));
                honest.end.post();
                break;
            }
        }
        assert_eq!((honest.end.qp.error(), honest.qp.error()), (None, None));
    }

    /// Connects the hostile client, sends one attack, and checks that the stream ends with the attack's
    /// error.
    pub(crate) fn attack(&mut self, choose: impl Fn(&Names) -> Attack) {
        let (end, mut framer) = self.connect_hostile();
        let names = Names {
            mine: End::name(&end.region),
            others: End::name(&self.honest[0].end.region),
            unreadable: End::name(&end.unreadable),
        };
        let attack = choose(&names);
        for ulpdu in &attack.before {
            self.raw.send(&fpdu(&mut framer, ulpdu));
        }
        let mut bytes = fpdu(&mut framer, &attack.ulpdu);
        *bytes.last_mut().unwrap() ^= u8::from(attack.error == TerminateError::MpaCrc);
        self.raw.send(&bytes);
        assert!(self.raw.until(1_000_000, |raw| raw.is_over()), "{}: it goes on", attack.name);
        let (layer, etype, code) = attack.error.codes();
        let told = StreamError { layer, etype, code, from_peer: false };
        assert_eq!(end.qp.error(), Some(told), "{}", attack.name);
    }

    /// The hostile client sends every attack of the catalogue, then random bytes. After each attack, honest
    /// clients exchange data.
    pub(crate) fn attack_all(&mut self) {
        let count = catalogue(&Names::default()).len();
        for at in 0..count {
            self.attack(|names| catalogue(names).swap_remove(at));
            for client in 0..HONEST {
                self.exchange(client, 2 + at as u64);
            }
        }
        for seed in 0..20 {
            let (_end, _) = self.connect_hostile();
            self.raw.send(&pattern(seed, 1 + seed as usize * 11));
            self.raw.until(500, |_| false);
            self.exchange(seed as usize % HONEST, 100 + seed);
        }
        assert_eq!(
            (self.set.cq.overflowed(), self.raw.engine.counters().tx_terminates >= count as u64),
            (false, true)
        );
    }

    /// Returns the virtual time in microseconds that 500 Writes of one honest client take. Each Write
    /// completes before the next Write is posted.
    pub(crate) fn speed(&mut self) -> i64 {
        let start = self.raw.now_us;
        let honest = &self.honest[0];
        let remote = remote_addr(&honest.end.region, 0);
        for wr_id in 0..500 {
            let write = SendRequest::new(wr_id, SendOp::Write { remote }, self.local.sge(0, REGION));
            self.honest[0].qp.post_send(&write).unwrap();
            assert_eq!(next(&mut self.raw, &self.clients_cq).status, WcStatus::Success);
        }
        self.local.read_at(0, &mut self.honest[0].bytes).unwrap();
        self.raw.now_us - start
    }
}

impl Set {
    pub(crate) fn post(&self, slot: u64) {
        let buffer = self.slots.sge(slot as usize * SLOT, SLOT);
        self.srq.post_recv(&RecvRequest::new(slot, buffer)).unwrap();
    }
}

impl End {
    pub(crate) fn post(&self) {
        if !self.shares_receives {
            self.qp.post_recv(&RecvRequest::new(0, self.inbox.sge(0, SLOT))).unwrap();
        }
    }
}

pub(crate) fn next(raw: &mut RawPair, cq: &CompletionQueue) -> WorkCompletion {
    let mut wc = None;
    let came = raw.until(1_000_000, |_| {
        wc = wc.take().or_else(|| cq.poll_one());
        wc.is_some()
    });
    assert!(came, "no completion");
    wc.unwrap()
}
