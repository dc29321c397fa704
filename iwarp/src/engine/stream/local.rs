//! Requests that send nothing: local invalidation, window binding, fast registration. They take effect in their turn
//! among the requests around them.

use crate::memory::{Stag, Turn};
use crate::verbs::{SendOp, WcStatus};

use super::Common;

/// Carries out a local request.
///
/// # Errors
/// How the request completes when it cannot be done.
pub(super) fn run(op: &SendOp, common: &Common, turn: &Turn) -> Result<(), WcStatus> {
    match *op {
        SendOp::LocalInvalidate { rkey } => {
            turn.invalidate_local(Stag(rkey), common.by).map_err(|_| WcStatus::LocalProtectionError)
        }
        // Refused when posted.
        _ => Err(WcStatus::LocalProtectionError),
    }
}
