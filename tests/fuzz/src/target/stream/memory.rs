//! Registered memory with guard bytes around it: a peer can change only memory that was lent to it.

use iwarp::memory::{Access, WindowKind};
use iwarp::verbs::{
    BindWindow, FastOptions, FastRegion, FastRegister, MemoryRegion, MemoryWindow, MrOptions,
    ProtectionDomain, QueuePair, RemoteAddr, Sge,
};

/// Value of each byte of memory that may not change.
const GUARD: u8 = 0x5a;

/// Length of each region in bytes.
const BYTES: usize = 1024;

/// The registered parts of the open region and of the fast region: offset and length.
const OPEN: (usize, usize) = (256, 512);
const LENT: (usize, usize) = (128, 128);

/// The part of the closed region that the window covers, and the part for receives: offset and length.
const WINDOW: (usize, usize) = (128, 128);
const INBOX: (usize, usize) = (256, 128);

/// A further region, with other access rules.
pub(super) enum Extra {
    None,
    /// A region bound to the queue pair: the peer may access and invalidate it.
    Own(MemoryRegion),
    /// A region that is bound to another queue pair, or that belongs to another protection domain.
    Others(MemoryRegion),
}

/// Regions and windows of one protection domain. Only the domain's engine accesses the memory, during its
/// polls, on this thread.
pub(super) struct Memory {
    /// The peer has every right to this region but cannot invalidate it.
    open: FastRegion,
    /// The peer can access this region only through the window.
    pub(super) closed: MemoryRegion,
    pub(super) window: MemoryWindow,
    pub(super) fast: FastRegion,
    extra: Extra,
    /// The memory of the closed region, if the region was registered over memory of the user.
    _user: Option<Vec<u8>>,
}

impl Memory {
    /// Registers the memory. `setup` chooses how the closed region and the further region are registered.
    #[allow(unsafe_code, reason = "registering memory of one's own is a part of the target")]
    pub(super) fn new(
        pd: &ProtectionDomain,
        kind: WindowKind,
        setup: u8,
        [qp, other_qp]: [&QueuePair; 2],
        stranger: &ProtectionDomain,
    ) -> Self {
        let room = "within the limit";
        let rights = MrOptions::new(Access::LOCAL_WRITE | Access::MW_BIND);
        let mut user = (kind == WindowKind::Type1).then(|| vec![0; BYTES]);
        let closed = match &mut user {
            // SAFETY: `user` is valid for `BYTES` bytes until the region is dropped, because the bytes are on
            // the heap, stay there when the vector moves into the returned value, and are dropped after the
            // region. No other reference exists, because nobody accesses the bytes except through the region.
            // (A box would be wrong: to move a box asserts that no other pointer to its content exists.)
            Some(user) => unsafe { pd.reg_user_mr(user.as_mut_ptr(), BYTES, &rights) },
            None => pd.reg_mr_with(BYTES, &rights),
        };
        let all = MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE);
        let of = |pd: &ProtectionDomain, qp| {
            let region = pd.reg_mr_with(BYTES, &MrOptions { qp, ..all }).expect(room);
            region.write_at(0, &[GUARD; BYTES]).expect("it fits");
            region
        };
        let extra = match (setup ^ setup >> 3) & 3 {
            0 => Extra::None,
            1 => Extra::Own(of(pd, Some(qp))),
            2 => Extra::Others(of(pd, Some(other_qp))),
            _ => Extra::Others(of(stranger, None)),
        };
        let kept = FastOptions { keep: true, ..FastOptions::default() };
        let memory = Self {
            open: pd.alloc_fast_mr(BYTES, &kept).expect(room),
            closed: closed.expect(room),
            window: pd.alloc_mw(kind).expect(room),
            fast: pd.alloc_fast_mr(BYTES, &FastOptions::default()).expect(room),
            extra,
            _user: user,
        };
        for fast in [&memory.open, &memory.fast] {
            fast.memory().write_at(0, &[GUARD; BYTES]).expect("it fits");
        }
        memory.closed.write_at(0, &[GUARD; BYTES]).expect("it fits");
        memory
    }

    /// Returns the fast registration of the open region.
    pub(super) fn opening(&self) -> FastRegister {
        self.open.register(OPEN.0 as u64, OPEN.1 as u64, Access::LOCAL_WRITE | Access::REMOTE)
    }

    /// Returns the fast registration of the fast region.
    pub(super) fn registration(&self) -> FastRegister {
        self.fast.register(LENT.0 as u64, LENT.1 as u64, Access::LOCAL_WRITE | Access::REMOTE)
    }

    /// Returns the binding of the window.
    pub(super) fn binding(&self) -> BindWindow {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.window.bind(&self.closed, WINDOW.0 as u64, WINDOW.1 as u64, access)
    }

    /// Returns an address for a request of the peer: an STag, which may be one that the peer must not use,
    /// and the address of a first byte.
    pub(super) fn name(&self, which: usize) -> RemoteAddr {
        let open = RemoteAddr { addr: self.open.addr(OPEN.0 as u64), rkey: self.open.rkey() };
        match (which, &self.extra) {
            (0 | 1, _) => open,
            (2, _) => RemoteAddr { addr: self.closed.addr() + WINDOW.0 as u64, rkey: self.window.rkey() },
            (3, _) => RemoteAddr { addr: self.fast.addr(LENT.0 as u64), rkey: self.fast.rkey() },
            (4, _) => RemoteAddr { addr: self.closed.addr(), rkey: self.closed.lkey() },
            (6, Extra::Own(region) | Extra::Others(region)) => {
                RemoteAddr { addr: region.addr(), rkey: region.rkey() }
            }
            _ => RemoteAddr { rkey: open.rkey ^ 1, ..open },
        }
    }

    /// Returns local memory for a request: a part of the range for receives if `inbox`, and otherwise a part
    /// of the open region.
    pub(super) fn local(&self, inbox: bool, at: usize, bytes: usize) -> Sge {
        if inbox {
            let at = at % INBOX.1;
            self.closed.sge(INBOX.0 + at, bytes % (INBOX.1 - at + 1))
        } else {
            let at = at % OPEN.1;
            self.open.sge((OPEN.0 + at) as u64, (bytes % (OPEN.1 - at + 1)) as u32)
        }
    }

    /// Checks that only lent memory has changed.
    pub(super) fn assert_guards(&self) {
        let mut bytes = [0; BYTES];
        self.open.memory().read_at(0, &mut bytes).expect("it is there");
        assert_untouched("open", &bytes, &[OPEN]);
        self.fast.memory().read_at(0, &mut bytes).expect("it is there");
        assert_untouched("fast", &bytes, &[LENT]);
        self.closed.read_at(0, &mut bytes).expect("it is there");
        assert_untouched("closed", &bytes, &[WINDOW, INBOX]);
        if let Extra::Others(region) = &self.extra {
            region.read_at(0, &mut bytes).expect("it is there");
            assert_untouched("other", &bytes, &[]);
        }
    }
}

/// Checks that `bytes` are unchanged outside the `lent` ranges, which are sorted.
fn assert_untouched(whose: &str, bytes: &[u8; BYTES], lent: &[(usize, usize)]) {
    let mut from = 0;
    for &(first, count) in lent.iter().chain([&(BYTES, 0)]) {
        let changed = bytes[from..first].iter().position(|byte| *byte != GUARD);
        assert_eq!(changed.map(|at| from + at), None, "{whose}: a byte changed that nobody was lent");
        from = first + count;
    }
}
