//! The owner of external memory, with DPDK's count of the memory's views (`struct rte_mbuf_ext_shared_info`).
//!
//! The count is the number of mbufs, plus one while the [`ExtShared`] exists. The mbufs are made with the
//! `ExtShared`, or from other mbufs. When the count becomes 0, DPDK's callback or the drop of `ExtShared`
//! drops the owner.
//!
//! DPDK changes a count of 1 without an atomic read-modify-write. This change is sound, since a count of 1
//! has one of two meanings. If there is only one mbuf, nobody else changes the count. If there is only the
//! `ExtShared`, only `add` changes the count, and `add` uses an atomic.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk_sys as sys;

/// The count up to which [`ExtShared::add`] makes views. The count has 16 bits, and the rest of the range is
/// for views that DPDK makes from other views.
const MAX_VIEWS: u16 = 1 << 15;

/// The owner of external memory, with the count of the memory's views.
pub(crate) struct ExtShared {
    raw: NonNull<Counted>,
}

struct Counted {
    info: UnsafeCell<sys::rte_mbuf_ext_shared_info>,
    /// Keeps the memory alive.
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: the owner is `Send + Sync`. The count is changed by atomics, except by its last user.
unsafe impl Send for ExtShared {}
// SAFETY: through `&ExtShared` only the count is changed, by atomics.
unsafe impl Sync for ExtShared {}

impl ExtShared {
    pub(crate) fn new(owner: Arc<dyn Send + Sync>) -> Self {
        let info =
            sys::rte_mbuf_ext_shared_info { free_cb: Some(release), fcb_opaque: ptr::null_mut(), refcnt: 1 };
        let counted = Box::new(Counted { info: UnsafeCell::new(info), _owner: owner });
        let raw = NonNull::from(Box::leak(counted));
        // SAFETY: the value was just made, and is freed only when the count becomes 0.
        let info = unsafe { raw.as_ref() }.info.get();
        // SAFETY: the field belongs to the new value, which no other code knows yet.
        unsafe { (*info).fcb_opaque = raw.as_ptr().cast() };
        Self { raw }
    }

    fn count(&self) -> &AtomicU16 {
        // SAFETY: the count includes `self`, so the value is not freed.
        let info = unsafe { self.raw.as_ref() }.info.get();
        // SAFETY: the field belongs to a value that is not freed. This code makes no reference to other
        // fields.
        let count = unsafe { &raw mut (*info).refcnt };
        // SAFETY: the field is aligned, and is not freed before `self`. While the count includes `self`,
        // other code changes the count only by atomics: DPDK sees a count of at least 2, since the count also
        // includes the mbuf that DPDK handles.
        unsafe { AtomicU16::from_ptr(count) }
    }

    /// Counts one more view. Returns a pointer to the count, for the mbuf. Returns `None` if there are too
    /// many views.
    pub(crate) fn add(&self) -> Option<*mut sys::rte_mbuf_ext_shared_info> {
        // Relaxed is enough, as in `Arc::clone`, since the new view is made from an existing owner.
        let more = |count: u16| (count < MAX_VIEWS).then_some(count + 1);
        self.count().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        // SAFETY: the count includes `self`, so the value is not freed.
        Some(unsafe { self.raw.as_ref() }.info.get())
    }
}

impl Drop for ExtShared {
    fn drop(&mut self) {
        if self.count().fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the value is from `Box::leak`, and the count is 0, so no mbuf refers to the value now
            // or later.
            drop(unsafe { Box::from_raw(self.raw.as_ptr()) });
        }
    }
}

/// DPDK calls this function when it has decremented the count to 0.
extern "C" fn release(_start: *mut c_void, counted: *mut c_void) {
    // SAFETY: `new` has given this pointer, which is from `Box::leak`, to DPDK. The count is 0, so nobody
    // else uses the value, and nobody decrements the count to 0 again.
    drop(unsafe { Box::from_raw(counted.cast::<Counted>()) });
}
