//! Queue pairs and shared receive queues of identifiers.

use std::ptr;

use libc::c_int;

use super::id::Id;
use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Errno, Outcome};
use crate::ffi::sys;
use crate::ibverbs::comp_channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::ibverbs::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::ibverbs::qp::{Extension, Qp, ibv_destroy_qp, ibv_modify_qp};
use crate::ibverbs::srq::{ibv_create_srq, ibv_destroy_srq};
use crate::ibverbs::{ah, qp_ex};
use crate::process::limits;

/// Implements `rdma_create_qp(3)`. If `pd` is NULL, uses the identifier's domain. Makes the completion queues
/// that `init` does not name.
///
/// # Safety
/// `id` is valid, `pd` is NULL or valid, `init` is readable and writable, and the objects that `init` names
/// are valid.
#[unsafe(export_name = "uw_rdma_create_qp")]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut sys::rdma_cm_id,
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_qp_init_attr,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let init = unsafe { &mut *init };
        // SAFETY: the caller promises that `id` and the objects that `pd` and `init` name are valid.
        unsafe { create(id, pd, init) }?;
        Ok(0)
    })
}

/// Implements `rdma_create_qp_ex(3)`.
///
/// # Safety
/// The conditions of [`rdma_create_qp`].
#[unsafe(export_name = "uw_rdma_create_qp_ex")]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut sys::rdma_cm_id,
    init: *mut sys::ibv_qp_init_attr_ex,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let init = unsafe { &mut *init };
        if init.comp_mask & sys::IBV_QP_INIT_ATTR_PD == 0 {
            init.comp_mask |= sys::IBV_QP_INIT_ATTR_PD;
            init.pd = this.fields().pd;
        }
        check_type(this, init.qp_type)?;
        prepare(this, [&mut init.send_cq, &mut init.recv_cq], &mut init.srq, (&init.cap, init.qp_type))?;
        // SAFETY: the caller promises that the domain and the objects that `init` names are valid.
        let qp = unsafe { qp_ex::create_qp_ex(this.fields().verbs, init) };
        if qp.is_null() {
            let error = std::io::Error::last_os_error();
            destroy_cqs(this);
            return Err(error.into());
        }
        adopt(this, init.pd, qp)?;
        Ok(0)
    })
}

/// # Safety
/// The conditions of [`rdma_create_qp`].
pub(super) unsafe fn create(
    id: *mut sys::rdma_cm_id,
    pd: *mut sys::ibv_pd,
    init: &mut sys::ibv_qp_init_attr,
) -> Outcome<()> {
    // SAFETY: the caller passes an identifier that is valid during the call.
    let this = unsafe { Id::of(id) }?;
    let pd = if pd.is_null() { this.fields().pd } else { pd };
    check_type(this, init.qp_type)?;
    prepare(this, [&mut init.send_cq, &mut init.recv_cq], &mut init.srq, (&init.cap, init.qp_type))?;
    // SAFETY: the caller promises that the domain and the objects that `init` names are valid.
    match unsafe { Qp::make(pd, init, Extension::default()) } {
        Ok(qp) => adopt(this, pd, Box::leak(qp).as_c().cast()),
        Err(error) => {
            destroy_cqs(this);
            Err(error)
        }
    }
}

/// Checks that the identifier of a datagram service gets a queue pair of type UD, and only such an
/// identifier. The changes of state that librdmacm makes would fail for another queue pair.
fn check_type(id: &Id, qp_type: sys::ibv_qp_type) -> Outcome<()> {
    if id.is_datagram() == (qp_type == sys::IBV_QPT_UD) { Ok(()) } else { Err(EINVAL) }
}

/// Completes the attributes of a queue pair by the shared receive queue of the identifier and by completion
/// queues. Fails with `EINVAL` if the identifier already has a queue pair.
fn prepare(
    id: &Id,
    cqs: [&mut *mut sys::ibv_cq; 2],
    srq: &mut *mut sys::ibv_srq,
    (cap, qp_type): (&sys::ibv_qp_cap, sys::ibv_qp_type),
) -> Outcome<()> {
    let fields = id.fields();
    if !fields.qp.is_null() {
        return Err(EINVAL);
    }
    if qp_type == sys::IBV_QPT_UC {
        // The port spaces of rdma_cm belong to the types RC and UD.
        abi::log(|| {
            "refused: a queue pair of type UC for rdma_cm, which connects no such queue pairs".into()
        });
        return Err(EINVAL);
    }
    if srq.is_null() {
        *srq = fields.srq;
    }
    make_cqs(id, cqs, [cap.max_send_wr, cap.max_recv_wr], *srq)
}

/// The rights of a queue pair of an identifier, until the program changes them. The kernel gives these rights
/// to the queue pairs of InfiniBand and RoCE devices whose connection admits Reads. A new queue pair of the
/// engine has them.
const RIGHTS: u32 =
    sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_ATOMIC;

/// Assigns the queue pair to the identifier. Moves the queue pair of a connection to INIT, in which programs
/// can post receives, and the queue pair of a datagram service to RTS.
fn adopt(id: &Id, pd: *mut sys::ibv_pd, made: *mut sys::ibv_qp) -> Outcome<()> {
    // SAFETY: the queue pair was just made.
    let qp = unsafe { Qp::of(made) };
    if id.is_datagram() {
        // SAFETY: the queue pair was just made.
        let started = unsafe { start_datagrams(made, id.state().datagram.qkey()) };
        if let Err(error) = started {
            // SAFETY: the queue pair was just made, and nobody else uses it.
            unsafe { ibv_destroy_qp(made) };
            destroy_cqs(id);
            return Err(error);
        }
    } else {
        let mut attributes = qp.attributes();
        qp.manage();
        attributes.attr.qp_access_flags = RIGHTS;
        qp.set_state(&mut attributes, sys::IBV_QPS_INIT);
        drop(attributes);
        take_ack_timeout(id, qp);
    }
    // SAFETY: the queue pair was just made.
    let made_with = unsafe { *made };
    let (send_cq, recv_cq) = (made_with.send_cq, made_with.recv_cq);
    let _state = id.state();
    id.update(|c| {
        c.qp = made;
        c.pd = pd;
        c.send_cq = send_cq;
        c.recv_cq = recv_cq;
    });
    Ok(())
}

/// Moves a queue pair of type UD to RTS, in the steps of librdmacm.
///
/// # Safety
/// `qp` is valid.
unsafe fn start_datagrams(qp: *mut sys::ibv_qp, qkey: u32) -> Outcome<()> {
    for (qp_state, mask) in [
        (sys::IBV_QPS_INIT, sys::IBV_QP_STATE | DATAGRAM_ATTRIBUTES),
        (sys::IBV_QPS_RTR, sys::IBV_QP_STATE),
        (sys::IBV_QPS_RTS, sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN),
    ] {
        let mut attr = sys::ibv_qp_attr { qp_state, qkey, port_num: 1, ..Default::default() };
        // SAFETY: the caller passes a valid queue pair, and the attributes are readable.
        match unsafe { ibv_modify_qp(qp, &raw mut attr, mask as c_int) } {
            0 => {}
            errno => return Err(Errno(errno)),
        }
    }
    Ok(())
}

/// The attributes with which a queue pair of a datagram service enters INIT.
const DATAGRAM_ATTRIBUTES: u32 = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY;

/// Copies the timeout of the identifier to its queue pair.
fn take_ack_timeout(id: &Id, qp: &Qp) {
    let timeout = id.state().ack_timeout;
    if let Some(timeout) = timeout {
        qp.attributes().attr.timeout = timeout;
    }
}

/// Stores the option `RDMA_OPTION_ID_ACK_TIMEOUT` for the identifier's present or future queue pair.
pub(super) fn set_ack_timeout(id: &Id, timeout: u8) {
    id.state().ack_timeout = Some(timeout);
    let qp = id.fields().qp;
    if !qp.is_null() {
        // SAFETY: the queue pair of an identifier is not destroyed while the identifier has it.
        take_ack_timeout(id, unsafe { Qp::of(qp) });
    }
}

/// Makes the completion queues for which the program has passed NULL. Each made queue has its own channel.
fn make_cqs(
    id: &Id,
    [send, recv]: [&mut *mut sys::ibv_cq; 2],
    [sends, recvs]: [u32; 2],
    srq: *mut sys::ibv_srq,
) -> Outcome<()> {
    if !send.is_null() && !recv.is_null() {
        return Ok(());
    }
    let verbs = id.fields().verbs;
    if verbs.is_null() {
        return Err(EINVAL);
    }
    let recvs = match srq.is_null() {
        true => recvs,
        // SAFETY: the caller passes a shared receive queue that is valid during the call.
        false => unsafe { crate::ibverbs::srq::Srq::of(srq) }.srq.query().max_wr as u32,
    };
    let make = |cqe: u32| -> Outcome<_> {
        // SAFETY: the context of an identifier is never closed.
        let channel = unsafe { ibv_create_comp_channel(verbs) };
        if channel.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        let cqe = c_int::try_from(cqe.max(1)).map_err(|_| EINVAL)?;
        // SAFETY: the context is never closed, and the channel was just made.
        let cq = unsafe { ibv_create_cq(verbs, cqe, id.as_c().cast(), channel, 0) };
        if cq.is_null() {
            let error = std::io::Error::last_os_error();
            // SAFETY: the channel was just made, and nobody else uses it.
            unsafe { ibv_destroy_comp_channel(channel) };
            return Err(error.into());
        }
        Ok((channel, cq))
    };
    id.state().owns_cqs = true;
    if recv.is_null() {
        let (channel, cq) = make(recvs)?;
        id.update(|c| (c.recv_cq_channel, c.recv_cq) = (channel, cq));
        *recv = cq;
    }
    if send.is_null() {
        let made = make(sends).inspect_err(|_| destroy_cqs(id))?;
        id.update(|c| (c.send_cq_channel, c.send_cq) = made);
        *send = made.1;
    }
    Ok(())
}

/// Destroys the completion queues that this library has made for the identifier. The identifier has no
/// channel for a queue that the program has passed.
fn destroy_cqs(id: &Id) {
    if !std::mem::take(&mut id.state().owns_cqs) {
        return;
    }
    let fields = id.fields();
    for (channel, cq) in [(fields.recv_cq_channel, fields.recv_cq), (fields.send_cq_channel, fields.send_cq)]
    {
        if !channel.is_null() {
            // SAFETY: this library has made the queue, and its queue pair is destroyed.
            unsafe { ibv_destroy_cq(cq) };
            // SAFETY: this library has made the channel, and its queue is destroyed.
            unsafe { ibv_destroy_comp_channel(channel) };
        }
    }
    id.update(|c| {
        (c.recv_cq_channel, c.recv_cq) = (ptr::null_mut(), ptr::null_mut());
        (c.send_cq_channel, c.send_cq) = (ptr::null_mut(), ptr::null_mut());
    });
}

/// Implements `rdma_destroy_qp(3)`.
///
/// # Safety
/// `id` is valid and has a queue pair.
#[unsafe(export_name = "uw_rdma_destroy_qp")]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut sys::rdma_cm_id) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        let qp = this.fields().qp;
        if qp.is_null() {
            return Ok(());
        }
        this.update(|c| c.qp = ptr::null_mut());
        // SAFETY: the queue pair belongs to the identifier, which does not use it again.
        unsafe { ibv_destroy_qp(qp) };
        destroy_cqs(this);
        Ok(())
    });
}

/// Implements `rdma_create_srq(3)`.
///
/// # Safety
/// `id` is valid, `pd` is NULL or valid, and `init` is readable and writable.
#[unsafe(export_name = "uw_rdma_create_srq")]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut sys::rdma_cm_id,
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_srq_init_attr,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        let pd = if pd.is_null() { this.fields().pd } else { pd };
        // SAFETY: the caller promises that the domain is valid, and that `init` is readable and writable.
        let srq = unsafe { ibv_create_srq(pd, init) };
        if srq.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        this.update(|c| (c.srq, c.pd) = (srq, pd));
        Ok(0)
    })
}

/// Implements `rdma_create_srq_ex`, which `rdma_create_srq(3)` describes. XRC queues are refused.
///
/// # Safety
/// The conditions of [`rdma_create_srq`].
#[unsafe(export_name = "uw_rdma_create_srq_ex")]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut sys::rdma_cm_id,
    init: *mut sys::ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller passes a pointer to a readable and writable struct.
    let extended = unsafe { &*init };
    if extended.comp_mask & sys::IBV_SRQ_INIT_ATTR_TYPE != 0 && extended.srq_type != sys::IBV_SRQT_BASIC {
        return abi::minus_one(|| Err(EOPNOTSUPP));
    }
    let pd = if extended.comp_mask & sys::IBV_SRQ_INIT_ATTR_PD != 0 { extended.pd } else { ptr::null_mut() };
    // SAFETY: the extended struct begins with the fields of the plain struct.
    unsafe { rdma_create_srq(id, pd, init.cast()) }
}

/// Implements `rdma_destroy_srq(3)`.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_destroy_srq")]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut sys::rdma_cm_id) {
    let _ = abi::guarded(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        let srq = this.fields().srq;
        if !srq.is_null() {
            // SAFETY: the queue belongs to the identifier.
            unsafe { ibv_destroy_srq(srq) };
            this.update(|c| c.srq = ptr::null_mut());
        }
        Ok(())
    });
}

/// Implements `rdma_init_qp_attr(3)`: returns the attributes for a program that calls `ibv_modify_qp` itself.
///
/// # Safety
/// `id` is valid, `attr` is readable and writable, and `mask` is writable.
#[unsafe(export_name = "uw_rdma_init_qp_attr")]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut sys::rdma_cm_id,
    attr: *mut sys::ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a pointer to a readable and writable struct.
        let attr = unsafe { &mut *attr };
        let needed = match attr.qp_state {
            // As in the kernel, these are the attributes for every state.
            _ if this.is_datagram() => {
                (attr.port_num, attr.pkey_index) = (1, 0);
                attr.qkey = this.state().datagram.qkey();
                sys::IBV_QP_STATE | DATAGRAM_ATTRIBUTES
            }
            sys::IBV_QPS_INIT => {
                attr.qp_access_flags = RIGHTS;
                sys::IBV_QP_STATE | sys::IBV_QP_ACCESS_FLAGS
            }
            // As with iWARP drivers, the connection changes the state, so no attribute is needed. UCX reads
            // the path to the peer from the attributes.
            sys::IBV_QPS_RTR | sys::IBV_QPS_RTS => {
                let cm = this.state().cm.clone();
                if let Some((_, remote)) = cm.and_then(|cm| cm.addresses()) {
                    attr.ah_attr = ah::attr_of_address(this.process, remote.ip());
                    attr.path_mtu = limits::port(&this.process.net).active_mtu;
                }
                0
            }
            _ => return Err(EINVAL),
        };
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *mask = needed as c_int };
        Ok(0)
    })
}
