//! Protection domains.

use std::cell::UnsafeCell;

use iwarp::verbs::ProtectionDomain;
use libc::c_int;

use crate::abi::{self, EBUSY, Outcome};
use crate::device::OpenDevice;
use crate::sys;
use crate::users::Users;

/// A protection domain (`ibv_pd`).
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<sys::ibv_pd>,
    pub(crate) pd: ProtectionDomain,
    /// Objects that were made with it and live.
    users: Users,
}

impl Pd {
    /// # Safety
    /// `pd` is one that this library has handed out, and is not deallocated.
    pub(crate) unsafe fn of<'a>(pd: *mut sys::ibv_pd) -> &'a Self {
        // SAFETY: the C struct is the first part of a `Pd`, which lives until it is deallocated.
        unsafe { &*pd.cast::<Self>() }
    }

    pub(crate) fn as_c(&self) -> *mut sys::ibv_pd {
        self.c.get()
    }

    /// A domain of `context`.
    ///
    /// # Safety
    /// `context` is open.
    pub(crate) unsafe fn make(context: *mut sys::ibv_context, pd: ProtectionDomain) -> *mut sys::ibv_pd {
        // SAFETY: the caller passes an open context.
        unsafe { OpenDevice::of(context) }.add();
        let c = sys::ibv_pd { context, handle: pd.pd_num() };
        Box::leak(Box::new(Self { c: UnsafeCell::new(c), pd, users: Users::default() })).as_c()
    }

    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: the field is never changed, here or by programs.
        unsafe { (*self.c.get()).context }
    }

    pub(crate) fn add(&self) {
        self.users.add();
    }

    pub(crate) fn remove(&self) {
        self.users.remove();
    }
}

/// See `ibv_alloc_pd(3)`.
///
/// # Safety
/// `context` is open.
#[unsafe(export_name = "uw_ibv_alloc_pd")]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    abi::pointer(|| {
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        let pd = open.process.context.alloc_pd()?;
        // SAFETY: the caller passes an open context.
        Ok(unsafe { Pd::make(context, pd) })
    })
}

/// See `ibv_dealloc_pd(3)`.
///
/// # Safety
/// `pd` lives, and is deallocated once.
#[unsafe(export_name = "uw_ibv_dealloc_pd")]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    abi::status(|| -> Outcome<()> {
        // SAFETY: the caller passes a domain that lives.
        let domain = unsafe { Pd::of(pd) };
        if domain.users.any() {
            return Err(EBUSY);
        }
        let context = domain.context();
        // SAFETY: the address is that of a leaked box, and the caller gives it up.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        // SAFETY: a context is not closed while it has objects.
        unsafe { OpenDevice::of(context) }.remove();
        Ok(())
    })
}
