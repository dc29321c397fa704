//! The places of segments in their queue: links from each segment to segments before it
//! (`send/queue/index.rs`).

use super::segment::{SegmentKey, SegmentSlab};

/// The links of one segment to segments before it (`send/queue/index.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Place {
    /// The number of the segment, which is the number of the previous segment plus one. If both segments are
    /// parts of one segment that was cut, they have the same number. Numbers wrap.
    pub(in crate::tcp) number: u32,
    /// The previous segment; for the first segment that got a place, the segment itself.
    pub(in crate::tcp) previous: SegmentKey,
    /// An earlier segment, and its number, which is [`leap_number`] of this segment's number.
    pub(in crate::tcp) far: SegmentKey,
    pub(in crate::tcp) far_number: u32,
}

impl Place {
    /// The place of the first segment that gets a place.
    pub(in crate::tcp) fn first(key: SegmentKey) -> Self {
        Self { number: 1, previous: key, far: key, far_number: leap_number(1) }
    }

    /// The segment `far`, if it is after the oldest segment, which has the number `oldest`.
    #[inline]
    pub(in crate::tcp) fn leap(self, oldest: u32) -> Option<SegmentKey> {
        let (from, to) = (self.number.wrapping_sub(oldest), self.far_number.wrapping_sub(oldest));
        (0 < to && to < from).then_some(self.far)
    }
}

/// The number to which a leap from the segment `number` leads: `number` less the lowest term of its skew
/// binary representation, whose terms are 1, 3, 7, 15 and so on. With such leaps, at most about twice the
/// logarithm of `number` leaps and steps lead from `number` to any lower number. The leap of each segment
/// leads to the previous segment, or to the segment two leaps before the previous segment (Myers, An
/// applicative random-access stack, 1983).
pub(in crate::tcp) fn leap_number(number: u32) -> u32 {
    let mut rest = number;
    while rest > 0 {
        let term = (1_u64 << (u64::from(rest) + 1).ilog2()) - 1;
        rest -= term as u32;
        if rest == 0 {
            return number - term as u32;
        }
    }
    0
}

impl SegmentSlab {
    /// The place of a segment. The segment must have a place.
    #[inline]
    pub(in crate::tcp) fn place(&self, key: SegmentKey) -> Place {
        #[cfg(test)]
        self.visits.update(|visits| visits + 1);
        self.places[key.record()]
    }

    #[inline]
    pub(in crate::tcp) fn set_place(&mut self, key: SegmentKey, place: Place) {
        if key.record() >= self.places.len() {
            self.places.resize(key.record() + 1, Place::first(key));
        }
        self.places[key.record()] = place;
    }

    /// The place of the segment after `last`, in a queue whose oldest segment has the number `oldest`. The
    /// segment `last` must have a place.
    pub(in crate::tcp) fn place_behind(&self, last: SegmentKey, oldest: u32) -> Place {
        let before = self.place(last);
        let number = before.number.wrapping_add(1);
        let mut place = Place { number, previous: last, far: last, far_number: leap_number(number) };
        if place.far_number != before.number && place.leap(oldest).is_some() {
            place.far = self.place(before.far).far;
        }
        place
    }
}
