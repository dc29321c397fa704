//! Memory windows, fast registration and reregistration, between two hosts: what the peer can access, and
//! when.

use crate::common::{Connected, Pair, expect_terminate, pattern, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, BindWindow, ConnParam, FastOptions, FastRegion, FastRegister, MemoryRegion, MemoryWindow,
    MrOptions, QpGrants, QpInit, QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest, VerbsError,
    WcOpcode, WcStatus, WindowKind, WorkCompletion,
};

const BOTH: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const ALL: Access = BOTH.union(Access::LOCAL_WRITE);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const LEN: usize = 4096;

/// A is the peer. B exposes memory through its send queue, which has the grants to do so.
struct Exposure {
    pair: Pair,
    c: Connected,
    /// A's memory, which A's Writes read and A's Reads fill.
    local: MemoryRegion,
    /// B's receive buffers.
    inbox: MemoryRegion,
}

impl Exposure {
    fn new() -> Self {
        Self::granted(QpGrants::all())
    }

    fn granted(grants: QpGrants) -> Self {
        let (mut pair, listener) = Pair::listening();
        let qp_a = pair.a.qp();
        let qp_b = pair.b.pd.create_qp(&QpInit { grants, ..QpInit::new(&pair.b.cq) }).unwrap();
        let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
        listener.disconnect();
        let local = pair.a.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
        let inbox = pair.b.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
        local.write_at(0, &pattern(1, LEN)).unwrap();
        // A responder may not send before the initiator has sent its first message.
        let mut exposure = Self { pair, c, local, inbox };
        exposure.send(SendOp::Send);
        exposure
    }

    /// Executes a request of B that sends nothing, and returns its completion.
    fn manage(&mut self, op: SendOp) -> WorkCompletion {
        self.c.qp_b.post_send(&SendRequest::empty(70, op)).unwrap();
        self.pair.wc_b()
    }

    fn managed(&mut self, op: SendOp) {
        let opcode = match op {
            SendOp::BindWindow(_) => WcOpcode::BindWindow,
            SendOp::FastRegister(_) => WcOpcode::FastRegister,
            _ => WcOpcode::LocalInvalidate,
        };
        let wc = self.manage(op);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (70, WcStatus::Success, opcode));
    }

    /// Sends eight bytes from A. Returns B's completion.
    fn send(&mut self, op: SendOp) -> WorkCompletion {
        self.c.qp_b.post_recv(&RecvRequest::new(71, self.inbox.sge(0, 8))).unwrap();
        self.c.qp_a.post_send(&SendRequest::new(1, op, self.local.sge(0, 8))).unwrap();
        assert_eq!(self.pair.wc_a().status, WcStatus::Success);
        self.pair.wc_b()
    }

    fn write(&self, remote: RemoteAddr, len: usize) {
        let request = SendRequest::new(2, SendOp::Write { remote }, self.local.sge(0, len));
        self.c.qp_a.post_send(&request).unwrap();
    }

    /// Writes bytes from A, and checks that A reads back the same bytes.
    fn write_and_read(&mut self, remote: RemoteAddr, len: usize) {
        self.write(remote, len);
        let read = SendRequest::new(3, SendOp::Read { remote }, self.local.sge(LEN / 2, len));
        self.c.qp_a.post_send(&read).unwrap();
        for wr_id in [2, 3] {
            let wc = self.pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        let mut bytes = vec![0; 2 * len];
        self.local.read_at(0, &mut bytes[..len]).unwrap();
        self.local.read_at(LEN / 2, &mut bytes[len..]).unwrap();
        assert_eq!(bytes[..len], bytes[len..]);
    }

    /// Checks that A's Write is refused like a Write to an invalid STag.
    fn refuses(mut self, remote: RemoteAddr) {
        self.write(remote, 8);
        expect_terminate(&mut self.pair, &self.c, 1, 1, 0);
    }
}

fn window_at(window: &MemoryWindow, bind: &BindWindow) -> RemoteAddr {
    RemoteAddr { addr: bind.addr, rkey: window.rkey() }
}

fn fast_at(region: &FastRegion, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: region.addr(offset), rkey: region.rkey() }
}

/// Whether a post was refused because the queue pair was not granted the right.
fn is_not_granted(qp: &QueuePair, op: SendOp) -> bool {
    match qp.post_send(&SendRequest::empty(1, op)) {
        Err(VerbsError::Invalid(text)) => text.contains("was not granted"),
        _ => false,
    }
}

/// A queue pair without grants cannot bind or register. Each grant allows only its own operation.
// Proves SEC-016.
#[test]
fn binding_and_registering_take_a_grant() {
    for grants in [QpGrants::empty(), QpGrants::BIND_WINDOWS, QpGrants::FAST_REGISTER] {
        let mut x = Exposure::granted(grants);
        let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
        let (one, two) = (WindowKind::Type1, WindowKind::Type2);
        let (one, two) = (x.pair.b.pd.alloc_mw(one).unwrap(), x.pair.b.pd.alloc_mw(two).unwrap());
        let fast = x.pair.b.pd.alloc_fast_mr(LEN, &FastOptions::default()).unwrap();
        let bind = SendOp::BindWindow(two.bind(&region, 0, 8, BOTH));
        let register = SendOp::FastRegister(fast.register(0, 8, Access::REMOTE_READ));
        let refused = x.c.qp_b.bind_mw(1, &one, (&region, 0, 8), BOTH);
        assert_eq!(refused.is_err(), !grants.contains(QpGrants::BIND_WINDOWS));
        if refused.is_ok() {
            assert_eq!(x.pair.wc_b().status, WcStatus::Success);
        }
        for (op, needed) in [(bind, QpGrants::BIND_WINDOWS), (register, QpGrants::FAST_REGISTER)] {
            if grants.contains(needed) {
                x.managed(op);
            } else {
                assert!(is_not_granted(&x.c.qp_b, op));
                x.pair.run_us(1000);
                assert!(x.pair.b.cq.poll_one().is_none(), "nothing was posted");
            }
        }
        let bound = [one.is_bound(), two.is_bound(), fast.is_valid()];
        let bind = grants.contains(QpGrants::BIND_WINDOWS);
        assert_eq!(bound, [bind, bind, grants.contains(QpGrants::FAST_REGISTER)]);
    }
    // The type of a window determines which call binds it.
    let x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
    let one = x.pair.b.pd.alloc_mw(WindowKind::Type1).unwrap();
    let two = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
    let bind = SendRequest::empty(1, SendOp::BindWindow(one.bind(&region, 0, 8, BOTH)));
    assert!(matches!(x.c.qp_b.post_send(&bind), Err(VerbsError::Invalid(_))));
    assert!(matches!(x.c.qp_b.post_send_list(&[bind]), Err((0, VerbsError::Invalid(_)))));
    assert!(matches!(x.c.qp_b.bind_mw(1, &two, (&region, 0, 8), BOTH), Err(VerbsError::Invalid(_))));
}

/// `post_bind_mw` accepts only binds of windows of type 1.
#[test]
fn only_binds_of_type_1_are_posted_by_the_call_for_them() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
    let one = x.pair.b.pd.alloc_mw(WindowKind::Type1).unwrap();
    let two = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
    let bind =
        |window: &MemoryWindow| SendRequest::empty(1, SendOp::BindWindow(window.bind(&region, 0, 8, BOTH)));
    let no_bind = SendRequest::empty(1, SendOp::Send);
    let refused = [x.c.qp_b.post_bind_mw(&two, &bind(&two)), x.c.qp_b.post_bind_mw(&one, &no_bind)];
    assert!(refused.iter().all(|refused| matches!(refused, Err(VerbsError::Invalid(_)))), "{refused:?}");
    x.pair.run_us(1000);
    assert!(x.pair.b.cq.poll_one().is_none(), "nothing was posted");
    x.c.qp_b.post_bind_mw(&one, &bind(&one)).unwrap();
    assert_eq!(x.pair.wc_b().status, WcStatus::Success);
    assert!(!two.is_bound());
}

/// The test posts a bind, a transfer and an invalidation a hundred times in succession, each time with
/// another key. Accesses after an invalidation are refused.
// Proves SEC-099, SEC-108, SEC-155, RDMAP-077: the cost is not measured, because no benchmark binds or
// registers in the queue.
#[test]
fn a_window_for_each_transfer() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
    let window = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
    let mut last = RemoteAddr::default();
    for round in 0..100 {
        let bind = window.bind(&region, round * 7, 100, BOTH);
        x.managed(SendOp::BindWindow(bind));
        assert!(window.is_bound());
        let remote = window_at(&window, &bind);
        assert_ne!(remote.rkey, last.rkey);
        x.write_and_read(remote, 100);
        if round % 2 == 0 {
            // The peer invalidates the window with a Send with Invalidate.
            let wc = x.send(SendOp::SendInvalidate { rkey: remote.rkey });
            assert_eq!((wc.opcode, wc.invalidated), (WcOpcode::Recv, Some(remote.rkey)));
        } else {
            x.managed(SendOp::LocalInvalidate { rkey: remote.rkey });
        }
        assert!(!window.is_bound());
        last = remote;
    }
    x.refuses(last);
}

/// A fast registration, a transfer and an invalidation are tested in the same way as for windows.
// Proves SEC-108, RDMAP-353.
#[test]
fn a_fast_registration_for_each_transfer() {
    let mut x = Exposure::new();
    let options = FastOptions { qp: Some(&x.c.qp_b), ..Default::default() };
    let region = x.pair.b.pd.alloc_fast_mr(LEN, &options).unwrap();
    let mut last = RemoteAddr::default();
    for round in 0..100 {
        let offset = round * 7;
        x.managed(SendOp::FastRegister(region.register(offset, 100, ALL)));
        let remote = fast_at(&region, offset);
        assert_ne!(remote.rkey, last.rkey);
        x.write_and_read(remote, 100);
        let mut bytes = [0; 100];
        region.memory().read_at(offset as usize, &mut bytes).unwrap();
        assert_eq!(bytes, pattern(1, 100)[..]);
        if round % 2 == 0 {
            let wc = x.send(SendOp::SendInvalidate { rkey: remote.rkey });
            assert_eq!(wc.invalidated, Some(remote.rkey));
        } else {
            x.managed(SendOp::LocalInvalidate { rkey: remote.rkey });
        }
        assert!(!region.is_valid());
        last = remote;
    }
    x.refuses(last);
}

/// A bind and the advertisement in a Send are posted together. When the peer receives the advertisement, the
/// bind is in effect.
#[test]
fn a_bind_is_in_effect_before_what_is_posted_behind_it() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
    let window = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
    let bind = window.bind(&region, 16, 64, BOTH);
    let advert = [bind.rkey.to_be_bytes().as_slice(), &bind.addr.to_be_bytes()].concat();
    x.inbox.write_at(100, &advert).unwrap();
    x.c.qp_a.post_recv(&RecvRequest::new(9, x.local.sge(1000, 12))).unwrap();
    let requests = [
        SendRequest::empty(1, SendOp::BindWindow(bind)),
        SendRequest::new(2, SendOp::Send, x.inbox.sge(100, 12)),
    ];
    x.c.qp_b.post_send_list(&requests).unwrap();
    assert_eq!(x.pair.wc_a().byte_len, 12);
    let bytes = read_bytes(&x.local, 1000, 12);
    let rkey = u32::from_be_bytes(bytes[..4].try_into().unwrap());
    let addr = u64::from_be_bytes(bytes[4..].try_into().unwrap());
    x.write_and_read(RemoteAddr { addr, rkey }, 64);
    assert_eq!([x.pair.wc_b().wr_id, x.pair.wc_b().wr_id], [1, 2]);
}

/// After a wrong bind or registration, the request and the queue pair fail, and no STag becomes valid.
// Proves SEC-038, SEC-170.
#[test]
fn a_wrong_bind_fails_its_request_and_ends_the_stream() {
    for case in 0..6 {
        let mut x = Exposure::new();
        let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
        let plain = x.pair.b.pd.reg_mr(LEN, ALL).unwrap();
        let window = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
        let foreign = x.pair.b.context.alloc_pd().unwrap().alloc_mw(WindowKind::Type2).unwrap();
        let fast = x.pair.b.pd.alloc_fast_mr(LEN, &FastOptions::default()).unwrap();
        let len = LEN as u64;
        let op = match case {
            0 => SendOp::BindWindow(window.bind(&region, 1, len, BOTH)),
            1 => SendOp::BindWindow(window.bind(&plain, 0, 8, BOTH)),
            2 => SendOp::BindWindow(foreign.bind(&region, 0, 8, BOTH)),
            3 => SendOp::FastRegister(fast.register(1, len, ALL)),
            4 => SendOp::FastRegister(FastRegister { rkey: region.rkey(), ..fast.register(0, 8, ALL) }),
            _ => SendOp::BindWindow(window.bind(&region, 0, 8, Access::LOCAL_WRITE)),
        };
        let wc = x.manage(op);
        assert_eq!(wc.status, WcStatus::MwBindError, "case {case}");
        assert!(!window.is_bound() && !foreign.is_bound() && !fast.is_valid());
        expect_terminate_told(&mut x);
    }
}

/// Checks that A has received a Terminate for an error of B itself.
fn expect_terminate_told(x: &mut Exposure) {
    let error = x.pair.until(|_| x.c.qp_a.error());
    assert_eq!((error.layer, error.etype, error.from_peer), (0, 0, true));
}

/// For a window of type 1, the binding call chooses the key. When the window is bound again, the old STag is
/// invalid. When the window is bound to no bytes, it has no valid STag.
#[test]
fn a_window_of_type_1_moves() {
    for unbind in [false, true] {
        let mut x = Exposure::new();
        let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
        let window = x.pair.b.pd.alloc_mw(WindowKind::Type1).unwrap();
        let rkey = x.c.qp_b.bind_mw(5, &window, (&region, 8, 100), BOTH).unwrap();
        assert_eq!(rkey, window.rkey());
        let wc = x.pair.wc_b();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (5, WcStatus::Success, WcOpcode::BindWindow));
        let old = RemoteAddr { addr: region.addr() + 8, rkey };
        x.write_and_read(old, 100);
        let length = if unbind { 0 } else { 50 };
        let rkey = x.c.qp_b.bind_mw(6, &window, (&region, 200, length), BOTH).unwrap();
        assert_eq!(x.pair.wc_b().status, WcStatus::Success);
        let new = RemoteAddr { addr: region.addr() + 200, rkey };
        if unbind {
            assert!(!window.is_bound());
            x.refuses(new);
        } else {
            x.write_and_read(new, 50);
            x.refuses(old);
        }
    }
}

#[test]
fn local_requests_of_one_poll_are_bounded() {
    let mut x = Exposure::new();
    let region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
    let window = x.pair.b.pd.alloc_mw(WindowKind::Type1).unwrap();
    for wr_id in 0..100 {
        x.c.qp_b.bind_mw(wr_id, &window, (&region, 0, 64), BOTH).unwrap();
    }
    x.pair.poll();
    let mut done = 0;
    while x.pair.b.cq.poll_one().is_some() {
        done += 1;
    }
    assert!((1..=50).contains(&done), "{done} in one poll");
    // The other requests complete without another post.
    for _ in done..100 {
        assert_eq!(x.pair.wc_b().status, WcStatus::Success);
    }
}

/// `deregister` refuses a region to which a window is bound. Dropping the region ends the window.
// Proves SEC-042.
#[test]
fn a_region_with_a_window_is_busy() {
    let mut x = Exposure::new();
    let mut region = x.pair.b.pd.reg_mr(LEN, BINDABLE).unwrap();
    let window = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
    let bind = window.bind(&region, 0, 8, BOTH);
    x.managed(SendOp::BindWindow(bind));
    region = *region.deregister().unwrap_err().region;
    assert!(matches!(region.reregister(BINDABLE, 1), Err(VerbsError::Invalid(_))));
    x.write_and_read(window_at(&window, &bind), 8);
    drop(region);
    assert!(!window.is_bound());
    x.refuses(window_at(&window, &bind));
}

/// New rights and a new key are in effect when `reregister` returns. The old STag and the old rights are then
/// invalid.
// Proves RDMAP-354, DDP-230, SEC-107.
#[test]
fn reregistration_is_in_effect_at_once() {
    let mut x = Exposure::new();
    let mut region = x.pair.b.pd.reg_mr(LEN, ALL).unwrap();
    let old = remote_addr(&region, 0);
    x.write_and_read(old, 64);
    let rkey = region.reregister(Access::LOCAL_WRITE | Access::REMOTE_WRITE, 77).unwrap();
    assert_eq!((rkey, rkey & 0xff, rkey >> 8), (region.rkey(), 77, old.rkey >> 8));
    let new = RemoteAddr { rkey, ..old };
    x.write(new, 64);
    assert_eq!(x.pair.wc_a().status, WcStatus::Success);
    let read = SendRequest::new(3, SendOp::Read { remote: new }, x.local.sge(0, 8));
    x.c.qp_a.post_send(&read).unwrap();
    expect_terminate(&mut x.pair, &x.c, 0, 1, 2);
    assert!(matches!(region.reregister(Access::REMOTE_WRITE, 1), Err(VerbsError::Invalid(_))));
    assert_eq!(region.rkey(), rkey);

    let mut x = Exposure::new();
    let mut region = x.pair.b.pd.reg_mr(LEN, ALL).unwrap();
    let old = remote_addr(&region, 0);
    region.reregister(ALL, 1).unwrap();
    // A Read with the old STag is refused.
    let read = SendRequest::new(3, SendOp::Read { remote: old }, x.local.sge(0, 8));
    x.c.qp_a.post_send(&read).unwrap();
    expect_terminate(&mut x.pair, &x.c, 0, 1, 0);
}

/// A region, a fast registration and a window can forbid that the peer invalidates their STag (`keep`). The
/// attempt ends the stream with 0/1/09, and the STag stays valid.
// Proves SEC-157, SEC-156, RDMAP-356.
#[test]
fn remote_invalidation_can_be_forbidden() {
    for kind in 0..3 {
        let mut x = Exposure::new();
        let qp = Some(&x.c.qp_b);
        let pd = x.pair.b.pd.clone();
        let region = pd.reg_mr_with(LEN, &MrOptions { qp, keep: true, ..MrOptions::new(ALL) }).unwrap();
        let fast = pd.alloc_fast_mr(LEN, &FastOptions { qp, keep: true }).unwrap();
        let bindable = pd.reg_mr(LEN, BINDABLE).unwrap();
        let options = iwarp::verbs::MwOptions { kind: WindowKind::Type2, keep: true };
        let window = pd.alloc_mw_with(options).unwrap();
        x.managed(SendOp::BindWindow(window.bind(&bindable, 0, 8, BOTH)));
        x.managed(SendOp::FastRegister(fast.register(0, 8, ALL)));
        let rkey = [region.rkey(), fast.rkey(), window.rkey()][kind];
        let op = SendOp::SendInvalidate { rkey };
        x.c.qp_b.post_recv(&RecvRequest::new(1, x.inbox.sge(0, 8))).unwrap();
        x.c.qp_a.post_send(&SendRequest::new(1, op, x.local.sge(0, 8))).unwrap();
        expect_terminate(&mut x.pair, &x.c, 0, 1, 9);
        assert!(region.is_valid() && fast.is_valid() && window.is_bound());
    }
}

/// Objects that are allocated, but not bound or registered, have no valid STag for the peer.
// Proves SEC-044.
#[test]
fn what_is_only_allocated_is_refused() {
    let allocated = |x: &Exposure| {
        let window = x.pair.b.pd.alloc_mw(WindowKind::Type2).unwrap();
        let fast = x.pair.b.pd.alloc_fast_mr(LEN, &FastOptions::default()).unwrap();
        (window, fast)
    };
    for is_window in [true, false] {
        let x = Exposure::new();
        let (window, fast) = allocated(&x);
        let rkey = if is_window { window.rkey() } else { fast.rkey() };
        x.refuses(RemoteAddr { addr: fast.addr(0), rkey });
        for op in 0..3 {
            let mut x = Exposure::new();
            let (window, fast) = allocated(&x);
            let rkey = if is_window { window.rkey() } else { fast.rkey() };
            let remote = RemoteAddr { addr: fast.addr(0), rkey };
            let op = match op {
                0 => SendOp::Read { remote },
                1 => SendOp::Atomic { remote, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
                _ => SendOp::SendInvalidate { rkey },
            };
            x.c.qp_b.post_recv(&RecvRequest::new(1, x.inbox.sge(0, 8))).unwrap();
            x.c.qp_a.post_send(&SendRequest::new(1, op, x.local.sge(0, 8))).unwrap();
            expect_terminate(&mut x.pair, &x.c, 0, 1, 0);
            assert_eq!(fast.memory().load_u64_acquire(0), Ok(0));
        }
    }
}
