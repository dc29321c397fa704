//! Memory windows.

use std::cell::UnsafeCell;

use iwarp::verbs::{MemoryWindow, SendRequest, WindowKind};
use libc::c_int;

use crate::ffi::abi::{self, EINVAL};
use crate::ffi::{resources, sys};
use crate::ibverbs::pd::Pd;
use crate::ibverbs::qp::Qp;
use crate::ibverbs::work_request::{bind_of, flags_of};

/// A memory window (`ibv_mw`).
#[repr(C)]
pub(crate) struct Mw {
    c: UnsafeCell<sys::ibv_mw>,
    window: MemoryWindow,
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut sys::ibv_pd, kind: sys::ibv_mw_type) -> *mut sys::ibv_mw {
    abi::pointer(|| {
        let window_kind = match kind {
            sys::IBV_MW_TYPE_1 => WindowKind::Type1,
            sys::IBV_MW_TYPE_2 => WindowKind::Type2,
            _ => return Err(EINVAL),
        };
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(pd) };
        domain.check()?;
        resources::check_for_object(0)?;
        let window = domain.pd.alloc_mw(window_kind)?;
        domain.add();
        let c = sys::ibv_mw { context: domain.context(), pd, rkey: window.rkey(), handle: 0, type_: kind };
        let mw = Mw { c: UnsafeCell::new(c), window };
        Ok(Box::into_raw(Box::new(mw)).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut sys::ibv_mw) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a window that is valid during the call.
        abi::check_handle(unsafe { (*mw).handle }, 0)?;
        // SAFETY: the caller passes a valid window, and does not use it again.
        let this = unsafe { Box::from_raw(mw.cast::<Mw>()) };
        let pd = this.c.into_inner().pd;
        drop(this.window);
        // SAFETY: a domain is not deallocated while it has windows.
        unsafe { Pd::of(pd) }.remove();
        Ok(())
    })
}

/// Implements `ibv_bind_mw(3)`: binds a type 1 window, and chooses its rkey.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut sys::ibv_qp,
    mw: *mut sys::ibv_mw,
    bind: *mut sys::ibv_mw_bind,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let qp = unsafe { Qp::of(qp) };
        // SAFETY: the C struct is the first field of an `Mw`, which is valid during the call.
        let this = unsafe { &*mw.cast::<Mw>() };
        // SAFETY: the caller passes a pointer to a readable request.
        let bind = unsafe { &*bind };
        if this.window.kind() != WindowKind::Type1 {
            return Err(EINVAL);
        }
        let rkey = this.window.next_rkey();
        let window = bind_of(rkey, &bind.bind_info)?;
        let request = SendRequest::empty(bind.wr_id, iwarp::verbs::SendOp::BindWindow(window))
            .flags(flags_of(bind.send_flags));
        let _others_wait = qp.posting()?;
        qp.current().qp.post_bind_mw(&this.window, &request)?;
        // SAFETY: the program does not use the window in another thread during the bind.
        unsafe { (*this.c.get()).rkey = rkey };
        Ok(())
    })
}
