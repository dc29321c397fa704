//! A connection allocates its memory before it is established. After that, messages allocate nothing at
//! either endpoint, not even the first message of each kind. The test counts the allocations of the
//! application's calls together with those of the engines.

use crate::common::counting::{allocations, uncounted};
use crate::common::ext::{ADD_ONE, ALL, atomic};
use crate::common::hooked::Hooks;
use crate::common::{Connected, Pair, Testbed, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use dp::{Burst, Port, Region};
use iwarp::memory::{
    Access, Accessor, Base, Bind, FastBind, MemoryTable, PdId, Prepare, RegisterOptions, StreamId, WindowKind,
};
use iwarp::verbs::{ConnParam, MemoryRegion, RecvRequest, SendOp, SendRequest, WcStatus};

/// Excludes the in-memory wire from the count, because it allocates memory for each frame under way.
struct Uncounted;

impl Hooks for Uncounted {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        uncounted(|| port.rx_burst(now_us, frames))
    }

    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        uncounted(|| port.tx_burst(now_us, frames))
    }

    fn next_due_us(&self, port: &dyn Port) -> Option<u64> {
        uncounted(|| port.next_due_us())
    }
}

/// Number of requests of one kind that are posted at once.
const BURST: usize = 200;
/// Length of a long request in bytes.
const LONG: usize = 9000;

fn connected() -> (Pair, Connected) {
    let mut pair = Testbed::new().hook_a(Uncounted).hook_b(Uncounted).hosts();
    let c = pair.connect(&ConnParam::default());
    (pair, c)
}

/// Posts a burst at both endpoints and polls all completions. Returns the number of allocations.
fn exchange(
    pair: &mut Pair,
    c: &Connected,
    receives: usize,
    post: impl Fn(usize) -> [SendRequest; 2],
    buffers: &[MemoryRegion; 2],
) -> u64 {
    let before = allocations();
    for n in 0..receives {
        for (qp, buffer) in [&c.qp_a, &c.qp_b].into_iter().zip(buffers) {
            qp.post_recv(&RecvRequest::new(n as u64, buffer.sge(0, LONG))).unwrap();
        }
    }
    for n in 0..BURST {
        let [a, b] = post(n);
        c.qp_a.post_send(&a).unwrap();
        c.qp_b.post_send(&b).unwrap();
    }
    for _ in 0..BURST + receives {
        assert_eq!((pair.wc_a().status, pair.wc_b().status), (WcStatus::Success, WcStatus::Success));
    }
    allocations() - before
}

/// Each kind of message has its own connection, whose memory no other kind can have made grow. `all` is a mix
/// of three kinds.
#[test]
fn the_first_message_of_each_kind_allocates_nothing() {
    for kind in ["Read", "atomic", "Send", "Write", "all"] {
        let (mut pair, c) = connected();
        let regions = [&pair.a, &pair.b].map(|host| host.pd.reg_mr(LONG, ALL).unwrap());
        let buffers = [&pair.a, &pair.b].map(|host| host.pd.reg_mr(LONG, ALL).unwrap());
        let request = |n: usize, own: &MemoryRegion, other: &MemoryRegion| {
            let kind = if kind == "all" { ["Read", "atomic", "Write"][n % 3] } else { kind };
            let (id, long) = (n as u64, own.sge(0, LONG));
            match kind {
                "Read" => SendRequest::new(id, SendOp::Read { remote: remote_addr(other, 0) }, long),
                "atomic" => atomic(id, ADD_ONE, remote_addr(other, 0), own, 0),
                "Send" => SendRequest::new(id, SendOp::Send, long),
                _ => SendRequest::new(id, SendOp::Write { remote: remote_addr(other, 0) }, long),
            }
        };
        let [a, b] = &regions;
        let receives = if kind == "Send" { BURST } else { 0 };
        for round in 0..2 {
            let count = exchange(&mut pair, &c, receives, |n| [request(n, a, b), request(n, b, a)], &buffers);
            assert_eq!(count, 0, "{kind}, round {round}");
        }
    }
}

/// Messages allocate nothing even if frames are lost and reordered: TCP retransmits, receives out of order
/// and discards held bytes. With markers, FPDUs are placed early.
#[test]
fn repair_reordering_and_eviction_allocate_nothing() {
    let bad = LinkPlan {
        drop_ppm: 20_000,
        reorder_ppm: 20_000,
        reorder_us: 300,
        delay_us: 50,
        ..LinkPlan::default()
    };
    for markers in [false, true] {
        let link = LinkConfig { a_to_b: bad.clone(), b_to_a: bad.clone(), seed: 4, ..LinkConfig::default() };
        let bed = Testbed::on(&link).hook_a(Uncounted).hook_b(Uncounted);
        let mut pair = bed.configure(|config| config.stack.limits.out_of_order_bytes = 16_000).hosts();
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let regions = [&pair.a, &pair.b].map(|host| host.pd.reg_mr(LONG, ALL).unwrap());
        let buffers = [&pair.a, &pair.b].map(|host| host.pd.reg_mr(LONG, ALL).unwrap());
        let request = |n: usize, own: &MemoryRegion, other: &MemoryRegion| {
            let (id, long) = (n as u64, own.sge(0, LONG));
            match n % 3 {
                0 => SendRequest::new(id, SendOp::Read { remote: remote_addr(other, 0) }, long),
                1 => SendRequest::new(id, SendOp::Send, long),
                _ => SendRequest::new(id, SendOp::Write { remote: remote_addr(other, 0) }, long),
            }
        };
        let [a, b] = &regions;
        let receives = (0..BURST).filter(|n| n % 3 == 1).count();
        for round in 0..3 {
            let count = exchange(&mut pair, &c, receives, |n| [request(n, a, b), request(n, b, a)], &buffers);
            assert_eq!(count, 0, "markers {markers}, round {round}");
        }
        for host in [&pair.a, &pair.b] {
            let counters = host.engine.counters();
            let stack = counters.stack;
            assert!(stack.tx_retransmits > 50 && stack.out_of_order.max_held_bytes > 0, "{stack:?}");
            assert_eq!(counters.rx_fpdus_early > 0, markers, "{counters:?}");
            assert!(markers || stack.rx_out_of_order_evicted_bytes > 0, "{stack:?}");
        }
    }
}

/// Repeated binding, registering and invalidating in the send queue allocates nothing.
#[test]
fn a_send_queue_allocates_nothing_for_names() {
    const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
    const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
    let table = MemoryTable::new(16, [9; 32]);
    let bindable = RegisterOptions {
        pd: ME.pd,
        access: ACCESS | Access::MW_BIND,
        base: Base::Zero,
        ..RegisterOptions::default()
    };
    let region = table.register(std::sync::Arc::new(Region::new(64).unwrap()), &bindable).unwrap();
    let window = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    let prepare = Prepare { pd: ME.pd, ..Prepare::default() };
    let fast = table.prepare(std::sync::Arc::new(Region::new(64).unwrap()), &prepare).unwrap();
    let (_other, queue) = (table.join(), table.join());
    let bind = |key| Bind {
        stag: window.stag(key),
        region: region.stag(),
        addr: 0,
        len: 8,
        access: Access::REMOTE_READ,
        zero_based: true,
    };
    let register =
        |key| FastBind { stag: fast.stag(key), offset: 8, len: 8, access: ACCESS, base: Base::Zero };
    let before = allocations();
    for key in 0..100 {
        let guard = queue.enter();
        guard.bind_window(&bind(key), ME).unwrap();
        guard.fast_register(&register(key), ME).unwrap();
        guard.check_write(fast.stag(key), 0, 8, ME).unwrap().place(0, b"eight oc").unwrap();
        guard.invalidate_local(fast.stag(key), ME).unwrap();
    }
    assert_eq!(allocations(), before);
    drop(std::hint::black_box(Box::new(0)));
    assert_eq!(allocations(), before + 1, "they are counted");
}
