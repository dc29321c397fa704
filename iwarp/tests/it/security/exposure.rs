//! The memory of a host that a peer can see and change, for example stale bytes, bytes written after a
//! transfer, memory of other streams, and memory that was unmapped.

use crate::common::{Connected, Pair, expect_terminate, pattern, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    AsyncEventKind, AtomicOp, ConnParam, Context, ContextConfig, ContextLimits, MemoryRegion, MrOptions,
    RecvRequest, RemoteAddr, SendOp, SendRequest, VerbsError, WcStatus,
};

const WRITE_ONLY: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const BOTH: Access = WRITE_ONLY.union(Access::REMOTE_READ);
const LEN: usize = 4096;

/// A is the peer. B exposes memory.
struct Exposure {
    pair: Pair,
    c: Connected,
    local: MemoryRegion,
}

impl Exposure {
    fn new() -> Self {
        let (pair, c) = Pair::connected();
        let local = pair.a.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
        local.write_at(0, &pattern(1, LEN)).unwrap();
        Self { pair, c, local }
    }

    fn post(&self, op: SendOp, len: usize) {
        self.c.qp_a.post_send(&SendRequest::new(1, op, self.local.sge(0, len))).unwrap();
    }

    /// A reads `len` bytes at `remote`, and returns them.
    fn reads(&mut self, remote: RemoteAddr, len: usize) -> Vec<u8> {
        self.post(SendOp::Read { remote }, len);
        let wc = self.pair.wc_a();
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, len));
        read_bytes(&self.local, 0, len)
    }

    /// Writes `len` bytes from A. The zero-length Read behind the Write shows that B has placed the bytes.
    fn writes(&mut self, remote: RemoteAddr, len: usize) {
        self.post(SendOp::Write { remote }, len);
        assert_eq!(self.pair.wc_a().status, WcStatus::Success);
        self.reads(remote, 0);
    }

    /// Posts a request at A. Checks that B ends the stream with the given layer, type and code.
    fn refused(mut self, op: SendOp, (layer, etype, code): (u8, u8, u8)) {
        self.post(op, 8);
        expect_terminate(&mut self.pair, &self.c, layer, etype, code);
    }
}

/// Memory that the library allocates is zero for its first reader, even where another region was stored
/// before.
// Proves SEC-105, SEC-106, SEC-179.
#[test]
fn fresh_regions_show_nothing_of_what_was_there() {
    let mut x = Exposure::new();
    for len in [1, 100, 4096, 3 << 20] {
        for _ in 0..3 {
            let region = x.pair.b.pd.reg_mr(len, BOTH).unwrap();
            let seen = len.min(LEN);
            let end = RemoteAddr { addr: region.addr() + (len - seen) as u64, rkey: region.rkey() };
            for remote in [remote_addr(&region, 0), end] {
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

/// While an STag is valid, the peer reads new bytes. If the STag is invalidated before the memory is used
/// again, the peer receives an error.
// Proves SEC-098, SEC-107.
#[test]
fn bytes_stored_after_an_invalidation_are_not_readable() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, BOTH).unwrap();
    region.write_at(0, b"for you.").unwrap();
    assert_eq!(x.reads(remote_addr(&region, 0), 8), b"for you.");
    region.write_at(0, b"private.").unwrap();
    assert_eq!(x.reads(remote_addr(&region, 0), 8), b"private.", "the threat");
    // The peer may also change bytes after the host has checked them.
    x.writes(remote_addr(&region, 0), 8);
    let mut bytes = [0; 8];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"private."[..], "what it read is written back");
    region.invalidate();
    region.write_at(0, b"private!").unwrap();
    let remote = remote_addr(&region, 0);
    x.refused(SendOp::Read { remote }, (0, 1, 0));

    let x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, BOTH).unwrap();
    region.invalidate();
    region.write_at(0, b"private!").unwrap();
    x.refused(SendOp::Write { remote: remote_addr(&region, 0) }, (1, 1, 0));
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"private!"[..]);
}

/// If memory is exposed for writing only, a Read and an atomic are refused. A Read of no bytes is answered,
/// with the STag of this memory and with an invalid STag, and the stream continues.
// Proves SEC-111 to SEC-113: rights are separate flags. If iwperf's peer only writes, iwperf registers its
// memory without the right to read.
#[test]
fn memory_for_writing_shows_nothing() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, WRITE_ONLY).unwrap();
    x.writes(remote_addr(&region, 0), 64);
    for remote in [remote_addr(&region, 0), RemoteAddr { addr: 5, rkey: 0x1234_5678 }, RemoteAddr::default()]
    {
        assert_eq!(x.reads(remote, 0), b"");
    }
    x.writes(remote_addr(&region, 0), 8);
    let remote = remote_addr(&region, 0);
    x.refused(SendOp::Read { remote }, (0, 1, 2));
    let x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(64, WRITE_ONLY).unwrap();
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    x.refused(SendOp::Atomic { remote: remote_addr(&region, 0), op }, (0, 1, 2));
}

/// A peer uses an STag of another domain, or of another queue pair of the same domain, for a Write, a Read,
/// an atomic or an invalidation. Each use ends the peer's own stream, no byte changes, and the owner's stream
/// can still use the STag.
// Proves SEC-085, SEC-087 to SEC-089, RDMAP-350, RDMAP-351, DDP-226, DDP-227.
#[test]
fn a_stolen_name_is_of_no_use() {
    for in_other_pd in [true, false] {
        for kind in 0..4 {
            let mut x = Exposure::new();
            // The victim is another connection between the same hosts.
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

            let remote = remote_addr(&region, 0);
            let atomic = AtomicOp::FetchAdd { add: 1, mask: 0 };
            let (op, (layer, etype, code)) = [
                (SendOp::Write { remote }, (1, 1, 2)),
                (SendOp::Read { remote }, (0, 1, 3)),
                (SendOp::Atomic { remote, op: atomic }, (0, 1, 3)),
                (SendOp::SendInvalidate { rkey: remote.rkey }, (0, 1, 9)),
            ][kind];
            // A Write may have one byte; an atomic has eight bytes.
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

/// Each client has a domain. The streams of a client share the memory that is exposed in its domain; the
/// streams of another client cannot access this memory.
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
            let remote = remote_addr(&regions[*client], 0);
            for op in [SendOp::Write { remote }, SendOp::Read { remote }] {
                c.qp_a.post_send(&SendRequest::new(3, op, x.local.sge(0, 64))).unwrap();
                assert_eq!(x.pair.wc_a().status, WcStatus::Success, "client {client}");
            }
        }
        // The last stream belongs to the second client, and the region to the first client.
        let (_, c) = &streams[3];
        let remote = remote_addr(&regions[0], 0);
        let (op, codes) = match thief_reads {
            true => (SendOp::Read { remote }, (0, 1, 3)),
            false => (SendOp::Write { remote }, (1, 1, 2)),
        };
        c.qp_a.post_send(&SendRequest::new(4, op, x.local.sge(0, 8))).unwrap();
        expect_terminate(&mut x.pair, c, codes.0, codes.1, codes.2);
    }
}

/// An STag that is valid only on one queue pair is not valid on the next queue pair of the same hosts.
// Proves SEC-091.
#[test]
fn a_name_does_not_outlive_its_queue_pair() {
    let mut x = Exposure::new();
    let options = MrOptions { qp: Some(&x.c.qp_b), ..MrOptions::new(BOTH) };
    let region = x.pair.b.pd.reg_mr_with(64, &options).unwrap();
    x.writes(remote_addr(&region, 0), 8);
    x.c.id_a.disconnect();
    x.pair.event_a();
    x.pair.event_b();
    let param = ConnParam::default();
    x.c = x.pair.connect(&param);
    x.refused(SendOp::Write { remote: remote_addr(&region, 0) }, (1, 1, 2));
}

/// By default, every context begins with different STags: 64 contexts have at least 63 different first STags.
// Proves SEC-093.
#[test]
fn every_context_begins_with_other_names() {
    let firsts: std::collections::HashSet<u32> = (0..64)
        .map(|_| {
            let context = Context::new(ContextConfig::default()).unwrap();
            context.alloc_pd().unwrap().reg_mr(64, BOTH).unwrap().rkey()
        })
        .collect();
    // In one of eight thousand runs, two of 64 random STags of 24 bits are equal.
    assert!(firsts.len() >= 63, "{} of 64 are different", firsts.len());
}

/// A receive buffer has no STag on the wire: its local key is not valid there.
// Proves SEC-020, SEC-041.
#[test]
fn a_receive_buffer_has_no_name() {
    for kind in 0..4 {
        let x = Exposure::new();
        let inbox = x.pair.b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
        x.c.qp_b.post_recv(&RecvRequest::new(1, inbox.sge(0, 64))).unwrap();
        let remote = remote_addr(&inbox, 0);
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

/// By default, there may be as many protection domains as queue pairs. At the limit, creating one more domain
/// fails, and the existing domains stay.
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

/// B's program unmaps memory while the memory is registered. The peer's Write and Read fail with an invalid
/// STag; B's own Send, receive, Read and Write fail with local errors.
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
        // The responder may send after the initiator has sent its first message.
        x.writes(remote_addr(&inbox, 0), 8);
        let start = crate::common::apart::apart(BIG, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the test owns the mapping and accesses the memory only through the region. The test breaks
        // one promise: it unmaps the memory before the region is dropped. The guard of the table turns
        // accesses to the unmapped memory into errors.
        let region = unsafe { x.pair.b.pd.reg_user_mr(start, BIG, &MrOptions::new(BOTH)) }.unwrap();
        let whole = |op, region: &MemoryRegion| SendRequest::new(1, op, region.sge(0, BIG));
        match kind {
            0 => x.c.qp_a.post_send(&whole(SendOp::Write { remote: remote_addr(&region, 0) }, &big)).unwrap(),
            1 => x.c.qp_a.post_send(&whole(SendOp::Read { remote: remote_addr(&region, 0) }, &big)).unwrap(),
            2 => {
                x.c.qp_a.post_recv(&RecvRequest::new(1, big.sge(0, BIG))).unwrap();
                x.c.qp_b.post_send(&whole(SendOp::Send, &region)).unwrap();
            }
            3 => {
                x.c.qp_b.post_recv(&RecvRequest::new(2, region.sge(0, BIG))).unwrap();
                x.c.qp_a.post_send(&whole(SendOp::Send, &big)).unwrap();
            }
            4 => x.c.qp_b.post_send(&whole(SendOp::Read { remote: remote_addr(&big, 0) }, &region)).unwrap(),
            _ => x.c.qp_b.post_send(&whole(SendOp::Write { remote: remote_addr(&big, 0) }, &region)).unwrap(),
        }
        // The transfer has begun, but is far from complete.
        let moved = |x: &Exposure| {
            let counters = x.pair.b.engine.counters();
            counters.rx_placed_bytes + counters.tx_fetched_bytes
        };
        let before = moved(&x);
        while moved(&x) < before + 10_000 {
            x.pair.poll();
        }
        assert!(moved(&x) < before + BIG as u64);
        // SAFETY: the test owns the mapping. Only the region still accesses the memory, and the guard turns
        // these accesses into errors.
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
