//! Translates C requests into the engine's requests.

use arrayvec::ArrayVec;
use iwarp::verbs::{AtomicOp, BindWindow, MAX_SGE, RecvRequest, RemoteAddr, SendFlags, SendOp, Sge};

use crate::ffi::abi::{EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::{fork, sys};
use crate::ibverbs::ah::Ah;
use crate::ibverbs::mr::{Flags, access_of};

/// The bits of the number of a queue pair.
const QPN_MASK: u32 = 0xFF_FFFF;

/// # Safety
/// `length` bytes from `at` are readable for the lifetime of the result.
pub(crate) unsafe fn bytes_at<'a>(at: *const u8, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller promises that `length` bytes from `at` are readable.
        _ => unsafe { std::slice::from_raw_parts(at, length) },
    }
}

/// The elements of a request. Programs may have the elements in packed structs (libiscsi), so the elements
/// need not be aligned.
///
/// # Safety
/// `count` elements from `list` are readable. If `count` is 0, `list` is not used.
pub(crate) unsafe fn elements(
    list: *const sys::ibv_sge,
    count: impl TryInto<usize>,
) -> Outcome<ArrayVec<Sge, MAX_SGE>> {
    let count = count.try_into().ok().filter(|count| *count <= MAX_SGE).ok_or(EINVAL)?;
    let sge_at = |at| {
        // SAFETY: the caller promises that `count` elements from `list` are readable.
        let sge = unsafe { list.wrapping_add(at).read_unaligned() };
        Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
    };
    Ok((0..count).map(sge_at).collect())
}

pub(crate) fn flags_of(flags: u32) -> SendFlags {
    let mut all = SendFlags::empty();
    all.set(SendFlags::SIGNALED, flags & sys::IBV_SEND_SIGNALED != 0);
    all.set(SendFlags::FENCE, flags & sys::IBV_SEND_FENCE != 0);
    all.set(SendFlags::SOLICITED, flags & sys::IBV_SEND_SOLICITED != 0);
    all.set(SendFlags::INLINE, flags & sys::IBV_SEND_INLINE != 0);
    all
}

/// The eight bytes of an immediate: the program's four bytes, and the length of the Write of this immediate.
pub(crate) fn immediate(imm_data: u32, length: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    // `imm_data` is already in network byte order.
    bytes[..4].copy_from_slice(&imm_data.to_ne_bytes());
    bytes[4..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}

pub(crate) fn op_of(request: &sys::ibv_send_wr) -> Outcome<SendOp> {
    let rdma = || {
        // SAFETY: the program has set this member for this opcode, and the member has no invalid values.
        let rdma = unsafe { request.wr.rdma };
        RemoteAddr { addr: rdma.remote_addr, rkey: rdma.rkey }
    };
    let atomic = || {
        // SAFETY: the program has set this member for this opcode, and the member has no invalid values.
        let atomic = unsafe { request.wr.atomic };
        (RemoteAddr { addr: atomic.remote_addr, rkey: atomic.rkey }, atomic.compare_add, atomic.swap)
    };
    // SAFETY: both members of the union are numbers of 32 bits.
    let imm_or_key = unsafe { request.__bindgen_anon_1.imm_data };
    Ok(match request.opcode {
        sys::IBV_WR_RDMA_WRITE => SendOp::Write { remote: rdma() },
        sys::IBV_WR_RDMA_WRITE_WITH_IMM => {
            // SAFETY: the caller promises that the list of elements is readable.
            let elements = unsafe { elements(request.sg_list, request.num_sge) }?;
            let length = elements.iter().map(|sge| u64::from(sge.length)).sum();
            SendOp::WriteImmediate { remote: rdma(), data: immediate(imm_or_key, length) }
        }
        sys::IBV_WR_SEND => SendOp::Send,
        sys::IBV_WR_SEND_WITH_IMM => send_immediate(imm_or_key),
        sys::IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate { rkey: imm_or_key },
        sys::IBV_WR_RDMA_READ => SendOp::Read { remote: rdma() },
        sys::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let (remote, add, _) = atomic();
            SendOp::Atomic { remote, op: AtomicOp::FetchAdd { add, mask: 0 } }
        }
        sys::IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (remote, compare, swap) = atomic();
            SendOp::Atomic { remote, op: compare_swap(compare, swap) }
        }
        sys::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { rkey: imm_or_key },
        sys::IBV_WR_BIND_MW => {
            // SAFETY: the program has set this member for this opcode, and the member has no invalid values.
            let bind = unsafe { request.__bindgen_anon_2.bind_mw };
            // SAFETY: the program passes a window that is valid during the call.
            let rkey = unsafe { take_key(bind.mw, bind.rkey) };
            SendOp::BindWindow(bind_of(rkey, &bind.bind_info)?)
        }
        _ => return Err(EOPNOTSUPP),
    })
}

/// The operation of a request on a queue pair of type UD.
pub(crate) fn datagram_of(request: &sys::ibv_send_wr) -> Outcome<SendOp> {
    let immediate = match request.opcode {
        sys::IBV_WR_SEND => None,
        // SAFETY: both members of the union are numbers of 32 bits.
        sys::IBV_WR_SEND_WITH_IMM => Some(unsafe { request.__bindgen_anon_1.imm_data }),
        _ => return Err(EINVAL),
    };
    // SAFETY: the program has set this member, and the member has no invalid values.
    let ud = unsafe { request.wr.ud };
    // SAFETY: the program passes NULL or a handle that is valid during the call.
    unsafe { datagram(ud.ah, (ud.remote_qpn, ud.remote_qkey), immediate) }
}

/// Returns a datagram to a queue pair with this number and Q_Key. `imm_data` is in network byte order.
///
/// # Safety
/// `ah` is NULL, or is valid during the call.
pub(crate) unsafe fn datagram(
    ah: *mut sys::ibv_ah,
    (remote_qpn, remote_qkey): (u32, u32),
    imm_data: Option<u32>,
) -> Outcome<SendOp> {
    if ah.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the caller passes a handle that is valid during the call.
    let to = unsafe { Ah::of(ah) }.to(remote_qpn)?;
    // Devices send the lower bits of a number that has more bits.
    let remote_qpn = remote_qpn & QPN_MASK;
    Ok(SendOp::Datagram { to, remote_qpn, remote_qkey, immediate: imm_data.map(u32::to_ne_bytes) })
}

pub(crate) fn compare_swap(compare: u64, swap: u64) -> AtomicOp {
    AtomicOp::CmpSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

pub(crate) fn send_immediate(imm_data: u32) -> SendOp {
    // `imm_data` is already in network byte order.
    SendOp::SendImmediate { data: imm_data.to_ne_bytes() }
}

/// The rkey for binding a window. For a type 2 window, the program chooses only the last byte, and reads the
/// whole rkey from the window afterwards, as with kernel drivers. For any other window, the result is
/// `chosen`.
///
/// # Safety
/// `window` is NULL or valid, and no other thread uses the window.
pub(crate) unsafe fn take_key(window: *mut sys::ibv_mw, chosen: u32) -> u32 {
    // SAFETY: the caller promises that `window` is NULL or valid, and that no other thread uses the window.
    let Some(window) = (unsafe { window.as_mut() }).filter(|window| window.type_ == sys::IBV_MW_TYPE_2)
    else {
        return chosen;
    };
    window.rkey = (window.rkey & !0xff) | (chosen & 0xff);
    window.rkey
}

pub(crate) fn bind_of(rkey: u32, info: &sys::ibv_mw_bind_info) -> Outcome<BindWindow> {
    let lkey = match info.mr.is_null() {
        true if info.length > 0 => return Err(EINVAL),
        true => 0,
        // SAFETY: the program passes a region that is valid during the call.
        false => unsafe { (*info.mr).lkey },
    };
    // `access_of` accepts remote writes and atomics only together with LOCAL_WRITE, which programs do not set
    // for a window. So LOCAL_WRITE is added for this check, and removed afterwards.
    let Flags { access, zero_based, on_demand } =
        access_of(info.mw_access_flags | sys::IBV_ACCESS_LOCAL_WRITE)?;
    if on_demand {
        return Err(EOPNOTSUPP);
    }
    let access = access - iwarp::memory::Access::LOCAL_WRITE;
    Ok(BindWindow { rkey, lkey, addr: info.addr, length: info.length, access, zero_based })
}

/// Sets `bad` to the first request if this process is a forked child, in which posting fails. Each posting
/// function calls this function first.
///
/// # Safety
/// `bad` is writable.
pub(crate) unsafe fn mark_in_child<T>(first: *mut T, bad: *mut *mut T) {
    if fork::is_child() {
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *bad = first };
    }
}

/// Posts each receive of a list. If a receive cannot be posted, stops and sets `bad` to this receive.
///
/// # Safety
/// The list is readable and ends with NULL, and `bad` is writable.
pub(crate) unsafe fn post_each(
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
    post: impl Fn(&RecvRequest) -> Outcome<()>,
) -> Outcome<()> {
    let mut next = first;
    // SAFETY: the caller passes a list that ends with NULL.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: the caller's list of elements is readable.
        let posted = unsafe { elements(request.sg_list, request.num_sge) }
            .and_then(|sg_list| post(&RecvRequest { wr_id: request.wr_id, sg_list }));
        if let Err(error) = posted {
            // SAFETY: the caller passes a pointer to writable memory.
            unsafe { *bad = next };
            return Err(error);
        }
        next = request.next;
    }
    Ok(())
}
