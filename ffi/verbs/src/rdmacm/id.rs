//! Identifiers: creating, migrating, destroying.

use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use iwarp::verbs::CmId;
use libc::{c_int, c_void};

use super::event_channel::{Event, EventChannel, Events};
use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Errno, Outcome};
use crate::ffi::live_handles::LiveHandles;
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::{resources, sockaddr, sys};
use crate::net::NameLease;
use crate::process::{self, Process};

static IDS: LiveHandles<()> = LiveHandles::new();

/// An identifier (`rdma_cm_id`).
///
/// Code of Debian's librdmacm (its rsockets) may be passed one. That code reads some private fields that
/// librdmacm's own identifiers have behind the public ones. So these fields exist here, with values that
/// make the code skip them.
#[repr(C)]
pub(crate) struct Id {
    c: UnsafeCell<sys::rdma_cm_id>,
    /// `cma_id_private.cma_dev`: NULL, no device.
    _cma_dev: *mut c_void,
    _unread: [u64; 3],
    /// `cma_id_private.sync`: whether calls wait for their events.
    sync: UnsafeCell<c_int>,
    _rest: [u8; REST],
    pub(crate) process: &'static Process,
    /// Delivered events that are not acknowledged.
    pub(crate) pending_acks: Arc<PendingAcks>,
    state: Mutex<State>,
}

/// Bytes of an identifier in librdmacm.
const PRIVATE_BYTES: usize = 600;
const REST: usize = PRIVATE_BYTES - 452;
const _: () = assert!(std::mem::offset_of!(Id, _cma_dev) == 416);
const _: () = assert!(std::mem::offset_of!(Id, sync) == 448);
const _: () = assert!(std::mem::offset_of!(Id, process) >= PRIVATE_BYTES);

/// The state of an identifier.
pub(crate) struct State {
    /// The channel for its events.
    pub(crate) events: Events,
    /// The name that it holds, on a wire with names. Released before the listener to which the name leads.
    pub(crate) name: Option<NameLease>,
    /// The engine's identifier, once this one connects or listens; present from the start for a request.
    pub(crate) cm: Option<CmId>,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// The number of its queue pair.
    pub(crate) qp: Option<u32>,
    /// True once the connection was established.
    pub(crate) connected: bool,
    /// True for a peer's request that the program has not accepted or rejected. Until then its context is
    /// the listener's, so the identifier has no events of its own.
    pub(crate) undecided: bool,
    /// True if it was made for a peer's request.
    pub(crate) is_passive: bool,
    /// True once the engine has accepted the request.
    pub(crate) accepted: bool,
    /// True if it has its own channel (a synchronous identifier).
    pub(crate) has_own_channel: bool,
    /// Whether other identifiers may be bound to its address as well (`RDMA_OPTION_ID_REUSEADDR`).
    pub(crate) reuses_address: bool,
    /// Whether its wildcard covers one family only (`RDMA_OPTION_ID_AFONLY`); `None` if the program has not
    /// set the option.
    pub(crate) family_only: Option<bool>,
    /// The attribute `timeout` that its queue pair gets (`RDMA_OPTION_ID_ACK_TIMEOUT`).
    pub(crate) ack_timeout: Option<u8>,
    /// The depths that the peer's request asks for.
    pub(crate) requested: RequestedDepths,
    /// For a listener of `rdma_create_ep`: the domain and attributes for the queue pairs of requests.
    pub(crate) endpoint: Option<(*mut sys::ibv_pd, sys::ibv_qp_init_attr)>,
    /// True if `rdma_create_qp` made its completion queues.
    pub(crate) owns_cqs: bool,
}

// SAFETY: the pointers in it name objects of the program, which may be used by any thread.
unsafe impl Send for State {}

/// The depths of a request, from the receiver's point of view.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestedDepths {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Id {
    /// The identifier at an address that a program passes; EINVAL if it is destroyed. (perftest uses a
    /// destroyed identifier after its peer has refused the connection.)
    ///
    /// # Safety
    /// No other thread destroys `id` before the caller is done with it.
    pub(crate) unsafe fn of<'a>(id: *mut sys::rdma_cm_id) -> Outcome<&'a Self> {
        IDS.get(id as usize).ok_or(EINVAL)?;
        // SAFETY: the C struct is the first part of an `Id`, and this one lives.
        Ok(unsafe { &*id.cast::<Self>() })
    }

    pub(crate) fn as_c(&self) -> *mut sys::rdma_cm_id {
        self.c.get()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Whether calls wait for their events.
    pub(crate) fn is_sync(&self) -> bool {
        // SAFETY: only migrating changes it, and a program does not use an identifier that it migrates.
        unsafe { *self.sync.get() != 0 }
    }

    /// A new identifier. If no channel is given, it is synchronous: it has its own channel, and calls wait
    /// for their events.
    pub(crate) fn make(
        process: &'static Process,
        channel: *mut sys::rdma_event_channel,
        context: *mut c_void,
        ps: sys::rdma_port_space,
    ) -> Outcome<Box<Self>> {
        if ps != sys::RDMA_PS_TCP {
            // iWARP has no datagrams and none of InfiniBand's services.
            return Err(EOPNOTSUPP);
        }
        let sync = c_int::from(channel.is_null());
        let channel = if channel.is_null() { EventChannel::make_own()? } else { channel };
        let events = EventChannel::events(channel)?;
        let c = sys::rdma_cm_id { channel, context, ps, qp_type: sys::IBV_QPT_RC, ..Default::default() };
        let state = State {
            events,
            name: None,
            cm: None,
            source: None,
            destination: None,
            qp: None,
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
        };
        let new = Box::new(Self {
            c: UnsafeCell::new(c),
            _cma_dev: std::ptr::null_mut(),
            _unread: [0; 3],
            sync: UnsafeCell::new(sync),
            _rest: [0; REST],
            process,
            pending_acks: Arc::default(),
            state: Mutex::new(state),
        });
        IDS.insert(new.as_c() as usize, ());
        Ok(new)
    }

    /// Changes the fields that programs read. The caller has locked the state, or the identifier is new.
    pub(crate) fn update(&self, change: impl FnOnce(&mut sys::rdma_cm_id)) {
        // SAFETY: this library changes the fields under the lock of the state only, and programs read them
        // after the call or the event that changed them.
        change(unsafe { &mut *self.c.get() });
    }

    /// A copy of the fields that programs read.
    pub(crate) fn fields(&self) -> sys::rdma_cm_id {
        // SAFETY: as above. The program may have changed some of them, in this thread.
        unsafe { self.c.get().read() }
    }

    /// Sets the address that programs see as its own.
    pub(crate) fn set_source(&self, state: &mut State, address: SocketAddr) {
        state.source = Some(address);
        self.update(|c| {
            // SAFETY: the union has room for an address of any family.
            unsafe {
                sockaddr::write((&raw mut c.route.addr.__bindgen_anon_1.src_storage).cast(), address);
            }
        });
    }

    /// Sets the address that programs see as the peer's.
    pub(crate) fn set_destination(&self, state: &mut State, address: SocketAddr) {
        state.destination = Some(address);
        self.update(|c| {
            // SAFETY: the union has room for an address of any family.
            unsafe {
                sockaddr::write((&raw mut c.route.addr.__bindgen_anon_2.dst_storage).cast(), address);
            }
        });
    }

    /// Assigns the device to the identifier.
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
        // Under the state's lock: an identifier that migrates takes its events along.
        let state = self.state();
        self.pass_channel_on(&state, &event);
        state.events.lock().push(Box::new(event));
    }

    /// Gives the new identifier of a request the channel in which the request waits.
    fn pass_channel_on(&self, state: &State, event: &Event) {
        let Some(child) = event.new_id() else { return };
        // SAFETY: the program has not seen this identifier, so it does not destroy it.
        if let Ok(child) = unsafe { Id::of(child) } {
            let mut of_child = child.state();
            of_child.events = Arc::clone(&state.events);
            let channel = self.fields().channel;
            child.update(|c| c.channel = channel);
        }
    }

    /// For a synchronous identifier: waits for the event of a call, and stores the event in the identifier.
    pub(crate) fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        self.forget_event();
        let event = super::event_channel::next(self.fields().channel)?;
        let event = Box::into_raw(event).cast::<sys::rdma_cm_event>();
        self.update(|c| c.event = event);
        // SAFETY: the event was made above, and is the identifier's until it is acknowledged.
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
            // SAFETY: the event is the identifier's, which gives it up.
            unsafe { super::event_channel::rdma_ack_cm_event(event) };
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let number = self.as_c() as usize;
        IDS.remove(number);
        if let Some(source) = self.state().source {
            self.process.ports.release(number, source.port());
        }
    }
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
        let process = process::get_or_start()?;
        resources::check_for_object(0)?;
        let new = Id::make(process, channel, context, ps)?;
        // SAFETY: the caller passes a writable place.
        unsafe { *id = Box::leak(new).as_c() };
        Ok(0)
    })
}

/// See `rdma_destroy_id(3)`: waits until all delivered events are acknowledged.
///
/// # Safety
/// `id` lives, and is destroyed once.
#[unsafe(export_name = "uw_rdma_destroy_id")]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut sys::rdma_cm_id) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller's promise is passed on.
        unsafe { destroy(id) }?;
        Ok(0)
    })
}

/// # Safety
/// `id` lives, and is destroyed once.
pub(crate) unsafe fn destroy(id: *mut sys::rdma_cm_id) -> Outcome<()> {
    // SAFETY: the caller passes an identifier that lives.
    let this = unsafe { Id::of(id) }?;
    // In this order: once the engine's identifier is removed from the table, no event is added.
    let (cm, undecided) = {
        let state = this.state();
        (state.cm.clone(), state.undecided)
    };
    if let Some(cm) = &cm {
        this.process.ids.remove(cm);
        // As in the kernel: a queue pair that the program has not destroyed loses its connection, and an
        // undecided request is rejected.
        cm.disconnect();
        if undecided {
            // This poll informs the peer, even if the process ends next.
            this.process.engine.poll();
        }
    }
    let events = Arc::clone(&this.state().events);
    let never_taken = events.lock().remove(|event| event.owner() == id as usize);
    for child in never_taken.iter().filter_map(|event| event.new_id()) {
        // SAFETY: the program has not seen this identifier.
        unsafe { destroy(child) }?;
    }
    this.forget_event();
    this.pending_acks.wait();
    let (channel, sync) = (this.fields().channel, this.is_sync());
    // SAFETY: the address is that of a leaked box, and the caller gives it up. A listener stops as
    // the engine's identifier is dropped.
    drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    if sync {
        // SAFETY: a synchronous identifier has its own channel.
        unsafe { EventChannel::destroy(channel) };
    }
    Ok(())
}

/// See `rdma_migrate_id(3)`: waiting events move as well. Waits until all delivered events are acknowledged.
///
/// # Safety
/// `id` lives, `channel` is NULL or lives.
#[unsafe(export_name = "uw_rdma_migrate_id")]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut sys::rdma_cm_id,
    channel: *mut sys::rdma_event_channel,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller's promise is passed on.
        unsafe { migrate(id, channel) }?;
        Ok(0)
    })
}

/// # Safety
/// `id` lives, `channel` is NULL or lives.
pub(crate) unsafe fn migrate(id: *mut sys::rdma_cm_id, channel: *mut sys::rdma_event_channel) -> Outcome<()> {
    // SAFETY: the caller passes an identifier that lives.
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
        // In two steps, so that only one channel is locked at a time: another identifier may migrate between
        // the same channels in the opposite direction.
        let moved = old.lock().remove(|event| event.owner() == id as usize);
        for event in moved {
            this.pass_channel_on(&state, &event);
            new.lock().push(event);
        }
    }
    drop(state);
    this.pending_acks.wait();
    // SAFETY: a program does not use an identifier in another thread while it migrates it.
    unsafe { *this.sync.get() = becomes_sync.into() };
    if was_sync {
        // SAFETY: the channel was the identifier's own.
        unsafe { EventChannel::destroy(before) };
    }
    Ok(())
}
