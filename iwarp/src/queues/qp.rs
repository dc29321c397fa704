//! What a queue pair shares with its engine: queues, state, and how requests complete.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

use crate::rdmap::{AtomicOp, Extensions, TerminateError};

use super::arm::Arm;
use super::cq::CqShared;
use super::cq_users::Demand;
use super::places::{Place, Places};
use super::usage::{Permit, within};
use super::{
    AsyncEventKind, CompletionQueue, Doorbells, MAX_INLINE, MAX_SGE, Origin, Outcome, ProtectionDomain,
    QpGrants, QpInit, QpState, RecvRequest, Resources, SendFlags, SendOp, Sge, SharedReceiveQueue,
    StreamError, TerminateReport, VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

mod post;

/// The payload of a posted request.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Fetched from registered memory when it is sent.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// Copied when it was posted.
    Inline(ArrayVec<u8, MAX_INLINE>),
}

/// A request in the send queue.
#[derive(Clone, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) payload: Payload,
    /// Bytes of the payload.
    pub(crate) length: u32,
    pub(crate) flags: SendFlags,
}

/// What is asked of the engine that carries the connection; the stronger one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Ask {
    Nothing,
    /// Send what is posted, then FIN.
    Close,
    /// Tell the peer of a local catastrophic error, and flush.
    Terminate,
    /// Nobody holds the queue pair any more: reset and flush, unless the end is under way.
    Abandon,
    /// Reset, and flush.
    Abort,
}

/// Sizes of the queues and of what goes into them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_send_sge: usize,
    pub(crate) max_recv_sge: usize,
    pub(crate) max_inline: usize,
}

/// What ended the stream.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) error: Option<StreamError>,
    /// As it was sent or received.
    pub(crate) terminate: Option<Arc<TerminateReport>>,
}

/// What a queue pair shares with its engine.
pub(crate) struct QpShared {
    pub(crate) num: u32,
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) srq: Option<SharedReceiveQueue>,
    /// Either queue keeps its ends in cache lines of their own, and so apart from all else.
    pub(crate) sq: Box<ArrayQueue<SendEntry>>,
    pub(crate) rq: Box<ArrayQueue<RecvRequest>>,
    pub(crate) places: Arc<Places>,
    pub(crate) caps: Caps,
    pub(crate) sq_sig_all: bool,
    pub(crate) extensions: Extensions,
    pub(crate) grants: QpGrants,
    state: AtomicU8,
    /// ORD and IRD once connected; `u32::MAX` before. A Read or atomic needs an ORD of at least 1.
    pub(crate) ord: AtomicU32,
    pub(crate) ird: AtomicU32,
    /// Inbound Reads and atomics of the connection, against `max_read_slots`.
    read_slots: Mutex<Option<Permit>>,
    /// Who carries the connection; set once, at connect or accept.
    engine: OnceLock<Arc<Doorbells>>,
    /// The connection's slot in that engine.
    pub(crate) slot: AtomicU32,
    /// Whether the doorbell has been rung and not been answered.
    rung: AtomicBool,
    asked: AtomicU8,
    /// The user has asked for a graceful close: the send queue takes nothing more, whatever the state.
    close_asked: AtomicBool,
    ended: Mutex<Ended>,
    /// An event is wanted when the send queue has nothing open.
    drain: Arm,
    /// Buffers of the shared receive queue above which an event is made, once; 0: none.
    high_water: AtomicUsize,
    /// Receive requests taken for a message, and those of them that are completed.
    pub(crate) recv_taken: AtomicU64,
    pub(crate) recv_done: AtomicU64,
    last_wqe_told: AtomicBool,
    _permit: Permit,
}

impl QpShared {
    pub(crate) fn new(pd: &ProtectionDomain, init: &QpInit<'_>) -> Result<Arc<Self>, VerbsError> {
        let context = &pd.shared.resources;
        let limit = context.limits.max_qp_wr;
        within("max_qp_wr", init.max_send_wr.max(init.max_recv_wr), limit)?;
        within("MAX_SGE", init.max_send_sge.max(init.max_recv_sge), MAX_SGE)?;
        within("MAX_INLINE", init.max_inline, MAX_INLINE)?;
        for cq in [init.send_cq, init.recv_cq] {
            context.same(cq.shared.resources())?;
        }
        if let Some(srq) = init.srq {
            context.same(&srq.shared.pd.shared.resources)?;
        }
        if init.srq.is_some_and(|srq| srq.shared.pd.id() != pd.id()) {
            return Err(VerbsError::Invalid(
                "the shared receive queue is of another protection domain: its buffers are not this queue pair's".into(),
            ));
        }
        let (srq_outstanding, max_rq) = match init.srq {
            Some(srq) => (Some(srq.shared.outstanding()), 0),
            None => (None, init.max_recv_wr),
        };
        let shared = Arc::new(Self {
            num: context.next_qp_num(),
            pd: pd.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.cloned(),
            sq: Box::new(ArrayQueue::new(init.max_send_wr.max(1))),
            rq: Box::new(ArrayQueue::new(max_rq.max(1))),
            places: Places::new(init.max_send_wr, init.max_recv_wr, srq_outstanding),
            caps: Caps {
                max_send_wr: init.max_send_wr,
                max_recv_wr: init.max_recv_wr,
                max_send_sge: init.max_send_sge,
                max_recv_sge: init.max_recv_sge,
                max_inline: init.max_inline,
            },
            sq_sig_all: init.sq_sig_all,
            extensions: init.extensions,
            grants: init.grants,
            state: AtomicU8::new(QpState::Idle as u8),
            ord: AtomicU32::new(u32::MAX),
            ird: AtomicU32::new(u32::MAX),
            read_slots: Mutex::new(None),
            engine: OnceLock::new(),
            slot: AtomicU32::new(u32::MAX),
            rung: AtomicBool::new(false),
            asked: AtomicU8::new(Ask::Nothing as u8),
            close_asked: AtomicBool::new(false),
            ended: Mutex::default(),
            drain: Arm::new(),
            high_water: AtomicUsize::new(init.high_water),
            recv_taken: AtomicU64::new(0),
            recv_done: AtomicU64::new(0),
            last_wqe_told: AtomicBool::new(false),
            _permit: context.quotas.qp.take(1)?,
        });
        shared.send_cq.shared.attach(&shared)?;
        if !Arc::ptr_eq(&shared.send_cq.shared, &shared.recv_cq.shared) {
            shared.recv_cq.shared.attach(&shared)?;
        }
        Ok(shared)
    }

    /// Entries of `cq` that it may fill.
    pub(crate) fn demand(&self, cq: &CqShared) -> Demand {
        let is = |other: &CompletionQueue| std::ptr::eq(&*other.shared, cq);
        let sends = if is(&self.send_cq) { self.caps.max_send_wr } else { 0 };
        let (recvs, srq) = match &self.srq {
            _ if !is(&self.recv_cq) => (0, None),
            None => (self.caps.max_recv_wr, None),
            Some(srq) => (0, Some((srq.shared.num, srq.shared.max_wr))),
        };
        Demand { pd: self.pd.id(), own: sends + recvs, srq }
    }

    // ---- state ----

    pub(crate) fn state(&self) -> QpState {
        match self.state.load(Ordering::SeqCst) {
            0 => QpState::Idle,
            1 => QpState::Rts,
            2 => QpState::Closing,
            3 => QpState::Terminate,
            _ => QpState::Error,
        }
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    pub(crate) fn resources(&self) -> &Arc<Resources> {
        &self.pd.shared.resources
    }

    /// Claims the queue pair for one connection carried by `engine`, which serves up to `ird` Reads at a
    /// time, and as many atomics where it understands them.
    pub(crate) fn bind(
        &self,
        context: &Resources,
        engine: &Arc<Doorbells>,
        ird: u16,
    ) -> Result<(), VerbsError> {
        context.same(self.resources())?;
        let state = self.state();
        if state != QpState::Idle || self.engine.get().is_some() {
            return Err(VerbsError::InvalidState(state));
        }
        let permit = self.resources().quotas.read_slots.take(self.read_slots_for(ird))?;
        if self.engine.set(Arc::clone(engine)).is_err() {
            return Err(VerbsError::InvalidState(state));
        }
        *self.read_slots() = Some(permit);
        Ok(())
    }

    /// The connection is there, with these depths.
    pub(crate) fn connected(&self, ord: u16, ird: u16) {
        self.ord.store(u32::from(ord), Ordering::Release);
        self.ird.store(u32::from(ird), Ordering::Release);
        if let Some(permit) = &mut *self.read_slots() {
            permit.shrink_to(self.read_slots_for(ird));
        }
        self.set_state(QpState::Rts);
    }

    /// What an IRD comes to in requests of the peer.
    fn read_slots_for(&self, ird: u16) -> usize {
        self.extensions.request_buffers(ird) as usize
    }

    fn read_slots(&self) -> MutexGuard<'_, Option<Permit>> {
        self.read_slots.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().expect("no holder of this lock panics")
    }

    /// The stream has failed: enters the state that goes with the error, and tells of it. What is open is
    /// flushed by the engine. Returns what the error means for the oldest request.
    pub(crate) fn fail(
        &self,
        origin: Origin,
        error: StreamError,
        terminate: Option<Arc<TerminateReport>>,
    ) -> WcStatus {
        let outcome = Outcome::of(origin, error.layer, error.etype);
        *self.ended() = Ended { error: Some(error), terminate };
        self.set_state(outcome.state);
        self.resources().events.push(outcome.event, self.num, Some(error));
        outcome.oldest
    }

    /// TCP is gone, with the stream. How it went is told by the connection.
    pub(crate) fn lose(&self) {
        let (layer, etype, _) = TerminateError::MpaConnectionLost.codes();
        let outcome = Outcome::of(Origin::Lost, layer, etype);
        self.set_state(outcome.state);
        self.resources().events.push(outcome.event, self.num, None);
    }

    /// A completion was lost: the peer is told where there is one, and everything is flushed.
    pub(crate) fn fail_for_cq(&self) {
        if self.engine.get().is_some() {
            return self.ask(Ask::Terminate);
        }
        if self.state() == QpState::Idle {
            let (layer, etype, code) = TerminateError::LocalCatastrophic.codes();
            self.fail(Origin::Here, StreamError { layer, etype, code, from_peer: false }, None);
            self.ask(Ask::Terminate);
        }
    }

    /// Enters `Error` and flushes both queues.
    pub(crate) fn enter_error(&self) {
        self.set_state(QpState::Error);
        *self.read_slots() = None;
        self.flush();
        if self.srq.is_some() && !self.last_wqe_told.swap(true, Ordering::AcqRel) {
            self.resources().events.push(AsyncEventKind::LastWqeReached, self.num, None);
        }
    }

    // ---- between users and the engine ----

    /// Asks something of the engine; without one, whatever ends the queue pair ends it at once.
    pub(crate) fn ask(&self, what: Ask) {
        self.asked.fetch_max(what as u8, Ordering::AcqRel);
        if let Some(engine) = self.engine.get() {
            self.ring(engine);
        } else if what >= Ask::Terminate {
            self.enter_error();
        }
    }

    /// The user asks for a graceful close: from here on the send queue refuses requests. To be called before
    /// the engine is told, so that all it finds in the queue then is what was posted before, and perhaps a
    /// request that was being posted meanwhile.
    pub(crate) fn refuse_sends(&self) {
        self.close_asked.store(true, Ordering::SeqCst);
    }

    /// Whether the user has asked for a graceful close.
    pub(crate) fn is_close_asked(&self) -> bool {
        self.close_asked.load(Ordering::SeqCst)
    }

    /// What is asked; it stays asked.
    pub(crate) fn asked(&self) -> Ask {
        ask_of(self.asked.load(Ordering::Acquire))
    }

    /// What was asked since the last call.
    pub(crate) fn take_asked(&self) -> Ask {
        if self.asked() == Ask::Nothing {
            return Ask::Nothing;
        }
        ask_of(self.asked.swap(Ask::Nothing as u8, Ordering::AcqRel))
    }

    /// Tells the engine that the send queue has work, or flushes it where no engine will.
    pub(crate) fn doorbell(&self) {
        if self.state() == QpState::Error {
            self.flush();
        } else if let Some(engine) = self.engine.get() {
            self.ring(engine);
        }
    }

    /// Flushes receives that were posted after the end. Before `Error` the engine does, behind what it has
    /// taken.
    pub(crate) fn flush_late(&self) {
        if matches!(self.state(), QpState::Terminate | QpState::Error) {
            self.doorbell();
        }
    }

    fn ring(&self, engine: &Doorbells) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            engine.ring(self.slot.load(Ordering::Acquire));
        }
    }

    /// The engine answers the doorbell: what is posted from now on rings again.
    pub(crate) fn answer(&self) {
        self.rung.swap(false, Ordering::AcqRel);
    }

    // ---- completing ----

    /// Makes the completion of a send request where it asked for one or failed; else its place is free at
    /// once.
    pub(crate) fn complete_send(&self, signaled: bool, completion: WorkCompletion) {
        self.enter_send(signaled, completion);
        self.send_cq.shared.settle();
    }

    fn enter_send(&self, signaled: bool, completion: WorkCompletion) {
        let visible = signaled || self.sq_sig_all || completion.status != WcStatus::Success;
        if visible {
            self.send_cq.shared.enter(completion, Place::Send(Arc::clone(&self.places)));
        }
        if self.places.complete_send(visible) {
            self.tell_drained();
        }
    }

    /// Wants an event when everything posted to the send queue is completed.
    pub(crate) fn arm_drain(&self) {
        self.drain.arm(false);
        if self.places.open_sends() == 0 {
            self.tell_drained();
        }
    }

    fn tell_drained(&self) {
        if self.drain.fires(false) {
            self.resources().events.push(AsyncEventKind::SqDrained, self.num, None);
        }
    }

    /// Takes the oldest receive request, for a message of the peer's that begins.
    pub(crate) fn take_recv(&self) -> Option<RecvRequest> {
        let request = match &self.srq {
            None => self.rq.pop(),
            Some(srq) => self.take_shared(srq),
        }?;
        self.recv_taken.fetch_add(1, Ordering::Relaxed);
        Some(request)
    }

    /// One of the shared queue, unless it holds as many as it may.
    fn take_shared(&self, srq: &SharedReceiveQueue) -> Option<RecvRequest> {
        // RFC 5041 section 8.3.2 (DDP-239), RFC 5040 section 8.1.2 (RDMAP-371): each stream has a limit of
        // shared buffers.
        let held = self.places.take_recv()?;
        let request = srq.shared.take();
        if request.is_none() {
            self.places.untake_recv();
        }
        self.check_high_water(held);
        request
    }

    /// Wants an event when it holds more than `mark` buffers of the shared queue; at once, if that is so.
    pub(crate) fn arm_high_water(&self, mark: usize) {
        self.high_water.store(mark, Ordering::SeqCst);
        self.check_high_water(self.places.recvs());
    }

    fn check_high_water(&self, held: usize) {
        let mark = self.high_water.load(Ordering::Relaxed);
        if mark != 0
            && held > mark
            && self.high_water.compare_exchange(mark, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.resources().events.push(AsyncEventKind::QpHighWater, self.num, None);
        }
    }

    /// Makes the completion of a receive request that was taken.
    pub(crate) fn complete_recv(&self, completion: WorkCompletion) {
        self.recv_done.fetch_add(1, Ordering::Relaxed);
        self.recv_cq.shared.push(completion, Place::Recv(Arc::clone(&self.places)));
    }

    /// Completes everything in both queues as flushed. Whoever posts after `Error` was entered flushes too,
    /// so nothing stays behind.
    pub(crate) fn flush(&self) {
        {
            // Held throughout: two who flush at the same time would complete requests out of order.
            let ended = self.ended();
            let error = ended.error;
            while let Some(entry) = self.sq.pop() {
                self.enter_send(true, self.flushed(entry.wr_id, send_opcode(&entry.op), error));
            }
            while let Some(request) = self.rq.pop() {
                let completion = self.flushed(request.wr_id, WcOpcode::Recv, error);
                self.recv_cq.shared.enter(completion, Place::Recv(Arc::clone(&self.places)));
            }
        }
        self.send_cq.shared.settle();
        self.recv_cq.shared.settle();
    }

    /// The completion of a request that was done.
    pub(crate) fn succeeded(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> WorkCompletion {
        WorkCompletion { status: WcStatus::Success, byte_len, ..self.flushed(wr_id, opcode, None) }
    }

    /// The completion of a flushed request.
    pub(crate) fn flushed(&self, wr_id: u64, opcode: WcOpcode, error: Option<StreamError>) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            status: WcStatus::WrFlushError,
            opcode,
            byte_len: 0,
            qp_num: self.num,
            immediate: None,
            invalidated: None,
            solicited: false,
            error,
        }
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        self.send_cq.shared.detach(self.num);
        self.recv_cq.shared.detach(self.num);
    }
}

fn ask_of(value: u8) -> Ask {
    match value {
        0 => Ask::Nothing,
        1 => Ask::Close,
        2 => Ask::Terminate,
        3 => Ask::Abandon,
        _ => Ask::Abort,
    }
}

/// What a request completes as.
pub(crate) fn send_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendInvalidate { .. } => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::Write,
        SendOp::Read { .. } => WcOpcode::Read,
        SendOp::Immediate { .. } => WcOpcode::Immediate,
        SendOp::WriteImmediate { .. } => WcOpcode::Write,
        SendOp::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
        SendOp::Atomic { op: AtomicOp::CmpSwap { .. }, .. } => WcOpcode::CmpSwap,
        SendOp::Atomic { op: AtomicOp::Swap { .. }, .. } => WcOpcode::Swap,
        SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        SendOp::BindWindow(_) => WcOpcode::BindWindow,
        SendOp::FastRegister(_) => WcOpcode::FastRegister,
    }
}
