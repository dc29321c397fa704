//! Queue pairs of the extended interface (`ibv_create_qp_ex` with `send_ops_flags`): the program builds each
//! request by several calls, and posts the requests together.

use iwarp::verbs::{AtomicOp, RemoteAddr, SendFlags, SendOp, SendRequest, Sge};
use libc::{c_int, c_void};

use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::sys;
use crate::ibverbs::critical_section::CriticalSection;
use crate::ibverbs::qp::{Extension, Qp};
use crate::ibverbs::work_request::{self, bytes_at, compare_swap, elements, flags_of};
use crate::ibverbs::wr_batch::{InlineBytes, WrBatch, WrBuilder};

/// The operations that a program can request.
const OPS: u64 = (sys::IBV_QP_EX_WITH_RDMA_WRITE
    | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | sys::IBV_QP_EX_WITH_SEND
    | sys::IBV_QP_EX_WITH_SEND_WITH_IMM
    | sys::IBV_QP_EX_WITH_RDMA_READ
    | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | sys::IBV_QP_EX_WITH_LOCAL_INV
    | sys::IBV_QP_EX_WITH_BIND_MW
    | sys::IBV_QP_EX_WITH_SEND_WITH_INV) as u64;

/// The operations that a program can request for a queue pair of type UC.
const OPS_OF_UC: u64 = OPS
    & !((sys::IBV_QP_EX_WITH_RDMA_READ
        | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | sys::IBV_QP_EX_WITH_SEND_WITH_INV) as u64);

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut sys::ibv_context,
    init: *mut sys::ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    abi::pointer(|| {
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let init = unsafe { &mut *init };
        let known = sys::IBV_QP_INIT_ATTR_PD
            | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            | sys::IBV_QP_INIT_ATTR_CREATE_FLAGS;
        if init.comp_mask & sys::IBV_QP_INIT_ATTR_PD == 0 {
            return Err(EINVAL);
        }
        if init.comp_mask & !known != 0 {
            return Err(EOPNOTSUPP);
        }
        let extended = init.comp_mask & sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let ops = if init.qp_type == sys::IBV_QPT_UC { OPS_OF_UC } else { OPS };
        if extended && init.send_ops_flags & !ops != 0 {
            return Err(EOPNOTSUPP);
        }
        let flags = match init.comp_mask & sys::IBV_QP_INIT_ATTR_CREATE_FLAGS {
            0 => 0,
            _ => init.create_flags,
        };
        let block = sys::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
        let possible = if init.qp_type == sys::IBV_QPT_UD { block } else { 0 };
        if flags & !possible != 0 {
            return Err(EOPNOTSUPP);
        }
        let extension =
            Extension { batch: extended.then(WrBatch::default), blocks_own_multicast: flags & block != 0 };
        let mut plain = sys::ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        // SAFETY: the caller passes a valid domain, and `init` names only valid objects.
        let qp = unsafe { Qp::make(init.pd, &mut plain, extension) }?;
        init.cap = plain.cap;
        let qp = Box::leak(qp).as_c();
        if extended {
            // SAFETY: the queue pair was made above, and nobody else uses it.
            give_calls(unsafe { &mut *qp });
        }
        Ok(qp.cast())
    })
}

fn give_calls(qp: &mut sys::ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

/// Implements `ibv_qp_to_qp_ex(3)`: returns NULL for a queue pair that was made without the calls of
/// `ibv_qp_ex`.
///
/// # Safety
/// `qp` is valid.
#[unsafe(export_name = "uw_ibv_qp_to_qp_ex")]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut sys::ibv_qp) -> *mut sys::ibv_qp_ex {
    // SAFETY: the caller passes a queue pair that is valid during the call.
    let this = unsafe { Qp::of(qp) };
    if this.batch.is_some() { this.as_c() } else { std::ptr::null_mut() }
}

fn section(qp: &Qp) -> Outcome<&CriticalSection<WrBatch>> {
    qp.batch.as_ref().ok_or(EINVAL)
}

/// Starts a request with operation `op`. If `op` is an error, no request is started, and `ibv_wr_complete`
/// will fail.
fn begin(qp: *mut sys::ibv_qp_ex, op: Outcome<SendOp>, write_imm: Option<u32>) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp.cast()) };
        // SAFETY: the program has set the fields before this call, in this thread.
        let wr_id = unsafe { (*qp).wr_id };
        // SAFETY: the program has set the fields before this call, in this thread.
        let flags = unsafe { (*qp).wr_flags };
        let mut batch = section(this)?.inside()?;
        match op {
            Ok(op) => {
                let request = SendRequest::empty(wr_id, op).flags(flags_of(flags) - SendFlags::INLINE);
                batch.requests.push(WrBuilder { request, inline: None, write_imm });
            }
            Err(error) => {
                batch.error.get_or_insert(error);
            }
        }
        Ok(())
    });
}

/// Changes the request that was started last. If there is no request or `change` fails, `ibv_wr_complete`
/// will fail.
fn set(qp: *mut sys::ibv_qp_ex, change: impl FnOnce(&mut WrBuilder) -> Outcome<()>) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let mut batch = section(unsafe { Qp::of(qp.cast()) })?.inside()?;
        let changed = batch.requests.last_mut().ok_or(EINVAL).and_then(change);
        if let Err(error) = changed {
            batch.error.get_or_insert(error);
        }
        Ok(())
    });
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut sys::ibv_qp_ex,
    ah: *mut sys::ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    set(qp, |builder| {
        let immediate = match builder.request.op {
            SendOp::Send => None,
            SendOp::SendImmediate { data } => Some(u32::from_ne_bytes(data)),
            _ => return Err(EINVAL),
        };
        // SAFETY: the program passes a handle that is valid during the call.
        builder.request.op = unsafe { work_request::datagram(ah, (remote_qpn, remote_qkey), immediate) }?;
        Ok(())
    });
}

unsafe extern "C" fn wr_start(qp: *mut sys::ibv_qp_ex) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        section(unsafe { Qp::of(qp.cast()) })?.enter()?.clear();
        Ok(())
    });
}

unsafe extern "C" fn wr_abort(qp: *mut sys::ibv_qp_ex) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        section(unsafe { Qp::of(qp.cast()) })?.leave()?.clear();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut sys::ibv_qp_ex) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a queue pair that is valid during the call.
        let this = unsafe { Qp::of(qp.cast()) };
        // The guard is dropped after the last request of the batch is posted. Until then no other thread
        // posts.
        let mut batch = section(this)?.leave()?;
        let error = batch.error.take();
        let mut requests = std::mem::take(&mut batch.requests);
        if let Some(error) = error {
            return Err(error);
        }
        let sends_from = if this.is_ud() { sys::IBV_QPS_RTS } else { sys::IBV_QPS_RTR };
        if this.state() < sends_from {
            return Err(EINVAL);
        }
        let current = this.current();
        requests.iter_mut().for_each(finish);
        // If there is no room for all requests, no request is posted.
        if !current.has_room(&requests) {
            return Err(abi::ENOMEM);
        }
        this.post(current, |list| {
            let _others_wait = batch;
            if requests.len() > 1 {
                requests.iter().try_for_each(|WrBuilder { request, inline, .. }| {
                    list.check(request, inline.as_deref())
                })?;
            }
            requests.iter().try_for_each(|WrBuilder { request, inline, .. }| match inline {
                Some(bytes) => list.push(request, Some(&[bytes])),
                None => list.push(request, None),
            })
        })
    })
}

/// Completes a request when all parts of the request are known: a Write's immediate also contains the length
/// of the Write.
fn finish(builder: &mut WrBuilder) {
    let WrBuilder { request, inline, write_imm } = builder;
    let length = inline.as_ref().map_or_else(|| request.length(), |bytes| bytes.len() as u64);
    if let (Some(imm), SendOp::WriteImmediate { data, .. }) = (*write_imm, &mut request.op) {
        *data = work_request::immediate(imm, length);
    }
}

unsafe extern "C" fn wr_send(qp: *mut sys::ibv_qp_ex) {
    begin(qp, Ok(SendOp::Send), None);
}

unsafe extern "C" fn wr_send_imm(qp: *mut sys::ibv_qp_ex, imm: u32) {
    begin(qp, Ok(work_request::send_immediate(imm)), None);
}

unsafe extern "C" fn wr_send_inv(qp: *mut sys::ibv_qp_ex, rkey: u32) {
    begin(qp, Ok(SendOp::SendInvalidate { rkey }), None);
}

unsafe extern "C" fn wr_rdma_write(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64) {
    begin(qp, Ok(SendOp::Write { remote: RemoteAddr { addr, rkey } }), None);
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let remote = RemoteAddr { addr, rkey };
    begin(qp, Ok(SendOp::WriteImmediate { remote, data: [0; 8] }), Some(imm));
}

unsafe extern "C" fn wr_rdma_read(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64) {
    begin(qp, Ok(SendOp::Read { remote: RemoteAddr { addr, rkey } }), None);
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut sys::ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    begin(
        qp,
        Ok(SendOp::Atomic { remote: RemoteAddr { addr, rkey }, op: compare_swap(compare, swap) }),
        None,
    );
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut sys::ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let op = AtomicOp::FetchAdd { add, mask: 0 };
    begin(qp, Ok(SendOp::Atomic { remote: RemoteAddr { addr, rkey }, op }), None);
}

unsafe extern "C" fn wr_local_inv(qp: *mut sys::ibv_qp_ex, rkey: u32) {
    begin(qp, Ok(SendOp::LocalInvalidate { rkey }), None);
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut sys::ibv_qp_ex,
    mw: *mut sys::ibv_mw,
    rkey: u32,
    info: *const sys::ibv_mw_bind_info,
) {
    // SAFETY: the caller passes a window that is valid during the call.
    let kind = unsafe { (*mw).type_ };
    // SAFETY: the caller passes a window that is valid during the call.
    let rkey = unsafe { work_request::take_key(mw, rkey) };
    // SAFETY: the caller passes a pointer to a readable struct.
    let bind = work_request::bind_of(rkey, unsafe { &*info });
    let op = if kind == sys::IBV_MW_TYPE_2 { bind.map(SendOp::BindWindow) } else { Err(EINVAL) };
    begin(qp, op, None);
}

unsafe extern "C" fn wr_set_sge(qp: *mut sys::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    set(qp, |builder| {
        builder.request.sg_list.clear();
        builder.request.sg_list.push(Sge { addr, length, lkey });
        Ok(())
    });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut sys::ibv_qp_ex, count: usize, list: *const sys::ibv_sge) {
    set(qp, |builder| {
        // SAFETY: the caller passes `count` readable elements.
        builder.request.sg_list = unsafe { elements(list, count) }?;
        Ok(())
    });
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut sys::ibv_qp_ex, addr: *mut c_void, length: usize) {
    set(qp, |builder| {
        // SAFETY: the caller passes `length` readable bytes, which do not change during the call.
        let bytes = unsafe { bytes_at(addr.cast(), length) };
        builder.inline = Some(InlineBytes::of([bytes].into_iter())?);
        Ok(())
    });
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut sys::ibv_qp_ex,
    count: usize,
    list: *const sys::ibv_data_buf,
) {
    set(qp, |builder| {
        let parts = (0..count).map(|at| {
            // SAFETY: the caller passes `count` readable elements, which need not be aligned.
            let part = unsafe { list.wrapping_add(at).read_unaligned() };
            // SAFETY: the caller passes readable bytes, which do not change during the call.
            unsafe { bytes_at(part.addr.cast(), part.length) }
        });
        builder.inline = Some(InlineBytes::of(parts)?);
        Ok(())
    });
}
