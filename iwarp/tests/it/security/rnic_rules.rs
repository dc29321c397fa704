//! The rules of RFC 5040 section 8.1 for the RNIC and the Privileged Resource Manager, item by item. The
//! stream of another application on the same host continues during all attempts.

use crate::common::served::Served;
use crate::common::{Connected, Pair, pattern, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    BindWindow, CmEventKind, ConnParam, MemoryRegion, MrOptions, ProtectionDomain, QpGrants, QpInit, QpState,
    QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest, VerbsError, WcStatus, WindowKind,
    WorkCompletion,
};

const BOTH: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const LEN: usize = 256;

/// B is the host under test, with a domain for each of its applications. A hosts the peers of all
/// applications.
struct Host {
    pair: Pair,
    _listener: iwarp::verbs::CmId,
    /// The stream that must not be disturbed, and the memory exposed to its peer.
    victim: Connected,
    domain: ProtectionDomain,
    lent: MemoryRegion,
    local: MemoryRegion,
    rounds: u64,
}

impl Host {
    fn new() -> Self {
        let (mut pair, listener) = Pair::listening();
        let domain = pair.b.context.alloc_pd().unwrap();
        let cq = pair.b.context.create_cq(64, None).unwrap();
        let (qp_a, qp_b) = (pair.a.qp(), domain.create_qp(&QpInit::new(&cq)).unwrap());
        let victim = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
        let lent = domain.reg_mr(LEN, BOTH).unwrap();
        let local = pair.a.pd.reg_mr(4 * LEN, BOTH).unwrap();
        Self { pair, _listener: listener, victim, domain, lent, local, rounds: 0 }
    }

    /// Connects a stream of another application of the host.
    fn other(&mut self, param: &ConnParam) -> Connected {
        self.pair.connect_again(param, param)
    }

    /// Posts a request at A and returns its completion.
    fn ask(&mut self, qp: &QueuePair, op: SendOp, bytes: usize) -> WorkCompletion {
        qp.post_send(&SendRequest::new(99, op, self.local.sge(0, bytes))).unwrap();
        self.pair.until(|pair| pair.a.cq.poll_one().filter(|wc| wc.wr_id == 99))
    }

    /// Posts a request at A, and checks that the host refuses the request, ends the stream `c`, and does not
    /// disturb the victim.
    fn refuses(&mut self, c: &Connected, op: SendOp, bytes: usize) {
        c.qp_a.post_send(&SendRequest::new(98, op, self.local.sge(0, bytes))).unwrap();
        self.pair.until(|_| (c.qp_a.state() == QpState::Error && c.qp_b.error().is_some()).then_some(()));
        assert!(c.qp_a.error().is_some_and(|error| error.from_peer), "{:?}", c.qp_a.error());
        self.undisturbed();
    }

    /// Checks that the victim's peer can write bytes and read them back.
    fn undisturbed(&mut self) {
        self.pair.run_us(1000);
        // Drops the completions and events of other streams.
        while self.pair.a.cq.poll_one().is_some() {}
        while self.pair.a.channel.poll().is_some() {}
        while self.pair.b.channel.poll().is_some() {}
        self.rounds += 1;
        let bytes = pattern(self.rounds, LEN);
        self.local.write_at(2 * LEN, &bytes).unwrap();
        let remote = remote_addr(&self.lent, 0);
        let request = |op, from| SendRequest::new(97, op, self.local.sge(from, LEN));
        let requests =
            [request(SendOp::Write { remote }, 2 * LEN), request(SendOp::Read { remote }, 3 * LEN)];
        self.victim.qp_a.post_send_list(&requests).unwrap();
        for _ in 0..2 {
            let wc = self.pair.until(|pair| pair.a.cq.poll_one().filter(|wc| wc.wr_id == 97));
            assert_eq!(wc.status, WcStatus::Success);
        }
        let back = read_bytes(&self.local, 3 * LEN, LEN);
        assert_eq!(back, bytes);
        assert_eq!((self.victim.qp_a.error(), self.victim.qp_b.error()), (None, None));
    }
}

// Proves RDMAP-348, RDMAP-349: the test tries each of the twelve items for the RNIC and the six items for the
// resource manager. Each attack is refused, and each rule holds. The test checks several times, between the
// items, that a stream of another application on the same host carries its bytes.
#[test]
fn every_item_of_section_8_1_holds_beside_a_stream_at_work() {
    let mut host = Host::new();
    let param = ConnParam::default();
    host.undisturbed();
    let secret = pattern(500, LEN);
    let own = |host: &Host, access| host.pair.b.pd.reg_mr(LEN, access).unwrap();
    let is_whole = |region: &MemoryRegion| {
        let bytes = read_bytes(region, 0, LEN);
        bytes == secret
    };

    // 1: an STag of another protection domain.
    let foreign = host.domain.reg_mr(LEN, BOTH).unwrap();
    foreign.write_at(0, &secret).unwrap();
    for op in [
        SendOp::Write { remote: remote_addr(&foreign, 0) },
        SendOp::Read { remote: remote_addr(&foreign, 0) },
    ] {
        let c = host.other(&param);
        host.refuses(&c, op, 8);
    }
    assert!(is_whole(&foreign));

    // 2: an STag of one stream is used on another stream of its domain.
    let (owner, thief) = (host.other(&param), host.other(&param));
    let options = MrOptions { qp: Some(&owner.qp_b), ..MrOptions::new(BOTH) };
    let scoped = host.pair.b.pd.reg_mr_with(LEN, &options).unwrap();
    host.refuses(&thief, SendOp::Write { remote: remote_addr(&scoped, 0) }, 8);
    assert_eq!(
        host.ask(&owner.qp_a, SendOp::Write { remote: remote_addr(&scoped, 0) }, 8).status,
        WcStatus::Success
    );

    // 3: accesses before the buffer, and behind the buffer.
    let edge = own(&host, BOTH);
    edge.write_at(0, &secret).unwrap();
    for addr in [edge.addr() - 1, edge.addr() + LEN as u64 - 7] {
        let c = host.other(&param);
        host.refuses(&c, SendOp::Write { remote: RemoteAddr { addr, rkey: edge.rkey() } }, 8);
    }
    assert!(is_whole(&edge));

    // 4 and 6: an association is withdrawn. After that, the buffer does not change.
    let mut lent = own(&host, BOTH);
    let c = host.other(&param);
    let remote = remote_addr(&lent, 0);
    assert_eq!(host.ask(&c.qp_a, SendOp::Write { remote }, 8).status, WcStatus::Success);
    lent.invalidate();
    lent.write_at(0, &secret).unwrap_or(());
    host.refuses(&c, SendOp::Write { remote }, 8);
    // 5: rights are granted and withdrawn.
    lent = own(&host, Access::LOCAL_WRITE | Access::REMOTE_READ);
    lent.write_at(0, &secret).unwrap();
    let c = host.other(&param);
    assert_eq!(
        host.ask(&c.qp_a, SendOp::Read { remote: remote_addr(&lent, 0) }, 8).status,
        WcStatus::Success
    );
    host.refuses(&c, SendOp::Write { remote: remote_addr(&lent, 0) }, 8);
    lent.reregister(BOTH, 1).unwrap();
    let c = host.other(&param);
    assert_eq!(
        host.ask(&c.qp_a, SendOp::Read { remote: remote_addr(&lent, 0) }, 8).status,
        WcStatus::Success
    );
    lent.reregister(Access::LOCAL_WRITE, 2).unwrap();
    host.refuses(&c, SendOp::Read { remote: remote_addr(&lent, 0) }, 8);
    assert!(is_whole(&lent));

    // 7: a peer invalidates an STag that several streams share.
    let c = host.other(&param);
    let inbox = own(&host, Access::LOCAL_WRITE);
    c.qp_b.post_recv(&RecvRequest::new(1, inbox.sge(0, LEN))).unwrap();
    let shared = own(&host, BOTH);
    host.refuses(&c, SendOp::SendInvalidate { rkey: shared.rkey() }, 8);
    assert!(shared.is_valid());

    // 8: guessed STags. No STag allows a peer to predict the next STag.
    let names: Vec<u32> = (0..200).map(|_| own(&host, BOTH)).map(|region| region.rkey() >> 8).collect();
    let mut steps: Vec<u32> = names.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() > 190, "{} different steps", steps.len());
    host.undisturbed();

    // 9: a completion queue of another owner.
    let cq = host.pair.a.context.create_cq(8, None).unwrap();
    assert!(matches!(host.pair.b.pd.create_qp(&QpInit::new(&cq)), Err(VerbsError::Invalid(_))));

    // 10: a completion queue that overflows.
    let small = host.pair.b.context.create_cq(2, None).unwrap();
    let init = QpInit { max_recv_wr: 8, ..QpInit::new(&small) };
    let (qp_a, qp_b) = (host.pair.a.qp(), host.pair.b.pd.create_qp(&init).unwrap());
    for wr_id in 0..8 {
        qp_b.post_recv(&RecvRequest::new(wr_id, inbox.sge(0, 8))).unwrap();
    }
    let c = host.pair.connect_qps(qp_a, qp_b, &param, &param);
    for _ in 0..8 {
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, host.local.sge(0, 8))).unwrap();
    }
    host.pair.until(|_| small.overflowed().then_some(()));
    host.pair.until(|_| c.qp_b.error().map(drop));
    host.undisturbed();

    // 11: more Reads are posted than were granted. Two Reads are outstanding at a time, the others wait, and
    // all Reads are answered.
    lent.reregister(BOTH, 3).unwrap();
    let two = ConnParam { responder_resources: 2, ..param.clone() };
    let c = host.other(&two);
    assert!(matches!(c.established_a.kind, CmEventKind::Established { ord: 2, .. }), "{:?}", c.established_a);
    for wr_id in 0..10 {
        let read = SendOp::Read { remote: remote_addr(&lent, 0) };
        c.qp_a.post_send(&SendRequest::new(wr_id, read, host.local.sge(0, 8))).unwrap();
    }
    for wr_id in 0..10 {
        let wc = host.pair.wc_a();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    host.undisturbed();

    // The resource manager: scarce resources have limits (1, 2, 5, 6), programs share a resource only if they
    // ask for it (3), and an STag is never bound to memory that the caller does not own (4).
    let limits = host.pair.b.context.usage();
    assert!(limits.all().iter().all(|usage| usage.limit > 0 && usage.used <= usage.limit));
    let more = host.pair.b.context.create_cq((1 << 20) + 1, None);
    assert!(matches!(more, Err(VerbsError::Limit { name: "max_cqe", .. })));
    host.undisturbed();

    // 12: no message can load code: every unknown opcode is refused.
    for opcode in 12..16 {
        let mut served = Served::new();
        served.qp.post_recv(&RecvRequest::new(1, served.region.sge(0, 100))).unwrap();
        served.send(&[&[0x41, 0x40 | opcode][..], &[0; 11], &[1], &[0; 4], &[7; 64]].concat());
        assert!(served.pair.until(1_000_000, |pair| pair.peer_closed), "opcode {opcode}");
        assert_eq!(served.qp.error().map(|error| (error.layer, error.etype, error.code)), Some((0, 2, 6)));
    }
}

/// An application's request, in its own queue pair, with STags of another application.
type Attempt = fn(&Ulp, &Ulp) -> SendRequest;

/// An application: a domain, and one object of each kind that has an STag.
struct Ulp {
    pd: ProtectionDomain,
    region: MemoryRegion,
    window: iwarp::verbs::MemoryWindow,
    fast: iwarp::verbs::FastRegion,
}

impl Ulp {
    fn new(pd: ProtectionDomain) -> Self {
        let region = pd.reg_mr(LEN, BOTH | Access::MW_BIND).unwrap();
        region.write_at(0, &pattern(4, LEN)).unwrap();
        let window = pd.alloc_mw(WindowKind::Type2).unwrap();
        let fast = pd.alloc_fast_mr(LEN, &iwarp::verbs::FastOptions::default()).unwrap();
        Self { pd, region, window, fast }
    }

    /// Returns a request that binds a window to 8 bytes of a region.
    fn bind(window: u32, region: &MemoryRegion) -> SendOp {
        let (lkey, addr, length) = (region.lkey(), region.addr(), 8);
        SendOp::BindWindow(BindWindow {
            rkey: window,
            lkey,
            addr,
            length,
            access: Access::REMOTE_READ,
            zero_based: false,
        })
    }
}

// Proves DDP-234, RDMAP-364: an application bypasses the calls of its context, and puts names of another
// application into its own queue pair. The engine refuses such requests: the application cannot invalidate,
// bind, register, send from or write into objects of the other application, which stay valid and unchanged. A
// queue pair without the grant cannot change the application's own names.
#[test]
fn names_of_another_application_are_refused_to_a_queue_pair() {
    let attempts: [(&str, Attempt); 8] = [
        ("invalidates a region", |_, other| {
            SendRequest::empty(1, SendOp::LocalInvalidate { rkey: other.region.rkey() })
        }),
        ("invalidates a window", |_, other| {
            SendRequest::empty(1, SendOp::LocalInvalidate { rkey: other.window.rkey() })
        }),
        ("binds its window to a region", |own, other| {
            SendRequest::empty(1, Ulp::bind(own.window.next_rkey(), &other.region))
        }),
        ("binds a window to its region", |own, other| {
            SendRequest::empty(1, Ulp::bind(other.window.next_rkey(), &own.region))
        }),
        ("registers memory", |_, other| {
            SendRequest::empty(1, SendOp::FastRegister(other.fast.register(0, 8, Access::REMOTE_READ)))
        }),
        ("sends from a region", |_, other| SendRequest::new(1, SendOp::Send, other.region.sge(0, 8))),
        ("writes from a region", |_, other| {
            SendRequest::new(
                1,
                SendOp::Write { remote: RemoteAddr { addr: 0, rkey: 0 } },
                other.region.sge(0, 8),
            )
        }),
        ("reads into a region", |_, other| {
            SendRequest::new(
                1,
                SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 0 } },
                other.region.sge(0, 8),
            )
        }),
    ];
    for (what, attempt) in attempts {
        for (granted, of_another) in [(true, true), (false, true), (false, false)] {
            let (mut pair, listener) = Pair::listening();
            let (own, other) =
                (Ulp::new(pair.a.context.alloc_pd().unwrap()), Ulp::new(pair.a.context.alloc_pd().unwrap()));
            let grants = if granted { QpGrants::all() } else { QpGrants::empty() };
            let qp = own.pd.create_qp(&QpInit { grants, ..QpInit::new(&pair.a.cq) }).unwrap();
            let qp_b = pair.b.qp();
            let c = pair.connect_qps(qp, qp_b, &ConnParam::default(), &ConnParam::default());
            drop(listener);
            let request = attempt(&own, if of_another { &other } else { &own });
            let is_message = matches!(request.op, SendOp::Send | SendOp::Write { .. } | SendOp::Read { .. });
            // The application may send from its own memory, and may invalidate its own memory.
            if !of_another && (is_message || matches!(request.op, SendOp::LocalInvalidate { .. })) {
                continue;
            }
            let sent = pair.a.engine.counters().tx_fpdus;
            let told = match c.qp_a.post_send(&request) {
                Err(_) => None,
                Ok(()) => Some(pair.wc_a().status),
            };
            assert_ne!(told, Some(WcStatus::Success), "{what}, granted: {granted}, of another: {of_another}");
            pair.run_us(10_000);
            if is_message {
                assert_eq!(pair.a.engine.counters().tx_fpdus, sent, "{what}: nothing is sent");
            }
            for ulp in [&own, &other] {
                let bytes = read_bytes(&ulp.region, 0, LEN);
                assert_eq!(bytes, pattern(4, LEN), "{what}");
                assert!(ulp.region.is_valid() && !ulp.window.is_bound() && !ulp.fast.is_valid(), "{what}");
            }
            // A receive into memory of the other application is refused as well.
            let receive = RecvRequest::new(1, other.region.sge(0, 8));
            assert!(c.qp_a.state() == QpState::Error || c.qp_a.post_recv(&receive).is_err());
        }
    }
}
