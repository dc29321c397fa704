//! Shared receive queues.

use std::cell::UnsafeCell;
use std::sync::Arc;

use iwarp::verbs::{SharedReceiveQueue, SrqInit};
use libc::{c_int, c_uint};

use crate::ffi::abi::{self, EBUSY, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::use_count::UseCount;
use crate::ffi::{resources, sys};
use crate::ibverbs::device::OpenDevice;
use crate::ibverbs::pd::Pd;
use crate::ibverbs::work_request::{mark_in_child, post_each};
use crate::process::async_events::{Element, ObjectKind};
use crate::process::limits;

/// A shared receive queue (`ibv_srq`).
#[repr(C)]
pub(crate) struct Srq {
    c: UnsafeCell<sys::ibv_srq>,
    pub(crate) srq: SharedReceiveQueue,
    use_count: UseCount,
}

impl Srq {
    /// # Safety
    /// `srq` was returned by this library, and is not destroyed while the reference is used.
    pub(crate) unsafe fn of<'a>(srq: *mut sys::ibv_srq) -> &'a Self {
        // SAFETY: the C struct is the first field of an `Srq`, which is freed only when it is destroyed.
        unsafe { &*srq.cast::<Self>() }
    }

    /// Fails if the `handle` field is not the handle with which this queue was made.
    pub(crate) fn check(&self) -> Outcome<()> {
        // SAFETY: nobody writes the field while a call uses the object.
        abi::check_handle(unsafe { (*self.c.get()).handle }, self.srq.srq_num())
    }

    pub(crate) fn add(&self) {
        self.use_count.inc();
    }

    pub(crate) fn remove(&self) {
        self.use_count.dec();
    }
}

/// Implements `ibv_create_srq(3)`.
///
/// # Safety
/// `pd` is valid, and `init` is readable and writable.
#[unsafe(export_name = "uw_ibv_create_srq")]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_srq_init_attr,
) -> *mut sys::ibv_srq {
    abi::pointer(|| {
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(pd) };
        domain.check()?;
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let init = unsafe { &mut *init };
        let (max_wr, max_sge) = (init.attr.max_wr as usize, init.attr.max_sge as usize);
        if !(1..=limits::MAX_SRQ_WR).contains(&max_wr) || max_sge > limits::SGE {
            return Err(EINVAL);
        }
        resources::check_for_object(max_wr * resources::REQUEST_BYTES)?;
        let srq = domain.pd.create_srq(&SrqInit { max_wr, max_sge: limits::SGE, one_pd: false })?;
        init.attr.max_sge = limits::SGE as u32;
        // SAFETY: a context is not freed while it has objects.
        let open = unsafe { OpenDevice::of(domain.context()) };
        domain.add();
        open.add();
        let c = sys::ibv_srq {
            context: domain.context(),
            srq_context: init.srq_context,
            pd,
            handle: srq.srq_num(),
            ..Default::default()
        };
        let this = Box::leak(Box::new(Srq { c: UnsafeCell::new(c), srq, use_count: UseCount::default() }));
        let object = this.c.get() as usize;
        let element = Element { object, queue: open.async_events.clone(), pending_acks: Arc::default() };
        open.process.async_events.insert(ObjectKind::Srq, this.srq.srq_num(), element);
        Ok(this.c.get())
    })
}

/// Implements `ibv_modify_srq(3)`.
///
/// # Safety
/// `srq` is valid, and `attr` is readable.
#[unsafe(export_name = "uw_ibv_modify_srq")]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut sys::ibv_srq,
    attr: *mut sys::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Srq::of(srq) };
        // SAFETY: the caller passes a pointer to a readable struct.
        let attr = unsafe { &*attr };
        let mask = mask as c_uint;
        if mask & sys::IBV_SRQ_MAX_WR != 0 {
            // The queue cannot be resized. A request for a smaller size has no effect, and fails if more
            // receives are posted than the requested size.
            if attr.max_wr as usize > this.srq.query().max_wr {
                return Err(EOPNOTSUPP);
            }
            if (attr.max_wr as usize) < this.srq.query().outstanding {
                return Err(EINVAL);
            }
        }
        if mask & sys::IBV_SRQ_LIMIT != 0 {
            this.srq.arm_limit(attr.srq_limit as usize)?;
        }
        Ok(())
    })
}

/// Implements `ibv_query_srq(3)`.
///
/// # Safety
/// `srq` is valid, and `attr` is writable.
#[unsafe(export_name = "uw_ibv_query_srq")]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut sys::ibv_srq, attr: *mut sys::ibv_srq_attr) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let now = unsafe { Srq::of(srq) }.srq.query();
        let out = sys::ibv_srq_attr {
            max_wr: now.max_wr as u32,
            max_sge: now.max_sge as u32,
            srq_limit: now.limit as u32,
        };
        // SAFETY: the caller passes a pointer to a writable struct.
        unsafe { attr.write(out) };
        Ok(())
    })
}

/// Implements `ibv_destroy_srq(3)`.
///
/// # Safety
/// `srq` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_ibv_destroy_srq")]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut sys::ibv_srq) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Srq::of(srq) };
        this.check()?;
        if this.use_count.in_use() {
            return Err(EBUSY);
        }
        // SAFETY: the field is not changed after the queue is made.
        let pd = unsafe { (*this.c.get()).pd };
        // SAFETY: a domain is not deallocated while it has queues.
        let domain = unsafe { Pd::of(pd) };
        // SAFETY: a context is not freed while it has objects.
        let open = unsafe { OpenDevice::of(domain.context()) };
        open.process.async_events.forget(ObjectKind::Srq, this.srq.srq_num());
        open.process.async_events.remove(srq as usize);
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
        domain.remove();
        open.remove();
        Ok(())
    })
}

/// Implements `ibv_post_srq_recv(3)`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a pointer to writable memory.
    unsafe { mark_in_child(first, bad) };
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Srq::of(srq) };
        // SAFETY: the caller passes a readable list that ends with NULL, and a writable `bad`.
        unsafe { post_each(first, bad, |request| Ok(this.srq.post_recv(request)?)) }
    })
}
