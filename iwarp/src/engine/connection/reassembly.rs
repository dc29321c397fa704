//! Received bytes before Full Operation, in order and out of order.
//!
//! A startup frame may arrive in any segmentation and order, and FPDUs may follow it. Out-of-order bytes are
//! held in the slots of [`HeldSlab`], which all connections of an engine share. Small adjacent pieces are
//! copied into one buffer.

use std::ops::Range;

use dp::Mbuf;
use dp::invariant::{Check, ensure};

use crate::mpa::{HeldBuf, HeldList, HeldSlab, StartupFault, take_runs};
use crate::verbs::ConnectionError;

/// Maximum distance of an out-of-order byte from the next byte of startup. A frame has at most 532 bytes. The
/// peer's early bytes after the frame fit an initial congestion window: Linux begins with 10 segments, about
/// 89 KB at an MTU of 9000.
const MAX_AHEAD: u64 = 128 << 10;

/// Reassembles the bytes before Full Operation. The owner has to call [`clear`](Self::clear) before dropping
/// this value.
#[derive(Default)]
pub(super) struct Reassembly {
    next: u64,
    frontier: u64,
    held: HeldList,
    /// A buffer that begins with the next byte, if no other buffers are held. [`push`](Self::push) sets this
    /// buffer. The next [`take`](Self::take) removes the buffer, and holds the bytes that are not consumed. A
    /// slot for these bytes is free.
    next_buf: Option<Mbuf>,
}

impl Reassembly {
    /// Returns the stream offset of the next byte.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Holds a buffer from TCP. The caller has to call [`take`](Self::take) next. If `counted` is set, TCP's
    /// budget counts the buffer until it is released. Returns an error if no slot is free.
    pub(super) fn push(
        &mut self,
        slab: &mut HeldSlab,
        (offset, buf, frontier): (u64, Mbuf, u64),
        counted: bool,
    ) -> Result<(), ConnectionError> {
        self.frontier = self.frontier.max(frontier);
        let (used, slots) = slab.buffers();
        if offset == self.next && !counted && self.held.is_empty() && used < slots {
            self.next_buf = Some(buf);
            return Ok(());
        }
        self.held.hold(slab, offset, buf, counted).map_err(|_| ConnectionError::NoResources)
    }

    /// Checks the held buffers; for tests. Returns their number.
    pub(super) fn check(&self, slab: &HeldSlab) -> Check<usize> {
        ensure!(self.next_buf.is_none(), "a buffer was not taken");
        self.held.check(slab)
    }

    /// Returns an error for bytes that begin more than [`MAX_AHEAD`] bytes after the next byte of startup.
    pub(super) fn check_ahead(&self, offset: u64) -> Result<(), ConnectionError> {
        if offset > self.next + MAX_AHEAD {
            return Err(ConnectionError::Startup(StartupFault::FarAhead));
        }
        Ok(())
    }

    /// Passes the next bytes in order to `take`, run by run, until `take` consumes only a part of a run or no
    /// bytes are left. Returns the number of bytes that the caller has to release from TCP's budget.
    pub(super) fn take(&mut self, slab: &mut HeldSlab, mut take: impl FnMut(u64, &[u8]) -> usize) -> usize {
        if let Some(mut buf) = self.next_buf.take() {
            self.next += take_runs(&mut buf, self.next, &mut take);
            if !buf.is_empty() {
                let held = self.held.hold(slab, self.next, buf, false);
                debug_assert!(held.is_ok(), "`push` has found a slot");
            }
            // The buffer arrived in order, so TCP's budget does not count it.
            return 0;
        }
        let mut released = 0;
        // The buffers are disjoint and in order, so each contiguous buffer begins where the previous buffer
        // ended.
        while let Some(taken) = self.held.take_at(slab, self.next, &mut take) {
            self.next = taken.end;
            released += taken.released;
            if !taken.whole {
                break;
            }
        }
        released
    }

    /// Removes and returns the held buffer with the lowest offset. The bytes of this buffer were not consumed
    /// by startup, so they are FPDUs. `Rest::frontier` is the stream offset of the next byte that TCP
    /// expects.
    pub(super) fn pop_rest(&mut self, slab: &mut HeldSlab) -> Option<Rest> {
        let HeldBuf { start: offset, buf, ahead, .. } = self.held.pop(slab)?;
        let frontier = self.frontier;
        // A buffer that arrived out of order and is in order now is released here.
        let released = if ahead && offset < frontier { buf.len() } else { 0 };
        Some(Rest { offset, buf, frontier, released })
    }

    /// Drops buffers with at least `bytes` out-of-order bytes in total, beginning with those at the highest
    /// offsets, as far as `may` allows.
    pub(super) fn give_up(
        &mut self,
        bytes: usize,
        slab: &mut HeldSlab,
        may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        self.held.give_up(slab, bytes, may);
    }

    /// Returns the bytes of packet buffers that hold out-of-order data.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.held.pinned_bytes()
    }

    /// Drops all held bytes. Returns the number of bytes that the caller has to release.
    pub(super) fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        self.held.clear(slab)
    }
}

/// A buffer of FPDUs that arrived during startup.
pub(super) struct Rest {
    pub(super) offset: u64,
    pub(super) buf: Mbuf,
    pub(super) frontier: u64,
    /// Bytes that the caller has to release from TCP's budget.
    pub(super) released: usize,
}
