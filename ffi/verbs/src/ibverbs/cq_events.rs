//! Reading and acknowledging the events of completion queues.

use std::ffi::c_void;
use std::sync::Arc;

use libc::{c_int, c_uint};

use crate::ffi::abi::{self, EIO, Outcome};
use crate::ffi::sys;
use crate::ibverbs::comp_channel::CHANNELS;
use crate::ibverbs::cq::Cq;
use crate::process;

/// See `ibv_get_cq_event(3)`.
///
/// # Safety
/// `channel` lives, `cq` and `cq_context` are writable.
#[unsafe(export_name = "uw_ibv_get_cq_event")]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    abi::minus_one(|| -> Outcome<c_int> {
        let events = CHANNELS.get_or_block(channel as usize);
        let (at, context) = events.next(&process::started().ok_or(EIO)?.engine, |at| {
            let at = at as *mut sys::ibv_cq;
            // SAFETY: a completion queue that is destroyed removes its events with the channel locked, as it
            // is here. So this one lives, and from here on waits for the program to acknowledge the event.
            let queue = unsafe { Cq::of(at) };
            queue.pending_acks.add();
            (at, queue.user_context())
        })?;
        // SAFETY: the caller passes a writable place.
        unsafe { *cq = at };
        // SAFETY: the caller passes a writable place.
        unsafe { *cq_context = context };
        Ok(0)
    })
}

/// See `ibv_ack_cq_events(3)`.
///
/// # Safety
/// `cq` lives.
#[unsafe(export_name = "uw_ibv_ack_cq_events")]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut sys::ibv_cq, count: c_uint) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a completion queue that lives.
        let pending_acks = Arc::clone(&unsafe { Cq::of(cq) }.pending_acks);
        // The completion queue may be freed before this call returns: another thread may be waiting to
        // destroy it.
        pending_acks.ack(count.into());
        Ok(())
    });
}
