//! Multicast groups of identifiers of datagram services.
//!
//! RoCE has no subnet manager, so a join succeeds at once. As in librdmacm, the queue pair of the identifier
//! is attached to the group when the program reads the event of the join, and detached when it leaves.

use std::net::SocketAddr;
use std::sync::Arc;

use iwarp::roce::{self, Qpn};
use libc::{c_int, c_void};

use super::event_channel::Event;
use super::id::Id;
use super::service::{Join, Step};
use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Errno, Outcome};
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::{sockaddr, sys};
use crate::ibverbs::ah;
use crate::ibverbs::mcast;
use crate::ibverbs::qp::Qp;

const EADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);

/// Implements `rdma_join_multicast(3)`.
///
/// # Safety
/// `id` is valid, and `address` is a socket address.
#[unsafe(export_name = "uw_rdma_join_multicast")]
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut sys::rdma_cm_id,
    address: *mut sys::sockaddr,
    context: *mut c_void,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a socket address.
        let address = unsafe { sockaddr::read(address.cast()) }.ok_or(EINVAL)?;
        join(this, address, true, context)
    })
}

/// Implements `rdma_join_multicast_ex(3)`.
///
/// # Safety
/// `id` is valid, and `attr` is readable. The address of `attr` is a socket address.
#[unsafe(export_name = "uw_rdma_join_multicast_ex")]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut sys::rdma_cm_id,
    attr: *mut sys::rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a pointer to a readable struct.
        let attr = unsafe { *attr };
        if attr.comp_mask >= sys::RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(EOPNOTSUPP);
        }
        let both = sys::RDMA_CM_JOIN_MC_ATTR_ADDRESS | sys::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != both || attr.join_flags >= sys::RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a socket address.
        let address = unsafe { sockaddr::read(attr.addr.cast()) }.ok_or(EINVAL)?;
        join(this, address, attr.join_flags == sys::RDMA_MC_JOIN_FLAG_FULLMEMBER, context)
    })
}

/// Implements `rdma_leave_multicast(3)`: waits until the event of the join is acknowledged.
///
/// # Safety
/// `id` is valid, and `address` is a socket address.
#[unsafe(export_name = "uw_rdma_leave_multicast")]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut sys::rdma_cm_id,
    address: *mut sys::sockaddr,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a socket address.
        let address = unsafe { sockaddr::read(address.cast()) }.ok_or(EINVAL)?;
        leave(this, address)
    })
}

/// Joins a group, and queues the event of the join. As in the kernel, the identifier has to be bound to the
/// device or to have the address of a peer, and must not have asked its peer.
fn join(id: &Id, address: SocketAddr, receives: bool, context: *mut c_void) -> Outcome<c_int> {
    let group = address.ip().to_canonical();
    let gid = roce::group_gid(group).ok_or(EINVAL)?;
    if !id.is_datagram() || id.fields().verbs.is_null() || id.state().datagram.step != Step::Begun {
        return Err(EINVAL);
    }
    id.process.net.group_on_wire(group).ok_or(EOPNOTSUPP)?;
    let join = Arc::new(Join { group, receives, attach, pending_acks: PendingAcks::default() });
    let qkey = {
        let mut state = id.state();
        state.datagram.joins.push(Arc::clone(&join));
        state.datagram.qkey()
    };
    let param = sys::rdma_ud_param {
        private_data: context,
        ah_attr: ah::attr_of_gid(id.process, gid),
        qp_num: Qpn::MULTICAST.get(),
        qkey,
        ..Default::default()
    };
    let event = Event::new(id.as_c(), &id.pending_acks, sys::RDMA_CM_EVENT_MULTICAST_JOIN, 0);
    id.push(event.with_join(join, param));
    id.complete()?;
    Ok(0)
}

/// Attaches the queue pair of the identifier to a group. The program reads the event of the join, and has not
/// destroyed the identifier, since that waits for the event.
fn attach(id: *mut sys::rdma_cm_id, join: &Join) -> Outcome<()> {
    // SAFETY: the identifier is not destroyed before its event is acknowledged.
    let this = unsafe { Id::of(id) }?;
    set_group(this, join, true)
}

fn set_group(id: &Id, join: &Join, attach: bool) -> Outcome<()> {
    let qp = id.fields().qp;
    if qp.is_null() || !join.receives {
        return Ok(());
    }
    // SAFETY: the queue pair is not destroyed yet: `rdma_destroy_qp` sets the field to NULL.
    mcast::set_group(unsafe { Qp::of(qp) }, join.group, attach)
}

fn leave(id: &Id, address: SocketAddr) -> Outcome<c_int> {
    let group = address.ip().to_canonical();
    let join = {
        let mut state = id.state();
        let joins = &mut state.datagram.joins;
        let at = joins.iter().position(|join| join.group == group).ok_or(EADDRNOTAVAIL)?;
        joins.remove(at)
    };
    // A synchronous identifier keeps the event of its last call.
    id.forget_event();
    let events = Arc::clone(&id.state().events);
    events.lock().remove(|event| event.is_of_join(&join));
    join.pending_acks.wait();
    set_group(id, &join, false)?;
    Ok(0)
}
