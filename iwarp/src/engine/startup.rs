//! Octets of MPA startup: the in-order part of the stream before there are FPDUs.
//!
//! A frame may come in several segments and out of order. What is ahead is kept, a few buffers of it at most: a
//! startup frame is no longer than 532 octets.

use arrayvec::ArrayVec;
use dp::Mbuf;

/// Buffers that may wait for a hole in front of them to be filled.
const MAX_AHEAD: usize = 8;

/// In-order reception before Full Operation.
#[derive(Default)]
pub(super) struct Inbox {
    next: u64,
    frontier: u64,
    ahead: ArrayVec<(u64, Mbuf), MAX_AHEAD>,
}

/// More out-of-order buffers than a startup frame can explain.
#[derive(Debug)]
pub(super) struct TooManyAhead;

impl Inbox {
    /// Takes what TCP handed up.
    pub(super) fn push(&mut self, offset: u64, buf: Mbuf, frontier: u64) -> Result<(), TooManyAhead> {
        self.frontier = self.frontier.max(frontier);
        let at = self.ahead.partition_point(|(other, _)| *other < offset);
        if self.ahead.is_full() {
            return Err(TooManyAhead);
        }
        self.ahead.insert(at, (offset, buf));
        Ok(())
    }

    /// The next octets in order, and their stream offset.
    pub(super) fn front(&self) -> Option<(u64, &[u8])> {
        let (offset, buf) = self.ahead.first()?;
        if *offset != self.next {
            return None;
        }
        let run = buf.segments().find(|run| !run.is_empty())?;
        Some((*offset, run))
    }

    /// Drops `octets` of [`front`](Self::front).
    pub(super) fn consume(&mut self, octets: usize) {
        let Some((offset, buf)) = self.ahead.first_mut() else { return };
        buf.advance(octets);
        *offset += octets as u64;
        self.next += octets as u64;
        if buf.is_empty() {
            self.ahead.remove(0);
        }
    }

    /// What has not been consumed, by increasing offset, and the in-order frontier: FPDUs.
    pub(super) fn into_rest(self) -> (impl Iterator<Item = (u64, Mbuf)>, u64) {
        (self.ahead.into_iter(), self.frontier)
    }
}
