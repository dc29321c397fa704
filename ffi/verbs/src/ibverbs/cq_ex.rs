//! Completion queues of the extended interface (`ibv_create_cq_ex`): one completion at a time, field by
//! field.

use iwarp::verbs::WorkCompletion;
use libc::c_int;

use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::sys;
use crate::ibverbs::clock;
use crate::ibverbs::cq::{self, Cq, Polled, Timestamps};
use crate::ibverbs::pd::Pd;

/// The completion fields that this library supports.
const FIELDS: u64 = (sys::IBV_WC_EX_WITH_BYTE_LEN
    | sys::IBV_WC_EX_WITH_IMM
    | sys::IBV_WC_EX_WITH_QP_NUM
    | sys::IBV_WC_EX_WITH_SRC_QP
    | sys::IBV_WC_EX_WITH_SLID
    | sys::IBV_WC_EX_WITH_SL
    | sys::IBV_WC_EX_WITH_DLID_PATH_BITS
    | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut sys::ibv_context,
    init: *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex {
    abi::pointer(|| {
        // SAFETY: the caller passes a pointer to a readable struct.
        let init = unsafe { &*init };
        if init.wc_flags & !FIELDS != 0 {
            return Err(EOPNOTSUPP);
        }
        let known = sys::IBV_CQ_INIT_ATTR_MASK_FLAGS | sys::IBV_CQ_INIT_ATTR_MASK_PD;
        if init.comp_mask & !known != 0 {
            return Err(EINVAL);
        }
        let has_flags = init.comp_mask & sys::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let mut is_for_one_thread = has_flags && init.flags & sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        if init.comp_mask & sys::IBV_CQ_INIT_ATTR_MASK_PD != 0 {
            if init.parent_domain.is_null() {
                return Err(EINVAL);
            }
            // SAFETY: the caller passes a domain that is valid during the call.
            let parent = unsafe { Pd::of(init.parent_domain) };
            parent.check()?;
            if !parent.is_parent() {
                return Err(EINVAL);
            }
            is_for_one_thread |= parent.is_for_one_thread();
        }
        if has_flags && init.flags & !(sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0 {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the caller passes an open context, and a channel that is NULL or valid.
        let mut cq =
            unsafe { Cq::make(context, init.cqe as usize, init.cq_context, init.channel, init.comp_vector) }?;
        if is_for_one_thread {
            cq.polled.for_one_thread();
        }
        let asks_for = |flag: u32| init.wc_flags & u64::from(flag) != 0;
        cq.timestamps = Timestamps {
            clock: asks_for(sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
            wall: asks_for(sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK),
        };
        let cq = Box::leak(cq).as_c();
        // SAFETY: the queue was made above, and nobody else uses it.
        let c = unsafe { &mut *cq };
        c.start_poll = Some(start_poll);
        c.next_poll = Some(next_poll);
        c.end_poll = Some(end_poll);
        c.read_opcode = Some(read_opcode);
        c.read_vendor_err = Some(read_vendor_err);
        c.read_byte_len = Some(read_byte_len);
        c.read_imm_data = Some(read_imm_data);
        c.read_qp_num = Some(read_qp_num);
        c.read_src_qp = Some(read_src_qp);
        c.read_wc_flags = Some(read_wc_flags);
        c.read_slid = Some(read_slid);
        c.read_sl = Some(read_sl);
        c.read_dlid_path_bits = Some(read_dlid_path_bits);
        c.read_completion_ts = Some(read_completion_ts);
        c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        Ok(cq)
    })
}

/// Polls the next completion, and sets the fields that programs read without a call. If `may_turn` is true
/// and the queue is empty, polls the engine first. Returns `ENOENT` if there is no completion. The calling
/// thread has entered the critical section.
fn advance(at: *mut sys::ibv_cq_ex, may_turn: bool) -> Outcome<()> {
    // SAFETY: the caller passes a queue that is valid during the call.
    let this = unsafe { Cq::of(at.cast()) };
    let mut out = WorkCompletion::default();
    let count = if may_turn && this.is_empty() {
        0
    } else {
        let (count, numbers) = this.poll(1, |completion| out = *completion);
        numbers.inspect(|numbers| cq::translate(numbers, &mut out.qp_num));
        count
    };
    let mut polled = this.polled.inside()?;
    let Timestamps { clock, wall } = this.timestamps;
    *polled = (count > 0).then(|| Polled {
        completion: out,
        clock_ns: if clock { clock::now_ns() } else { 0 },
        wall_ns: if wall { clock::wall_ns() } else { 0 },
    });
    let Polled { completion, .. } = polled.as_ref().ok_or(abi::ENOENT)?;
    // SAFETY: this thread has entered the critical section, so no other thread polls the queue.
    unsafe { (*at).wr_id = completion.wr_id };
    // SAFETY: this thread has entered the critical section, so no other thread polls the queue.
    unsafe { (*at).status = cq::status_of(completion) };
    Ok(())
}

fn number(result: Outcome<()>) -> c_int {
    result.map_or_else(|error| error.0, |()| 0)
}

unsafe extern "C" fn start_poll(at: *mut sys::ibv_cq_ex, attr: *mut sys::ibv_poll_cq_attr) -> c_int {
    number(abi::guarded(|| {
        // SAFETY: the caller passes a pointer to a readable struct.
        if unsafe { (*attr).comp_mask } != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Cq::of(at.cast()) };
        drop(this.polled.enter()?);
        // If `ibv_start_poll` fails, programs do not call `ibv_end_poll`.
        advance(at, true).inspect_err(|_| drop(this.polled.leave()))
    }))
}

unsafe extern "C" fn next_poll(at: *mut sys::ibv_cq_ex) -> c_int {
    number(abi::guarded(|| advance(at, false)))
}

unsafe extern "C" fn end_poll(at: *mut sys::ibv_cq_ex) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        drop(unsafe { Cq::of(at.cast()) }.polled.leave()?);
        Ok(())
    });
}

/// Reads a field of the current completion, or returns the default value if there is no current completion.
fn read<T: Default>(at: *mut sys::ibv_cq_ex, field: impl FnOnce(&Polled) -> T) -> T {
    abi::guarded(|| {
        // SAFETY: the caller passes a queue that is valid during the call.
        let this = unsafe { Cq::of(at.cast()) };
        let polled = this.polled.inside()?;
        Ok(polled.as_ref().map(field).unwrap_or_default())
    })
    .unwrap_or_default()
}

unsafe extern "C" fn read_opcode(at: *mut sys::ibv_cq_ex) -> sys::ibv_wc_opcode {
    read(at, |polled| cq::opcode_of(&polled.completion))
}

unsafe extern "C" fn read_vendor_err(at: *mut sys::ibv_cq_ex) -> u32 {
    read(at, |polled| cq::vendor_err_of(&polled.completion))
}

unsafe extern "C" fn read_byte_len(at: *mut sys::ibv_cq_ex) -> u32 {
    read(at, |polled| cq::byte_len_of(&polled.completion))
}

unsafe extern "C" fn read_imm_data(at: *mut sys::ibv_cq_ex) -> u32 {
    read(at, |polled| cq::immediate_of(&polled.completion).0)
}

unsafe extern "C" fn read_qp_num(at: *mut sys::ibv_cq_ex) -> u32 {
    read(at, |polled| polled.completion.qp_num)
}

unsafe extern "C" fn read_src_qp(at: *mut sys::ibv_cq_ex) -> u32 {
    read(at, |polled| polled.completion.source_qpn)
}

unsafe extern "C" fn read_wc_flags(at: *mut sys::ibv_cq_ex) -> u32 {
    read(at, |polled| cq::immediate_of(&polled.completion).1)
}

unsafe extern "C" fn read_completion_ts(at: *mut sys::ibv_cq_ex) -> u64 {
    read(at, |polled| polled.clock_ns)
}

unsafe extern "C" fn read_completion_wallclock_ns(at: *mut sys::ibv_cq_ex) -> u64 {
    read(at, |polled| polled.wall_ns)
}

unsafe extern "C" fn read_slid(_at: *mut sys::ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(at: *mut sys::ibv_cq_ex) -> u8 {
    read(at, |polled| cq::sl_of(&polled.completion))
}

unsafe extern "C" fn read_dlid_path_bits(_at: *mut sys::ibv_cq_ex) -> u8 {
    0
}
