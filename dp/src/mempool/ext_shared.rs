//! The owner of external memory, with DPDK's count of its views (`struct rte_mbuf_ext_shared_info`).
//!
//! [`ExtShared`] and each mbuf hold one count. Mbufs are made through the `ExtShared`, or from other mbufs.
//! The owner is dropped when the count becomes 0: by DPDK's callback, or by the drop of `ExtShared`.
//!
//! DPDK changes a count of 1 without an atomic. This is sound. If the count is 1, either one mbuf is left
//! and `ExtShared` is gone, so nobody else changes the count; or only `ExtShared` is left, and only `add`
//! changes the count, with an atomic.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk_sys as sys;

/// Maximum views made by [`ExtShared::add`]. The count has 16 bits; the rest is for views that DPDK makes of
/// views.
const MAX_VIEWS: u16 = 1 << 15;

/// The shared count and the owner of external memory: see the module.
pub(crate) struct ExtShared {
    raw: NonNull<Counted>,
}

struct Counted {
    info: UnsafeCell<sys::rte_mbuf_ext_shared_info>,
    /// Keeps the memory alive.
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: the owner is `Send + Sync`, and the count is changed by atomics, except by the last of its users.
unsafe impl Send for ExtShared {}
// SAFETY: through `&ExtShared` the count is changed, by atomics, and nothing else.
unsafe impl Sync for ExtShared {}

impl ExtShared {
    pub(crate) fn new(owner: Arc<dyn Send + Sync>) -> Self {
        let info =
            sys::rte_mbuf_ext_shared_info { free_cb: Some(release), fcb_opaque: ptr::null_mut(), refcnt: 1 };
        let counted = Box::new(Counted { info: UnsafeCell::new(info), _owner: owner });
        let raw = NonNull::from(Box::leak(counted));
        // SAFETY: the value was just made, and is freed only when the count becomes 0.
        let info = unsafe { raw.as_ref() }.info.get();
        // SAFETY: a field of the live value, which nobody else knows yet.
        unsafe { (*info).fcb_opaque = raw.as_ptr().cast() };
        Self { raw }
    }

    fn count(&self) -> &AtomicU16 {
        // SAFETY: `self` has one of the counts, so the value lives.
        let info = unsafe { self.raw.as_ref() }.info.get();
        // SAFETY: a field of the live value, whose address is taken without a reference to the rest.
        let count = unsafe { &raw mut (*info).refcnt };
        // SAFETY: the field lives as long as `self` and is aligned. While `self` has one of the counts,
        // others change it by atomics: DPDK sees 2 or more, as the mbuf that it handles has one of its own.
        unsafe { AtomicU16::from_ptr(count) }
    }

    /// Counts one more view. Returns the count for the mbuf to refer to; `None` if there are too many views.
    pub(crate) fn add(&self) -> Option<*mut sys::rte_mbuf_ext_shared_info> {
        // Relaxed, as in `Arc::clone`: the new view is made from one that exists.
        let more = |count: u16| (count < MAX_VIEWS).then_some(count + 1);
        self.count().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        // SAFETY: `self` has one of the counts, so the value lives.
        Some(unsafe { self.raw.as_ref() }.info.get())
    }
}

impl Drop for ExtShared {
    fn drop(&mut self) {
        if self.count().fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the value is of `Box::leak`, and the count is 0: no mbuf refers to it, and none will.
            drop(unsafe { Box::from_raw(self.raw.as_ptr()) });
        }
    }
}

/// DPDK has taken the count to 0.
extern "C" fn release(_start: *mut c_void, counted: *mut c_void) {
    // SAFETY: `new` gave DPDK this pointer, which is of `Box::leak`. The count is 0, so nobody else has it,
    // and nobody takes the count to 0 again.
    drop(unsafe { Box::from_raw(counted.cast::<Counted>()) });
}
