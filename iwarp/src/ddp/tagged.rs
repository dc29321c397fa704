//! The checks of a tagged segment before its placement (RFC 5041 section 7.1).
//!
//! An empty segment is not checked. Otherwise the order is: STag known, associated, writable; then no wrap of
//! the tagged offset, and the range inside the registration.

use crate::ddp::error::DdpError;
use crate::ddp::header::TaggedHeader;
use crate::memory::{Accessor, EpochGuard, Target};

/// The target of the payload of an RDMA Write segment; `None` for an empty segment.
///
/// # Errors
/// The first check that fails, as [`DdpError`] 0x1/0x00 to 0x1/0x03.
pub fn check<'t>(
    header: &TaggedHeader,
    payload_len: usize,
    by: Accessor,
    guard: &'t EpochGuard<'t>,
) -> Result<Option<Target<'t>>, DdpError> {
    // RFC 5041 section 5.2 (DDP-119, DDP-120): STag and TO of an empty segment are not checked.
    if payload_len == 0 {
        return Ok(None);
    }
    // RFC 5041 section 7.1 (DDP-179): a segment with payload passes all five checks before placement.
    let target = guard.check_write(header.stag, header.to, payload_len as u64, by)?;
    Ok(Some(target))
}
