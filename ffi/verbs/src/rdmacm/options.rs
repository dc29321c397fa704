//! Options of identifiers, and calls that have no counterpart in iWARP: ECE.

use libc::{c_int, c_void};

use super::id::Id;
use super::qp::set_ack_timeout;
use crate::ffi::abi::{self, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::sys;

/// Implements `rdma_set_option(3)`.
///
/// # Safety
/// `id` is valid, and the value is readable.
#[unsafe(export_name = "uw_rdma_set_option")]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut sys::rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    abi::minus_one(|| {
        if level != sys::RDMA_OPTION_ID as c_int {
            return Err(EINVAL);
        }
        match name as u32 {
            sys::RDMA_OPTION_ID_REUSEADDR if length == size_of::<c_int>() => {
                // SAFETY: the caller passes a value of this length.
                let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
                // SAFETY: the caller passes an identifier that is valid during the call.
                reuse_address(unsafe { Id::of(id) }?, on)
            }
            sys::RDMA_OPTION_ID_AFONLY if length == size_of::<c_int>() => {
                // SAFETY: the caller passes a value of this length.
                let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
                // SAFETY: the caller passes an identifier that is valid during the call.
                take_one_family(unsafe { Id::of(id) }?, on)
            }
            // TCP has its own retransmission timeout, so this timeout only becomes an attribute of the queue
            // pair.
            sys::RDMA_OPTION_ID_ACK_TIMEOUT if length == size_of::<u8>() => {
                // SAFETY: the caller passes a value of this length.
                let timeout = unsafe { value.cast::<u8>().read() };
                // SAFETY: the caller passes an identifier that is valid during the call.
                set_ack_timeout(unsafe { Id::of(id) }?, timeout);
                Ok(0)
            }
            sys::RDMA_OPTION_ID_TOS => Ok(0),
            _ => Err(EINVAL),
        }
    })
}

/// Sets whether other identifiers may be bound to the identifier's address (`RDMA_OPTION_ID_REUSEADDR`). As
/// in the kernel, while the identifier is bound, the program can switch the option on but not off. While the
/// identifier listens, the program cannot change the option.
fn reuse_address(id: &Id, on: bool) -> Outcome<c_int> {
    let mut state = id.state();
    let bound = state.source;
    if bound.is_some() && (!on || state.is_in_use()) {
        return Err(EINVAL);
    }
    state.reuses_address = on;
    if let Some(source) = bound {
        id.ports().update(id.as_c() as usize, source.port(), |claim| claim.reuses = on);
    }
    Ok(0)
}

/// Sets whether the identifier claims only one address family. As in the kernel, the identifier may be bound,
/// but must not listen or have a peer.
fn take_one_family(id: &Id, on: bool) -> Outcome<c_int> {
    let mut state = id.state();
    if state.is_in_use() || state.destination.is_some() {
        return Err(EINVAL);
    }
    state.family_only = Some(on);
    if let Some(source) = state.source {
        id.ports().update(id.as_c() as usize, source.port(), |claim| claim.family_only = on);
    }
    Ok(0)
}

/// Implements `rdma_set_local_ece(3)`: fails, since no options are supported.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_set_local_ece")]
pub(crate) unsafe extern "C" fn rdma_set_local_ece(_id: *mut sys::rdma_cm_id, _ece: *mut c_void) -> c_int {
    abi::minus_one(|| Err(EOPNOTSUPP))
}

/// Implements `rdma_get_remote_ece(3)`: fails, since no options are supported.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_get_remote_ece")]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(_id: *mut sys::rdma_cm_id, _ece: *mut c_void) -> c_int {
    abi::minus_one(|| Err(EOPNOTSUPP))
}
