//! Event channels: creating and destroying them, and reading and acknowledging their events.

use std::sync::Arc;

use libc::{c_int, c_void};

use super::service::Join;
use crate::ffi::abi::{self, EINVAL, EIO, Outcome};
use crate::ffi::event_fd::EventQueue;
use crate::ffi::live_handles::LiveHandles;
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::{cancel, resources, sys};
use crate::process;

/// An event (`rdma_cm_event`). A delivered event belongs to the program until the program acknowledges the
/// event.
#[repr(C)]
pub(crate) struct Event {
    c: sys::rdma_cm_event,
    private_data: Box<[u8]>,
    /// The join that the event reports, if any.
    join: Option<Arc<Join>>,
    /// Counts the unacknowledged events of the owner. The owner is not destroyed before the count is 0.
    pending_acks: Arc<PendingAcks>,
    /// The address of the identifier that owns the event.
    owner: usize,
}

/// The events of a channel.
pub(crate) type Events = Arc<EventQueue<Box<Event>>>;

/// An event channel (`rdma_event_channel`).
#[repr(C)]
pub(crate) struct EventChannel {
    c: sys::rdma_event_channel,
    pub(crate) events: Events,
}

// SAFETY: the pointers refer to objects of the program, which any thread may use.
unsafe impl Send for Event {}

static CHANNELS: LiveHandles<Events> = LiveHandles::new();

impl Event {
    pub(crate) fn new(
        owner: *mut sys::rdma_cm_id,
        pending_acks: &Arc<PendingAcks>,
        kind: u32,
        status: c_int,
    ) -> Self {
        let c = sys::rdma_cm_event { id: owner, event: kind, status, ..Default::default() };
        Self {
            c,
            private_data: Box::default(),
            join: None,
            pending_acks: Arc::clone(pending_acks),
            owner: owner as usize,
        }
    }

    /// Turns this into the event of a connection request: `id` is the new identifier of the connection, and
    /// the owner of the event is the listener.
    pub(crate) fn with_new_id(mut self, id: *mut sys::rdma_cm_id) -> Self {
        self.c.listen_id = self.c.id;
        self.c.id = id;
        self
    }

    /// Adds the data of MPA's Request or Reply.
    pub(crate) fn with_param(mut self, private_data: &[u8], mut conn: sys::rdma_conn_param) -> Self {
        (conn.private_data, conn.private_data_len) = self.keep(private_data);
        self.c.param.conn = conn;
        self
    }

    /// Adds the data of a message about a datagram service.
    pub(crate) fn with_ud_param(mut self, private_data: &[u8], mut ud: sys::rdma_ud_param) -> Self {
        (ud.private_data, ud.private_data_len) = self.keep(private_data);
        self.c.param.ud = ud;
        self
    }

    /// Turns this into the event of a join.
    pub(crate) fn with_join(mut self, join: Arc<Join>, ud: sys::rdma_ud_param) -> Self {
        self.c.param.ud = ud;
        self.join = Some(join);
        self
    }

    pub(crate) fn is_of_join(&self, join: &Arc<Join>) -> bool {
        self.join.as_ref().is_some_and(|own| Arc::ptr_eq(own, join))
    }

    /// Counts the event, which is delivered to the program.
    fn deliver(&self) {
        self.pending_acks.add();
        if let Some(join) = &self.join {
            join.pending_acks.add();
        }
    }

    /// Does the rest of a join, which belongs to the program now. If this fails, the event reports the error.
    fn finish_join(&mut self) {
        if let Some(join) = &self.join
            && let Err(error) = (join.attach)(self.c.id, join)
        {
            (self.c.event, self.c.status) = (sys::RDMA_CM_EVENT_MULTICAST_ERROR, -error.0);
        }
    }

    /// Keeps the private data. Returns the values of the C fields for them.
    fn keep(&mut self, private_data: &[u8]) -> (*const c_void, u8) {
        // The C field for the length has eight bits.
        let length = private_data.len().min(u8::MAX.into());
        self.private_data = private_data[..length].into();
        let place = if length == 0 { std::ptr::null() } else { self.private_data.as_ptr().cast() };
        (place, length as u8)
    }

    pub(crate) fn owner(&self) -> usize {
        self.owner
    }

    /// The new identifier, if this is the event of a connection request.
    pub(crate) fn new_id(&self) -> Option<*mut sys::rdma_cm_id> {
        (self.c.event == sys::RDMA_CM_EVENT_CONNECT_REQUEST).then_some(self.c.id)
    }
}

/// The lowest descriptor number for the private channel of an identifier. (`select` supports only numbers
/// below 1024.)
const OWN_FROM: c_int = 512;

impl EventChannel {
    pub(crate) fn make() -> Outcome<*mut sys::rdma_event_channel> {
        Self::with(EventQueue::new()?)
    }

    /// The channel of a synchronous identifier.
    ///
    /// rsockets use the channel's descriptor as the number of the identifier's socket. `select` of Debian's
    /// `librspreload` searches the program's descriptors, from 0 on, for the descriptor that maps to this
    /// socket number. An ordinary descriptor maps to itself. So the socket number has to be higher than all
    /// ordinary descriptors. Otherwise the search could find an ordinary descriptor with this number first.
    pub(crate) fn make_own() -> Outcome<*mut sys::rdma_event_channel> {
        Self::with(EventQueue::above(OWN_FROM)?)
    }

    fn with(queue: EventQueue<Box<Event>>) -> Outcome<*mut sys::rdma_event_channel> {
        let events: Events = Arc::new(queue);
        let c = sys::rdma_event_channel { fd: events.fd() };
        let channel = Box::into_raw(Box::new(Self { c, events: Arc::clone(&events) })).cast();
        CHANNELS.insert(channel as usize, events);
        Ok(channel)
    }

    /// The event queue of a channel. Fails if the channel is destroyed.
    pub(crate) fn events(channel: *mut sys::rdma_event_channel) -> Outcome<Events> {
        CHANNELS.get(channel as usize).ok_or(EINVAL)
    }

    /// Destroys a channel. Does nothing if the channel is already destroyed.
    ///
    /// # Safety
    /// No thread uses the channel during or after the call.
    pub(crate) unsafe fn destroy(channel: *mut sys::rdma_event_channel) {
        if CHANNELS.remove(channel as usize).is_some() {
            // SAFETY: this is the address of a leaked `Box`, since the channel was not destroyed, and the
            // caller does not use the address again.
            drop(unsafe { Box::from_raw(channel.cast::<Self>()) });
        }
    }
}

/// Implements `rdma_create_event_channel(3)`.
#[unsafe(export_name = "uw_rdma_create_event_channel")]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut sys::rdma_event_channel {
    abi::pointer(|| {
        process::get_or_start()?;
        resources::check_for_object(0)?;
        EventChannel::make()
    })
}

/// Implements `rdma_destroy_event_channel(3)`.
///
/// # Safety
/// No other thread uses `channel`.
#[unsafe(export_name = "uw_rdma_destroy_event_channel")]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut sys::rdma_event_channel) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller promises that no other thread uses the channel.
        unsafe { EventChannel::destroy(channel) };
        Ok(())
    });
}

/// Takes an event, which is delivered to the program.
///
/// This function runs with the channel locked. So a thread that destroys the identifier either waits until
/// the event is acknowledged, or removes the event before it is found.
fn take(event: Box<Event>) -> Box<Event> {
    event.deliver();
    event
}

/// Removes and returns the oldest event of a channel. If there is no event, waits for an event, or fails if
/// the program has made the channel non-blocking.
pub(crate) fn next(channel: *mut sys::rdma_event_channel) -> Outcome<Box<Event>> {
    let events = CHANNELS.get_or_block(channel as usize);
    let mut event = events.next(&process::started().ok_or(EIO)?.engine, take)?;
    event.finish_join();
    Ok(event)
}

/// Implements `rdma_get_cm_event(3)`.
///
/// # Safety
/// `channel` is valid, and `event` is writable.
#[unsafe(export_name = "uw_rdma_get_cm_event")]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut sys::rdma_event_channel,
    event: *mut *mut sys::rdma_cm_event,
) -> c_int {
    let find = || match event.is_null() || channel.is_null() {
        true => Err(EINVAL),
        false => Ok(CHANNELS.get(channel as usize)),
    };
    cancel::call(find, |events| {
        let taken = events.next_or_seen(&process::started().ok_or(EIO)?.engine, take)?;
        Ok(taken.map(|mut next| {
            next.finish_join();
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { *event = Box::into_raw(next).cast() };
        }))
    })
}

/// Implements `rdma_ack_cm_event(3)`.
///
/// # Safety
/// `event` was returned by `rdma_get_cm_event`, and is not used after the call.
#[unsafe(export_name = "uw_rdma_ack_cm_event")]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut sys::rdma_cm_event) -> c_int {
    abi::minus_one(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        let event = unsafe { Box::from_raw(event.cast::<Event>()) };
        event.pending_acks.ack(1);
        if let Some(join) = &event.join {
            join.pending_acks.ack(1);
        }
        Ok(0)
    })
}
