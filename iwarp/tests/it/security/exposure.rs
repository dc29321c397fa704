//! What a peer gets to see and to change of a host's memory: stale bytes, what comes after a transfer,
//! another's memory, memory that is gone.

use crate::common::{Connected, Pair, expect_terminate, pattern};
use dp::link::LinkConfig;
use iwarp::memory::Access;
use iwarp::verbs::{
    AsyncEventKind, AtomicOp, ConnParam, Context, ContextConfig, ContextLimits, MemoryRegion, MrOptions,
    RecvRequest, RemoteAddr, SendOp, SendRequest, VerbsError, WcStatus,
};

const WRITE_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const BOTH: Access = WRITE_ONLY.union(Access::REMOTE_READ);
const LEN: usize = 4096;

/// A is the peer, B exposes.
struct Exposure {
    pair: Pair,
    c: Connected,
    local: MemoryRegion,
}

impl Exposure {
    fn new() -> Self {
        let mut pair = Pair::new(&LinkConfig::default());
        let c = pair.connect(&ConnParam::default());
        let local = pair.a.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
        local.write_at(0, &pattern(1, LEN)).unwrap();
        Self { pair, c, local }
    }

    fn post(&self, op: SendOp, len: usize) {
        self.c.qp_a.post_send(&SendRequest::new(1, op, self.local.sge(0, len))).unwrap();
    }

    /// A reads, and gets these bytes.
    fn reads(&mut self, remote: RemoteAddr, len: usize) -> Vec<u8> {
        self.post(SendOp::Read { remote }, len);
        let wc = self.pair.wc_a();
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, len));
        let mut bytes = vec![0; len];
        self.local.read_at(0, &mut bytes).unwrap();
        bytes
    }

    /// A writes, and has seen by a zero-length Read behind it that B has taken it.
    fn writes(&mut self, remote: RemoteAddr, len: usize) {
        self.post(SendOp::Write { remote }, len);
        assert_eq!(self.pair.wc_a().status, WcStatus::Success);
        self.reads(remote, 0);
    }

    /// A's request ends the stream with these codes, found by B.
    fn refused(mut self, op: SendOp, (layer, etype, code): (u8, u8, u8)) {
        self.post(op, 8);
        expect_terminate(&mut self.pair, &self.c, layer, etype, code);
    }
}

fn at(region: &MemoryRegion) -> RemoteAddr {
    RemoteAddr { addr: region.addr(), rkey: region.rkey() }
}

/// Memory that the library allocates shows zeros to its first reader, also where another region was before.
// Proves SEC-105, SEC-106, SEC-179.
#[test]
fn fresh_regions_show_nothing_of_what_was_there() {
    let mut x = Exposure::new();
    for len in [1, 100, 4096, 3 << 20] {
        for _ in 0..3 {
            let region = x.pair.b.pd.reg_mr(len, BOTH).unwrap();
            let seen = len.min(LEN);
            let end = RemoteAddr { addr: region.addr() + (len - seen) as u64, rkey: region.rkey() };
            for remote in [at(&region), end] {
                x.local.write_at(0, &[0xcc; LEN]).unwrap();
                assert_eq!(x.reads(remote, seen), vec![0; seen]);
            }
            let fast = x.pair.b.pd.alloc_fast_mr(len, &Default::default()).unwrap();
            let mut bytes = vec![1; len];
            fast.memory().read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0));
            fast.memory().write_at(0, &pattern(2, len)).unwrap();
            region.write_at(0, &pattern(3, len)).unwrap();
        }
    }
}

/// While a name is valid the peer reads what comes next; once it is taken away, before the memory is used
/// again, it is told that there is no such name.
// Proves SEC-098, SEC-107.
#[test]
fn what_is_done_is_to_be_taken_away() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, BOTH).unwrap();
    region.write_at(0, b"for you.").unwrap();
    assert_eq!(x.reads(at(&region), 8), b"for you.");
    region.write_at(0, b"private.").unwrap();
    assert_eq!(x.reads(at(&region), 8), b"private.", "the threat");
    // And what was looked at may change behind the look.
    x.writes(at(&region), 8);
    let mut bytes = [0; 8];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"private."[..], "what it read is written back");
    region.invalidate();
    region.write_at(0, b"private!").unwrap();
    let remote = at(&region);
    x.refused(SendOp::Read { remote }, (0, 1, 0));

    let x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, BOTH).unwrap();
    region.invalidate();
    region.write_at(0, b"private!").unwrap();
    x.refused(SendOp::Write { remote: at(&region) }, (1, 1, 0));
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"private!"[..]);
}

/// Memory for writing is for writing: a Read and an atomic are refused, a Read of nothing is answered, with
/// that name and with one that is none, and the stream goes on.
// Proves SEC-111 to SEC-113: rights are separate flags; iwperf registers for writing alone where it writes.
#[test]
fn memory_for_writing_shows_nothing() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, WRITE_ONLY).unwrap();
    x.writes(at(&region), 64);
    for remote in [at(&region), RemoteAddr { addr: 5, rkey: 0x1234_5678 }, RemoteAddr::default()] {
        assert_eq!(x.reads(remote, 0), []);
    }
    x.writes(at(&region), 8);
    let remote = at(&region);
    x.refused(SendOp::Read { remote }, (0, 1, 2));
    let x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, WRITE_ONLY).unwrap();
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    x.refused(SendOp::Atomic { remote: at(&region), op }, (0, 1, 2));
}

/// A name of another domain, or of another queue pair of the same domain: whatever the thief does with it
/// ends the thief's stream, no byte changes, and the owner's stream goes on and can still use it.
// Proves SEC-085, SEC-087 to SEC-089, RDMAP-350, RDMAP-351, DDP-226, DDP-227.
#[test]
fn a_stolen_name_is_of_no_use() {
    for in_other_pd in [true, false] {
        for kind in 0..4 {
            let mut x = Exposure::new();
            // The victim: another connection between the same hosts.
            let listener = x.pair.listen();
            let pd = if in_other_pd { x.pair.b.context.alloc_pd().unwrap() } else { x.pair.b.pd.clone() };
            let qp_b = pd.create_qp(&iwarp::verbs::QpInit::new(&x.pair.b.cq)).unwrap();
            let qp_a = x.pair.a.qp();
            let param = ConnParam::default();
            let victim = x.pair.connect_qps(qp_a, qp_b, &param, &param);
            listener.disconnect();
            let options = MrOptions {
                qp: (!in_other_pd).then_some(&victim.qp_b),
                ..MrOptions::new(BOTH | Access::REMOTE_ATOMIC)
            };
            let region = pd.reg_mr_with(64, &options).unwrap();
            region.write_at(0, &[7; 64]).unwrap();
            let inbox = x.pair.b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
            x.c.qp_b.post_recv(&RecvRequest::new(1, inbox.sge(0, 8))).unwrap();

            let remote = at(&region);
            let atomic = AtomicOp::FetchAdd { add: 1, mask: 0 };
            let (op, (layer, etype, code)) = [
                (SendOp::Write { remote }, (1, 1, 2)),
                (SendOp::Read { remote }, (0, 1, 3)),
                (SendOp::Atomic { remote, op: atomic }, (0, 1, 3)),
                (SendOp::SendInvalidate { rkey: remote.rkey }, (0, 1, 9)),
            ][kind];
            // A Write may have one byte; an atomic has eight.
            x.post(op, if kind == 0 { 1 } else { 8 });
            expect_terminate(&mut x.pair, &x.c, layer, etype, code);
            assert_eq!(x.pair.b.engine.counters().tx_terminates, 1);
            let events = x.pair.b.context.async_events();
            let told: Vec<_> = std::iter::from_fn(|| events.poll().unwrap())
                .map(|event| (event.number, event.kind))
                .collect();
            assert_eq!(told, [(x.c.qp_b.qp_num(), AsyncEventKind::QpAccessError)]);
            let mut bytes = [0; 64];
            region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 64]);
            assert!(region.is_valid());
            while x.pair.a.cq.poll_one().is_some() {}
            let read = SendRequest::new(9, SendOp::Read { remote }, x.local.sge(100, 64));
            victim.qp_a.post_send(&read).unwrap();
            let wc = x.pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (9, WcStatus::Success));
            x.local.read_at(100, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 64]);
        }
    }
}

/// A domain for each client: its streams share what is exposed in it, and another client's reach nothing of
/// it.
// Proves SEC-005, SEC-175.
#[test]
fn the_streams_of_one_client_share_a_domain() {
    for thief_reads in [false, true] {
        let mut x = Exposure::new();
        let listener = x.pair.listen();
        let param = ConnParam::default();
        let domains = [0, 1].map(|_| x.pair.b.context.alloc_pd().unwrap());
        let regions = [0, 1].map(|client| domains[client].reg_mr(64, BOTH).unwrap());
        let streams: Vec<_> = [0, 0, 1, 1]
            .into_iter()
            .map(|client| {
                let qp_b = domains[client].create_qp(&iwarp::verbs::QpInit::new(&x.pair.b.cq)).unwrap();
                let qp_a = x.pair.a.qp();
                (client, x.pair.connect_qps(qp_a, qp_b, &param, &param))
            })
            .collect();
        listener.disconnect();
        for (client, c) in &streams {
            let remote = at(&regions[*client]);
            for op in [SendOp::Write { remote }, SendOp::Read { remote }] {
                c.qp_a.post_send(&SendRequest::new(3, op, x.local.sge(0, 64))).unwrap();
                assert_eq!(x.pair.wc_a().status, WcStatus::Success, "client {client}");
            }
        }
        // The last stream is the second client's, the region the first one's.
        let (_, c) = &streams[3];
        let remote = at(&regions[0]);
        let (op, codes) = match thief_reads {
            true => (SendOp::Read { remote }, (0, 1, 3)),
            false => (SendOp::Write { remote }, (1, 1, 2)),
        };
        c.qp_a.post_send(&SendRequest::new(4, op, x.local.sge(0, 8))).unwrap();
        expect_terminate(&mut x.pair, c, codes.0, codes.1, codes.2);
    }
}

/// A name that was one queue pair's is not inherited by the one that takes its place.
// Proves SEC-091.
#[test]
fn a_name_does_not_outlive_its_queue_pair() {
    let mut x = Exposure::new();
    let options = MrOptions { qp: Some(&x.c.qp_b), ..MrOptions::new(BOTH) };
    let region = x.pair.b.pd.reg_mr_with(64, &options).unwrap();
    x.writes(at(&region), 8);
    x.c.id_a.disconnect();
    x.pair.event_a();
    x.pair.event_b();
    let param = ConnParam::default();
    x.c = x.pair.connect(&param);
    x.refused(SendOp::Write { remote: at(&region) }, (1, 1, 2));
}

/// Where nothing else is asked for every context begins with names of its own: what an earlier one gave out
/// says nothing.
// Proves SEC-093.
#[test]
fn every_context_begins_with_other_names() {
    let firsts: std::collections::HashSet<u32> = (0..64)
        .map(|_| {
            let context = Context::new(ContextConfig::default()).unwrap();
            context.alloc_pd().unwrap().reg_mr(64, BOTH).unwrap().rkey()
        })
        .collect();
    // Two of 2^24 are equal once in eight thousand runs.
    assert!(firsts.len() >= 63, "{} of 64 are different", firsts.len());
}

/// A buffer that is only posted for receiving has no name on the wire, its local key included.
// Proves SEC-020, SEC-041.
#[test]
fn a_receive_buffer_has_no_name() {
    for kind in 0..4 {
        let x = Exposure::new();
        let inbox = x.pair.b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
        x.c.qp_b.post_recv(&RecvRequest::new(1, inbox.sge(0, 64))).unwrap();
        let remote = at(&inbox);
        let (op, codes) = [
            (SendOp::Write { remote }, (1, 1, 0)),
            (SendOp::Read { remote }, (0, 1, 0)),
            (SendOp::Write { remote: RemoteAddr { rkey: remote.rkey ^ 0x100, ..remote } }, (1, 1, 0)),
            (SendOp::Write { remote: RemoteAddr { rkey: 0, ..remote } }, (1, 1, 0)),
        ][kind];
        x.refused(op, codes);
        let mut bytes = [1; 64];
        inbox.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
    }
}

/// As many protection domains as queue pairs, by default; at the limit the next one fails and the others
/// stay.
// Proves SEC-028.
#[test]
fn a_domain_for_each_queue_pair() {
    let default = ContextLimits::default();
    assert!(default.max_pd >= default.max_qp);
    let limits = ContextLimits { max_pd: 3, ..default };
    let context = Context::new(ContextConfig { limits, ..Default::default() }).unwrap();
    let mut all: Vec<_> = (0..3).map(|_| context.alloc_pd().unwrap()).collect();
    assert!(matches!(context.alloc_pd(), Err(VerbsError::Limit { name: "max_pd", limit: 3 })));
    assert!(all.iter().all(|pd| pd.reg_mr(64, BOTH).is_ok()));
    all.pop();
    assert!(context.alloc_pd().is_ok());
}

/// Memory that B's program unmaps while it is registered: the peer's Write and Read meet an STag that is
/// none, B's own Send and receive fail as local mistakes, and so does the answer to B's own Read.
// Proves SEC-169.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn memory_that_is_gone_ends_the_stream_not_the_process() {
    use rustix::mm::{ProtFlags, munmap};

    const BIG: usize = 1 << 20;
    for kind in 0..6 {
        let mut x = Exposure::new();
        let big = x.pair.a.pd.reg_mr(BIG, BOTH).unwrap();
        let inbox = x.pair.b.pd.reg_mr(BIG, BOTH).unwrap();
        // The responder may send once the initiator has.
        x.writes(at(&inbox), 8);
        let start = crate::common::apart::apart(BIG, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the memory is the test's alone; that it goes too early is what is tested, and what the
        // guard is for.
        let region = unsafe { x.pair.b.pd.reg_user_mr(start, BIG, &MrOptions::new(BOTH)) }.unwrap();
        let whole = |op, region: &MemoryRegion| SendRequest::new(1, op, region.sge(0, BIG));
        match kind {
            0 => x.c.qp_a.post_send(&whole(SendOp::Write { remote: at(&region) }, &big)).unwrap(),
            1 => x.c.qp_a.post_send(&whole(SendOp::Read { remote: at(&region) }, &big)).unwrap(),
            2 => {
                x.c.qp_a.post_recv(&RecvRequest::new(1, big.sge(0, BIG))).unwrap();
                x.c.qp_b.post_send(&whole(SendOp::Send, &region)).unwrap();
            }
            3 => {
                x.c.qp_b.post_recv(&RecvRequest::new(2, region.sge(0, BIG))).unwrap();
                x.c.qp_a.post_send(&whole(SendOp::Send, &big)).unwrap();
            }
            4 => x.c.qp_b.post_send(&whole(SendOp::Read { remote: at(&big) }, &region)).unwrap(),
            _ => x.c.qp_b.post_send(&whole(SendOp::Write { remote: at(&big) }, &region)).unwrap(),
        }
        // Under way, and by far not through.
        let moved = |x: &Exposure| {
            let counters = x.pair.b.engine.counters();
            counters.rx_placed_bytes + counters.tx_fetched_bytes
        };
        let before = moved(&x);
        while moved(&x) < before + 10_000 {
            x.pair.turn();
        }
        assert!(moved(&x) < before + BIG as u64);
        // SAFETY: the test's own mapping; what still accesses it does so under the guard.
        unsafe { munmap(start.cast(), BIG) }.unwrap();
        match kind {
            0 => expect_terminate(&mut x.pair, &x.c, 1, 1, 0),
            1 => expect_terminate(&mut x.pair, &x.c, 0, 1, 0),
            _ => {
                let wc = x.pair.until(|pair| {
                    std::iter::from_fn(|| pair.b.cq.poll_one()).find(|wc| wc.status != WcStatus::Success)
                });
                assert_eq!(wc.status, WcStatus::LocalProtectionError, "kind {kind}");
            }
        }
    }
}
