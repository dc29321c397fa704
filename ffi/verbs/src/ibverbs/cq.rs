//! Completion queues.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use iwarp::verbs::{CompletionQueue, CqEventHandler, CqOptions, WcOpcode, WcStatus, WorkCompletion};
use libc::c_int;

use crate::ffi::abi::{self, EBUSY, EINVAL, Outcome};
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::use_count::UseCount;
use crate::ffi::{ending, fd_marks, resources, sys};
use crate::ibverbs::comp_channel::CompChannel;
use crate::ibverbs::critical_section::CriticalSection;
use crate::ibverbs::device::OpenDevice;
use crate::process::Process;
use crate::process::async_events::{Element, ObjectKind};
use crate::process::limits;

/// A completion queue (`ibv_cq`, or `ibv_cq_ex` if made by `ibv_create_cq_ex`).
#[repr(C)]
pub(crate) struct Cq {
    c: UnsafeCell<sys::ibv_cq_ex>,
    pub(crate) cq: CompletionQueue,
    process: &'static Process,
    /// Counts the delivered events that are not acknowledged. The counter is in an `Arc`, since the call that
    /// acknowledges the last event may return after the queue is freed.
    pub(crate) pending_acks: Arc<PendingAcks>,
    /// The number of work queues that complete on this queue: the send queues and the receive queues of queue
    /// pairs.
    use_count: UseCount,
    /// True if `numbers` is not empty.
    renumbered: AtomicBool,
    /// Maps queue pair numbers of the engine to the numbers that the program sees, if the two differ. A queue
    /// pair that was reset has a new engine queue pair, but keeps the number that the program sees.
    numbers: Mutex<Numbers>,
    /// The current completion of a poll of an `ibv_cq_ex`, between `ibv_start_poll` and `ibv_end_poll`.
    pub(crate) polled: CriticalSection<Option<Polled>>,
    /// The timestamps of an `ibv_cq_ex`.
    pub(crate) timestamps: Timestamps,
    /// The address of this struct, for the event callback; 0 once the queue is destroyed.
    place: Arc<AtomicUsize>,
    /// The number of coming polls that may be the end of a drain ([`ends_drain`](Self::ends_drain)).
    drain_ends: AtomicU8,
}

/// The numbers that the program sees, by the engine's numbers.
pub(crate) type Numbers = HashMap<u32, u32>;

/// The current completion of a poll, and the times at which it was polled. The engine's completions have no
/// times, since programs without timestamps would pay for them. So a timestamp is the time at which
/// `ibv_start_poll` or `ibv_next_poll` took the completion from the queue, and the timestamps of a queue
/// never decrease.
#[derive(Clone, Copy)]
pub(crate) struct Polled {
    pub(crate) completion: WorkCompletion,
    /// The time of the device's clock; 0 if the queue was made without timestamps.
    pub(crate) clock_ns: u64,
    /// The time since 1970; 0 if the queue was made without such timestamps.
    pub(crate) wall_ns: u64,
}

/// Which timestamps a program can read from the completions of a queue.
#[derive(Clone, Copy, Default)]
pub(crate) struct Timestamps {
    pub(crate) clock: bool,
    pub(crate) wall: bool,
}

/// The number of polls that a program makes of an empty queue at the end of a drain. `ofi_rxm` of libfabric
/// polls until its queue is empty, and so does its caller, Open MPI.
const DRAIN_ENDS: u8 = 2;

impl Cq {
    /// # Safety
    /// `cq` was returned by this library, and is not destroyed while the reference is used.
    pub(crate) unsafe fn of<'a>(cq: *mut sys::ibv_cq) -> &'a Self {
        // SAFETY: the C struct is the first field of a `Cq`, which is freed only when it is destroyed.
        unsafe { &*cq.cast::<Self>() }
    }

    pub(crate) fn as_c(&self) -> *mut sys::ibv_cq_ex {
        self.c.get()
    }

    pub(crate) fn user_context(&self) -> *mut c_void {
        // SAFETY: nobody writes the field during this call: it is set when the queue is made, and programs
        // may change it before the first event.
        unsafe { (*self.c.get()).cq_context }
    }

    fn channel(&self) -> *mut sys::ibv_comp_channel {
        // SAFETY: the field is not changed after the queue is made.
        unsafe { (*self.c.get()).channel }
    }

    fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: the field is not changed after the queue is made.
        unsafe { (*self.c.get()).context }
    }

    pub(crate) fn add(&self) {
        self.use_count.inc();
    }

    pub(crate) fn remove(&self) {
        self.use_count.dec();
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().expect("no holder of this lock panics")
    }

    /// From now on, completions of the engine's queue pair `number` report `known`, the queue pair number
    /// that the program sees.
    pub(crate) fn renumber(&self, number: u32, known: u32) {
        self.numbers().insert(number, known);
        self.renumbered.store(true, Ordering::Release);
    }

    /// Forgets the number that the program sees for the engine's queue pair `number`. This function is called
    /// when that queue pair is reset or destroyed, after its completions are dropped.
    pub(crate) fn forget(&self, number: u32) {
        let mut numbers = self.numbers();
        numbers.remove(&number);
        self.renumbered.store(!numbers.is_empty(), Ordering::Release);
    }

    /// Removes up to `limit` completions, and passes them to `each` with the engine's queue pair numbers.
    /// Returns the number of completions. Also returns the table with which the caller has to
    /// [translate] the numbers, if the program knows a queue pair by another number.
    #[inline]
    pub(crate) fn poll(
        &self,
        limit: usize,
        each: impl FnMut(&WorkCompletion),
    ) -> (usize, Option<MutexGuard<'_, Numbers>>) {
        // These completions stay in the queue, for a thread that may poll later.
        if ending::hides_completions() {
            return (0, None);
        }
        // The table is locked before the poll, so that no number is removed between taking a completion and
        // translating its number.
        let mut numbers = self.renumbered.load(Ordering::Acquire).then(|| self.numbers());
        let taken = self.cq.poll_each(limit, each);
        // A queue pair may have been renumbered after the check above.
        if numbers.is_none() && self.renumbered.load(Ordering::Acquire) {
            numbers = Some(self.numbers());
        }
        // The process may have begun to end during the poll.
        if ending::hides_completions() { (0, None) } else { (taken, numbers) }
    }

    /// Fails if the `handle` field is not the handle with which this queue was made.
    pub(crate) fn check(&self) -> Outcome<()> {
        // SAFETY: nobody writes the field while a call uses the object.
        abi::check_handle(unsafe { (*self.c.get()).handle }, self.cq.cq_num())
    }

    /// Whether the queue is empty. If the queue is empty at first, polls the engine and checks again.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.cq.is_empty() && {
            self.process.engine.turn();
            self.cq.is_empty()
        }
    }

    /// Whether a poll of the empty queue is the end of a drain: many programs take completions one by one
    /// until a poll finds none, and only then handle the completions. A turn of the engine would delay the
    /// program, and would send the acknowledgement of a message that the program is about to answer.
    #[inline]
    fn ends_drain(&self) -> bool {
        let left = self.drain_ends.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        // A program that does other work between its polls would wait longer for its next completion.
        let is_soon = self.process.engine.was_just_polled();
        self.drain_ends.store(if is_soon { left - 1 } else { 0 }, Ordering::Relaxed);
        is_soon
    }

    /// Makes a queue of at least `cqe` entries.
    ///
    /// # Safety
    /// `context` is open, and `channel` is NULL or valid.
    pub(crate) unsafe fn make(
        context: *mut sys::ibv_context,
        cqe: usize,
        cq_context: *mut c_void,
        channel: *mut sys::ibv_comp_channel,
        vector: u32,
    ) -> Outcome<Box<Self>> {
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        if cqe == 0 || cqe > limits::MAX_CQE || vector >= open.comp_vectors() {
            return Err(EINVAL);
        }
        resources::check_for_object(cqe * resources::COMPLETION_BYTES)?;
        // SAFETY: the caller passes NULL or a channel that is valid during the call.
        let events = (!channel.is_null()).then(|| unsafe { CompChannel::of(channel) });
        // The engine's queue needs its callback now, but the address of the `Cq` is known only later.
        let place = Arc::new(AtomicUsize::new(0));
        let handler: Option<CqEventHandler> = events.map(|channel| {
            let (events, place) = (Arc::clone(&channel.events), Arc::clone(&place));
            let handler: CqEventHandler = Arc::new(move |_| {
                // The address of a destroyed queue is 0. The address is read under the lock under which the
                // events of a destroyed queue are removed, so no event is added for a destroyed queue.
                let mut events = events.lock();
                let at = place.load(Ordering::Acquire);
                if at != 0 {
                    events.push(at);
                }
            });
            handler
        });
        // The queue is not strict: the program chooses its size, which may be smaller than the number of
        // requests that can complete on the queue.
        let options = CqOptions { handler: handler.as_ref(), strict: Some(false), ..CqOptions::new(cqe) };
        let cq = open.process.context.create_cq_with(&options)?;
        let c = sys::ibv_cq_ex {
            context,
            channel,
            cq_context,
            handle: cq.cq_num(),
            cqe: c_int::try_from(cqe).map_err(|_| EINVAL)?,
            ..Default::default()
        };
        let this = Box::new(Self {
            c: UnsafeCell::new(c),
            cq,
            process: open.process,
            pending_acks: Arc::default(),
            use_count: UseCount::default(),
            renumbered: AtomicBool::new(false),
            numbers: Mutex::default(),
            polled: CriticalSection::new(None, true),
            timestamps: Timestamps::default(),
            place,
            drain_ends: AtomicU8::new(0),
        });
        this.place.store(std::ptr::from_ref(&*this) as usize, Ordering::Release);
        open.add();
        if let Some(channel) = events {
            channel.add();
        }
        let element = Element {
            object: this.as_c() as usize,
            queue: open.async_events.clone(),
            pending_acks: Arc::default(),
        };
        open.process.async_events.insert(ObjectKind::Cq, this.cq.cq_num(), element);
        Ok(this)
    }
}

/// Implements `ibv_create_cq(3)`.
///
/// # Safety
/// `context` is open, and `channel` is NULL or valid.
#[unsafe(export_name = "uw_ibv_create_cq")]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut sys::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    vector: c_int,
) -> *mut sys::ibv_cq {
    abi::pointer(|| {
        let cqe = usize::try_from(cqe).map_err(|_| EINVAL)?;
        let vector = u32::try_from(vector).map_err(|_| EINVAL)?;
        // SAFETY: the caller passes an open context, and a channel that is NULL or valid.
        let cq = unsafe { Cq::make(context, cqe, cq_context, channel, vector) }?;
        Ok(Box::leak(cq).as_c().cast())
    })
}

/// Implements `ibv_resize_cq(3)`.
///
/// # Safety
/// `cq` is valid.
#[unsafe(export_name = "uw_ibv_resize_cq")]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut sys::ibv_cq, cqe: c_int) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Cq::of(cq) };
        let entries =
            usize::try_from(cqe).ok().filter(|&cqe| cqe > 0 && cqe <= limits::MAX_CQE).ok_or(EINVAL)?;
        resources::check_for_object(entries * resources::COMPLETION_BYTES)?;
        // A turn of the engine adds the completions of requests that were posted just before, so that these
        // completions are counted.
        let _ = this.is_empty();
        this.cq.resize(entries)?;
        // SAFETY: the program does not use the queue in another thread during the resize.
        unsafe { (*this.c.get()).cqe = cqe };
        Ok(())
    })
}

/// Implements `ibv_destroy_cq(3)`: waits until all events that were delivered are acknowledged.
///
/// # Safety
/// `cq` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_ibv_destroy_cq")]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Cq::of(cq) };
        this.check()?;
        if this.use_count.in_use() {
            return Err(EBUSY);
        }
        let (context, channel) = (this.context(), this.channel());
        if !channel.is_null() {
            // SAFETY: a channel is not destroyed while it has completion queues.
            let channel = unsafe { CompChannel::of(channel) };
            let mut events = channel.events.lock();
            let at = this.place.swap(0, Ordering::AcqRel);
            events.remove(|other| *other == at);
            drop(events);
        }
        this.process.async_events.forget(ObjectKind::Cq, this.cq.cq_num());
        // The events are removed before the wait, so that no further event is delivered.
        this.pending_acks.wait();
        this.process.async_events.remove(this.as_c() as usize);
        if !channel.is_null() {
            // SAFETY: a channel is not destroyed while it has completion queues.
            unsafe { CompChannel::of(channel) }.remove();
        }
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        // SAFETY: a context is not freed while it has objects.
        unsafe { OpenDevice::of(context) }.remove();
        Ok(())
    })
}

/// Implements `ibv_poll_cq(3)`: moves completions to the program. If the queue is empty, polls the engine
/// first.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, count: c_int, out: *mut sys::ibv_wc) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Cq::of(cq) };
        let wanted = usize::try_from(count).map_err(|_| EINVAL)?;
        // Most polls find no completion, and return here.
        if wanted == 0 || this.cq.is_empty() && (this.ends_drain() || this.is_empty()) {
            return Ok(0);
        }
        // SAFETY: the caller passes a writable array of `count` elements.
        let taken = unsafe { take_into(this, wanted, out) };
        // A program that gets fewer completions than it has asked for knows that the queue is empty.
        let may_drain = taken == wanted && this.cq.is_empty();
        this.drain_ends.store(if may_drain { DRAIN_ENDS } else { 0 }, Ordering::Relaxed);
        Ok(taken as c_int)
    })
}

/// Moves at most `wanted` completions to `out`. Returns the number of completions.
///
/// # Safety
/// `out` points to an array of `wanted` writable elements.
unsafe fn take_into(this: &Cq, wanted: usize, out: *mut sys::ibv_wc) -> usize {
    let mut next = out;
    let (taken, numbers) = this.poll(wanted, |completion| {
        // SAFETY: the caller's array has `wanted` elements, and at most `wanted` completions are passed.
        unsafe { next.write(wc_of(completion)) };
        // SAFETY: the result is in the array or at its end.
        next = unsafe { next.add(1) };
    });
    if let Some(numbers) = numbers {
        // SAFETY: the first `taken` elements of the caller's array were written above.
        let written = unsafe { std::slice::from_raw_parts_mut(out, taken) };
        written.iter_mut().for_each(|completion| translate(&numbers, &mut completion.qp_num));
    }
    taken
}

/// Implements `ibv_req_notify_cq(3)`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Cq::of(cq) };
        this.check()?;
        let channel = this.channel();
        if channel.is_null() {
            // Some programs request events of queues that have no channel, and expect no error.
            return Ok(());
        }
        // A program usually waits after this call. If the library does not see the wait, nobody else polls
        // the engine.
        // SAFETY: a channel is not destroyed while it has completion queues.
        if !fd_marks::WAITED.has(unsafe { CompChannel::of(channel) }.events.fd()) {
            this.process.engine.hand_over();
        }
        // UCX and Mercury wait after this call without a further poll.
        Ok(this.cq.req_notify_with_missed(solicited_only != 0)?)
    })
}

/// The status of a completion as an `ibv_wc_status`.
pub(crate) fn status_of(completion: &WorkCompletion) -> sys::ibv_wc_status {
    match completion.status {
        WcStatus::Success => sys::IBV_WC_SUCCESS,
        WcStatus::LocalQpOperationError => sys::IBV_WC_LOC_QP_OP_ERR,
        // A failed invalidation of a key is a memory management operation error (`IBV_WC_MW_BIND_ERR`).
        WcStatus::LocalProtectionError if completion.opcode == WcOpcode::LocalInvalidate => {
            sys::IBV_WC_MW_BIND_ERR
        }
        WcStatus::LocalProtectionError => sys::IBV_WC_LOC_PROT_ERR,
        WcStatus::MwBindError => sys::IBV_WC_MW_BIND_ERR,
        WcStatus::LocalLengthError => sys::IBV_WC_LOC_LEN_ERR,
        WcStatus::WrFlushError => sys::IBV_WC_WR_FLUSH_ERR,
        WcStatus::RemoteAccessError => sys::IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemoteInvalidRequest => sys::IBV_WC_REM_INV_REQ_ERR,
        WcStatus::RemoteOperationError => sys::IBV_WC_REM_OP_ERR,
        WcStatus::RetryExceeded => sys::IBV_WC_RETRY_EXC_ERR,
        WcStatus::RnrRetryExceeded => sys::IBV_WC_RNR_RETRY_EXC_ERR,
        _ => sys::IBV_WC_GENERAL_ERR,
    }
}

/// The opcode of a completion as an `ibv_wc_opcode`.
pub(crate) fn opcode_of(completion: &WorkCompletion) -> sys::ibv_wc_opcode {
    match completion.opcode {
        WcOpcode::Send => sys::IBV_WC_SEND,
        // A Write with immediate completes as a Write.
        WcOpcode::Write | WcOpcode::Immediate => sys::IBV_WC_RDMA_WRITE,
        WcOpcode::Read => sys::IBV_WC_RDMA_READ,
        WcOpcode::FetchAdd => sys::IBV_WC_FETCH_ADD,
        WcOpcode::CmpSwap | WcOpcode::Swap => sys::IBV_WC_COMP_SWAP,
        // Fast registration has no opcode of its own in user space.
        WcOpcode::LocalInvalidate | WcOpcode::FastRegister => sys::IBV_WC_LOCAL_INV,
        WcOpcode::BindWindow => sys::IBV_WC_BIND_MW,
        WcOpcode::RecvImmediate => sys::IBV_WC_RECV_RDMA_WITH_IMM,
        // `Recv`, or an opcode that was added after this function was written.
        _ => sys::IBV_WC_RECV,
    }
}

/// The value of `vendor_err`: which side reported the stream's error, and the layer, type and code of the
/// error. For a lost connection, the layer and code are those of MPA. All other completions have 0.
pub(crate) fn vendor_err_of(completion: &WorkCompletion) -> u32 {
    let Some(cause) = completion.cause else { return 0 };
    match (cause.stream(), cause.mpa_code()) {
        (Some(error), _) => {
            u32::from_be_bytes([u8::from(error.from_peer), error.layer, error.etype, error.code])
        }
        (None, Some(code)) => u32::from_be_bytes([0, 2, 0, code]),
        (None, None) => 0,
    }
}

/// The immediate data or the invalidated key of a completion, and the corresponding flags.
pub(crate) fn immediate_of(completion: &WorkCompletion) -> (u32, u32) {
    let (word, flags) = match (completion.immediate, completion.invalidated) {
        // The program's immediate data are the first four of the eight bytes sent, in network byte order.
        (Some([a, b, c, d, ..]), _) => (u32::from_ne_bytes([a, b, c, d]), sys::IBV_WC_WITH_IMM),
        (None, Some(rkey)) => (rkey, sys::IBV_WC_WITH_INV),
        (None, None) => (0, 0),
    };
    // A received datagram has a GRH.
    (word, if completion.source_qpn == 0 { flags } else { flags | sys::IBV_WC_GRH })
}

/// The service level of a received datagram. Devices of mlx5 put the type of a RoCE packet there, and UCX up
/// to version 1.13 expects this type to be there: 8 for the UDP header, plus 1 for IPv6 or 2 for IPv4.
pub(crate) fn sl_of(completion: &WorkCompletion) -> u8 {
    match (completion.source_qpn, completion.is_ipv6) {
        (0, _) => 0,
        (_, true) => 9,
        (_, false) => 10,
    }
}

/// The length of the message in bytes. For the receive of a Write with immediate, this is the length of the
/// Write.
pub(crate) fn byte_len_of(completion: &WorkCompletion) -> u32 {
    match (completion.opcode, completion.immediate) {
        (WcOpcode::RecvImmediate, Some([.., a, b, c, d])) => u32::from_be_bytes([a, b, c, d]),
        _ => completion.byte_len,
    }
}

/// Replaces the engine's queue pair number by the number that the program sees.
pub(crate) fn translate(numbers: &Numbers, qp_num: &mut u32) {
    if let Some(known) = numbers.get(qp_num) {
        *qp_num = *known;
    }
}

fn wc_of(completion: &WorkCompletion) -> sys::ibv_wc {
    let (imm_data, wc_flags) = immediate_of(completion);
    sys::ibv_wc {
        wr_id: completion.wr_id,
        status: status_of(completion),
        opcode: opcode_of(completion),
        vendor_err: vendor_err_of(completion),
        byte_len: byte_len_of(completion),
        __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 { imm_data },
        qp_num: completion.qp_num,
        src_qp: completion.source_qpn,
        sl: sl_of(completion),
        wc_flags,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use iwarp::verbs::{ConnectionError, StreamError};
    use tcp_lite::CloseReason;

    use super::*;

    fn completion(change: impl FnOnce(&mut WorkCompletion)) -> WorkCompletion {
        let mut completion = WorkCompletion::default();
        change(&mut completion);
        completion
    }

    #[test]
    fn each_status_is_that_of_c() {
        use WcStatus as Ours;
        for (status, wanted) in [
            (Ours::Success, sys::IBV_WC_SUCCESS),
            (Ours::LocalProtectionError, sys::IBV_WC_LOC_PROT_ERR),
            (Ours::MwBindError, sys::IBV_WC_MW_BIND_ERR),
            (Ours::LocalLengthError, sys::IBV_WC_LOC_LEN_ERR),
            (Ours::LocalQpOperationError, sys::IBV_WC_LOC_QP_OP_ERR),
            (Ours::WrFlushError, sys::IBV_WC_WR_FLUSH_ERR),
            (Ours::RemoteAccessError, sys::IBV_WC_REM_ACCESS_ERR),
            (Ours::RemoteInvalidRequest, sys::IBV_WC_REM_INV_REQ_ERR),
            (Ours::RemoteOperationError, sys::IBV_WC_REM_OP_ERR),
            (Ours::RetryExceeded, sys::IBV_WC_RETRY_EXC_ERR),
            (Ours::RnrRetryExceeded, sys::IBV_WC_RNR_RETRY_EXC_ERR),
        ] {
            assert_eq!(wc_of(&completion(|wc| wc.status = status)).status, wanted, "{status:?}");
        }
        let of_a_key = completion(|wc| {
            (wc.status, wc.opcode) = (Ours::LocalProtectionError, WcOpcode::LocalInvalidate);
        });
        assert_eq!(status_of(&of_a_key), sys::IBV_WC_MW_BIND_ERR);
    }

    #[test]
    fn each_operation_is_that_of_c() {
        for (opcode, wanted) in [
            (WcOpcode::Send, sys::IBV_WC_SEND),
            (WcOpcode::Write, sys::IBV_WC_RDMA_WRITE),
            (WcOpcode::Immediate, sys::IBV_WC_RDMA_WRITE),
            (WcOpcode::Read, sys::IBV_WC_RDMA_READ),
            (WcOpcode::FetchAdd, sys::IBV_WC_FETCH_ADD),
            (WcOpcode::CmpSwap, sys::IBV_WC_COMP_SWAP),
            (WcOpcode::Swap, sys::IBV_WC_COMP_SWAP),
            (WcOpcode::LocalInvalidate, sys::IBV_WC_LOCAL_INV),
            (WcOpcode::FastRegister, sys::IBV_WC_LOCAL_INV),
            (WcOpcode::BindWindow, sys::IBV_WC_BIND_MW),
            (WcOpcode::Recv, sys::IBV_WC_RECV),
            (WcOpcode::RecvImmediate, sys::IBV_WC_RECV_RDMA_WITH_IMM),
        ] {
            assert_eq!(wc_of(&completion(|wc| wc.opcode = opcode)).opcode, wanted, "{opcode:?}");
        }
    }

    #[test]
    fn the_vendors_error_has_the_cause_byte_by_byte() {
        let stream =
            |from_peer| ConnectionError::Stream(StreamError { layer: 1, etype: 2, code: 3, from_peer });
        for (cause, wanted) in [
            (None, 0),
            (Some(stream(false)), 0x0001_0203),
            (Some(stream(true)), 0x0101_0203),
            // A lost connection is reported with MPA's code.
            (Some(ConnectionError::PeerClosed), 0x0002_0001),
            (Some(ConnectionError::Tcp(CloseReason::TimedOut)), 0x0002_0001),
            (Some(ConnectionError::NoRoute), 0),
        ] {
            assert_eq!(wc_of(&completion(|wc| wc.cause = cause)).vendor_err, wanted, "{cause:?}");
        }
    }

    #[test]
    fn an_immediate_and_the_bytes_of_its_write_are_the_peers() {
        let written = completion(|wc| {
            (wc.opcode, wc.byte_len) = (WcOpcode::RecvImmediate, 8);
            wc.immediate = Some([1, 2, 3, 4, 0, 1, 0, 2]);
        });
        let (imm_data, flags) = immediate_of(&written);
        assert_eq!((imm_data.to_ne_bytes(), flags), ([1, 2, 3, 4], sys::IBV_WC_WITH_IMM));
        assert_eq!(byte_len_of(&written), 0x0001_0002);
        let sent = completion(|wc| {
            (wc.opcode, wc.byte_len, wc.immediate) = (WcOpcode::Recv, 8, Some([1, 2, 3, 4, 0, 0, 0, 0]));
        });
        assert_eq!((immediate_of(&sent).1, byte_len_of(&sent)), (sys::IBV_WC_WITH_IMM, 8));
        let invalidated = completion(|wc| wc.invalidated = Some(7));
        assert_eq!(immediate_of(&invalidated), (7, sys::IBV_WC_WITH_INV));
        assert_eq!(immediate_of(&completion(|_| ())), (0, 0));
    }
}
