//! Identifiers: how they are created, migrated and destroyed.

use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use iwarp::roce::SidrReply;
use iwarp::verbs::{CmId, QueuePair};
use libc::{c_int, c_void};

use super::event_channel::{Event, EventChannel, Events};
use super::service::{Datagram, Step};
use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Errno, Outcome};
use crate::ffi::live_handles::LiveHandles;
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::{resources, sockaddr, sys};
use crate::net::{NameLease, PortSpace};
use crate::process::sidr::Origin;
use crate::process::{self, BoundPorts, ObjectGuard, Process};

static IDS: LiveHandles<()> = LiveHandles::new();

/// An identifier (`rdma_cm_id`).
///
/// The rsockets of Debian's librdmacm may receive an identifier of this library. The code of rsockets reads
/// some private fields that librdmacm's identifiers have behind the public fields. So this struct has these
/// fields, with values for which the code of rsockets does nothing.
#[repr(C)]
pub(crate) struct Id {
    c: UnsafeCell<sys::rdma_cm_id>,
    /// `cma_id_private.cma_dev`: NULL, which means no device.
    _cma_dev: *mut c_void,
    _unread: [u64; 3],
    /// `cma_id_private.sync`: 1 if calls wait for their events.
    sync: UnsafeCell<c_int>,
    _rest: [u8; REST],
    pub(crate) process: &'static Process,
    space: PortSpace,
    /// Counts the delivered events that are not acknowledged.
    pub(crate) pending_acks: Arc<PendingAcks>,
    state: Mutex<State>,
}

/// Number of bytes of an identifier in librdmacm.
const PRIVATE_BYTES: usize = 600;
const REST: usize = PRIVATE_BYTES - 452;
const _: () = assert!(std::mem::offset_of!(Id, _cma_dev) == 416);
const _: () = assert!(std::mem::offset_of!(Id, sync) == 448);
const _: () = assert!(std::mem::offset_of!(Id, process) >= PRIVATE_BYTES);

/// The state of an identifier.
pub(crate) struct State {
    /// The event queue of the identifier's channel.
    pub(crate) events: Events,
    /// The name that the identifier holds, on a wire with names. The name is released before the listener is
    /// dropped.
    pub(crate) name: Option<NameLease>,
    /// The engine's identifier. An identifier for a peer's request has an engine identifier from the start.
    /// For other identifiers this is `None` until the program connects or listens.
    pub(crate) cm: Option<CmId>,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// The number of the queue pair of the identifier's connection. `None` until the program connects or
    /// accepts.
    pub(crate) qp: Option<u32>,
    /// The queue pair of a connection whose identifier has no queue pair of the program.
    pub(crate) hidden_qp: Option<QueuePair>,
    /// True after the connection was established.
    pub(crate) connected: bool,
    /// True for a peer's request that the program has not yet accepted or rejected. While this is true, the
    /// identifier has the listener's context, and receives no events.
    pub(crate) undecided: bool,
    /// True if the identifier was made for a peer's request.
    pub(crate) is_passive: bool,
    /// True after the engine has accepted the request.
    pub(crate) accepted: bool,
    /// True if the identifier is synchronous, and so has its own channel.
    pub(crate) has_own_channel: bool,
    /// True if other identifiers may be bound to the same address (`RDMA_OPTION_ID_REUSEADDR`).
    pub(crate) reuses_address: bool,
    /// Whether a wildcard includes only one family (`RDMA_OPTION_ID_AFONLY`). `None` if the program has not
    /// set the option.
    pub(crate) family_only: Option<bool>,
    /// The attribute `timeout` for the identifier's queue pair (`RDMA_OPTION_ID_ACK_TIMEOUT`). `None` if the
    /// program has not set the option.
    pub(crate) ack_timeout: Option<u8>,
    /// The depths in the peer's request.
    pub(crate) requested: RequestedDepths,
    /// Set for a listener made by `rdma_create_ep`: the domain and the attributes for the queue pairs of new
    /// connections.
    pub(crate) endpoint: Option<(*mut sys::ibv_pd, sys::ibv_qp_init_attr)>,
    /// True if this library has made a completion queue of the identifier.
    pub(crate) owns_cqs: bool,
    /// The state of an identifier of a datagram service.
    pub(crate) datagram: Datagram,
}

impl State {
    /// Whether the identifier listens or has a peer.
    pub(crate) fn is_in_use(&self) -> bool {
        self.cm.is_some() || self.datagram.is_in_use()
    }
}

// SAFETY: the pointers refer to objects of the program, which any thread may use.
unsafe impl Send for State {}

/// The depths of a request, as the receiver of the request counts them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestedDepths {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Id {
    /// Returns the identifier at an address that a program passes, or EINVAL if the identifier is destroyed:
    /// perftest uses a destroyed identifier after its peer has refused the connection.
    ///
    /// # Safety
    /// No other thread destroys `id` while the reference is used.
    pub(crate) unsafe fn of<'a>(id: *mut sys::rdma_cm_id) -> Outcome<&'a Self> {
        IDS.get(id as usize).ok_or(EINVAL)?;
        // SAFETY: the C struct is the first field of an `Id`, which is not destroyed.
        Ok(unsafe { &*id.cast::<Self>() })
    }

    pub(crate) fn as_c(&self) -> *mut sys::rdma_cm_id {
        self.c.get()
    }

    pub(crate) fn space(&self) -> PortSpace {
        self.space
    }

    /// Whether this is the identifier of a datagram service.
    pub(crate) fn is_datagram(&self) -> bool {
        self.space == PortSpace::Udp
    }

    /// The ports of the identifier's port space.
    pub(crate) fn ports(&self) -> &BoundPorts {
        self.process.ports.of(self.space)
    }

    pub(crate) fn state(&self) -> ObjectGuard<'_, State> {
        ObjectGuard::lock(&self.state)
    }

    /// Whether calls wait for their events.
    pub(crate) fn is_sync(&self) -> bool {
        // SAFETY: only `rdma_migrate_id` changes the field, and a program does not use an identifier in
        // another thread during this call.
        unsafe { *self.sync.get() != 0 }
    }

    /// Makes an identifier. If `channel` is NULL, the identifier is synchronous: it has its own channel, and
    /// its calls wait for their events.
    pub(crate) fn make(
        process: &'static Process,
        channel: *mut sys::rdma_event_channel,
        context: *mut c_void,
        ps: sys::rdma_port_space,
    ) -> Outcome<Box<Self>> {
        // There are no services of InfiniBand.
        let space = PortSpace::of(ps).ok_or(EOPNOTSUPP)?;
        let qp_type = match space {
            PortSpace::Tcp => sys::IBV_QPT_RC,
            PortSpace::Udp => sys::IBV_QPT_UD,
        };
        let sync = c_int::from(channel.is_null());
        let channel = if channel.is_null() { EventChannel::make_own()? } else { channel };
        let events = EventChannel::events(channel)?;
        let c = sys::rdma_cm_id { channel, context, ps, qp_type, ..Default::default() };
        let state = State {
            events,
            name: None,
            cm: None,
            source: None,
            destination: None,
            qp: None,
            hidden_qp: None,
            connected: false,
            undecided: false,
            is_passive: false,
            accepted: false,
            has_own_channel: sync != 0,
            reuses_address: false,
            family_only: None,
            ack_timeout: None,
            requested: RequestedDepths::default(),
            endpoint: None,
            owns_cqs: false,
            datagram: Datagram::default(),
        };
        let new = Box::new(Self {
            c: UnsafeCell::new(c),
            _cma_dev: std::ptr::null_mut(),
            _unread: [0; 3],
            sync: UnsafeCell::new(sync),
            _rest: [0; REST],
            process,
            space,
            pending_acks: Arc::default(),
            state: Mutex::new(state),
        });
        process.removal.on_removal(announce_removal);
        IDS.insert(new.as_c() as usize, ());
        Ok(new)
    }

    /// Changes the fields that programs read. The caller has locked the state, or the identifier is new.
    pub(crate) fn update(&self, change: impl FnOnce(&mut sys::rdma_cm_id)) {
        // SAFETY: this library changes the fields only under the lock of the state. Programs read the fields
        // only after the call or the event that has changed them.
        change(unsafe { &mut *self.c.get() });
    }

    /// A copy of the fields that programs read.
    pub(crate) fn fields(&self) -> sys::rdma_cm_id {
        // SAFETY: this library changes the fields only under the lock of the state, and the program changes
        // fields only in this thread.
        unsafe { self.c.get().read() }
    }

    /// Sets the local address that programs see.
    pub(crate) fn set_source(&self, state: &mut State, address: SocketAddr) {
        state.source = Some(address);
        self.update(|c| {
            // SAFETY: the union has room for an address of any family.
            unsafe {
                sockaddr::write((&raw mut c.route.addr.__bindgen_anon_1.src_storage).cast(), address);
            }
        });
    }

    /// Sets the peer's address that programs see.
    pub(crate) fn set_destination(&self, state: &mut State, address: SocketAddr) {
        state.destination = Some(address);
        self.update(|c| {
            // SAFETY: the union has room for an address of any family.
            unsafe {
                sockaddr::write((&raw mut c.route.addr.__bindgen_anon_2.dst_storage).cast(), address);
            }
        });
    }

    /// Assigns the device to the identifier, and the default protection domain if the identifier has no
    /// domain.
    pub(crate) fn set_device(&self) -> Outcome<()> {
        let (context, pd) = super::device::device(self.process)?;
        self.update(|c| {
            c.verbs = context;
            c.port_num = 1;
            if c.pd.is_null() {
                c.pd = pd;
            }
        });
        Ok(())
    }

    /// Adds an event for the program.
    pub(crate) fn announce(&self, kind: u32, status: c_int) {
        self.push(Event::new(self.as_c(), &self.pending_acks, kind, status));
    }

    pub(crate) fn push(&self, event: Event) {
        // The state is locked, so that the identifier does not migrate to another channel during the call.
        let state = self.state();
        self.pass_channel_on(&state, &event);
        state.events.lock().push(Box::new(event));
    }

    /// Moves the new identifier of a connection request to the channel in which the event of the request is
    /// queued.
    fn pass_channel_on(&self, state: &State, event: &Event) {
        let Some(child) = event.new_id() else { return };
        // The table of identifiers is not used here, since a thread that has locked the table locks states.
        //
        // SAFETY: the program does not know this identifier yet, so the program does not destroy the
        // identifier.
        let child = unsafe { &*child.cast::<Self>() };
        let mut of_child = child.state();
        of_child.events = Arc::clone(&state.events);
        let channel = self.fields().channel;
        child.update(|c| c.channel = channel);
    }

    /// Adds the event that the device was removed, if the identifier has the device. As in the kernel, an
    /// identifier that the program has not accepted or rejected yet gets no event.
    fn announce_removal(&self) {
        let has_device = !self.fields().verbs.is_null();
        if has_device && !self.state().undecided {
            self.announce(sys::RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
        }
    }

    /// Sends the answer to the question for which the identifier was made. Fails if another thread has just
    /// answered the question.
    pub(crate) fn decide(&self, origin: &Origin, reply: &SidrReply) -> Outcome<()> {
        {
            let mut state = self.state();
            state.datagram.step = Step::Decided;
            state.undecided = false;
        }
        if !self.process.sidr.answer(origin, reply) {
            return Err(EINVAL);
        }
        // This poll sends the answer, since the program may end now, even by `_exit`.
        self.process.engine.poll();
        Ok(())
    }

    /// Removes the identifier from the datagram services, before it is destroyed. A question that the program
    /// has not decided is rejected.
    fn leave_services(&self) {
        self.process.sidr.forget(self.as_c() as usize);
        let step = self.state().datagram.step;
        if let Step::Undecided(origin) = step {
            // Errors are ignored: the question was answered.
            let _ = self.decide(&origin, &origin.answer(SidrReply::REJECTED));
        }
    }

    /// If the identifier is synchronous, waits for the event of a call, and stores the event in the
    /// identifier. Fails if the event reports an error.
    pub(crate) fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        self.forget_event();
        let event = super::event_channel::next(self.fields().channel)?;
        let event = Box::into_raw(event).cast::<sys::rdma_cm_event>();
        self.update(|c| c.event = event);
        // SAFETY: the event was made above, and belongs to the identifier until it is acknowledged.
        let event = unsafe { *event };
        let (kind, status) = (event.event, event.status);
        match status {
            0 => Ok(()),
            _ if kind == sys::RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.abs())),
        }
    }

    /// Acknowledges the event stored in the identifier.
    pub(crate) fn forget_event(&self) {
        let event = self.fields().event;
        if !event.is_null() {
            self.update(|c| c.event = std::ptr::null_mut());
            // SAFETY: the event belongs to the identifier, which does not use it again.
            unsafe { super::event_channel::rdma_ack_cm_event(event) };
        }
    }
}

/// Announces the removal of the device to all identifiers.
fn announce_removal() {
    IDS.for_each(|address| {
        // SAFETY: the C struct is the first field of an `Id`. An identifier is removed from the table before
        // it is freed, and no identifier is removed during this call.
        unsafe { &*(address as *const Id) }.announce_removal();
    });
}

impl Drop for Id {
    fn drop(&mut self) {
        let number = self.as_c() as usize;
        IDS.remove(number);
        if let Some(source) = self.state().source {
            self.ports().release(number, source.port());
        }
    }
}

/// Implements `rdma_create_id(3)`.
///
/// # Safety
/// `channel` is NULL or valid, and `id` is writable.
#[unsafe(export_name = "uw_rdma_create_id")]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut sys::rdma_event_channel,
    id: *mut *mut sys::rdma_cm_id,
    context: *mut c_void,
    ps: sys::rdma_port_space,
) -> c_int {
    abi::minus_one(|| {
        let process = process::get_or_start()?;
        resources::check_for_object(0)?;
        let new = Id::make(process, channel, context, ps)?;
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *id = Box::leak(new).as_c() };
        Ok(0)
    })
}

/// Implements `rdma_destroy_id(3)`: waits until all delivered events are acknowledged.
///
/// # Safety
/// `id` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_rdma_destroy_id")]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut sys::rdma_cm_id) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller promises that `id` is valid, and does not use `id` after a call that succeeds.
        unsafe { destroy(id) }?;
        Ok(0)
    })
}

/// # Safety
/// `id` is valid, and is not used after a call that succeeds.
pub(crate) unsafe fn destroy(id: *mut sys::rdma_cm_id) -> Outcome<()> {
    // SAFETY: the caller passes an identifier that is valid during the call.
    let this = unsafe { Id::of(id) }?;
    // The engine's identifier is removed from the table first, so that no further event is added.
    let (cm, undecided) = {
        let state = this.state();
        (state.cm.clone(), state.undecided)
    };
    if let Some(cm) = &cm {
        this.process.ids.remove(cm);
        // As in the kernel, a queue pair that the program has not destroyed loses its connection. A request
        // that the program has not yet accepted or rejected is rejected.
        cm.disconnect();
        if undecided {
            // This poll sends the rejection, since the process may end now.
            this.process.engine.poll();
        }
    }
    if this.is_datagram() {
        this.leave_services();
    }
    // From now on, the removal of the device adds no event for this identifier.
    IDS.remove(id as usize);
    let events = Arc::clone(&this.state().events);
    let never_taken = events.lock().remove(|event| event.owner() == id as usize);
    for child in never_taken.iter().filter_map(|event| event.new_id()) {
        // SAFETY: the program does not know this identifier.
        unsafe { destroy(child) }?;
    }
    this.forget_event();
    this.pending_acks.wait();
    let (channel, sync) = (this.fields().channel, this.is_sync());
    // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again. The
    // engine's identifier is dropped, so a listener stops.
    drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    if sync {
        // SAFETY: a synchronous identifier has its own channel.
        unsafe { EventChannel::destroy(channel) };
    }
    Ok(())
}

/// Implements `rdma_migrate_id(3)`. Moves the queued events to the new channel, and waits until all delivered
/// events are acknowledged.
///
/// # Safety
/// `id` is valid, and `channel` is NULL or valid.
#[unsafe(export_name = "uw_rdma_migrate_id")]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut sys::rdma_cm_id,
    channel: *mut sys::rdma_event_channel,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller promises that `id` is valid, and that `channel` is NULL or valid.
        unsafe { migrate(id, channel) }?;
        Ok(0)
    })
}

/// # Safety
/// `id` is valid, and `channel` is NULL or valid.
pub(crate) unsafe fn migrate(id: *mut sys::rdma_cm_id, channel: *mut sys::rdma_event_channel) -> Outcome<()> {
    // SAFETY: the caller passes an identifier that is valid during the call.
    let this = unsafe { Id::of(id) }?;
    let becomes_sync = channel.is_null();
    let was_sync = this.is_sync();
    if was_sync {
        this.forget_event();
    }
    let channel = if becomes_sync { EventChannel::make_own()? } else { channel };
    let new = EventChannel::events(channel)?;
    let before = this.fields().channel;
    let mut state = this.state();
    let old = std::mem::replace(&mut state.events, Arc::clone(&new));
    state.has_own_channel = becomes_sync;
    this.update(|c| c.channel = channel);
    if !Arc::ptr_eq(&old, &new) {
        // The events are first removed and then added, so that only one channel is locked at a time. The
        // reason is that another identifier may migrate between the same channels in the opposite direction.
        let moved = old.lock().remove(|event| event.owner() == id as usize);
        for event in moved {
            this.pass_channel_on(&state, &event);
            new.lock().push(event);
        }
    }
    drop(state);
    this.pending_acks.wait();
    // SAFETY: a program does not use an identifier in another thread during this call.
    unsafe { *this.sync.get() = becomes_sync.into() };
    if was_sync {
        // SAFETY: the channel belonged to the synchronous identifier, and nobody else uses it.
        unsafe { EventChannel::destroy(before) };
    }
    Ok(())
}
