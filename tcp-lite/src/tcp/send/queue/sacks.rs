//! SACK blocks that were already processed (RFC 2018 section 4: each acknowledgement repeats the latest
//! blocks), and where their segments are in the queue.
//!
//! The queue is a list, so a block costs the way to its segments. A peer that repeats blocks, or names blocks
//! without a whole segment, must not make us walk along all of the queue each time (CVE-2019-11478). So a
//! walk begins at the nearest known place, leaps over known blocks, and ends after [`MAX_STEPS`]: the next
//! acknowledgement goes on from where it came to.

use crate::invariant::{Check, ensure};
use crate::tcp::slabs::{SegmentKey, SegmentSlab};

/// Most segments that the SACK blocks of one acknowledgement pass without news of them. A peer names a block
/// in several acknowledgements, so a block that is farther away is found by the next ones.
pub(in crate::tcp::send) const MAX_STEPS: u32 = 32;

/// Steps that each new segment adds for later acknowledgements. So where the peer acknowledges honestly, walks
/// end where they should: all of them together take no more steps than so many for each segment sent. A peer
/// that stops acknowledging is sent no segments, and soon has [`MAX_STEPS`] for each acknowledgement.
const STEPS_FOR_EACH_SEGMENT: u32 = 8;
/// Most steps that are saved.
const MAX_SAVED_STEPS: u32 = 1 << 16;

/// What is left of the steps that segments have added.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SavedSteps(u32);

impl SavedSteps {
    #[inline]
    pub(super) fn add(&mut self) {
        self.0 = (self.0 + STEPS_FOR_EACH_SEGMENT).min(MAX_SAVED_STEPS);
    }

    /// What an acknowledgement may take.
    pub(super) fn of_acknowledgement(self) -> u32 {
        MAX_STEPS + self.0
    }

    /// An acknowledgement has left so many.
    pub(super) fn keep(&mut self, left: u32) {
        self.0 = self.0.min(left);
    }
}

/// A block whose segments are all marked.
#[derive(Clone, Copy, Debug)]
struct KnownSack {
    start: u64,
    /// Behind its last whole segment.
    end: u64,
    /// Its last whole segment.
    last: SegmentKey,
}

impl KnownSack {
    #[inline]
    fn covers(&self, pos: u64) -> bool {
        self.start <= pos && pos < self.end
    }
}

/// The processed SACK blocks of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownSacks {
    /// Three, since a SACK option beside timestamps has three: those that were named last, the latest first.
    known: [Option<KnownSack>; 3],
    /// Where a walk ended without a segment of its block, and its position.
    reached: Option<SegmentKey>,
    reached_pos: u64,
}

impl KnownSacks {
    /// Start of the part of a block that is not yet known; `None` if all of it is known.
    #[inline]
    pub(super) fn unknown_from(&mut self, mut start: u64, end: u64) -> Option<u64> {
        while let Some(at) =
            self.known.iter().position(|known| known.is_some_and(|known| known.covers(start)))
        {
            self.known[..=at].rotate_right(1);
            start = self.known[0].map_or(end, |known| known.end);
        }
        (start < end).then_some(start)
    }

    /// The known block that covers this position.
    #[inline]
    fn covering(&self, pos: u64) -> Option<&KnownSack> {
        self.known.iter().flatten().find(|known| known.covers(pos))
    }

    /// The last segment of the known block that covers this position.
    #[inline]
    pub(super) fn last_of(&self, pos: u64) -> Option<SegmentKey> {
        self.covering(pos).map(|known| known.last)
    }

    /// The known segment nearest in front of the position `from`, or at it. The oldest segment is at
    /// `oldest`: what is in front of it has left the queue.
    #[inline]
    pub(super) fn nearest(&self, slab: &SegmentSlab, from: u64, oldest: u64) -> Option<SegmentKey> {
        let lasts = self.known.iter().flatten().filter(|known| known.end > oldest);
        let lasts = lasts.map(|known| (slab.get(known.last).pos, known.last));
        let reached = self.reached(oldest);
        let near = lasts.chain(reached).filter(|(pos, _)| *pos <= from).max_by_key(|(pos, _)| *pos);
        near.map(|(_, key)| key)
    }

    /// A walk came to this segment, and to none of its block.
    #[inline]
    pub(super) fn reach(&mut self, pos: u64, key: SegmentKey) {
        (self.reached_pos, self.reached) = (pos, Some(key));
    }

    /// Where a walk ended, if that is still in the queue, which begins at `oldest`.
    #[inline]
    fn reached(&self, oldest: u64) -> Option<(u64, SegmentKey)> {
        self.reached.filter(|_| self.reached_pos >= oldest).map(|key| (self.reached_pos, key))
    }

    /// All segments inside `start..end` are marked; `last` is the last of them, and ends at `end`.
    #[inline]
    pub(super) fn learn(&mut self, start: u64, end: u64, last: SegmentKey) {
        let mut all = KnownSack { start, end, last };
        let mut others = [None; 2];
        let mut free = others.iter_mut();
        for known in self.known.into_iter().flatten() {
            if known.start <= all.end && all.start <= known.end {
                all.start = all.start.min(known.start);
                if known.end > all.end {
                    (all.end, all.last) = (known.end, known.last);
                }
            } else if let Some(free) = free.next() {
                *free = Some(known);
            }
        }
        self.known = [Some(all), others[0], others[1]];
    }

    /// The known blocks and the place in the queue from `head` on are what they are said to be.
    pub(super) fn check(&self, slab: &SegmentSlab, head: Option<SegmentKey>) -> Check {
        let Some(oldest) = head.map(|head| slab.get(head).pos) else { return Ok(()) };
        for KnownSack { end, last, .. } in self.known.iter().flatten().filter(|known| known.end > oldest) {
            let Some(segment) = slab.find(*last) else {
                return Err(format!("a known SACK block ends at {last:?}, which is not there"));
            };
            ensure!(
                segment.end() == *end,
                "a known SACK block ends at {end}, its last segment at {}",
                segment.end()
            );
        }
        if let Some((pos, key)) = self.reached(oldest) {
            let found = slab.find(key).map(|segment| segment.pos);
            ensure!(found == Some(pos), "a walk came to {pos}, and {key:?} is at {found:?}");
        }
        Ok(())
    }

    /// Whether a known block has the segment at `pos`.
    pub(super) fn knows(&self, pos: u64) -> bool {
        self.covering(pos).is_some()
    }
}
