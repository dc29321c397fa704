//! Completion channels: one descriptor for the events of many completion queues.

use std::cell::UnsafeCell;
use std::sync::Arc;

use libc::c_int;

use crate::ffi::abi::{self, EBUSY};
use crate::ffi::event_fd::EventQueue;
use crate::ffi::live_handles::LiveHandles;
use crate::ffi::use_count::UseCount;
use crate::ffi::{resources, sys};
use crate::ibverbs::device::OpenDevice;

/// The event queue of a channel. Each event is the address of its completion queue.
pub(crate) type CqEvents = Arc<EventQueue<usize>>;

/// A completion channel (`ibv_comp_channel`).
#[repr(C)]
pub(crate) struct CompChannel {
    c: UnsafeCell<sys::ibv_comp_channel>,
    pub(crate) events: CqEvents,
    /// The number of completion queues that use this channel.
    use_count: UseCount,
}

impl CompChannel {
    /// # Safety
    /// `channel` was returned by this library, and is not destroyed while the reference is used.
    pub(crate) unsafe fn of<'a>(channel: *mut sys::ibv_comp_channel) -> &'a Self {
        // SAFETY: the C struct is the first field of a `CompChannel`, which is freed only when the channel is
        // destroyed.
        unsafe { &*channel.cast::<Self>() }
    }

    pub(crate) fn add(&self) {
        self.use_count.inc();
    }

    pub(crate) fn remove(&self) {
        self.use_count.dec();
    }
}

/// The channels that are not destroyed, for threads that wait for events.
pub(crate) static CHANNELS: LiveHandles<CqEvents> = LiveHandles::new();

/// Implements `ibv_create_comp_channel(3)`.
///
/// # Safety
/// `context` is open.
#[unsafe(export_name = "uw_ibv_create_comp_channel")]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut sys::ibv_context,
) -> *mut sys::ibv_comp_channel {
    abi::pointer(|| {
        resources::check_for_object(0)?;
        let events = Arc::new(EventQueue::new()?);
        let c = sys::ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
        // SAFETY: the caller passes an open context.
        unsafe { OpenDevice::of(context) }.add();
        let channel = CompChannel {
            c: UnsafeCell::new(c),
            events: Arc::clone(&events),
            use_count: UseCount::default(),
        };
        let channel = Box::into_raw(Box::new(channel)).cast();
        CHANNELS.insert(channel as usize, events);
        Ok(channel)
    })
}

/// Implements `ibv_destroy_comp_channel(3)`.
///
/// # Safety
/// `channel` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_ibv_destroy_comp_channel")]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a channel that is valid during the call.
        let this = unsafe { CompChannel::of(channel) };
        if this.use_count.in_use() {
            return Err(EBUSY);
        }
        // SAFETY: the field is never changed.
        let context = unsafe { (*this.c.get()).context };
        CHANNELS.remove(channel as usize);
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        drop(unsafe { Box::from_raw(channel.cast::<CompChannel>()) });
        // SAFETY: a context is not freed while it has objects.
        unsafe { OpenDevice::of(context) }.remove();
        Ok(())
    })
}
