//! Protection domains.

use std::cell::UnsafeCell;

use iwarp::verbs::ProtectionDomain;
use libc::c_int;

use crate::ffi::abi::{self, EBUSY, EINVAL, Outcome};
use crate::ffi::use_count::UseCount;
use crate::ffi::{resources, sys};
use crate::ibverbs::device::OpenDevice;

/// A protection domain (`ibv_pd`).
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<sys::ibv_pd>,
    pub(crate) pd: ProtectionDomain,
    /// The number of objects that were made with the domain and are not destroyed.
    use_count: UseCount,
    /// The parts of a parent domain, or `None` for an ordinary domain.
    parent_of: Option<ParentDomain>,
}

/// The objects that a program combined into a parent domain (`ibv_parent_domain_init_attr`).
struct ParentDomain {
    pd: *mut sys::ibv_pd,
    /// NULL or a thread domain.
    td: *mut sys::ibv_td,
}

/// A thread domain (`ibv_td`). The program promises that only one thread at a time uses the objects of a
/// parent domain that has this thread domain. The only effect is that no thread waits for the critical
/// sections of these objects ([`CriticalSection`](super::critical_section::CriticalSection)).
#[repr(C)]
struct Td {
    c: UnsafeCell<sys::ibv_td>,
    /// The number of parent domains that were made with the thread domain and are not deallocated.
    use_count: UseCount,
}

impl Td {
    /// # Safety
    /// `td` was returned by this library, and is not deallocated while the reference is used.
    unsafe fn of<'a>(td: *mut sys::ibv_td) -> &'a Self {
        // SAFETY: the C struct is the first field of a `Td`, which is freed only when it is deallocated.
        unsafe { &*td.cast::<Self>() }
    }
}

impl Pd {
    /// # Safety
    /// `pd` was returned by this library, and is not deallocated while the reference is used.
    pub(crate) unsafe fn of<'a>(pd: *mut sys::ibv_pd) -> &'a Self {
        // SAFETY: the C struct is the first field of a `Pd`, which is freed only when it is deallocated.
        unsafe { &*pd.cast::<Self>() }
    }

    pub(crate) fn as_c(&self) -> *mut sys::ibv_pd {
        self.c.get()
    }

    /// Makes a domain of `context`.
    ///
    /// # Safety
    /// `context` is open.
    pub(crate) unsafe fn make(context: *mut sys::ibv_context, pd: ProtectionDomain) -> *mut sys::ibv_pd {
        // SAFETY: the caller passes an open context.
        unsafe { Self::make_parent(context, pd, None) }
    }

    /// Makes a domain of `context`, or a parent domain if `parent_of` is given.
    ///
    /// # Safety
    /// `context` is open.
    unsafe fn make_parent(
        context: *mut sys::ibv_context,
        pd: ProtectionDomain,
        parent_of: Option<ParentDomain>,
    ) -> *mut sys::ibv_pd {
        // SAFETY: the caller passes an open context.
        unsafe { OpenDevice::of(context) }.add();
        let c = sys::ibv_pd { context, handle: pd.pd_num() };
        Box::leak(Box::new(Self { c: UnsafeCell::new(c), pd, use_count: UseCount::default(), parent_of }))
            .as_c()
    }

    pub(crate) fn is_parent(&self) -> bool {
        self.parent_of.is_some()
    }

    /// Whether the program has promised to use the domain's objects in one thread at a time.
    pub(crate) fn is_for_one_thread(&self) -> bool {
        self.parent_of.as_ref().is_some_and(|parent_of| !parent_of.td.is_null())
    }

    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: neither this library nor programs change the field.
        unsafe { (*self.c.get()).context }
    }

    /// Fails if the `handle` field is not the handle with which this domain was made.
    pub(crate) fn check(&self) -> Outcome<()> {
        // SAFETY: nobody writes the field while a call uses the object.
        abi::check_handle(unsafe { (*self.c.get()).handle }, self.pd.pd_num())
    }

    pub(crate) fn add(&self) {
        self.use_count.inc();
    }

    pub(crate) fn remove(&self) {
        self.use_count.dec();
    }
}

/// Implements `ibv_alloc_pd(3)`.
///
/// # Safety
/// `context` is open.
#[unsafe(export_name = "uw_ibv_alloc_pd")]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    abi::pointer(|| {
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        resources::check_for_object(0)?;
        let pd = open.process.context.alloc_pd()?;
        // SAFETY: the caller passes an open context.
        Ok(unsafe { Pd::make(context, pd) })
    })
}

/// Implements `ibv_dealloc_pd(3)`.
///
/// # Safety
/// `pd` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_ibv_dealloc_pd")]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    abi::status(|| -> Outcome<()> {
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(pd) };
        domain.check()?;
        if domain.use_count.in_use() {
            return Err(EBUSY);
        }
        let context = domain.context();
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        let gone = unsafe { Box::from_raw(pd.cast::<Pd>()) };
        if let Some(ParentDomain { pd, td }) = gone.parent_of {
            // SAFETY: a domain is not deallocated while a parent domain uses it.
            unsafe { Pd::of(pd) }.remove();
            if !td.is_null() {
                // SAFETY: a thread domain is not deallocated while a parent domain uses it.
                unsafe { Td::of(td) }.use_count.dec();
            }
        }
        // SAFETY: a context is not freed while it has objects.
        unsafe { OpenDevice::of(context) }.remove();
        Ok(())
    })
}

/// Implements `ibv_alloc_parent_domain(3)`: makes a second handle of a domain. The allocators in `init` are
/// for memory that a driver shares with its device. This library has no such memory, so it never calls the
/// allocators.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut sys::ibv_context,
    init: *mut sys::ibv_parent_domain_init_attr,
) -> *mut sys::ibv_pd {
    abi::pointer(|| {
        // SAFETY: the caller passes a readable `init`.
        let init = unsafe { &*init };
        let known = sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | sys::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if init.pd.is_null() || init.comp_mask & !known != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(init.pd) };
        domain.check()?;
        if domain.context() != context || domain.is_parent() {
            return Err(EINVAL);
        }
        domain.add();
        if !init.td.is_null() {
            // SAFETY: the caller passes a thread domain that is valid during the call.
            unsafe { Td::of(init.td) }.use_count.inc();
        }
        let parent_of = ParentDomain { pd: init.pd, td: init.td };
        // SAFETY: the caller passes an open context.
        Ok(unsafe { Pd::make_parent(context, domain.pd.clone(), Some(parent_of)) })
    })
}

/// Implements `ibv_alloc_td(3)`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut sys::ibv_context,
    init: *mut sys::ibv_td_init_attr,
) -> *mut sys::ibv_td {
    abi::pointer(|| {
        // SAFETY: the caller passes a readable `init`.
        if unsafe { (*init).comp_mask } != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes an open context.
        unsafe { OpenDevice::of(context) }.add();
        let td = Td { c: UnsafeCell::new(sys::ibv_td { context }), use_count: UseCount::default() };
        Ok(Box::into_raw(Box::new(td)).cast())
    })
}

/// Implements `ibv_dealloc_td(3)`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut sys::ibv_td) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a thread domain that is valid during the call.
        if unsafe { Td::of(td) }.use_count.in_use() {
            return Err(EBUSY);
        }
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        let gone = unsafe { Box::from_raw(td.cast::<Td>()) };
        let context = gone.c.into_inner().context;
        // SAFETY: a context is not freed while it has objects.
        unsafe { OpenDevice::of(context) }.remove();
        Ok(())
    })
}
