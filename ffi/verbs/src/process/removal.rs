//! The removal of the device, which happens when the interface of the wire is removed.
//!
//! The kernel removes a device in this order: the port loses its link, each identifier of the connection
//! manager gets `RDMA_CM_EVENT_DEVICE_REMOVAL`, and each open device gets `IBV_EVENT_DEVICE_FATAL`. From then
//! on, identifiers get no further event, calls that make an object fail with `EIO`, and requests are flushed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use super::async_events::AsyncEvents;
use crate::ffi::{resources, sys};

/// The steps of a removal. The initial value 0 means that the device is present.
const REMOVED: u8 = 1;
const ANNOUNCED: u8 = 2;

/// Whether the device was removed.
#[derive(Default)]
pub(crate) struct Removal {
    step: AtomicU8,
    /// A function that announces the removal to all identifiers.
    announce_to_ids: OnceLock<fn()>,
}

impl Removal {
    /// Sets the function that announces the removal to all identifiers.
    pub(crate) fn on_removal(&self, announce_to_ids: fn()) {
        // Each call sets the same function.
        let _ = self.announce_to_ids.set(announce_to_ids);
    }

    /// Records that the device was removed. The next call of [`announce`](Self::announce) announces the
    /// removal.
    pub(super) fn remove(&self) {
        self.step.store(REMOVED, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_to_be_announced(&self) -> bool {
        self.step.load(Ordering::Acquire) == REMOVED
    }

    /// Whether the removal was announced.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.step.load(Ordering::Acquire) == ANNOUNCED
    }

    /// Announces the removal to the program, once. This function is called after a poll, before the events of
    /// the poll's connections are passed on, since the kernel's identifiers get no event after the removal.
    pub(super) fn announce(&self, events: &AsyncEvents) {
        if !self.is_to_be_announced() {
            return;
        }
        self.step.store(ANNOUNCED, Ordering::Release);
        resources::refuse_objects();
        if let Some(announce_to_ids) = self.announce_to_ids.get() {
            announce_to_ids();
        }
        events.on_device(sys::IBV_EVENT_DEVICE_FATAL);
    }
}
