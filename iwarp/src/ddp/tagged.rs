//! The checks of a tagged segment of an RDMA Write before its placement (RFC 5041 section 7.1).
//!
//! An empty segment is not checked. For any other segment the order of the checks is: the STag is known, is
//! associated with the stream, and is writable; the tagged offset does not wrap; the range is inside the
//! registration.

use crate::ddp::error::DdpError;
use crate::ddp::header::TaggedHeader;
use crate::memory::{Accessor, EpochGuard, Target};

/// Returns the target of the payload of an RDMA Write segment, or `None` for an empty segment.
///
/// # Errors
/// The [`DdpError`] of the first check that fails: 0x1/0x00 to 0x1/0x03.
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
