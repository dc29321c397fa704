//! The checks of a tagged segment before its placement (RFC 5041 section 7.1).
//!
//! Order: an empty payload is accepted unseen; then STag known, associated, writable, no wrap, inside the
//! range.

use crate::ddp::error::DdpError;
use crate::ddp::header::TaggedHeader;
use crate::memory::{Accessor, EpochGuard, Target};

/// Where the payload of a segment of an RDMA Write goes: `None` when it is empty, whatever STag and TO say.
///
/// # Errors
/// The first check that fails, as [`DdpError`] 0x1/0x00 to 0x1/0x03.
pub fn check<'t>(
    header: &TaggedHeader,
    payload_len: usize,
    by: Accessor,
    guard: &'t EpochGuard,
) -> Result<Option<Target<'t>>, DdpError> {
    if payload_len == 0 {
        return Ok(None);
    }
    let target = guard.check_write(header.stag, header.to, payload_len as u64, by)?;
    Ok(Some(target))
}
