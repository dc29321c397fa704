//! Queue pairs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arrayvec::ArrayVec;
use bitflags::bitflags;
use crossbeam_queue::ArrayQueue;

use crate::engine::EngineShared;
use crate::memory::{Access, Stag, WindowKind};
use crate::rdmap::{AtomicOp, Extensions, IMMEDIATE_LEN};

use super::{
    CompletionQueue, ContextShared, MAX_INLINE, MAX_SGE, ProtectionDomain, RecvRequest, SendFlags, SendOp,
    SendRequest, Sge, StreamError, VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

/// Octets that an atomic returns.
const ATOMIC_OCTETS: u32 = 8;

/// How a queue pair is made (`ibv_qp_init_attr`).
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// Where send completions go.
    pub send_cq: &'a CompletionQueue,
    /// Where receive completions go; may be the same.
    pub recv_cq: &'a CompletionQueue,
    /// Send requests outstanding: a request counts until its completion is reaped.
    pub max_send_wr: usize,
    /// Receive requests outstanding.
    pub max_recv_wr: usize,
    /// Every send request makes a completion, signalled or not.
    pub sq_sig_all: bool,
    /// The messages of RFC 7306 that may be posted and are understood from the peer; all of them by default. What is
    /// left out is refused when posted, and answered as an unexpected opcode when the peer tries it. Nothing of this
    /// goes over the wire: see the crate's front page on finding out what the peer understands.
    pub extensions: Extensions,
    /// What its send queue may do to STags.
    pub grants: QpGrants,
}

bitflags! {
    /// What a send queue may do to STags, beside invalidating them: nothing, by default (RFC 5042 section 2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpGrants: u8 {
        /// Memory windows may be bound.
        const BIND_WINDOWS = 1 << 0;
        /// Memory may be registered fast.
        const FAST_REGISTER = 1 << 1;
    }
}

impl<'a> QpInit<'a> {
    /// 128 requests each way, one completion queue for both, every extension.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 128,
            max_recv_wr: 128,
            sq_sig_all: false,
            extensions: Extensions::all(),
            grants: QpGrants::empty(),
        }
    }
}

/// States of RFC 5040 section 6 (and of the iWARP verbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Not connected. Receives may be posted.
    Idle,
    /// Connected: everything may be posted.
    Rts,
    /// A graceful close is under way: what is posted is sent, then FIN. What is posted later than that is flushed.
    Closing,
    /// A Terminate was sent or received, or the connection failed: work is being flushed.
    Terminate,
    /// Over. Everything posted is flushed.
    Error,
}

/// A queue pair: one RDMA stream. Cheap to clone; when the last clone is dropped an open connection is aborted, unless
/// its end is under way: a Terminate or FIN that is out is not cut short. So after
/// [`CmId::disconnect`](super::CmId::disconnect) keep it until the `Disconnected` event, or what is posted may be lost.
#[derive(Clone)]
pub struct QueuePair {
    pub(crate) shared: Arc<QpShared>,
    /// Told apart from `shared`, which the engine holds as well.
    pub(crate) owner: Arc<QpOwner>,
}

/// Aborts the connection when the user has let go of the queue pair.
pub(crate) struct QpOwner {
    shared: Arc<QpShared>,
}

impl Drop for QpOwner {
    fn drop(&mut self) {
        if let Some(engine) = self.shared.engine.get() {
            self.shared.abandoned.store(true, Ordering::Release);
            self.shared.ring(engine);
        } else {
            self.shared.enter_error();
        }
    }
}

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
    /// Octets of the payload.
    pub(crate) length: u32,
    pub(crate) flags: SendFlags,
}

/// What a queue pair shares with its engine.
pub(crate) struct QpShared {
    pub(crate) num: u32,
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) sq: ArrayQueue<SendEntry>,
    pub(crate) rq: ArrayQueue<RecvRequest>,
    /// Send requests posted whose completion has not been reaped (or, where there is none, was not due yet): so who
    /// posts until the queue is full and reaps then overruns no completion queue of that size.
    sq_outstanding: Arc<AtomicUsize>,
    max_send_wr: usize,
    sq_sig_all: bool,
    pub(crate) extensions: Extensions,
    grants: QpGrants,
    state: AtomicU8,
    /// ORD once connected: a Read or atomic needs at least 1.
    pub(crate) ord: AtomicU32,
    /// Who carries the connection; set once, at connect or accept.
    engine: OnceLock<Arc<EngineShared>>,
    /// The connection's slot in that engine.
    pub(crate) slot: AtomicU32,
    /// Whether the doorbell has been rung and not been answered.
    rung: AtomicBool,
    /// The user has dropped every handle.
    pub(crate) abandoned: AtomicBool,
    pub(crate) error: Mutex<Option<StreamError>>,
}

impl QueuePair {
    pub(crate) fn new(pd: &ProtectionDomain, init: &QpInit<'_>) -> Result<Self, VerbsError> {
        let limit = pd.shared.context.limits.max_qp_wr;
        for wr in [init.max_send_wr, init.max_recv_wr] {
            if wr > limit {
                return Err(VerbsError::Limit { name: "max_qp_wr", limit });
            }
        }
        pd.shared.context.counts.qp.take()?;
        let shared = Arc::new(QpShared {
            num: pd.shared.context.next_qp_num(),
            pd: pd.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            sq: ArrayQueue::new(init.max_send_wr.max(1)),
            rq: ArrayQueue::new(init.max_recv_wr.max(1)),
            sq_outstanding: Arc::new(AtomicUsize::new(0)),
            max_send_wr: init.max_send_wr.max(1),
            sq_sig_all: init.sq_sig_all,
            extensions: init.extensions,
            grants: init.grants,
            state: AtomicU8::new(QpState::Idle as u8),
            ord: AtomicU32::new(u32::MAX),
            engine: OnceLock::new(),
            slot: AtomicU32::new(u32::MAX),
            rung: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            error: Mutex::new(None),
        });
        Ok(Self { owner: Arc::new(QpOwner { shared: Arc::clone(&shared) }), shared })
    }

    /// Its number, unique in the context while it lives.
    pub fn qp_num(&self) -> u32 {
        self.shared.num
    }

    /// The messages of RFC 7306 that it was made with.
    pub fn extensions(&self) -> Extensions {
        self.shared.extensions
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Posts to the send queue, from any thread (`ibv_post_send`). Requests complete in the order posted.
    ///
    /// In `Terminate` and `Error` the request is taken and completes as flushed; so too in `Closing` when it comes too late.
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted.
    pub fn post_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        self.shared.check_window_kind(&request.op)?;
        self.post_checked(request)
    }

    /// Posts a request whose window, if it binds one, is of the right type.
    pub(super) fn post_checked(&self, request: &SendRequest) -> Result<(), VerbsError> {
        self.shared.queue_send(request)?;
        self.shared.doorbell();
        Ok(())
    }

    /// Posts several, ringing the doorbell once. Returns how many were posted with the error that stopped it.
    ///
    /// # Errors
    /// The count posted, and why the next one was refused.
    pub fn post_send_list(&self, requests: &[SendRequest]) -> Result<(), (usize, VerbsError)> {
        let mut result = Ok(());
        for (posted, request) in requests.iter().enumerate() {
            let checked = self.shared.check_window_kind(&request.op);
            if let Err(error) = checked.and_then(|()| self.shared.queue_send(request)) {
                result = Err((posted, error));
                break;
            }
        }
        self.shared.doorbell();
        result
    }

    /// Posts a receive buffer, from any thread (`ibv_post_recv`). In `Terminate` and `Error` it completes as flushed.
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted.
    pub fn post_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        let shared = &self.shared;
        let length = request.length();
        if length > u64::from(u32::MAX) {
            return Err(VerbsError::TooLong { got: length, max: u64::from(u32::MAX) });
        }
        shared.check_local(&request.sg_list, Access::LOCAL_WRITE)?;
        shared.rq.push(request.clone()).map_err(|_| VerbsError::QueueFull("receive"))?;
        if shared.state() == QpState::Error {
            shared.flush();
        }
        Ok(())
    }

    /// The error that ended the stream, found here or told by the peer's Terminate.
    pub fn error(&self) -> Option<StreamError> {
        *self.shared.error.lock().expect("no holder of this lock panics")
    }
}

impl QpShared {
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

    pub(crate) fn context(&self) -> &Arc<ContextShared> {
        &self.pd.shared.context
    }

    /// Claims the queue pair for one connection carried by `engine`.
    pub(crate) fn bind(&self, engine: &Arc<EngineShared>) -> Result<(), VerbsError> {
        let state = self.state();
        if state != QpState::Idle || self.engine.set(Arc::clone(engine)).is_err() {
            return Err(VerbsError::InvalidState(state));
        }
        Ok(())
    }

    /// Checks a request and puts it into the send queue, without telling the engine.
    fn queue_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let state = self.state();
        if state == QpState::Idle {
            return Err(VerbsError::InvalidState(state));
        }
        let length = request.length();
        if length > u64::from(u32::MAX) {
            return Err(VerbsError::TooLong { got: length, max: u64::from(u32::MAX) });
        }
        let payload = self.payload(request, length)?;
        // The slot is taken first: `sq` itself has a place for every slot, so the push cannot fail.
        let taken = self.sq_outstanding.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < self.max_send_wr).then_some(count + 1)
        });
        if taken.is_err() {
            return Err(VerbsError::QueueFull("send"));
        }
        let entry = SendEntry {
            wr_id: request.wr_id,
            op: request.op,
            payload,
            length: length as u32,
            flags: request.flags,
        };
        if self.sq.push(entry).is_err() {
            self.sq_outstanding.fetch_sub(1, Ordering::AcqRel);
            return Err(VerbsError::QueueFull("send"));
        }
        Ok(())
    }

    fn payload(&self, request: &SendRequest, length: u64) -> Result<Payload, VerbsError> {
        let sg_list = &request.sg_list;
        self.check_extension(&request.op)?;
        match request.op {
            SendOp::Read { .. } => self.check_sink(sg_list)?,
            SendOp::Atomic { .. } => {
                if sg_list.is_empty() || length != u64::from(ATOMIC_OCTETS) {
                    return Err(VerbsError::Invalid(format!(
                        "an atomic returns {ATOMIC_OCTETS} octets: give it one element of that length, not {length}"
                    )));
                }
                self.check_sink(sg_list)?;
            }
            SendOp::Immediate { .. } if length > 0 => {
                return Err(VerbsError::Invalid(format!(
                    "Immediate Data is its {IMMEDIATE_LEN} octets alone: post it without elements"
                )));
            }
            SendOp::Immediate { .. } | SendOp::LocalInvalidate { .. } => {}
            SendOp::BindWindow(_) => self.check_grant(QpGrants::BIND_WINDOWS)?,
            SendOp::FastRegister(_) => self.check_grant(QpGrants::FAST_REGISTER)?,
            SendOp::Send
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::WriteImmediate { .. } => {
                if request.flags.contains(SendFlags::INLINE) {
                    return self.inline(sg_list, length);
                }
                self.check_local(sg_list, Access::empty())?;
            }
        }
        Ok(Payload::Gather(sg_list.clone()))
    }

    /// Whether the stream has the message at all.
    fn check_extension(&self, op: &SendOp) -> Result<(), VerbsError> {
        let (understood, name) = match op {
            SendOp::Immediate { .. } | SendOp::WriteImmediate { .. } => {
                (self.extensions.contains(Extensions::IMMEDIATE), "IMMEDIATE")
            }
            SendOp::Atomic { op: op @ AtomicOp::Swap { .. }, .. } => {
                (op.is_understood(self.extensions), "ATOMICS and SWAP")
            }
            SendOp::Atomic { op, .. } => (op.is_understood(self.extensions), "ATOMICS"),
            _ => return Ok(()),
        };
        if understood {
            return Ok(());
        }
        Err(VerbsError::Invalid(format!(
            "this queue pair was made without this message: add {name} to QpInit::extensions"
        )))
    }

    /// Whether the answer to a Read or an atomic may come, and has a place.
    fn check_sink(&self, sg_list: &[Sge]) -> Result<(), VerbsError> {
        if sg_list.len() > 1 {
            return Err(VerbsError::TooManySge { got: sg_list.len(), max: 1 });
        }
        if self.ord.load(Ordering::Acquire) == 0 {
            return Err(VerbsError::Invalid(
                "this connection allows no Read and no atomic: its ORD was negotiated to 0".into(),
            ));
        }
        self.check_local(sg_list, Access::LOCAL_WRITE)
    }

    /// A window of type 1 is not bound by a request of the consumer's own making.
    fn check_window_kind(&self, op: &SendOp) -> Result<(), VerbsError> {
        let SendOp::BindWindow(bind) = op else { return Ok(()) };
        if self.context().memory.window_kind(Stag(bind.rkey)) == Some(WindowKind::Type1) {
            let text = "a window of type 1 is bound by QueuePair::bind_mw, which chooses its key";
            return Err(VerbsError::Invalid(text.into()));
        }
        Ok(())
    }

    fn check_grant(&self, needed: QpGrants) -> Result<(), VerbsError> {
        if self.grants.contains(needed) {
            return Ok(());
        }
        let text = format!("this queue pair was not granted it: create it with QpInit::grants = {needed:?}");
        Err(VerbsError::Invalid(text))
    }

    fn inline(&self, sg_list: &[Sge], length: u64) -> Result<Payload, VerbsError> {
        if length > MAX_INLINE as u64 {
            return Err(VerbsError::TooLong { got: length, max: MAX_INLINE as u64 });
        }
        let mut octets = ArrayVec::from([0; MAX_INLINE]);
        octets.truncate(length as usize);
        let mut offset = 0;
        for sge in sg_list {
            let end = offset + sge.length as usize;
            self.context()
                .memory
                .fetch_local(self.pd.id(), sge.lkey, sge.addr, &mut octets[offset..end])
                .map_err(|fault| VerbsError::LocalProtection(fault.to_string()))?;
            offset = end;
        }
        Ok(Payload::Inline(octets))
    }

    fn check_local(&self, sg_list: &[Sge], access: Access) -> Result<(), VerbsError> {
        let memory = &self.context().memory;
        sg_list.iter().try_for_each(|sge| {
            memory
                .check_local(self.pd.id(), sge.lkey, sge.addr, sge.length, access)
                .map_err(|fault| VerbsError::LocalProtection(fault.to_string()))
        })
    }

    /// Tells the engine that the send queue has work, or flushes it where no engine will.
    fn doorbell(&self) {
        if self.state() == QpState::Error {
            self.flush();
        } else if let Some(engine) = self.engine.get() {
            self.ring(engine);
        }
    }

    fn ring(&self, engine: &EngineShared) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            engine.ring(self.slot.load(Ordering::Acquire));
        }
    }

    /// The engine answers the doorbell: what is posted from now on rings again.
    pub(crate) fn answer(&self) {
        self.rung.swap(false, Ordering::AcqRel);
    }

    /// Makes the completion of a send request where it asked for one or failed; else its place is free at once.
    pub(crate) fn complete_send(&self, signaled: bool, completion: WorkCompletion) {
        if signaled || self.sq_sig_all || completion.status != WcStatus::Success {
            self.send_cq.shared.push(completion, Some(Arc::clone(&self.sq_outstanding)));
        } else {
            self.sq_outstanding.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Takes the oldest receive request, for a message of the peer's.
    pub(crate) fn take_recv(&self) -> Option<RecvRequest> {
        self.rq.pop()
    }

    /// Makes the completion of a receive request.
    pub(crate) fn complete_recv(&self, completion: WorkCompletion) {
        self.recv_cq.shared.push(completion, None);
    }

    /// Enters `Error` and flushes both queues.
    pub(crate) fn enter_error(&self) {
        self.set_state(QpState::Error);
        self.flush();
    }

    /// Completes everything in both queues as flushed. Whoever posts after `Error` was entered flushes too, so
    /// nothing stays behind.
    pub(crate) fn flush(&self) {
        // Held throughout: two who flush at the same time would complete requests out of order.
        let error = self.error.lock().expect("no holder of this lock panics");
        while let Some(entry) = self.sq.pop() {
            self.complete_send(true, self.flushed(entry.wr_id, send_opcode(&entry.op), *error));
        }
        while let Some(request) = self.rq.pop() {
            self.complete_recv(self.flushed(request.wr_id, WcOpcode::Recv, *error));
        }
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
        self.context().counts.qp.release();
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
