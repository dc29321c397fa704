//! SACK blocks that were already processed (RFC 2018 section 4: each acknowledgement repeats the latest
//! blocks).

use crate::tcp::slabs::SegmentKey;

/// Processed SACK blocks. Each acknowledgement repeats the latest ones, and a block grows at its end.
/// Without this cache every acknowledgement would walk all segments in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownSacks {
    /// Blocks whose segments are all marked; empty ones are unused. Three, since a SACK option beside
    /// timestamps has three.
    known: [(u64, u64); 3],
    oldest: u8,
    /// The segment marked last.
    pub(super) last: Option<SegmentKey>,
}

impl KnownSacks {
    /// Start of the part of a block that is not yet known; `None` if all of it is known.
    #[inline]
    pub(super) fn unknown_from(&self, mut start: u64, end: u64) -> Option<u64> {
        for (from, to) in self.known {
            if from <= start && start < to {
                start = to;
            }
        }
        (start < end).then_some(start)
    }

    /// All segments inside `start..end` are marked.
    #[inline]
    pub(super) fn learn(&mut self, start: u64, end: u64) {
        if let Some(known) =
            self.known.iter_mut().find(|(from, to)| *from <= end && start <= *to && from < to)
        {
            *known = (known.0.min(start), known.1.max(end));
        } else {
            self.known[usize::from(self.oldest)] = (start, end);
            self.oldest = (self.oldest + 1) % 3;
        }
    }
}
