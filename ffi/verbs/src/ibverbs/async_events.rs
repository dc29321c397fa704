//! Reading and acknowledging asynchronous events.

use libc::{c_int, c_void};

use crate::ffi::abi::{self, EIO};
use crate::ffi::{cancel, sys};
use crate::ibverbs::device::OpenDevice;
use crate::process;
use crate::process::async_events::QueuedEvent;

/// Implements `ibv_get_async_event(3)`.
///
/// # Safety
/// `context` is open, and `event` is writable.
#[unsafe(export_name = "uw_ibv_get_async_event")]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    // If the program closes the device while a thread waits in this call, the thread keeps waiting.
    // SAFETY: the caller passes an open context.
    let find = || Ok(Some(unsafe { OpenDevice::of(context) }.async_events.events()));
    cancel::call(find, |queue| {
        let taken = queue.next_or_seen(&process::started().ok_or(EIO)?.engine, |waiting| {
            // This closure runs with the queue locked. So a thread that destroys the object either waits
            // until this event is acknowledged, or removes the event before this call finds it.
            if let Some(element) = &waiting.element {
                element.pending_acks.add();
            }
            waiting
        })?;
        Ok(taken.map(|QueuedEvent { event: code, element }| {
            let mut out = sys::ibv_async_event { event_type: code, ..Default::default() };
            match element {
                // All members of the union that refer to an object are pointers.
                Some(element) => out.element.cq = element.object as *mut sys::ibv_cq,
                None => out.element.port_num = 1,
            }
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { event.write(out) };
        }))
    })
}

/// Implements `ibv_ack_async_event(3)`.
///
/// # Safety
/// `event` was returned by [`ibv_get_async_event`], and its object is not destroyed.
#[unsafe(export_name = "uw_ibv_ack_async_event")]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut sys::ibv_async_event) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes an event of `ibv_get_async_event`.
        let event = unsafe { event.read() };
        if matches!(
            event.event_type,
            sys::IBV_EVENT_PORT_ACTIVE
                | sys::IBV_EVENT_PORT_ERR
                | sys::IBV_EVENT_GID_CHANGE
                | sys::IBV_EVENT_DEVICE_FATAL
        ) {
            return Ok(());
        }
        // SAFETY: the event belongs to an object, and each member of the union that refers to an object is a
        // pointer.
        let object = unsafe { event.element.cq }.cast::<c_void>() as usize;
        if let Some(process) = process::started() {
            process.async_events.ack(object);
        }
        Ok(())
    });
}
