//! The state that a queue pair shares with its engine: its queues, its state, and the completion of requests.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::memory::{Access, StreamId};
use crate::rdmap::{Extensions, TerminateError};

use super::consumer::{QpConsumer, RecvEntry};
use super::cq::{CqPlace, CqShared};
use super::cq_users::Demand;
use super::line::TurnCell;
use super::lock::{Lock, LockGuard};
use super::ring::{RingWriter, ring};
use super::rung::Rung;
use super::usage::{Permit, within};
use super::wqe::{Counter, WqeCount};
use super::{
    AsyncEventKind, CompletionQueue, ConnectionError, Doorbells, EventSource, MAX_INLINE, MAX_SGE, Origin,
    Outcome, PdShared, QpGrants, QpInit, QpState, RecvRequest, Resources, SendEntry, SharedReceiveQueue,
    StreamError, TerminateReport, VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

mod drain;
mod late_sends;
mod orphan;
mod post;
mod rnr_retry;
mod signals;
mod status;

pub(crate) use signals::Ask;

use late_sends::LateSends;
use rnr_retry::RnrRetry;

/// Limits of the queues and of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    max_send_wr: u32,
    max_recv_wr: u32,
    /// At most [`MAX_SGE`].
    max_send_sge: u8,
    max_recv_sge: u8,
    /// At most [`MAX_INLINE`].
    max_inline: u8,
}

const _: () = assert!(MAX_SGE <= u8::MAX as usize);
const _: () = assert!(MAX_INLINE <= u8::MAX as usize);

impl Caps {
    pub(crate) fn max_send_wr(&self) -> usize {
        self.max_send_wr as usize
    }

    pub(crate) fn max_recv_wr(&self) -> usize {
        self.max_recv_wr as usize
    }

    pub(crate) fn max_send_sge(&self) -> usize {
        self.max_send_sge.into()
    }

    pub(crate) fn max_recv_sge(&self) -> usize {
        self.max_recv_sge.into()
    }

    pub(crate) fn max_inline(&self) -> usize {
        self.max_inline.into()
    }
}

/// The values of [`QpShared::ib_semantics`] once there is a connection.
const AGREED: u8 = 1;
const NOT_AGREED: u8 = 2;

/// Why there is no connection any more, and the error that ended the stream.
#[derive(Default)]
pub(crate) struct Ended {
    /// The first reason. It is there before the first request is flushed.
    pub(crate) cause: Option<ConnectionError>,
    /// The error of the stream. It has the codes also where TCP is the cause.
    pub(crate) error: Option<StreamError>,
    /// The Terminate that was sent or received.
    pub(crate) terminate: Option<Arc<TerminateReport>>,
}

/// The state that a queue pair shares with its engine.
pub(crate) struct QpShared {
    // Fixed when it is created.
    pub(crate) num: u32,
    /// The number of its stream.
    pub(crate) stream: StreamId,
    pub(crate) pd: Arc<PdShared>,
    /// The places of its two work queues at their completion queues.
    pub(crate) send: CqPlace,
    pub(crate) recv: CqPlace,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) caps: Caps,
    pub(crate) sq_sig_all: bool,
    pub(crate) early_sends: bool,
    /// The states in which the send queue accepts requests.
    send_states: u8,
    pub(crate) extensions: Extensions,
    pub(crate) grants: QpGrants,
    /// The rights that the peer's messages have at most: bits of [`Access`].
    remote_access: AtomicU32,
    // Its queues. Threads that post have the locks in turn.
    sq: Lock<RingWriter<SendEntry>>,
    rq: Lock<RingWriter<RecvEntry>>,
    /// The other end of both, in a box since it is mostly away; `None` while a stream has it.
    consumer: Mutex<Option<Box<QpConsumer>>>,
    // Its state and its connection.
    state: AtomicU8,
    /// ORD and IRD of the connection; `u32::MAX` before there is one. A Read or atomic needs an ORD of at
    /// least 1.
    pub(crate) ord: AtomicU32,
    pub(crate) ird: AtomicU32,
    /// Whether the ends have agreed on InfiniBand's semantics; [`AGREED`], [`NOT_AGREED`], or 0 before there
    /// is a connection.
    ib_semantics: AtomicU8,
    /// Whether it stays when the peer ends the connection.
    outlives_peer: AtomicBool,
    /// How often a message is tried again that finds no receive request.
    rnr_retry: RnrRetry,
    /// The permit for inbound Reads and atomics, out of `max_read_slots`.
    read_slots: Mutex<Option<Permit>>,
    /// The doorbells of the engine that carries the connection; set once, by connect or accept.
    doorbells: OnceLock<Arc<Doorbells>>,
    /// The connection's slot in that engine.
    slot: AtomicU32,
    // Signals between users and the engine.
    /// Whether the doorbell was rung and the engine has not answered it.
    rung: Rung,
    /// The pending [`Ask`].
    asked: AtomicU8,
    /// The user has requested a graceful close: the send queue takes no more requests, whatever the state is.
    close_asked: AtomicBool,
    /// Sends that were posted after the end of sending; unset: they are refused.
    late_sends: OnceLock<Box<LateSends>>,
    ended: Mutex<Ended>,
    /// Whether a message of the peer waits for a receive request.
    turn: TurnCell,
    /// An event is wanted when no send request is open.
    drain: AtomicBool,
    /// No send request starts.
    held: AtomicBool,
    /// The count of shared receive buffers above which one event is made; 0: none.
    high_water: AtomicUsize,
    /// Receive requests taken for messages, and the number of them that are completed.
    pub(crate) recv_taken: Counter,
    pub(crate) recv_done: Counter,
    /// Whether `LastWqeReached` was reported.
    last_wqe_reported: AtomicBool,
    events: EventSource,
    _permit: Permit,
}

impl QpShared {
    pub(crate) fn new(pd: &Arc<PdShared>, init: &QpInit<'_>) -> Result<Arc<Self>, VerbsError> {
        let context = &pd.resources;
        let limit = context.limits.max_qp_wr;
        within("max_qp_wr", init.max_send_wr.max(init.max_recv_wr), limit)?;
        within("MAX_SGE", init.max_send_sge.max(init.max_recv_sge), MAX_SGE)?;
        within("MAX_INLINE", init.max_inline, MAX_INLINE)?;
        // No memory has room for deeper queues.
        let [max_send_wr, max_recv_wr] =
            [init.max_send_wr, init.max_recv_wr].map(|depth| u32::try_from(depth).unwrap_or(u32::MAX));
        // RFC 5042 section 7.1 (SEC-164): a completion queue serves the context that made it. Contexts share
        // none.
        for cq in [init.send_cq, init.recv_cq] {
            context.same(cq.shared.resources())?;
        }
        if let Some(srq) = init.srq {
            context.same(&srq.shared.pd.resources)?;
        }
        if init.srq.is_some_and(|srq| srq.shared.one_pd && srq.shared.pd.id() != pd.id()) {
            return Err(VerbsError::Invalid(
                "the shared receive queue is of another protection domain, and serves its own alone (SrqInit::one_pd)".into(),
            ));
        }
        let (srq_outstanding, max_rq) = match init.srq {
            Some(srq) => (Some(srq.shared.outstanding()), 0),
            None => (None, init.max_recv_wr),
        };
        let (sq, sq_reader) = ring(init.max_send_wr);
        let (rq, rq_reader) = ring(max_rq);
        let permit = context.quotas.qp.take(1)?;
        // Freed by the drop of the queue pair, before which nothing fails.
        let num = context.take_qp_num()?;
        let shared = Arc::new(Self {
            num,
            stream: context.next_stream(),
            pd: Arc::clone(pd),
            send: CqPlace::new(init.send_cq, WqeCount::new(init.max_send_wr, None)),
            recv: CqPlace::new(init.recv_cq, WqeCount::new(init.max_recv_wr, srq_outstanding)),
            srq: init.srq.cloned(),
            sq: Lock::new(sq),
            rq: Lock::new(rq),
            consumer: Mutex::new(Some(Box::new(QpConsumer::new(sq_reader, rq_reader, init.srq.is_some())))),
            caps: Caps {
                max_send_wr,
                max_recv_wr,
                max_send_sge: init.max_send_sge as u8,
                max_recv_sge: init.max_recv_sge as u8,
                max_inline: init.max_inline as u8,
            },
            sq_sig_all: init.sq_sig_all,
            early_sends: init.early_sends,
            send_states: QpState::taking_sends(init.early_sends),
            extensions: init.extensions,
            grants: init.grants,
            remote_access: AtomicU32::new(Access::REMOTE.bits()),
            state: AtomicU8::new(QpState::Idle as u8),
            ord: AtomicU32::new(u32::MAX),
            ird: AtomicU32::new(u32::MAX),
            ib_semantics: AtomicU8::new(0),
            outlives_peer: AtomicBool::new(false),
            rnr_retry: RnrRetry::new(),
            read_slots: Mutex::new(None),
            doorbells: OnceLock::new(),
            slot: AtomicU32::new(u32::MAX),
            rung: Rung::new(),
            asked: AtomicU8::new(Ask::Nothing as u8),
            close_asked: AtomicBool::new(false),
            late_sends: OnceLock::new(),
            ended: Mutex::default(),
            turn: TurnCell::new(),
            drain: AtomicBool::new(false),
            held: AtomicBool::new(false),
            high_water: AtomicUsize::new(init.high_water),
            recv_taken: Counter::default(),
            recv_done: Counter::default(),
            last_wqe_reported: AtomicBool::new(false),
            events: EventSource::new(&context.events, num),
            _permit: permit,
        });
        context.enter_qp(num, &shared);
        let (send_cq, recv_cq) = (&init.send_cq.shared, &init.recv_cq.shared);
        send_cq.attach(&shared)?;
        if !Arc::ptr_eq(send_cq, recv_cq) {
            recv_cq.attach(&shared)?;
        }
        Ok(shared)
    }

    /// The entries of `cq` that this queue pair may fill.
    pub(crate) fn demand(&self, cq: &CqShared) -> Demand {
        let is = |other: &CompletionQueue| std::ptr::eq(&*other.shared, cq);
        let sends = if is(&self.send.cq) { self.caps.max_send_wr() } else { 0 };
        let (recvs, srq) = match &self.srq {
            _ if !is(&self.recv.cq) => (0, None),
            None => (self.caps.max_recv_wr(), None),
            Some(srq) => (0, Some((srq.shared.num, srq.shared.max_wr))),
        };
        Demand { pd: self.pd.id(), own: sends + recvs, srq }
    }

    // ---- state ----

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        match self.state.load(Ordering::SeqCst) {
            0 => QpState::Idle,
            1 => QpState::Rts,
            2 => QpState::Closing,
            3 => QpState::Terminate,
            4 => QpState::Error,
            orphaned => {
                debug_assert_eq!(orphaned, QpState::Orphaned as u8, "only `set_state` stores a state");
                QpState::Orphaned
            }
        }
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    pub(crate) fn resources(&self) -> &Arc<Resources> {
        &self.pd.resources
    }

    /// Reserves the queue pair for one connection of the engine with these doorbells. It serves up to `ird`
    /// Reads at a time, and as many atomics if they are enabled.
    pub(crate) fn reserve(
        &self,
        context: &Resources,
        doorbells: &Arc<Doorbells>,
        ird: u16,
    ) -> Result<(), VerbsError> {
        context.same(self.resources())?;
        let state = self.state();
        if state != QpState::Idle || self.doorbells.get().is_some() {
            return Err(VerbsError::InvalidState(state));
        }
        // RFC 5042 section 7.2 (SEC-166): the entries of the Read Request queue are granted here, to connect
        // and accept. Nothing that the peer sends adds one.
        let permit = self.resources().quotas.read_slots.take(self.read_slots_for(ird))?;
        if self.doorbells.set(Arc::clone(doorbells)).is_err() {
            return Err(VerbsError::InvalidState(state));
        }
        *self.read_slots() = Some(permit);
        Ok(())
    }

    /// The connection has this slot in its engine.
    pub(crate) fn set_slot(&self, slot: usize) {
        self.slot.store(slot as u32, Ordering::Release);
    }

    /// The connection is established, with these depths. `outlives_peer` counts with InfiniBand's semantics
    /// only.
    pub(crate) fn connected(&self, (ord, ird): (u16, u16), ib_semantics: bool, outlives_peer: bool) {
        self.outlives_peer.store(ib_semantics && outlives_peer, Ordering::Release);
        self.ord.store(u32::from(ord), Ordering::Release);
        self.ird.store(u32::from(ird), Ordering::Release);
        self.ib_semantics.store(if ib_semantics { AGREED } else { NOT_AGREED }, Ordering::Release);
        if ib_semantics && let Some(srq) = &self.srq {
            srq.shared.join_line();
        }
        if let Some(permit) = &mut *self.read_slots() {
            permit.shrink_to(self.read_slots_for(ird));
        }
        self.set_state(QpState::Rts);
        // Pairs with the fence in `doorbell_in`. The stream looks for requests after this.
        fence(Ordering::SeqCst);
    }

    /// Limits the rights of the peer's messages to these.
    pub(crate) fn set_remote_access(&self, access: Access) {
        self.remote_access.store(access.bits(), Ordering::Relaxed);
    }

    /// The rights that the peer's messages have at most.
    #[inline]
    pub(crate) fn remote_access(&self) -> Access {
        Access::from_bits_truncate(self.remote_access.load(Ordering::Relaxed))
    }

    /// Whether the ends have agreed on InfiniBand's semantics; `None` before there is a connection.
    pub(crate) fn ib_semantics(&self) -> Option<bool> {
        match self.ib_semantics.load(Ordering::Acquire) {
            AGREED => Some(true),
            NOT_AGREED => Some(false),
            _ => None,
        }
    }

    /// Whether it stays when the peer ends the connection, as its user has not ended it.
    pub(crate) fn outlives_peer(&self) -> bool {
        self.outlives_peer.load(Ordering::Acquire) && !self.is_close_asked() && self.asked() < Ask::Close
    }

    /// The number of inbound requests that an IRD allows.
    fn read_slots_for(&self, ird: u16) -> usize {
        request_buffers(self.extensions, ird) as usize
    }

    fn read_slots(&self) -> MutexGuard<'_, Option<Permit>> {
        self.read_slots.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().expect("no holder of this lock panics")
    }

    /// Records why the connection ends. The first reason counts. Called before requests are flushed.
    pub(crate) fn blame(&self, cause: ConnectionError) {
        self.ended().cause.get_or_insert(cause);
    }

    /// Why the connection ended.
    pub(crate) fn cause(&self) -> Option<ConnectionError> {
        self.ended().cause
    }

    /// The stream has failed. Enters the state of the error and makes the event. The caller completes the
    /// open requests, the oldest one with the status of the outcome.
    pub(crate) fn fail(
        &self,
        origin: Origin,
        error: StreamError,
        terminate: Option<Arc<TerminateReport>>,
    ) -> Outcome {
        let outcome = Outcome::of(origin, error.layer, error.etype);
        let cause = {
            let mut ended = self.ended();
            ended.error = Some(error);
            ended.terminate = terminate;
            *ended.cause.get_or_insert(ConnectionError::Stream(error))
        };
        self.set_state(outcome.state);
        self.events.push(outcome.event, Some(cause));
        outcome
    }

    /// No connection is made, because of `error`.
    pub(crate) fn refuse(&self, error: StreamError) {
        self.ended().error = Some(error);
        self.blame(ConnectionError::Stream(error));
        self.enter_error();
    }

    /// TCP is gone, and the stream with it. The reason is [recorded](Self::blame).
    pub(crate) fn lose(&self) {
        let (layer, etype, _) = TerminateError::MpaConnectionLost.codes();
        let outcome = Outcome::of(Origin::Lost, layer, etype);
        self.set_state(outcome.state);
        self.events.push(outcome.event, self.cause());
    }

    /// Enters `Error` and flushes both queues.
    pub(crate) fn enter_error(&self) {
        self.set_state(QpState::Error);
        *self.read_slots() = None;
        self.flush();
        if self.srq.is_some() && !self.last_wqe_reported.swap(true, Ordering::AcqRel) {
            self.events.push(AsyncEventKind::LastWqeReached, None);
        }
    }

    // ---- its queues ----

    /// The end of the send queue where requests are added.
    #[inline]
    pub(super) fn send_queue(&self) -> LockGuard<'_, RingWriter<SendEntry>> {
        self.sq.lock()
    }

    /// The end of the receive queue where requests are added.
    #[inline]
    pub(super) fn recv_queue(&self) -> LockGuard<'_, RingWriter<RecvEntry>> {
        self.rq.lock()
    }

    fn consumer(&self) -> MutexGuard<'_, Option<Box<QpConsumer>>> {
        self.consumer.lock().expect("no holder of this lock panics")
    }

    /// Takes the other end of both queues, for the stream.
    ///
    /// # Panics
    /// If it was taken and not returned. A queue pair is reserved for one connection, which has one stream at
    /// a time.
    pub(crate) fn take_consumer(&self) -> QpConsumer {
        *self.consumer().take().expect("a queue pair has one stream")
    }

    /// The stream has ended, and returns the other end of both queues.
    pub(crate) fn return_consumer(&self, consumer: QpConsumer) {
        *self.consumer() = Some(Box::new(consumer));
    }

    /// Completes all requests of both queues as flushed, unless a stream has them, which does it itself. A
    /// thread that posts after `Error` was entered flushes too, so no request stays behind.
    pub(crate) fn flush(&self) {
        // Held throughout: two threads that flush at the same time would complete requests out of order.
        if let Some(consumer) = &mut *self.consumer() {
            consumer.flush(self);
        }
        // Without the lock: this may flush other queue pairs.
        self.report();
    }

    /// Reports lost completions and events of both completion queues. The caller holds no lock.
    pub(crate) fn report(&self) {
        self.send.cq.shared.report();
        self.recv.cq.shared.report();
    }

    /// Its user destroys it: no completion of it is in a completion queue any more, and none will be.
    pub(crate) fn discard_completions(&self) {
        self.send.silence();
        self.recv.silence();
    }

    // ---- completing ----

    /// Receive requests that were taken and are not completed; for tests.
    pub(crate) fn open_recvs(&self) -> u64 {
        self.recv_taken.get().wrapping_sub(self.recv_done.get())
    }

    /// Takes a request from the shared queue, unless this queue pair holds its maximum. Called by the holder
    /// of the consumer.
    pub(super) fn take_shared(&self, srq: &SharedReceiveQueue) -> Option<RecvRequest> {
        // RFC 5041 section 8.3.2 (DDP-239), RFC 5040 section 8.1.2 (RDMAP-371): each stream has a limit of
        // shared buffers.
        let wqes = &self.recv.wqes;
        if !wqes.is_free() {
            return None;
        }
        let request = match self.ib_semantics() {
            Some(true) => srq.shared.take_in_turn(&self.turn)?,
            Some(false) | None => srq.shared.take()?,
        };
        let is_counted = wqes.take();
        debug_assert!(is_counted, "an entry was free, and only this thread takes them");
        // RFC 5042 section 6.4.3.1 (SEC-136): a queue pair that holds as many shared buffers as it may gets
        // no more, and one that passes its high-water mark is reported.
        self.check_high_water(wqes.used() as usize);
        Some(request)
    }

    /// Whether it may hold one more request of its shared queue, if it has one.
    pub(crate) fn may_take_shared(&self) -> bool {
        self.srq.is_none() || self.recv.wqes.is_free()
    }

    /// Requests an event for when this queue pair holds more than `mark` buffers of the shared queue. The
    /// event comes at once if it holds more already.
    pub(crate) fn arm_high_water(&self, mark: usize) {
        self.high_water.store(mark, Ordering::SeqCst);
        self.check_high_water(self.recv.wqes.used() as usize);
    }

    fn check_high_water(&self, held: usize) {
        let mark = self.high_water.load(Ordering::Relaxed);
        if mark != 0
            && held > mark
            && self.high_water.compare_exchange(mark, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.events.push(AsyncEventKind::QpHighWater, None);
        }
    }

    /// The completion of a successful request.
    #[inline]
    pub(crate) fn succeeded(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> WorkCompletion {
        WorkCompletion { byte_len, ..WorkCompletion::new(self.num, wr_id, opcode, WcStatus::Success) }
    }

    /// The completion of a request that fails, with the cause of the connection's end.
    pub(crate) fn failed(
        &self,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        cause: Option<ConnectionError>,
    ) -> WorkCompletion {
        WorkCompletion { cause, ..WorkCompletion::new(self.num, wr_id, opcode, status) }
    }

    /// The completion of a request that is flushed.
    pub(crate) fn flushed(
        &self,
        wr_id: u64,
        opcode: WcOpcode,
        cause: Option<ConnectionError>,
    ) -> WorkCompletion {
        self.failed(wr_id, opcode, WcStatus::WrFlushError, cause)
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        if self.ib_semantics() == Some(true)
            && let Some(srq) = &self.srq
        {
            srq.shared.quit_line();
        }
        self.send.cq.shared.detach(self);
        self.recv.cq.shared.detach(self);
        self.resources().free_qp_num(self.num);
    }
}

/// Buffers of queue 1: IRD for Read Requests and, with atomics, as many more for Atomic Requests (RFC 7306
/// section 5.2.2 item 4).
pub(crate) fn request_buffers(extensions: Extensions, ird: impl Into<u32>) -> u32 {
    // RFC 7306 section 5.2.2 (EXT-098, EXT-191): the buffers for atomics come on top of those for Reads.
    let kinds = if extensions.contains(Extensions::ATOMICS) { 2 } else { 1 };
    kinds * ird.into()
}

#[cfg(test)]
mod tests;
