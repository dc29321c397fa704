//! Requests that send nothing: local invalidation, window binding, fast registration. These requests take
//! effect in post order with all other requests.

use crate::memory::{Accessor, Bind, EpochGuard, FastBind, Stag};
use crate::queues::{BindWindow, FastRegister, SendOp, WcStatus};

/// Executes a local request.
///
/// # Errors
/// The completion status of a request that fails.
pub(super) fn run(op: &SendOp, by: Accessor, guard: &EpochGuard<'_>) -> Result<(), WcStatus> {
    match op {
        SendOp::LocalInvalidate { rkey } => {
            guard.invalidate_local(Stag(*rkey), by).map_err(|_| WcStatus::LocalProtectionError)
        }
        SendOp::BindWindow(bind) => {
            guard.bind_window(&window_bind(bind), by).map_err(|_| WcStatus::MwBindError)
        }
        SendOp::FastRegister(register) => {
            guard.fast_register(&fast_bind(register), by).map_err(|_| WcStatus::MwBindError)
        }
        // The caller passes only local requests.
        _ => Err(WcStatus::LocalProtectionError),
    }
}

fn window_bind(bind: &BindWindow) -> Bind {
    let BindWindow { rkey, lkey, addr, length, access, zero_based } = *bind;
    Bind { stag: Stag(rkey), region: Stag(lkey), addr, len: length, access, zero_based }
}

fn fast_bind(register: &FastRegister) -> FastBind {
    let FastRegister { rkey, offset, length, access, base } = *register;
    FastBind { stag: Stag(rkey), offset, len: length, access, base }
}
