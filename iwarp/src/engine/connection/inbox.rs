//! Bytes in front of Full Operation: the in-order part of the stream, and what came ahead of it.
//!
//! A startup frame may come in any segmentation and order; behind it FPDUs may follow. What is ahead is kept
//! in the engine's slots for held buffers, small pieces of it copied together.

use std::ops::Range;

use dp::Mbuf;

use crate::mpa::{HeldBuf, HeldList, HeldSlab, StartupFault};
use crate::verbs::ConnectionError;

/// How far ahead of the next byte of startup something may lie: a frame has 532 bytes, and what comes early
/// behind it is no more than an initial congestion window.
const MAX_AHEAD: u64 = 64 << 10;

/// In-order reception before Full Operation. To be [`clear`](Self::clear)ed before it is dropped.
#[derive(Default)]
pub(super) struct Inbox {
    next: u64,
    frontier: u64,
    held: HeldList,
}

impl Inbox {
    /// Stream offset of the next byte.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Takes what TCP handed up. `counted`: TCP's budget counts it until it is released.
    pub(super) fn push(
        &mut self,
        slab: &mut HeldSlab,
        (offset, buf, frontier): (u64, Mbuf, u64),
        counted: bool,
    ) -> Result<(), ConnectionError> {
        self.frontier = self.frontier.max(frontier);
        self.held.hold(slab, offset, buf, counted).map_err(|_| ConnectionError::NoResources)
    }

    /// Whether something lies further ahead than startup explains.
    pub(super) fn check_ahead(&self, offset: u64) -> Result<(), ConnectionError> {
        if offset > self.next + MAX_AHEAD {
            return Err(ConnectionError::Startup(StartupFault::FarAhead));
        }
        Ok(())
    }

    /// Lets `take` have the bytes that are next, run by run, until it takes less than a run or there are
    /// none. Returns how many of them are to be released to TCP's budget.
    pub(super) fn take(&mut self, slab: &mut HeldSlab, mut take: impl FnMut(u64, &[u8]) -> usize) -> usize {
        let mut released = 0;
        while let Some(HeldBuf { start, mut buf, ahead, .. }) = self.held.pop_at(slab, self.next) {
            // Disjoint and in order: the buffer begins where the last one was used up.
            let mut at = start;
            let mut whole = true;
            while !buf.is_empty() {
                let run = buf.segments().find(|run| !run.is_empty());
                let (len, taken) = run.map_or((0, 0), |run| (run.len(), take(at, run)));
                debug_assert!(len > 0, "a buffer with bytes has a run of them");
                buf.advance(taken);
                at += taken as u64;
                if taken < len || len == 0 {
                    whole = false;
                    break;
                }
            }
            self.next = at;
            released += if ahead { (at - start) as usize } else { 0 };
            if !whole {
                // The slot it came from is free.
                let held = self.held.hold(slab, at, buf, ahead);
                debug_assert!(held.is_ok());
                break;
            }
        }
        released
    }

    /// What has not been taken: FPDUs, by increasing offset, with the in-order frontier.
    pub(super) fn pop_rest(&mut self, slab: &mut HeldSlab) -> Option<Rest> {
        let HeldBuf { start: offset, buf, ahead, .. } = self.held.pop(slab)?;
        let frontier = self.frontier;
        // What was ahead and is in order by now is nobody else's to release.
        let released = if ahead && offset < frontier { buf.len() } else { 0 };
        Some(Rest { offset, buf, frontier, released })
    }

    /// Gives up what came ahead, from the far end, as far as `may` lets it.
    pub(super) fn give_up(
        &mut self,
        bytes: usize,
        slab: &mut HeldSlab,
        may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        self.held.give_up(slab, bytes, may);
    }

    /// Bytes of packet buffers held for what came ahead of the frontier.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.held.pinned_bytes()
    }

    /// Drops all; returns how many bytes are to be released.
    pub(super) fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        self.held.clear(slab)
    }
}

/// A buffer of FPDUs that came during startup.
pub(super) struct Rest {
    pub(super) offset: u64,
    pub(super) buf: Mbuf,
    pub(super) frontier: u64,
    /// Bytes to be released to TCP's budget.
    pub(super) released: usize,
}
