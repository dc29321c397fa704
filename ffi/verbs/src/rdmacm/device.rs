//! The device list, and the context that all identifiers share.

use std::ptr;
use std::sync::OnceLock;

use libc::c_int;

use crate::ffi::abi::{self, Outcome};
use crate::ffi::sys;
use crate::ibverbs::open_device::open;
use crate::ibverbs::pd::Pd;
use crate::process::{self, Process};

/// The context and the protection domain that all identifiers share. The first call opens the context, which
/// is never closed.
pub(super) fn device(process: &'static Process) -> Outcome<(*mut sys::ibv_context, *mut sys::ibv_pd)> {
    static DEVICE: OnceLock<(usize, usize)> = OnceLock::new();
    if let Some(&(context, pd)) = DEVICE.get() {
        return Ok((context as *mut _, pd as *mut _));
    }
    let context = open(process)?;
    let domain = process.default_pd.clone();
    // SAFETY: the context was just opened.
    let pd = unsafe { Pd::make(context, domain) };
    // If two threads run this code at the same time, one of the two pairs is never used.
    let (context, pd) = *DEVICE.get_or_init(|| (context as usize, pd as usize));
    Ok((context as *mut _, pd as *mut _))
}

/// Implements `rdma_get_devices(3)`.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(export_name = "uw_rdma_get_devices")]
pub(crate) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut sys::ibv_context {
    abi::pointer(|| {
        let (context, _) = device(process::get_or_start()?)?;
        if !count.is_null() {
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { *count = 1 };
        }
        Ok(Box::into_raw(Box::new([context, ptr::null_mut()])).cast())
    })
}

/// Implements `rdma_free_devices(3)`.
///
/// # Safety
/// `list` was returned by [`rdma_get_devices`], and is not used after the call.
#[unsafe(export_name = "uw_rdma_free_devices")]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut sys::ibv_context) {
    if !list.is_null() {
        // SAFETY: the list is a leaked `Box` of two pointers, and the caller does not use it again.
        drop(unsafe { Box::from_raw(list.cast::<[*mut sys::ibv_context; 2]>()) });
    }
}
