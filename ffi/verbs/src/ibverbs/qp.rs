//! Queue pairs: creation, changes of state, queries and destruction.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use iwarp::memory::Access;
use iwarp::verbs::{CompletionQueue, DatagramOptions, QpInit, QpType, QueuePair, SharedReceiveQueue};
use libc::{c_int, c_uint};

use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::{resources, sys};
use crate::ibverbs::cq::Cq;
use crate::ibverbs::critical_section::{CriticalSection, SectionGuard};
use crate::ibverbs::device::OpenDevice;
use crate::ibverbs::engine_qps::{EngineQps, SendBatches};
use crate::ibverbs::long_inline::LongInline;
use crate::ibverbs::oob_connect;
use crate::ibverbs::pd::Pd;
use crate::ibverbs::qp_state::{self, Transition};
use crate::ibverbs::srq::Srq;
use crate::ibverbs::wr_batch::WrBatch;
use crate::process::async_events::{Element, ObjectKind};
use crate::process::drain::drain;
use crate::process::limits;
use crate::process::retry_timeouts::{Limit, after_the_end};
use crate::process::{ObjectGuard, Process};

/// Maximum time that the destruction of a queue pair waits while no data move. The peer's program may be
/// waiting for a processor.
const DRAIN_IDLE: Duration = Duration::from_secs(1);

/// A queue pair (`ibv_qp`, or `ibv_qp_ex` if made by `ibv_create_qp_ex`).
#[repr(C)]
pub(crate) struct Qp {
    c: UnsafeCell<sys::ibv_qp_ex>,
    pub(crate) process: &'static Process,
    init: InitAttr,
    /// The engine's queue pairs. A reset replaces these queue pairs by new queue pairs.
    current: RwLock<EngineQps>,
    /// The state that was set last, by the program or because of the connection. The state changes only while
    /// `attributes` is locked.
    state: AtomicU32,
    /// True if the queue pair belongs to an `rdma_cm_id`. The connection of the `rdma_cm_id` then changes the
    /// state of the queue pair.
    is_managed: AtomicBool,
    attributes: Mutex<Attributes>,
    pending_acks: Arc<PendingAcks>,
    /// The requests between `ibv_wr_start` and `ibv_wr_complete`. `None` if the queue pair was made without
    /// the calls of `ibv_qp_ex`.
    pub(crate) batch: Option<CriticalSection<WrBatch>>,
}

/// The parameters with which the queue pair was created. A reset makes a new engine queue pair from these
/// parameters.
#[derive(Clone, Copy)]
struct InitAttr {
    pd: *mut sys::ibv_pd,
    send_cq: *mut sys::ibv_cq,
    recv_cq: *mut sys::ibv_cq,
    srq: *mut sys::ibv_srq,
    cap: sys::ibv_qp_cap,
    sq_sig_all: bool,
    qp_type: QpType,
    /// Whether the queue pair receives its own messages to groups.
    own_multicast: bool,
}

/// What only `ibv_create_qp_ex` asks for.
#[derive(Default)]
pub(crate) struct Extension {
    /// The batch of the calls `ibv_wr_*`, if the queue pair has these calls.
    pub(crate) batch: Option<WrBatch>,
    /// Whether the queue pair receives none of its own messages to groups.
    pub(crate) blocks_own_multicast: bool,
}

/// The attributes that the program has set.
pub(crate) struct Attributes {
    pub(crate) attr: sys::ibv_qp_attr,
    /// The state of a connection that the program sets up out of band.
    pub(crate) oob: oob_connect::OobConnection,
}

impl Attributes {
    /// The access rights of the peer. The other access flags have no meaning for a queue pair.
    fn remote_access(&self) -> Access {
        Access::from_bits_truncate(self.attr.qp_access_flags) & Access::REMOTE
    }
}

impl Qp {
    /// # Safety
    /// `qp` was returned by this library, and is not destroyed while the reference is used.
    pub(crate) unsafe fn of<'a>(qp: *mut sys::ibv_qp) -> &'a Self {
        // SAFETY: the C struct is the first field of a `Qp`, which is freed only when it is destroyed.
        unsafe { &*qp.cast::<Self>() }
    }

    pub(crate) fn as_c(&self) -> *mut sys::ibv_qp_ex {
        self.c.get()
    }

    #[inline]
    pub(crate) fn current(&self) -> RwLockReadGuard<'_, EngineQps> {
        self.current.read().expect("no holder of this lock panics")
    }

    /// Posts a list of requests. If all earlier sends of the queue pair are complete, also sends the list at
    /// once. Otherwise the next poll sends the list.
    #[inline]
    pub(crate) fn post(
        &self,
        current: RwLockReadGuard<'_, EngineQps>,
        post: impl FnOnce(&mut SendBatches<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let is_first = !current.sender().has_open_sends();
        let result = post(&mut current.begin());
        drop(current);
        if is_first {
            self.process.engine.send_posted();
        }
        result
    }

    /// Waits until no other thread is between `ibv_wr_start` and `ibv_wr_complete`. No other thread can begin
    /// such a section until the returned guard is dropped. Call this function before
    /// [`current`](Self::current) is locked, since the other thread needs that lock.
    pub(crate) fn posting(&self) -> Outcome<Option<SectionGuard<'_, WrBatch>>> {
        self.batch.as_ref().map(CriticalSection::lock).transpose()
    }

    fn change_current(&self) -> RwLockWriteGuard<'_, EngineQps> {
        self.current.write().expect("no holder of this lock panics")
    }

    /// The queue pair number that the program sees.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the field is not changed after the queue pair is made.
        unsafe { (*self.c.get()).qp_base.qp_num }
    }

    /// Fails if the `handle` field is not the handle with which this queue pair was made.
    pub(crate) fn check(&self) -> Outcome<()> {
        // SAFETY: nobody writes the field while a call uses the object.
        abi::check_handle(unsafe { (*self.c.get()).qp_base.handle }, self.number())
    }

    pub(crate) fn attributes(&self) -> ObjectGuard<'_, Attributes> {
        ObjectGuard::lock(&self.attributes)
    }

    #[inline]
    pub(crate) fn wanted_state(&self) -> sys::ibv_qp_state {
        self.state.load(Ordering::Relaxed)
    }

    /// From now on the queue pair belongs to an `rdma_cm_id`.
    pub(crate) fn manage(&self) {
        self.is_managed.store(true, Ordering::Release);
    }

    fn is_managed(&self) -> bool {
        self.is_managed.load(Ordering::Acquire)
    }

    /// The state that the program sees.
    pub(crate) fn state(&self) -> sys::ibv_qp_state {
        self.state_of(&self.current())
    }

    /// The state that the program sees, for a caller that has locked the engine's queue pairs.
    #[inline]
    pub(crate) fn state_of(&self, current: &EngineQps) -> sys::ibv_qp_state {
        qp_state::seen(current.state(), self.wanted_state(), self.is_managed())
    }

    /// Sets the state here and in the C struct, which programs read. The caller has locked the attributes.
    pub(crate) fn set_state(&self, _attributes: &mut Attributes, state: sys::ibv_qp_state) {
        self.state.store(state, Ordering::Relaxed);
        // SAFETY: the field is part of the value in the cell. Programs may read the field while it changes,
        // since the field is one aligned word.
        let place = unsafe { &raw mut (*self.c.get()).qp_base.state };
        // SAFETY: `place` is the address of a field of this object, and is aligned.
        unsafe { place.write_volatile(state) };
    }

    /// Enters ERR and ends the connection, which flushes the posted requests.
    pub(crate) fn fail(&self) -> Outcome<()> {
        self.set_state(&mut self.attributes(), sys::IBV_QPS_ERR);
        // The attributes must not be locked here, since flushed requests cause events whose handlers lock the
        // attributes.
        self.current().fail()
    }

    /// Enters RTS, unless the state is RTS or a later state. This function is called when the connection is
    /// established.
    pub(crate) fn enter_rts(&self) {
        let mut attributes = self.attributes();
        if self.wanted_state() < sys::IBV_QPS_RTS {
            self.set_state(&mut attributes, sys::IBV_QPS_RTS);
        }
    }

    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: the field is not changed after the queue pair is made.
        unsafe { (*self.c.get()).qp_base.context }
    }

    /// Whether the queue pair is of type UD.
    #[inline]
    pub(crate) fn is_ud(&self) -> bool {
        matches!(self.init.qp_type, QpType::Ud { .. })
    }

    /// The type of the queue pair.
    pub(crate) fn qp_type(&self) -> QpType {
        self.init.qp_type
    }

    pub(crate) fn has_srq(&self) -> bool {
        !self.init.srq.is_null()
    }

    /// Makes a queue pair.
    ///
    /// # Safety
    /// `pd` and the objects that `init` names are valid.
    pub(crate) unsafe fn make(
        pd: *mut sys::ibv_pd,
        init: &mut sys::ibv_qp_init_attr,
        extension: Extension,
    ) -> Outcome<Box<Self>> {
        if !matches!(init.qp_type, sys::IBV_QPT_RC | sys::IBV_QPT_UC | sys::IBV_QPT_UD) {
            // XRC and raw queue pairs have no counterpart here.
            return Err(EOPNOTSUPP);
        }
        if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
            return Err(EINVAL);
        }
        check_cap(&init.cap)?;
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(pd) };
        domain.check()?;
        // SAFETY: a context is not freed while it has objects.
        let open = unsafe { OpenDevice::of(domain.context()) };
        let made_with = InitAttr {
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            sq_sig_all: init.sq_sig_all != 0,
            qp_type: match init.qp_type {
                sys::IBV_QPT_UD => QpType::Ud { max_message: open.process.net.max_datagram() },
                sys::IBV_QPT_UC => QpType::Uc,
                _ => QpType::Rc,
            },
            own_multicast: !extension.blocks_own_multicast,
        };
        made_with.cqs().try_for_each(Cq::check)?;
        made_with.srq().map_or(Ok(()), Srq::check)?;
        let requests = init.cap.max_send_wr as usize + init.cap.max_recv_wr as usize;
        resources::check_for_object(requests * resources::REQUEST_BYTES)?;
        let qp = made_with.make()?;
        let long_inline = made_with.long_inline()?;
        // The program gets the limits that hold, which may be larger than those that it asked for.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = match init.srq.is_null() {
            true => (qp.query().max_recv_wr as u32, limits::SGE as u32),
            false => (0, 0),
        };
        init.cap.max_send_sge = limits::SGE as u32;
        init.cap.max_inline_data = init.cap.max_inline_data.max(limits::INLINE as u32);
        let qp_base = sys::ibv_qp {
            context: domain.context(),
            qp_context: init.qp_context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: qp.qp_num(),
            qp_num: qp.qp_num(),
            state: sys::IBV_QPS_RESET,
            qp_type: init.qp_type,
            ..Default::default()
        };
        let c = sys::ibv_qp_ex { qp_base, ..Default::default() };
        let attr = sys::ibv_qp_attr { cap: init.cap, port_num: 1, ..Default::default() };
        let attributes = Attributes { attr, oob: oob_connect::OobConnection::default() };
        let number = qp.qp_num();
        let this = Box::new(Self {
            c: UnsafeCell::new(c),
            process: open.process,
            init: made_with,
            current: RwLock::new(EngineQps::new(qp, long_inline)),
            state: AtomicU32::new(sys::IBV_QPS_RESET),
            is_managed: AtomicBool::new(false),
            attributes: Mutex::new(attributes),
            pending_acks: Arc::default(),
            batch: extension.batch.map(|batch| CriticalSection::new(batch, !domain.is_for_one_thread())),
        });
        domain.add();
        this.init.cqs().for_each(Cq::add);
        if let Some(srq) = this.init.srq() {
            srq.add();
        }
        open.add();
        open.process.qps.insert(number, this.as_c() as usize, this.current().qp.clone());
        this.enter(number, open);
        Ok(this)
    }

    /// Routes the events of the engine's queue pair `number` to the program.
    fn enter(&self, number: u32, open: &OpenDevice) {
        let element = Element {
            object: self.as_c() as usize,
            queue: open.async_events.clone(),
            pending_acks: Arc::clone(&self.pending_acks),
        };
        self.process.async_events.insert(ObjectKind::Qp, number, element);
    }

    /// Detaches an engine queue pair from the program: later events of the engine queue pair are ignored, and
    /// its unpolled completions are dropped, since the program may reuse their `wr_id`.
    fn forget(&self, qp: &QueuePair) {
        self.process.async_events.forget(ObjectKind::Qp, qp.qp_num());
        qp.discard_completions();
        self.init.cqs().for_each(|cq| cq.forget(qp.qp_num()));
    }

    /// Starts connecting to the peer that the attributes name.
    fn connect_to_peer(&self, attributes: &mut Attributes) -> Outcome<()> {
        let peer =
            oob_connect::RemoteQp::of(self.process, &attributes.attr.ah_attr, attributes.attr.dest_qp_num)?;
        if peer.is(self.process, self.number()) {
            self.add_far_end(attributes)?;
        }
        let Attributes { attr, oob } = attributes;
        oob_connect::start(self.process, self.number(), &self.current(), peer, attr, oob)
    }

    /// Opens a queue pair of type UD in the engine, so that it receives datagrams.
    fn open_datagrams(&self, attributes: &Attributes) -> Outcome<()> {
        let options = DatagramOptions {
            number: Some(self.number()),
            qkey: attributes.attr.qkey,
            ..DatagramOptions::default()
        };
        let (context, current) = (&self.process.context, self.current());
        context.open_datagrams(&current.qp, &options)?;
        let groups = self.process.groups.of(self.number());
        groups.into_iter().try_for_each(|group| Ok(context.attach_group(&current.qp, group)?))
    }

    /// Makes the second engine queue pair for a queue pair that is connected to itself. It gets no messages,
    /// so it needs no shared receive queue, whose last receive each of its queue pairs would report.
    fn add_far_end(&self, attributes: &Attributes) -> Outcome<()> {
        let far = InitAttr { srq: ptr::null_mut(), ..self.init }.make()?;
        let number = far.qp_num();
        self.init.cqs().for_each(|cq| cq.renumber(number, self.number()));
        // SAFETY: a context is not freed while it has objects.
        self.enter(number, unsafe { OpenDevice::of(self.context()) });
        let mut current = self.change_current();
        self.process.loopback_qps.insert(self.number(), current.qp.clone(), far.clone());
        current.far = Some(far);
        current.set_remote_access(attributes.remote_access())?;
        Ok(())
    }

    /// Returns to RESET: a new engine queue pair without requests replaces the old engine queue pairs, and
    /// the number that the program sees stays the same. Unpolled completions are dropped.
    fn reset(&self) -> Outcome<()> {
        let new = self.init.make()?;
        let number = new.qp_num();
        self.init.cqs().for_each(|cq| cq.renumber(number, self.number()));
        self.process.qps.insert(self.number(), self.as_c() as usize, new.clone());
        let new = EngineQps::new(new, self.init.long_inline()?);
        let old = std::mem::replace(&mut *self.change_current(), new);
        old.all().for_each(|qp| self.forget(qp));
        // SAFETY: a context is not freed while it has objects.
        self.enter(number, unsafe { OpenDevice::of(self.context()) });
        Ok(())
    }
}

impl InitAttr {
    fn cqs(&self) -> impl Iterator<Item = &Cq> {
        // SAFETY: completion queues are not destroyed while they have queue pairs.
        [self.send_cq, self.recv_cq].into_iter().map(|cq| unsafe { Cq::of(cq) })
    }

    fn srq(&self) -> Option<&Srq> {
        // SAFETY: a shared receive queue is not destroyed while it has queue pairs.
        (!self.srq.is_null()).then(|| unsafe { Srq::of(self.srq) })
    }

    /// Makes the memory for long inline data, if the program has asked for such data.
    fn long_inline(&self) -> Outcome<Option<LongInline>> {
        // SAFETY: a domain is not deallocated while it has queue pairs.
        let pd = unsafe { Pd::of(self.pd) };
        LongInline::new(&pd.pd, self.cap.max_inline_data as usize, self.cap.max_send_wr as usize)
    }

    fn make(&self) -> Outcome<QueuePair> {
        // SAFETY: a domain is not deallocated while it has queue pairs.
        let pd = unsafe { Pd::of(self.pd) };
        let [send_cq, recv_cq]: [&CompletionQueue; 2] = {
            let mut cqs = self.cqs().map(|cq| &cq.cq);
            [cqs.next().ok_or(EINVAL)?, cqs.next().ok_or(EINVAL)?]
        };
        let srq: Option<&SharedReceiveQueue> = self.srq().map(|srq| &srq.srq);
        let cap = &self.cap;
        let init = QpInit {
            recv_cq,
            srq,
            max_send_wr: cap.max_send_wr as usize,
            // One queue pair may use all requests of its shared receive queue.
            max_recv_wr: srq.map_or(cap.max_recv_wr as usize, |srq| srq.query().max_wr),
            max_send_sge: limits::SGE,
            max_recv_sge: limits::SGE,
            max_inline: limits::INLINE,
            sq_sig_all: self.sq_sig_all,
            grants: iwarp::verbs::QpGrants::BIND_WINDOWS,
            early_sends: true,
            qp_type: self.qp_type,
            own_multicast: self.own_multicast,
            ..QpInit::new(send_cq)
        };
        let qp = pd.pd.create_qp(&init)?;
        qp.take_late_sends();
        Ok(qp)
    }
}

fn check_cap(cap: &sys::ibv_qp_cap) -> Outcome<()> {
    let fits = cap.max_send_wr as usize <= limits::MAX_QP_WR
        && cap.max_recv_wr as usize <= limits::MAX_QP_WR
        && cap.max_send_sge as usize <= limits::SGE
        && cap.max_recv_sge as usize <= limits::SGE
        && cap.max_inline_data as usize <= limits::LONG_INLINE;
    if fits { Ok(()) } else { Err(EINVAL) }
}

/// Implements `ibv_create_qp(3)`.
///
/// # Safety
/// `pd` is valid, `init` is readable and writable, and the objects that `init` names are valid.
#[unsafe(export_name = "uw_ibv_create_qp")]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    abi::pointer(|| {
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let init = unsafe { &mut *init };
        // SAFETY: the caller passes a valid domain, and `init` names only valid objects.
        let qp = unsafe { Qp::make(pd, init, Extension::default()) }?;
        Ok(Box::leak(qp).as_c().cast())
    })
}

/// Implements `ibv_modify_qp(3)`.
///
/// # Safety
/// `qp` is valid, and `attr` is readable.
#[unsafe(export_name = "uw_ibv_modify_qp")]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp) };
        this.check()?;
        // SAFETY: the caller passes a pointer to a readable struct.
        let attr = unsafe { &*attr };
        if mask as c_uint & sys::IBV_QP_STATE != 0 && attr.qp_state == sys::IBV_QPS_SQD {
            // A hardware device starts a request when its doorbell rings, so this poll starts posted
            // requests. (rsockets post their last message, enter SQD, and destroy the queue pair.)
            this.process.engine.poll();
        }
        let mut attributes = this.attributes();
        let from = this.state();
        let change = qp_state::check_type(this.qp_type(), from, attr, mask as c_uint, this.is_managed())?;
        qp_state::merge(&mut attributes.attr, attr, mask as c_uint);
        if mask as c_uint & sys::IBV_QP_ACCESS_FLAGS != 0 {
            this.current().set_remote_access(attributes.remote_access())?;
        }
        if mask as c_uint & sys::IBV_QP_QKEY != 0 {
            this.current().qp.set_qkey(attr.qkey);
        }
        if mask as c_uint & sys::IBV_QP_RNR_RETRY != 0 {
            this.current().set_rnr_retry(attr.rnr_retry)?;
        }
        match change {
            Transition::None => {}
            Transition::To(state) => {
                this.set_state(&mut attributes, state);
                match (from, state) {
                    (sys::IBV_QPS_RTR, sys::IBV_QPS_RTS) if !this.is_ud() => {
                        let Process { retry_timeouts, engine, .. } = this.process;
                        let current = this.current();
                        let limit = match this.qp_type() {
                            // A queue pair of type UC retries nothing.
                            QpType::Uc => Some(Limit::OfUc),
                            _ => {
                                current.set_retry_time(after_the_end(&attributes.attr));
                                Limit::of(&attributes.attr)
                            }
                        };
                        retry_timeouts.insert(engine, this.number(), current.sender(), limit);
                    }
                    (_, sys::IBV_QPS_SQD) => {
                        let asks = mask as c_uint & sys::IBV_QP_EN_SQD_ASYNC_NOTIFY != 0;
                        this.current().hold_sends(asks && attr.en_sqd_async_notify != 0);
                    }
                    (sys::IBV_QPS_SQD, _) => this.current().resume_sends(),
                    _ => {}
                }
            }
            Transition::ToInit => {
                if !this.is_ud() {
                    oob_connect::prepare(this.process)?;
                }
                this.set_state(&mut attributes, sys::IBV_QPS_INIT);
            }
            Transition::ToRtr => {
                match this.is_ud() {
                    true => this.open_datagrams(&attributes)?,
                    false => this.connect_to_peer(&mut attributes)?,
                }
                this.set_state(&mut attributes, sys::IBV_QPS_RTR);
            }
            Transition::ToError => {
                drop(attributes);
                // A hardware device has sent the posted requests by now. UCX relies on this: it posts its
                // last message, and then enters ERR.
                this.process.engine.poll();
                this.fail()?;
            }
            Transition::ToReset => {
                oob_connect::stop(this.process, this.number(), &mut attributes.oob);
                // The attributes are unlocked before `reset`, which locks the table of queue pairs: a thread
                // that handles an event locks this table first, and then the attributes.
                drop(attributes);
                this.reset()?;
                this.set_state(&mut this.attributes(), sys::IBV_QPS_RESET);
            }
        }
        Ok(())
    })
}

/// Implements `ibv_query_qp(3)`.
///
/// # Safety
/// `qp` is valid, `attr` and `init` are writable.
#[unsafe(export_name = "uw_ibv_query_qp")]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _mask: c_int,
    init: *mut sys::ibv_qp_init_attr,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp) };
        this.check()?;
        let mut attributes = this.attributes();
        let state = this.state();
        this.set_state(&mut attributes, state);
        let mut out = attributes.attr;
        out.qp_state = state;
        out.cur_qp_state = state;
        let now = this.current().qp.query();
        // A queue pair of type UC has no Reads, although its connection would allow them.
        let has_reads = this.qp_type() == QpType::Rc;
        if let Some(ord) = now.ord.filter(|_| has_reads) {
            out.max_rd_atomic = u8::try_from(ord).unwrap_or(u8::MAX);
        }
        if let Some(ird) = now.ird.filter(|_| has_reads) {
            out.max_dest_rd_atomic = u8::try_from(ird).unwrap_or(u8::MAX);
        }
        // SAFETY: the caller passes a pointer to a writable struct.
        unsafe { attr.write(out) };
        // SAFETY: the fields are not changed after the queue pair is made.
        let qp_context = unsafe { (*this.c.get()).qp_base.qp_context };
        let made_with = sys::ibv_qp_init_attr {
            qp_context,
            send_cq: this.init.send_cq,
            recv_cq: this.init.recv_cq,
            srq: this.init.srq,
            cap: out.cap,
            // SAFETY: the field is not changed after the queue pair is made.
            qp_type: unsafe { (*this.c.get()).qp_base.qp_type },
            sq_sig_all: this.init.sq_sig_all.into(),
        };
        // SAFETY: the caller passes a pointer to a writable struct.
        unsafe { init.write(made_with) };
        Ok(())
    })
}

/// Implements `ibv_destroy_qp(3)`.
///
/// # Safety
/// `qp` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_ibv_destroy_qp")]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp) };
        this.check()?;
        oob_connect::stop(this.process, this.number(), &mut this.attributes().oob);
        let engine_qps: Vec<QueuePair> = this.current().all().cloned().collect();
        this.process.qps.remove(this.number());
        this.process.groups.forget(this.number());
        let (context, pd) = (this.context(), this.init.pd);
        // As with a hardware device, outstanding requests of a destroyed queue pair get no completion.
        engine_qps.iter().for_each(|qp| this.forget(qp));
        drain(&this.process.engine, &engine_qps, DRAIN_IDLE);
        this.process.async_events.remove(this.as_c() as usize);
        this.init.cqs().for_each(Cq::remove);
        if let Some(srq) = this.init.srq() {
            srq.remove();
        }
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
        // SAFETY: a domain is not deallocated while it has queue pairs.
        unsafe { Pd::of(pd) }.remove();
        // SAFETY: a context is not freed while it has objects.
        unsafe { OpenDevice::of(context) }.remove();
        Ok(())
    })
}

/// Implements `ibv_query_qp_data_in_order(3)`. iWARP's RFCs guarantee an order only for whole messages, so
/// this library does not promise to place the bytes of a Write in order.
///
/// # Safety
/// `qp` is valid.
#[unsafe(export_name = "uw_ibv_query_qp_data_in_order")]
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut sys::ibv_qp,
    _op: sys::ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// Implements `ibv_set_ece(3)`: fails, since no options are supported.
///
/// # Safety
/// `qp` is valid.
#[unsafe(export_name = "uw_ibv_set_ece")]
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut sys::ibv_qp, _ece: *mut c_void) -> c_int {
    abi::status(|| Err(EOPNOTSUPP))
}

/// Implements `ibv_query_ece(3)`: fails, since no options are supported.
///
/// # Safety
/// `qp` is valid.
#[unsafe(export_name = "uw_ibv_query_ece")]
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut sys::ibv_qp, _ece: *mut sys::ibv_ece) -> c_int {
    abi::status(|| Err(EOPNOTSUPP))
}
