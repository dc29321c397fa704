//! Registered memory with guards around it: whatever a peer says, only what it was lent changes.

use iwarp::memory::{Access, WindowKind};
use iwarp::verbs::{
    FastOptions, FastRegion, FastRegister, MemoryRegion, MemoryWindow, MrOptions, ProtectionDomain,
    RemoteAddr, Sge,
};

/// What nobody may change.
const GUARD: u8 = 0x5a;

/// Octets in all.
const OCTETS: usize = 2560;

/// Where each registration is, by its first octet and its octets.
const OPEN: (usize, usize) = (256, 512);
const CLOSED: (usize, usize) = (1024, 512);
const FAST: (usize, usize) = (1792, 512);

/// What a window of the closed region reaches, counted from its front, and where its receives go.
const WINDOW: (usize, usize) = (128, 128);
const INBOX: (usize, usize) = (256, 128);

/// What of the fast region is registered.
const LENT: (usize, usize) = (128, 128);

/// Regions and windows of one protection domain. Only their own engine touches the memory, on this thread and in its turns.
pub(super) struct Memory {
    /// Every right to a peer.
    pub(super) open: MemoryRegion,
    /// No right to a peer but through the window.
    pub(super) closed: MemoryRegion,
    pub(super) window: MemoryWindow,
    pub(super) fast: FastRegion,
    octets: Box<[u8; OCTETS]>,
}

impl Memory {
    #[allow(unsafe_code, reason = "registering memory of one's own is the point of the target")]
    pub(super) fn new(pd: &ProtectionDomain, kind: WindowKind) -> Self {
        let mut octets = Box::new([GUARD; OCTETS]);
        let front = octets.as_mut_ptr();
        let open = MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE);
        let closed = MrOptions::new(Access::LOCAL_WRITE | Access::MW_BIND);
        // SAFETY: `octets` is on the heap and lives as long as the regions in the same value; it is looked at only while no
        // engine turns. All three ranges lie within it.
        let (open, closed, fast) = unsafe {
            (
                pd.reg_user_mr(front.add(OPEN.0), OPEN.1, &open),
                pd.reg_user_mr(front.add(CLOSED.0), CLOSED.1, &closed),
                pd.alloc_fast_user_mr(front.add(FAST.0), FAST.1, true, &FastOptions::default()),
            )
        };
        let room = "within the limit";
        let window = pd.alloc_mw(kind).expect(room);
        Self { open: open.expect(room), closed: closed.expect(room), window, fast: fast.expect(room), octets }
    }

    /// What makes the fast region reachable.
    pub(super) fn registration(&self) -> FastRegister {
        self.fast.register(LENT.0 as u64, LENT.1 as u64, Access::LOCAL_WRITE | Access::REMOTE)
    }

    /// What binds the window.
    pub(super) fn binding(&self) -> iwarp::verbs::BindWindow {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.window.bind(&self.closed, WINDOW.0 as u64, WINDOW.1 as u64, access)
    }

    /// A name as the peer may know it: something and where it begins.
    pub(super) fn name(&self, which: usize) -> RemoteAddr {
        match which {
            0 | 1 => RemoteAddr { addr: self.open.addr(), rkey: self.open.rkey() },
            2 => RemoteAddr { addr: self.closed.addr() + WINDOW.0 as u64, rkey: self.window.rkey() },
            3 => RemoteAddr { addr: self.fast.addr(LENT.0 as u64), rkey: self.fast.rkey() },
            4 => RemoteAddr { addr: self.closed.addr(), rkey: self.closed.lkey() },
            _ => RemoteAddr { addr: self.open.addr(), rkey: self.open.rkey() ^ 1 },
        }
    }

    /// Local memory for a request, of up to 128 octets.
    pub(super) fn local(&self, inbox: bool, at: usize, octets: usize) -> Sge {
        if inbox {
            let at = at % INBOX.1;
            self.closed.sge(INBOX.0 + at, octets % (INBOX.1 - at + 1))
        } else {
            let at = at % OPEN.1;
            self.open.sge(at, octets % (OPEN.1 - at + 1))
        }
    }

    /// Nothing changed that nobody was lent.
    pub(super) fn assert_guards(&self) {
        let lent =
            [OPEN, (CLOSED.0 + WINDOW.0, WINDOW.1), (CLOSED.0 + INBOX.0, INBOX.1), (FAST.0 + LENT.0, LENT.1)];
        let is_lent = |at: usize| lent.iter().any(|&(first, octets)| (first..first + octets).contains(&at));
        let changed = self.octets.iter().enumerate().position(|(at, &octet)| octet != GUARD && !is_lent(at));
        assert_eq!(changed, None, "an octet changed that nobody was lent");
    }
}
