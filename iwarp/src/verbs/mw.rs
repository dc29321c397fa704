//! Memory windows.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::{Access, Stag, Window, WindowKind};

use super::mr::register_error;
use super::{BindWindow, MemoryRegion, ProtectionDomain, QueuePair, SendOp, SendRequest, VerbsError};

/// Options of a new memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwOptions {
    /// The type of the window.
    pub kind: WindowKind,
    /// Forbids the peer to invalidate the window. (A peer can never invalidate a window of type 1.)
    pub keep: bool,
}

/// A memory window (`ibv_mw`): an STag for a part of a region, with its own rights. A send queue binds and
/// invalidates the window. Dropping the window frees it; the drop returns when no engine uses the window any
/// more.
///
/// | | type 1 | type 2 |
/// |---|---|---|
/// | bound by | [`QueuePair::bind_mw`](super::QueuePair::bind_mw), which chooses the key | [`SendOp::BindWindow`], with a key that the program chooses |
/// | usable by | every queue pair of the protection domain | the peer of the queue pair that bound it |
/// | unbound by | the next bind, which may be to no bytes | [`SendOp::LocalInvalidate`] or the peer's Send with Invalidate |
///
/// The region can also end the binding. [`MemoryRegion::deregister`] fails while a window is bound to the
/// region, but dropping or invalidating the region ends the region's windows first.
pub struct MemoryWindow {
    window: Window,
    /// The STag that was last returned to the user.
    rkey: AtomicU32,
    /// Keeps the protection domain and the context alive.
    _pd: ProtectionDomain,
}

impl MemoryWindow {
    pub(super) fn allocate(pd: &ProtectionDomain, options: MwOptions) -> Result<Self, VerbsError> {
        let MwOptions { kind, keep } = options;
        let window = pd.shared.resources.memory.alloc_window(pd.id(), kind, keep).map_err(register_error)?;
        let rkey = AtomicU32::new(window.stag(0).0);
        Ok(Self { window, rkey, _pd: pd.clone() })
    }

    /// Returns the type of the window.
    pub fn kind(&self) -> WindowKind {
        self.window.kind()
    }

    /// Returns the STag to advertise. The STag is valid once the last requested bind has completed.
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Acquire)
    }

    /// Advances to the next key (`ibv_inc_rkey`), and returns the STag with this key.
    pub fn next_rkey(&self) -> u32 {
        let next = |rkey: u32| self.window.stag(Stag(rkey).key().wrapping_add(1)).0;
        let update = self.rkey.fetch_update(Ordering::AcqRel, Ordering::Acquire, |rkey| Some(next(rkey)));
        next(update.unwrap_or_else(|rkey| rkey))
    }

    /// Whether the window is bound to a valid region, with the key in [`rkey`](Self::rkey).
    pub fn is_bound(&self) -> bool {
        self.window.is_valid(Stag(self.rkey()))
    }

    /// Returns a request that binds the window to `length` bytes from `offset` of `region`, with the next
    /// key.
    pub fn bind(&self, region: &MemoryRegion, offset: u64, length: u64, access: Access) -> BindWindow {
        BindWindow {
            rkey: self.next_rkey(),
            lkey: region.lkey(),
            addr: region.addr().wrapping_add(offset),
            length,
            access,
            zero_based: false,
        }
    }
}

impl QueuePair {
    /// Binds a window of type 1 (`ibv_bind_mw`): posts a request that binds the window to `length` bytes from
    /// `offset` of `region`. The request is processed in order with other posted requests. Returns the STag
    /// that the window has when the request has completed. From then on, the window gives no access to its
    /// previous range. A length of 0 unbinds the window.
    ///
    /// # Errors
    /// The errors of [`QueuePair::post_send`], and [`VerbsError::Invalid`] for a window of type 2. On an
    /// error, nothing was posted.
    pub fn bind_mw(
        &self,
        wr_id: u64,
        window: &MemoryWindow,
        (region, offset, length): (&MemoryRegion, u64, u64),
        access: Access,
    ) -> Result<u32, VerbsError> {
        if window.kind() != WindowKind::Type1 {
            let text = "a window of type 2 is bound by posting SendOp::BindWindow, with a key of your choice";
            return Err(VerbsError::Invalid(text.into()));
        }
        let bind = window.bind(region, offset, length, access);
        self.post_checked(&SendRequest::empty(wr_id, SendOp::BindWindow(bind)))?;
        Ok(bind.rkey)
    }

    /// As [`bind_mw`](Self::bind_mw), with a request that the caller has made. The caller gets the key for
    /// the request from [`MemoryWindow::next_rkey`].
    ///
    /// # Errors
    /// The errors of [`bind_mw`](Self::bind_mw).
    pub fn post_bind_mw(&self, window: &MemoryWindow, request: &SendRequest) -> Result<(), VerbsError> {
        if window.kind() != WindowKind::Type1 || !matches!(request.op, SendOp::BindWindow(_)) {
            return Err(VerbsError::Invalid("only a window of type 1 is bound by this call".into()));
        }
        self.post_checked(request)
    }
}
