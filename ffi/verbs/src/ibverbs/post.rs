//! Posts requests: translates each C request of a list. A list of send requests rings the doorbell of each
//! engine queue pair once.

use arrayvec::ArrayVec;
use iwarp::verbs::{MAX_SGE, QueuePair, RecvRequest, SendFlags, SendOp, SendRequest};
use libc::c_int;

use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::sys;
use crate::ibverbs::engine_qps::SendBatches;
use crate::ibverbs::qp::Qp;
use crate::ibverbs::work_request::{
    bytes_at, datagram_of, elements, flags_of, mark_in_child, op_of, post_each,
};

/// Implements `ibv_post_send(3)`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a pointer to writable memory.
    unsafe { mark_in_child(first, bad) };
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp) };
        let mut next = first;
        let posting = this.posting();
        let current = this.current();
        let post = |list: &mut SendBatches<'_>| {
            let _others_wait = posting?;
            // SAFETY: the caller passes a list that ends with NULL.
            while let Some(request) = unsafe { next.as_ref() } {
                // SAFETY: the request is in the caller's list.
                unsafe { post_one(request, list, this.is_ud()) }?;
                next = request.next;
            }
            Ok(())
        };
        let result = sends_in(this.state_of(&current), this.is_ud()).and_then(|()| this.post(current, post));
        if result.is_err() {
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { *bad = next };
        }
        result
    })
}

/// Checks that send requests may be posted in `state`.
fn sends_in(state: sys::ibv_qp_state, is_ud: bool) -> Outcome<()> {
    match state {
        sys::IBV_QPS_RTR if is_ud => Err(EINVAL),
        sys::IBV_QPS_RESET | sys::IBV_QPS_INIT => {
            abi::log(|| format!("refused: a send in state {state} of the queue pair"));
            Err(EINVAL)
        }
        // In RTR, posted sends wait for the connection. (perftest's server posts sends in RTR.)
        _ => Ok(()),
    }
}

/// Translates a request and posts it.
///
/// # Safety
/// The list of elements is readable. If the request is inline, the memory of its elements is readable.
unsafe fn post_one(request: &sys::ibv_send_wr, list: &mut SendBatches<'_>, is_ud: bool) -> Outcome<()> {
    // SAFETY: the caller promises that the list of elements is readable.
    let elements = unsafe { elements(request.sg_list, request.num_sge) }?;
    let flags = flags_of(request.send_flags);
    let op = if is_ud { datagram_of(request) } else { op_of(request) }?;
    let is_inline =
        flags.contains(SendFlags::INLINE) && !matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
    let mut sends = SendRequest::empty(request.wr_id, op).flags(flags);
    if is_inline {
        let bytes: ArrayVec<&[u8], MAX_SGE> = elements
            .iter()
            // SAFETY: the caller passes readable memory, which does not change during the call.
            .map(|sge| unsafe { bytes_at(sge.addr as *const u8, sge.length as usize) })
            .collect();
        return list.push(&sends, Some(&bytes));
    }
    sends.sg_list = elements;
    list.push(&sends, None)
}

/// Implements `ibv_post_recv(3)`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a pointer to writable memory.
    unsafe { mark_in_child(first, bad) };
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp) };
        let current = this.current();
        let refused = this.has_srq() || this.state_of(&current) == sys::IBV_QPS_RESET;
        let post = |request: &RecvRequest| {
            if refused { Err(EINVAL) } else { receive(&current.qp, request) }
        };
        // SAFETY: the caller passes a readable list that ends with NULL, and a writable `bad`.
        unsafe { post_each(first, bad, post) }
    })
}

fn receive(qp: &QueuePair, request: &RecvRequest) -> Outcome<()> {
    qp.post_recv(request).map_err(Errno::from)
}
