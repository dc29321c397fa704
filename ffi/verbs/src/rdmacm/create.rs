//! The calls of the connection manager that come first, and start the engine.

use libc::{c_int, c_void};

use super::channel::Channel;
use super::id::Id;
use crate::ffi::{abi, room, sys};
use crate::start;

/// See `rdma_create_event_channel(3)`.
#[unsafe(export_name = "uw_rdma_create_event_channel")]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut sys::rdma_event_channel {
    abi::pointer(|| {
        start::process()?;
        room::for_object(0)?;
        Channel::make()
    })
}

/// See `rdma_create_id(3)`.
///
/// # Safety
/// `channel` is NULL or lives, `id` is writable.
#[unsafe(export_name = "uw_rdma_create_id")]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut sys::rdma_event_channel,
    id: *mut *mut sys::rdma_cm_id,
    context: *mut c_void,
    ps: sys::rdma_port_space,
) -> c_int {
    abi::minus_one(|| {
        let process = start::process()?;
        room::for_object(0)?;
        let new = Id::make(process, channel, context, ps)?;
        // SAFETY: the caller passes a writable place.
        unsafe { *id = Box::leak(new).as_c() };
        Ok(0)
    })
}
