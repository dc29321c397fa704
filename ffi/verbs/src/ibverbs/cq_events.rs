//! Reading and acknowledging the events of completion queues.

use std::ffi::c_void;
use std::sync::Arc;

use libc::{c_int, c_uint};

use crate::ffi::abi::{self, EIO};
use crate::ffi::{cancel, sys};
use crate::ibverbs::comp_channel::CHANNELS;
use crate::ibverbs::cq::Cq;
use crate::process;

/// Implements `ibv_get_cq_event(3)`.
///
/// # Safety
/// `channel` is valid, `cq` and `cq_context` are writable.
#[unsafe(export_name = "uw_ibv_get_cq_event")]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let find = || Ok(CHANNELS.get(channel as usize));
    cancel::call(find, |events| {
        let taken = events.next_or_seen(&process::started().ok_or(EIO)?.engine, |at| {
            let at = at as *mut sys::ibv_cq;
            // SAFETY: the channel is locked, and a completion queue removes its events under this lock before
            // it is destroyed. So this completion queue is not destroyed. From here on its destruction waits
            // until the program has acknowledged the event.
            let queue = unsafe { Cq::of(at) };
            queue.pending_acks.add();
            (at, queue.user_context())
        })?;
        Ok(taken.map(|(at, context)| {
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { *cq = at };
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { *cq_context = context };
        }))
    })
}

/// Implements `ibv_ack_cq_events(3)`.
///
/// # Safety
/// `cq` is valid.
#[unsafe(export_name = "uw_ibv_ack_cq_events")]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut sys::ibv_cq, count: c_uint) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a completion queue that is valid during the call.
        let pending_acks = Arc::clone(&unsafe { Cq::of(cq) }.pending_acks);
        // The completion queue may be freed before this call returns, since another thread may wait in
        // `ibv_destroy_cq`.
        pending_acks.ack(count.into());
        Ok(())
    });
}
