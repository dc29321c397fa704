//! The invariants of the send queue.

use super::SendQueue;
use crate::invariant::{Check, ensure};
use crate::tcp::slabs::{Marks, PageKind, Segment, SegmentKey, SegmentSlab};

impl SendQueue {
    /// Sums, cursors and both orders agree with the marks.
    pub(in crate::tcp::send) fn check(&self, slab: &SegmentSlab) -> Check {
        let (mut sacked, mut lost, mut in_flight, mut count) = ((0, 0), 0, 0, 0);
        let (mut pos, mut last, mut is_sent, mut may_be_lost) = (None, None, true, false);
        let (mut page, mut small_pages) = (None, 0);
        let mut found = [self.unsent, self.retransmit_from, self.sacks.last].map(|cursor| cursor.is_none());
        for key in self.keys(slab, self.head, |segment| segment.next) {
            let (key, segment) = key?;
            for (found, cursor) in found.iter_mut().zip([self.unsent, self.retransmit_from, self.sacks.last])
            {
                *found |= cursor == Some(key);
            }
            is_sent &= self.unsent != Some(key);
            may_be_lost |= self.retransmit_from == Some(key);
            ensure!(pos.is_none_or(|pos| pos == segment.pos), "a gap in the queue at {}", segment.pos);
            ensure!(segment.len > 0, "a segment without bytes at {}", segment.pos);
            pos = Some(segment.end());
            let len = u64::from(segment.len);
            let place = segment.marks & (Marks::SACKED | Marks::LOST | Marks::IN_FLIGHT);
            let places = place.bits().count_ones();
            ensure!(places == u32::from(is_sent), "{:?} at {}", segment.marks, segment.pos);
            match place {
                Marks::SACKED => sacked = (sacked.0 + len, sacked.1 + 1),
                Marks::LOST => {
                    ensure!(may_be_lost, "lost in front of the next to be sent again: {}", segment.pos);
                    lost += len;
                }
                Marks::IN_FLIGHT => in_flight += 1,
                _ => {}
            }
            // The segments of a page are consecutive.
            if page.replace(segment.page) != Some(segment.page) {
                small_pages += u32::from(slab.page_kind(segment.page) == PageKind::Small);
            }
            (last, count) = (Some(key), count + 1);
        }
        let unused = self.open_page().filter(|open| page != Some(*open));
        small_pages += u32::from(unused.is_some_and(|open| slab.page_kind(open) == PageKind::Small));
        ensure!(self.small_pages == small_pages, "{} small pages of {small_pages}", self.small_pages);
        ensure!(found == [true; 3], "a cursor outside of the queue: {self:?}");
        ensure!(self.tail() == last, "the tail is {:?}, not {last:?}", self.tail());
        let counted = (self.sacked_bytes, self.sacked_segments, self.lost_bytes, self.segments);
        let sums = (sacked.0, sacked.1, lost, count);
        ensure!(counted == sums, "SACKed, lost, queued: {counted:?} of {sums:?}");
        let mut earlier: Option<SegmentKey> = None;
        for key in self.keys(slab, self.flight.oldest, |segment| segment.sent_after) {
            let (key, segment) = key?;
            ensure!(segment.marks.contains(Marks::IN_FLIGHT), "in flight and marked {:?}", segment.marks);
            ensure!(segment.sent_before == earlier, "the order of transmission is torn at {}", segment.pos);
            // The parts of a split segment were sent together.
            let in_order = earlier.is_none_or(|earlier| !slab.get(earlier).sent.is_after(segment.sent));
            ensure!(in_order, "sent before the one in front: {}", segment.pos);
            in_flight -= 1;
            earlier = Some(key);
        }
        ensure!(in_flight == 0, "{in_flight} segments in flight are not linked");
        ensure!(self.flight.newest() == earlier, "the newest in flight is {:?}", self.flight.newest());
        Ok(())
    }

    /// SND.UNA, SND.NXT and the segments agree, while the connection lives.
    pub(in crate::tcp::send) fn check_positions(&self, slab: &SegmentSlab) -> Check {
        let (una, nxt, end) = (self.una, self.nxt, self.end);
        ensure!(una <= nxt && nxt <= end + 1, "SND.UNA {una}, SND.NXT {nxt}, end {end}");
        if let Some(head) = self.head {
            let first = slab.get(head);
            let is_oldest = first.pos <= una.max(1) && una < first.end();
            ensure!(is_oldest, "SND.UNA {una}, the oldest segment {}..{}", first.pos, first.end());
        }
        if let Some(tail) = self.tail() {
            ensure!(slab.get(tail).end() == end, "the queue ends at {}, not {end}", slab.get(tail).end());
        }
        match self.unsent {
            Some(key) => ensure!(slab.get(key).pos == nxt, "SND.NXT {nxt}, unsent {}", slab.get(key).pos),
            None => ensure!(una == 0 || nxt >= end, "SND.NXT {nxt}, end {end}, nothing unsent"),
        }
        Ok(())
    }

    /// Walks a list from `first`; returns an error for a dangling or circular link.
    fn keys<'a>(
        &self,
        slab: &'a SegmentSlab,
        first: Option<SegmentKey>,
        next: impl Fn(&Segment) -> Option<SegmentKey>,
    ) -> impl Iterator<Item = Check<(SegmentKey, &'a Segment)>> {
        let (mut cursor, mut left) = (first, slab.len());
        std::iter::from_fn(move || {
            let key = cursor.take()?;
            let Some(segment) = slab.find(key) else {
                return Some(Err(format!("{key:?} is linked and not there")));
            };
            if left == 0 {
                return Some(Err("segments linked in a circle".into()));
            }
            left -= 1;
            cursor = next(segment);
            Some(Ok((key, segment)))
        })
    }
}
