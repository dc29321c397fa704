//! Opens the device, with the functions that programs call through its struct (`ibv_context_ops` and
//! `verbs_context`).

use crate::ffi::abi::{self, Outcome};
use crate::ffi::{resources, sys};
use crate::ibverbs::device::OpenDevice;
use crate::ibverbs::{clock, cq, cq_ex, mw, on_demand, pd, post, qp_ex, srq};
use crate::process::{self, Process};

/// Implements `ibv_open_device(3)`.
///
/// # Safety
/// `device` is from the list of devices.
#[unsafe(export_name = "uw_ibv_open_device")]
pub(crate) unsafe extern "C" fn ibv_open_device(_device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    abi::pointer(|| open(process::get_or_start()?))
}

/// Opens the device with all functions.
pub(crate) fn open(process: &'static Process) -> Outcome<*mut sys::ibv_context> {
    resources::check_for_object(0)?;
    let mut calls = sys::verbs_context {
        advise_mr: Some(on_demand::advise_mr),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        create_qp_ex: Some(qp_ex::create_qp_ex),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        alloc_td: Some(pd::alloc_td),
        dealloc_td: Some(pd::dealloc_td),
        query_rt_values: Some(clock::query_rt_values),
        ..Default::default()
    };
    let ops = &mut calls.context.ops;
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    OpenDevice::open(process, calls)
}
