//! Multicast groups of queue pairs of type UD.

use std::net::IpAddr;

use iwarp::roce;
use iwarp::verbs::VerbsError;
use libc::c_int;

use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::sys;
use crate::ibverbs::qp::Qp;

/// Implements `ibv_attach_mcast(3)`.
///
/// # Safety
/// `qp` is valid, and `gid` is readable.
#[unsafe(export_name = "uw_ibv_attach_mcast")]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut sys::ibv_qp,
    gid: *const sys::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller passes a valid queue pair, and a readable GID.
    abi::status(|| unsafe { set_group_of_gid(qp, gid, true) })
}

/// Implements `ibv_detach_mcast(3)`.
///
/// # Safety
/// `qp` is valid, and `gid` is readable.
#[unsafe(export_name = "uw_ibv_detach_mcast")]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut sys::ibv_qp,
    gid: *const sys::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller passes a valid queue pair, and a readable GID.
    abi::status(|| unsafe { set_group_of_gid(qp, gid, false) })
}

/// # Safety
/// `qp` is valid, and `gid` is readable.
unsafe fn set_group_of_gid(qp: *mut sys::ibv_qp, gid: *const sys::ibv_gid, attach: bool) -> Outcome<()> {
    // SAFETY: the caller passes a queue pair that is valid during the call.
    let this = unsafe { Qp::of(qp) };
    // SAFETY: the caller passes a pointer to a readable GID.
    let gid = unsafe { *gid };
    // SAFETY: `raw` is an array of bytes, which has no invalid values.
    let gid = unsafe { gid.raw };
    let group = roce::group_of_gid(&gid).ok_or(EINVAL)?;
    set_group(this, group, attach)
}

/// Attaches the queue pair to a group, or detaches it. When the call returns, a queue pair that is open
/// receives, or no longer receives, the messages to the group. Any other queue pair receives them when it is
/// open.
pub(crate) fn set_group(qp: &Qp, group: IpAddr, attach: bool) -> Outcome<()> {
    if !qp.is_ud() || !group.is_multicast() {
        return Err(EINVAL);
    }
    let process = qp.process;
    let group = process.net.group_on_wire(group).ok_or(EOPNOTSUPP)?;
    let of_engine = {
        let (context, current) = (&process.context, qp.current());
        match attach {
            true => {
                process.groups.attach(group, qp.number())?;
                context.attach_group(&current.qp, group)
            }
            false => {
                process.groups.detach(group, qp.number());
                context.detach_group(&current.qp, group)
            }
        }
    };
    match of_engine {
        // The queue pair is not open.
        Err(VerbsError::NoEngine) => return Ok(()),
        other => other?,
    }
    // When the call returns, the interface receives the group's frames.
    process.engine.poll();
    Ok(())
}
