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
    waiting: ArrayVec<Waiting, MAX_AHEAD>,
}

struct Waiting {
    offset: u64,
    buf: Mbuf,
    /// It arrived ahead of the frontier: TCP's budget counts it until it is released.
    ahead: bool,
}

/// More out-of-order buffers than a startup frame can explain.
#[derive(Debug)]
pub(super) struct TooManyAhead;

impl Inbox {
    /// Takes what TCP handed up.
    pub(super) fn push(&mut self, offset: u64, buf: Mbuf, frontier: u64) -> Result<(), TooManyAhead> {
        self.frontier = self.frontier.max(frontier);
        if self.waiting.is_full() {
            return Err(TooManyAhead);
        }
        let at = self.waiting.partition_point(|other| other.offset < offset);
        self.waiting.insert(at, Waiting { offset, buf, ahead: offset >= frontier });
        Ok(())
    }

    /// The next octets in order, and their stream offset.
    pub(super) fn front(&self) -> Option<(u64, &[u8])> {
        let Waiting { offset, buf, .. } = self.waiting.first()?;
        if *offset != self.next {
            return None;
        }
        let run = buf.segments().find(|run| !run.is_empty())?;
        Some((*offset, run))
    }

    /// Drops `octets` of [`front`](Self::front). Returns how many of them are to be released to TCP's budget.
    pub(super) fn consume(&mut self, octets: usize) -> usize {
        let Some(first) = self.waiting.first_mut() else { return 0 };
        first.buf.advance(octets);
        first.offset += octets as u64;
        self.next += octets as u64;
        let released = if first.ahead { octets } else { 0 };
        if first.buf.is_empty() {
            self.waiting.remove(0);
        }
        released
    }

    /// What has not been consumed: FPDUs, by increasing offset, with the in-order frontier.
    pub(super) fn into_rest(self) -> impl Iterator<Item = Rest> {
        let frontier = self.frontier;
        self.waiting.into_iter().map(move |Waiting { offset, buf, ahead }| {
            // What was ahead and is in order by now is nobody else's to release.
            let released = if ahead && offset < frontier { buf.len() } else { 0 };
            Rest { offset, buf, frontier, released }
        })
    }
}

/// A buffer of FPDUs that came during startup.
pub(super) struct Rest {
    pub(super) offset: u64,
    pub(super) buf: Mbuf,
    pub(super) frontier: u64,
    /// Octets to be released to TCP's budget.
    pub(super) released: usize,
}
