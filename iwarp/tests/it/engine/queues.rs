//! Engines on several queues of one device.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use dp::{Below, Burst, Link, LinkState, Port, PortBase, PortInfo, PortLayer, Queue, Sleep, Statistics};
use iwarp::engine::{Engine, EngineConfig, ThreadOptions};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel,
    KeepalivePolicy, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RemoteAddr, SendOp, SendRequest,
    WcStatus,
};
use tcp_lite::AddressProbing;
use tcp_lite::facade::EthernetAddress;

const LIMIT: Duration = Duration::from_secs(20);
const PORT: u16 = 7471;

/// A queue of a device that gives all frames to its first queue.
struct OneSided {
    base: PortBase,
    port: Arc<Mutex<Box<dyn Port>>>,
}

/// Returns `queues` queues of a device that gives all frames of `port` to its first queue.
fn one_sided(port: Box<dyn Port>, queues: u16) -> Vec<Box<dyn Port>> {
    let (info, pool) = (port.info().clone(), port.mempool().clone());
    let port = Arc::new(Mutex::new(port));
    let queue = |index| {
        let info = PortInfo { queue: Queue { index, rss: None }, ..info.clone() };
        Box::new(OneSided { base: PortBase::new(info, pool.clone()), port: Arc::clone(&port) })
            as Box<dyn Port>
    };
    (0..queues).map(queue).collect()
}

impl PortLayer for OneSided {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for OneSided {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        if self.base.info.queue.index == 0 { self.port.lock().unwrap().rx_burst(now_us, frames) } else { 0 }
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.port.lock().unwrap().tx_burst(now_us, frames)
    }
}

impl Link for OneSided {
    fn link_state(&mut self) -> LinkState {
        self.port.lock().unwrap().link_state()
    }
}

impl Sleep for OneSided {}
impl Statistics for OneSided {}

/// One side of a wire: its context and the objects that its connections need.
struct End {
    context: Context,
    events: EventChannel,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    memory: MemoryRegion,
    waiting: Vec<CmEvent>,
}

impl End {
    fn new() -> Self {
        let context = Context::new(ContextConfig::default()).unwrap();
        let (events, cq) = (context.create_event_channel().unwrap(), context.create_cq(256, None).unwrap());
        let pd = context.alloc_pd().unwrap();
        let memory = pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Self { context, events, cq, pd, memory, waiting: Vec::new() }
    }

    fn queue_pair(&self) -> QueuePair {
        self.pd.create_qp(&QpInit::new(&self.cq)).unwrap()
    }

    /// Takes the first event that `wanted` accepts. Returns `None` if there is no such event.
    fn take(&mut self, wanted: impl Fn(&CmEvent) -> bool) -> Option<CmEvent> {
        self.waiting.extend(std::iter::from_fn(|| self.events.poll()));
        let at = self.waiting.iter().position(wanted)?;
        Some(self.waiting.remove(at))
    }

    fn established(&mut self, id: &CmId) -> Option<()> {
        self.take(|event| event.id == *id && matches!(event.kind, CmEventKind::Established { .. })).map(drop)
    }

    fn request(&mut self) -> Option<CmId> {
        self.take(|event| matches!(event.kind, CmEventKind::ConnectRequest { .. })).map(|event| event.id)
    }
}

fn config(port: &dyn Port, address: &str) -> EngineConfig {
    EngineConfig::new(port, &[address]).unwrap()
}

/// Calls `look` until `look` returns a value.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
    }
}

#[test]
fn frames_at_another_queue_wake_the_engine_of_their_connection() {
    let (near, far) = pair(&LinkConfig::default());
    let (mut a, mut b) = (End::new(), End::new());
    let mut far_config = config(&*far, "10.0.0.2/24");
    far_config.stack.mac = EthernetAddress([2, 7, 10, 0, 0, 2]);
    let mut peer = Engine::new(&b.context, far, far_config).unwrap();
    let mut near_config = config(&*near, "10.0.0.1/24");
    // The test does not use ARP, because ARP would ask again after a second.
    near_config.stack.derived_neighbors = Some([2, 7]);
    near_config.stack.address_probing = AddressProbing::Off;
    // The second engine sleeps at once and, unless it is woken, for longer than this test takes. No timer can
    // wake this engine. The usual timers would be too short, because a busy machine may delay an answer for
    // longer.
    let tcp = &mut near_config.stack.tcp;
    for timer in [&mut tcp.rto_initial, &mut tcp.rto_min, &mut tcp.tail_probe_min] {
        *timer = tcp_lite::Duration::from_secs(3 * LIMIT.as_secs());
    }
    let mut engines = Engine::on_queues(&a.context, one_sided(near, 2), &near_config, &[]).unwrap();
    let sleeper = engines.pop().unwrap();
    let forever = ThreadOptions { spin_polls: 0, yield_polls: 0, max_sleep: 3 * LIMIT, cpu: None };
    let sleeper = sleeper.spawn(forever).unwrap();
    let mut first = engines.pop().unwrap();

    let listener = b.context.create_id(&b.events);
    listener.listen(PORT, 16, LIMIT).unwrap();
    let (id, qp) = (a.context.create_id(&a.events), a.queue_pair());
    let (timeout, keepalive) = (3 * LIMIT, KeepalivePolicy::Off);
    let param = ConnParam { engine: Some(1), timeout, keepalive, ..ConnParam::default() };
    id.connect(&qp, ([10, 0, 0, 2], PORT).into(), &param).unwrap();
    let mut poll = || {
        first.poll();
        peer.poll();
    };
    let request = until("request", || {
        poll();
        b.request()
    });
    let theirs = b.queue_pair();
    request.accept(&theirs, &ConnParam::default()).unwrap();
    until("established", || {
        poll();
        a.established(&id)
    });
    write_once(&a, &b, &qp, poll);
    let engine = sleeper.stop();
    let counters = engine.counters();
    assert!(counters.stack.rx_handed_over >= 2, "{counters:?}");
    assert_eq!(counters.stack.rto_expired, 0, "its own timer has woken it: {counters:?}");
    assert_eq!(counters.port.rx_frames, 0, "nothing arrives at its queue");
}

/// An engine that has received frames from another engine has work at once, so it does not go to sleep then.
#[test]
fn a_frame_that_was_handed_over_is_due_at_once() {
    let (near, far) = pair(&LinkConfig::default());
    let (a, mut b) = (End::new(), End::new());
    let far_config = config(&*far, "10.0.0.2/24");
    let mut peer = Engine::new(&b.context, far, far_config).unwrap();
    let near_config = config(&*near, "10.0.0.1/24");
    let mut engines = Engine::on_queues(&a.context, one_sided(near, 2), &near_config, &[]).unwrap();
    let listener = b.context.create_id(&b.events);
    listener.listen(PORT, 16, LIMIT).unwrap();
    let (id, qp) = (a.context.create_id(&a.events), a.queue_pair());
    let param = ConnParam { engine: Some(1), ..ConnParam::default() };
    id.connect(&qp, ([10, 0, 0, 2], PORT).into(), &param).unwrap();
    let (mut now_us, mut handed) = (0, 0);
    while handed < 2 {
        now_us += 100;
        assert!(now_us < 10_000_000, "only {handed} frames were handed over");
        let now = tcp_lite::Instant::from_micros(now_us);
        peer.poll_at(now);
        engines[0].poll_at(now);
        let due = engines[1].next_deadline(now);
        engines[1].poll_at(now);
        let count = engines[1].counters().stack.rx_handed_over;
        assert!(count == handed || due == Some(now), "{count} frames, and due at {due:?} and not at {now:?}");
        handed = count;
        if let Some(request) = b.request() {
            request.reject(b"").unwrap();
        }
    }
}

#[test]
fn connections_go_to_the_engine_with_the_fewest_also_before_it_has_begun_them() {
    let (near, far) = pair(&LinkConfig::default());
    let a = End::new();
    let near_config = config(&*near, "10.0.0.1/24");
    let mut engines = Engine::on_queues(&a.context, one_sided(near, 4), &near_config, &[]).unwrap();
    let mut ids = Vec::new();
    for _ in 0..40 {
        let (id, qp) = (a.context.create_id(&a.events), a.queue_pair());
        id.connect(&qp, ([10, 0, 0, 2], PORT).into(), &ConnParam::default()).unwrap();
        ids.push((id, qp));
    }
    for engine in &mut engines {
        engine.poll();
    }
    let began: Vec<_> = engines.iter().map(|engine| engine.stack_usage().connections).collect();
    assert_eq!(began, [10; 4]);
    drop(far);
}

#[test]
fn a_device_without_queues_or_with_too_many_is_refused() {
    let a = End::new();
    let (near, _far) = pair(&LinkConfig::default());
    let config = config(&*near, "10.0.0.1/24");
    for queues in [0, 65] {
        let (near, _far) = pair(&LinkConfig::default());
        let refused = Engine::on_queues(&a.context, one_sided(near, queues), &config, &[]);
        let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(text, format!("engines need 1 to 64 ports, not {queues}"));
    }
}

/// Writes 64 bytes with `qp` from the memory of `from` to the memory of `to`, and checks the bytes there.
fn write_once(from: &End, to: &End, qp: &QueuePair, mut poll: impl FnMut()) {
    from.memory.write_at(0, &[7; 64]).unwrap();
    to.memory.write_at(0, &[0; 64]).unwrap();
    let remote = RemoteAddr { addr: to.memory.addr(), rkey: to.memory.rkey() };
    qp.post_send(&SendRequest::new(1, SendOp::Write { remote }, from.memory.sge(0, 64))).unwrap();
    let completion = until("completion", || {
        poll();
        from.cq.poll_one()
    });
    assert_eq!(completion.status, WcStatus::Success);
    until("the last byte", || {
        poll();
        (to.memory.load_u8(63).unwrap() == 7).then_some(())
    });
    let mut bytes = [0; 64];
    to.memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);
}

#[test]
fn an_engine_that_ends_leaves_its_queue_to_another() {
    let (near, far) = pair(&LinkConfig::default());
    let (mut a, mut b) = (End::new(), End::new());
    let far_config = config(&*far, "10.0.0.2/24");
    let mut peer = Engine::new(&b.context, far, far_config).unwrap();
    let near_config = config(&*near, "10.0.0.1/24");
    let engines = Engine::on_queues(&a.context, one_sided(near, 3), &near_config, &[]).unwrap();
    let mut engines: Vec<Option<Engine>> = engines.into_iter().map(Some).collect();
    let listener = a.context.create_id(&a.events);
    listener.listen(PORT, 16, LIMIT).unwrap();
    let turn = |engines: &mut Vec<Option<Engine>>, peer: &mut Engine| {
        for engine in engines.iter_mut().flatten() {
            engine.poll();
        }
        peer.poll();
    };
    // All frames arrive at the queue of the engine that ends. This engine also answers ARP.
    engines[0] = None;
    for _ in 0..3 {
        let (id, qp) = (b.context.create_id(&b.events), b.queue_pair());
        id.connect(&qp, ([10, 0, 0, 1], PORT).into(), &ConnParam::default()).unwrap();
        let request = until("request", || {
            turn(&mut engines, &mut peer);
            a.request()
        });
        let ours = a.queue_pair();
        request.accept(&ours, &ConnParam::default()).unwrap();
        until("established", || {
            turn(&mut engines, &mut peer);
            b.established(&id)
        });
        write_once(&b, &a, &qp, || turn(&mut engines, &mut peer));
    }
    assert_eq!(engines[1].as_ref().map(|engine| engine.counters().connections), Some(3));
}
