//! The external view of one connection: the parts of its stream that have arrived, the FPDUs beyond a hole,
//! and the time at which each FPDU was placed.

use std::collections::VecDeque;

use super::reader::{Piece, Reader};
use testkit::packet::{Tcp, flag};

/// The state of an FPDU's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not all of the bytes have arrived.
    Coming,
    /// All of the bytes have arrived, beyond a hole, but they are not in memory.
    Waiting,
    /// The bytes are in memory although there is a hole before them, since this time in microseconds.
    Early(u64),
}

/// An FPDU that was placed, and the time of its placement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) piece: Piece,
    pub(super) at_us: u64,
}

/// Numbers of payload bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// The payload of FPDUs that were complete beyond a hole.
    pub(super) behind: u64,
    /// The part of `behind` that was in memory before the hole was filled.
    pub(super) early: u64,
}

#[derive(Debug)]
pub(super) struct Follow {
    reader: Reader,
    isn: Option<u32>,
    /// FPDUs that have not been received in order.
    pieces: VecDeque<(Piece, State)>,
    /// Ranges that have arrived beyond `frontier`, the next expected byte. The ranges are disjoint and in
    /// order.
    ranges: Vec<(u64, u64)>,
    /// The value of `ranges` before the segment that is being processed.
    ranges_before: Vec<(u64, u64)>,
    frontier: u64,
    pub(super) counts: Counts,
    /// Number of payload bytes that are complete beyond a hole but not placed.
    pub(super) waiting: u64,
}

impl Follow {
    pub(super) fn new(markers: bool) -> Self {
        Self {
            reader: Reader::new(markers),
            isn: None,
            pieces: VecDeque::new(),
            ranges: Vec::new(),
            ranges_before: Vec::new(),
            frontier: 0,
            counts: Counts::default(),
            waiting: 0,
        }
    }

    /// Returns the stream offset of a segment's first byte. Returns `None` before the SYN has been seen.
    fn offset(&self, seq: u32) -> Option<u64> {
        let next = self.reader.pos();
        let isn = self.isn?;
        // The offset is less than 2^31 away from the last byte sent.
        let distance = seq.wrapping_sub(isn).wrapping_sub(1).wrapping_sub(next as u32) as i32;
        next.checked_add_signed(i64::from(distance))
    }

    /// Has to be called when the sender sends or retransmits a segment.
    pub(super) fn sent_segment(&mut self, tcp: &Tcp, frame: &[u8]) {
        if tcp.has(flag::SYN) {
            self.isn = Some(tcp.seq);
        }
        let next = self.reader.pos();
        let payload = &frame[tcp.payload.clone()];
        let new = self.offset(tcp.seq).and_then(|offset| payload.get((next - offset.min(next)) as usize..));
        let mut pieces = Vec::new();
        self.reader.read(new.unwrap_or_default(), &mut pieces);
        self.pieces.extend(pieces.into_iter().map(|piece| (piece, State::Coming)));
    }

    /// Records which holes a segment fills. Has to be called when the segment reaches the receiver, before
    /// the receiver processes it. `is_placed` checks the receiver's memory.
    pub(super) fn arriving(
        &mut self,
        now_us: u64,
        tcp: &Tcp,
        is_placed: &mut dyn FnMut(&Piece) -> Result<bool, String>,
    ) -> Result<(), String> {
        self.segment_arrives(tcp);
        // FPDUs that were waiting may have been placed some time after they arrived.
        for (piece, state) in &mut self.pieces {
            if piece.end > self.frontier {
                break;
            }
            if *state == State::Waiting && is_placed(piece)? {
                *state = State::Early(now_us);
                self.counts.early += piece.bytes as u64;
                self.waiting -= piece.bytes as u64;
            }
        }
        Ok(())
    }

    /// Returns the FPDUs that have been received in order since the last call. Has to be called after the
    /// receiver was polled. With `refused`, the receiver's TCP dropped the segment because of a limit, which
    /// applies only to bytes beyond a hole.
    ///
    /// # Errors
    /// If an FPDU that was received in order is not in memory.
    pub(super) fn arrived(
        &mut self,
        now_us: u64,
        refused: bool,
        is_placed: &mut dyn FnMut(&Piece) -> Result<bool, String>,
    ) -> Result<Vec<Placed>, String> {
        if refused {
            self.ranges.clone_from(&self.ranges_before);
        }
        let mut passed = Vec::new();
        while let Some(&(piece, state)) = self.pieces.front()
            && piece.end <= self.frontier
        {
            self.pieces.pop_front();
            if !is_placed(&piece)? {
                return Err(format!("{piece:?} is in order but not in memory"));
            }
            if state == State::Waiting {
                self.waiting -= piece.bytes as u64;
            }
            let at_us = if let State::Early(at_us) = state { at_us } else { now_us };
            passed.push(Placed { piece, at_us });
        }
        for &(from, to) in &self.ranges {
            let first = self.pieces.partition_point(|(piece, _)| piece.start < from);
            // The new FPDUs are at the end; the older ones have been checked.
            for (piece, state) in self.pieces.range_mut(first..) {
                if piece.end > to {
                    break;
                }
                if *state != State::Coming {
                    continue;
                }
                self.counts.behind += piece.bytes as u64;
                if is_placed(piece)? {
                    *state = State::Early(now_us);
                    self.counts.early += piece.bytes as u64;
                } else {
                    *state = State::Waiting;
                    self.waiting += piece.bytes as u64;
                }
            }
        }
        Ok(passed)
    }

    /// Updates the ranges that have arrived, when a segment reaches the receiver.
    pub(super) fn segment_arrives(&mut self, tcp: &Tcp) {
        let Some(offset) = self.offset(tcp.seq) else { return };
        self.ranges_before.clone_from(&self.ranges);
        let (mut from, mut to) = (offset.max(self.frontier), offset + tcp.len() as u64);
        if from >= to {
            return;
        }
        self.ranges.retain(|&(start, end)| {
            let apart = end < from || start > to;
            if !apart {
                (from, to) = (from.min(start), to.max(end));
            }
            apart
        });
        if from == self.frontier {
            self.frontier = to;
        } else {
            let at = self.ranges.partition_point(|&(start, _)| start < from);
            self.ranges.insert(at, (from, to));
        }
    }
}
