//! Inline data that are longer than an entry of the engine's send queue ([`MAX_INLINE`]).
//!
//! The bytes of such a request are copied to a slot of a region that belongs to the queue pair, and the
//! engine sends the slot like any registered memory. Only queue pairs whose programs ask for longer inline
//! data have such a region.

use iwarp::memory::Access;
use iwarp::verbs::{MAX_INLINE, MemoryRegion, ProtectionDomain, Sge};

use crate::ffi::abi::{EINVAL, Outcome};

pub(crate) struct LongInline {
    region: MemoryRegion,
    /// Maximum number of bytes of a request, which is the size of a slot.
    max: usize,
    slots: usize,
    next: usize,
}

impl LongInline {
    /// Makes the region of a queue pair for requests of at most `max` bytes, at most `depth` of which are
    /// open. Returns `None` if the entries of the send queue have room for `max` bytes.
    pub(crate) fn new(pd: &ProtectionDomain, max: usize, depth: usize) -> Outcome<Option<Self>> {
        if max <= MAX_INLINE {
            return Ok(None);
        }
        // With one slot more than requests may be open, the next slot is always free: requests complete in
        // the order in which they were posted.
        let slots = depth + 1;
        Ok(Some(Self { region: pd.reg_mr(slots * max, Access::empty())?, max, slots, next: 0 }))
    }

    /// Copies the bytes of `parts`, one part after the other, to the next slot, and posts the slot by `post`.
    /// If `post` fails, the next request uses the same slot.
    pub(crate) fn post(&mut self, parts: &[&[u8]], post: impl FnOnce(Sge) -> Outcome<()>) -> Outcome<()> {
        let slot = self.element(parts)?;
        let mut at = self.next * self.max;
        for part in parts {
            self.region.write_at(at, part)?;
            at += part.len();
        }
        post(slot)?;
        self.next = (self.next + 1) % self.slots;
        Ok(())
    }

    /// Returns the element for a request with these bytes in the next slot. Fails if a slot has no room for
    /// the bytes.
    pub(crate) fn element(&self, parts: &[&[u8]]) -> Outcome<Sge> {
        let length = length_of(parts);
        if length > self.max { Err(EINVAL) } else { Ok(self.region.sge(self.next * self.max, length)) }
    }
}

/// Whether the entries of the send queue have no room for these bytes.
#[inline]
pub(crate) fn is_long(parts: &[&[u8]]) -> bool {
    length_of(parts) > MAX_INLINE
}

fn length_of(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
