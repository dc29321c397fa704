//! Synchronous endpoints: `rdma_create_ep`, `rdma_get_request`.

use std::ptr;

use libc::c_int;

use super::address;
use super::event_channel;
use super::id::{Id, destroy, migrate};
use super::qp::{create, rdma_destroy_qp, rdma_destroy_srq};
use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::{resources, sys};
use crate::process;

/// Timeout of address resolution in milliseconds, as in librdmacm.
const RESOLVE_MS: c_int = 2000;

/// Implements `rdma_create_ep(3)`.
///
/// # Safety
/// `id` is writable, `info` was returned by `rdma_getaddrinfo`, `pd` is NULL or valid, and `init` is NULL or
/// readable and writable.
#[unsafe(export_name = "uw_rdma_create_ep")]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut sys::rdma_cm_id,
    info: *mut sys::rdma_addrinfo,
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_qp_init_attr,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes a pointer to a readable struct.
        let info = unsafe { &*info };
        let process = process::get_or_start()?;
        resources::check_for_object(0)?;
        let new = Id::make(process, ptr::null_mut(), ptr::null_mut(), info.ai_port_space as u32)?;
        let new = Box::leak(new).as_c();
        // SAFETY: the identifier was just made, and the caller promises that the other arguments are valid.
        let made = unsafe { set_up(new, info, pd, init) };
        if let Err(error) = made {
            // SAFETY: the identifier was just made, and nobody else uses it.
            unsafe { rdma_destroy_ep(new) };
            return Err(error);
        }
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *id = new };
        Ok(0)
    })
}

/// # Safety
/// The conditions of [`rdma_create_ep`]. `id` is valid.
unsafe fn set_up(
    id: *mut sys::rdma_cm_id,
    info: &sys::rdma_addrinfo,
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_qp_init_attr,
) -> Outcome<()> {
    let done = |result: c_int| {
        if result == 0 { Ok(()) } else { Err(Errno::from(std::io::Error::last_os_error())) }
    };
    if info.ai_flags as u32 & sys::RAI_PASSIVE != 0 {
        // SAFETY: the address is from the caller's list.
        done(unsafe { address::rdma_bind_addr(id, info.ai_src_addr) })?;
        // SAFETY: the caller passes NULL or a pointer to a readable struct.
        if let Some(init) = unsafe { init.as_ref() } {
            // SAFETY: the identifier is not destroyed yet.
            unsafe { Id::of(id) }?.state().endpoint =
                Some((pd, sys::ibv_qp_init_attr { qp_type: info.ai_qp_type as u32, ..*init }));
        }
        return Ok(());
    }
    // SAFETY: the addresses are from the caller's list.
    done(unsafe { address::rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, RESOLVE_MS) })?;
    // SAFETY: the identifier is not destroyed yet.
    done(unsafe { address::rdma_resolve_route(id, RESOLVE_MS) })?;
    // SAFETY: the caller passes NULL or a pointer to a readable and writable struct.
    if let Some(init) = unsafe { init.as_mut() } {
        init.qp_type = info.ai_qp_type as u32;
        // SAFETY: the caller promises that `pd` and the objects that `init` names are valid.
        unsafe { create(id, pd, init) }?;
    }
    Ok(())
}

/// Implements `rdma_destroy_ep(3)`.
///
/// # Safety
/// `id` is valid, and is not used after the call.
#[unsafe(export_name = "uw_rdma_destroy_ep")]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut sys::rdma_cm_id) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        unsafe { rdma_destroy_qp(id) };
        // SAFETY: the caller passes an identifier that is valid during the call.
        unsafe { rdma_destroy_srq(id) };
        // SAFETY: the caller passes a valid identifier, and does not use it again.
        unsafe { destroy(id) }
    });
}

/// Implements `rdma_get_request(3)`.
///
/// # Safety
/// `listener` is valid, and `id` is writable.
#[unsafe(export_name = "uw_rdma_get_request")]
pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut sys::rdma_cm_id,
    id: *mut *mut sys::rdma_cm_id,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(listener) }?;
        if !this.is_sync() {
            return Err(EINVAL);
        }
        this.forget_event();
        let event = event_channel::next(this.fields().channel)?;
        let Some(new) = event.new_id() else {
            // SAFETY: the program does not know the event, so nobody else acknowledges it.
            unsafe { event_channel::rdma_ack_cm_event(Box::into_raw(event).cast()) };
            return Err(EINVAL);
        };
        let event = Box::into_raw(event).cast();
        // SAFETY: the identifier is new, and nobody else uses it.
        let set_up = unsafe { migrate(new, ptr::null_mut()) }.and_then(|()| {
            let endpoint = this.state().endpoint;
            match endpoint {
                // SAFETY: the program passed these objects to `rdma_create_ep`, and keeps them valid while
                // the listener uses them.
                Some((pd, mut init)) => unsafe { create(new, pd, &mut init) },
                None => Ok(()),
            }
        });
        if let Err(error) = set_up {
            // SAFETY: the program does not know the event, so nobody else acknowledges it.
            unsafe { event_channel::rdma_ack_cm_event(event) };
            // SAFETY: the program has not seen the identifier.
            unsafe { destroy(new) }?;
            return Err(error);
        }
        // SAFETY: the identifier is not destroyed yet.
        unsafe { Id::of(new) }?.update(|c| c.event = event);
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *id = new };
        Ok(0)
    })
}
