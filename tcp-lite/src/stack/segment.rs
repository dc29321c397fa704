//! Queueing segments on a connection.

use dp::{ExtBuf, Offloads};

use super::Stack;
use crate::checksum::folded;
use crate::tcp::{PageKey, State};
use crate::{ConnId, SendError};

impl Stack {
    /// The stream offset up to which the peer has acknowledged all bytes; `None` for a dead id.
    pub fn acknowledged(&self, conn: ConnId) -> Option<u64> {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot))?;
        Some(conn.tcb.send_offsets().1)
    }
}

/// Queues segments on one connection.
///
/// Its timers and its place in the ready queue are updated once, when this is dropped.
pub struct Sender<'a> {
    pub(super) stack: &'a mut Stack,
    pub(super) slot: u32,
    /// Whether segments were queued.
    pub(super) pushed: bool,
    /// Whether a page was opened, and nothing was pushed since.
    pub(super) opened: bool,
}

impl Sender<'_> {
    /// An empty segment to write up to EMSS bytes of whole FPDUs into.
    ///
    /// # Errors
    /// [`SendError`]: the connection is closed, the send buffer is full (an `Event::Writable` follows when
    /// it has space again), or no packet buffer is free.
    pub fn segment(&mut self) -> Result<SegmentBuf<'_>, SendError> {
        let (mut parts, connections, _) = self.stack.split(self.stack.now);
        let (id, conn) = connections.get_mut(self.slot).ok_or(SendError::Closed)?;
        let (page, capacity) = conn.tcb.page_for_segment(&mut parts.ctx(id, conn.listener))?;
        self.opened = true;
        Ok(SegmentBuf {
            stack: &mut *self.stack,
            slot: self.slot,
            pushed: &mut self.pushed,
            opened: &mut self.opened,
            page,
            capacity,
            len: 0,
            sum: None,
            external: None,
        })
    }

    /// A page that was opened and not pushed to returns its buffer.
    #[cold]
    fn close_page(&mut self) {
        let (mut parts, connections, _) = self.stack.split(self.stack.now);
        if let Some((id, conn)) = connections.get_mut(self.slot) {
            conn.tcb.close_page(&mut parts.ctx(id, conn.listener));
        }
    }

    /// Whether segments may have external memory now ([`SegmentBuf::attach`]): the port sends from any
    /// memory, in several buffers and with a checksum of its own, and not too many segments have some.
    pub fn takes_external(&self) -> bool {
        self.stack.takes_external()
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        if self.opened {
            self.close_page();
        }
        if !self.pushed {
            return;
        }
        let Stack { connections, now, .. } = &mut *self.stack;
        let Some((_, conn)) = connections.get_mut(self.slot) else { return };
        conn.tcb.on_pushed(*now);
        if conn.tcb.state() == State::Established && !conn.half_open {
            return connections.follow_up_push(self.slot);
        }
        self.stack.settle(self.slot);
    }
}

/// A segment under construction, in a buffer that TCP owns: up to EMSS bytes of whole FPDUs.
///
/// [`push`](Self::push) queues it; dropping it discards it.
pub struct SegmentBuf<'a> {
    stack: &'a mut Stack,
    slot: u32,
    pushed: &'a mut bool,
    opened: &'a mut bool,
    page: PageKey,
    capacity: usize,
    /// Bytes in it, those of external memory included.
    len: usize,
    /// The sum of its bytes, if the writer has said it.
    sum: Option<u16>,
    /// External memory, and the bytes of the page before it.
    external: Option<(ExtBuf, u32)>,
}

impl SegmentBuf<'_> {
    /// Bytes it can hold in all (EMSS).
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes in it so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn external_bytes(&self) -> usize {
        self.external.as_ref().map_or(0, |(memory, _)| memory.len())
    }

    /// Stream offset of its first byte.
    pub fn offset(&self) -> u64 {
        self.stack.connections.get(self.slot).map_or(0, |conn| conn.tcb.send_offsets().0)
    }

    /// Appends `memory`, which is sent from where it lies, also when it is sent again. It must not change
    /// until it is acknowledged ([`Stack::acknowledged`]): the peer would get different bytes.
    /// [`Event::Writable`](crate::Event) follows when it is.
    ///
    /// # Errors
    /// Returns `memory` if it does not fit, if the segment has external memory already, and if the stack
    /// takes none now ([`Sender::takes_external`]).
    pub fn attach(&mut self, memory: ExtBuf) -> Result<(), ExtBuf> {
        let fits = memory.len() <= self.capacity - self.len;
        if !fits || self.external.is_some() || !self.stack.takes_external() {
            return Err(memory);
        }
        let at = self.len as u32;
        self.len += memory.len();
        self.external = Some((memory, at));
        Ok(())
    }

    /// Grows by `bytes` and returns them for writing (they have old contents), or `None` if they do not
    /// fit.
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.capacity - self.len {
            return None;
        }
        let start = self.len - self.external_bytes();
        self.len += bytes;
        self.stack.segments.room(self.page).get_mut(start..start + bytes)
    }

    /// Appends `bytes`, or nothing if they do not fit.
    #[must_use]
    pub fn append_slice(&mut self, bytes: &[u8]) -> bool {
        self.append(bytes.len()).is_some_and(|room| {
            room.copy_from_slice(bytes);
            true
        })
    }

    /// Discards everything in it.
    pub fn clear(&mut self) {
        (self.len, self.sum, self.external) = (0, None, None);
    }

    /// Whether the sum of its bytes is of use ([`set_sum`](Self::set_sum)): the port makes no TCP checksum.
    #[inline]
    pub fn wants_sum(&self) -> bool {
        !self.stack.framing.offloads.contains(Offloads::TX_TCP_CHECKSUM)
    }

    /// Says the sum of all bytes in it, as [`dp::sum::of`] counts it, once all are written. A writer that
    /// has summed them on the way saves a pass over them.
    #[inline]
    pub fn set_sum(&mut self, sum: u64) {
        self.sum = Some(folded(sum));
    }

    /// All bytes that it can hold (they have old contents), and how many from the front on are written. The
    /// caller updates the number. For segments without external memory.
    pub fn room(&mut self) -> (&mut [u8], &mut usize) {
        debug_assert!(self.external.is_none(), "a part of the bytes lies elsewhere");
        let room = self.stack.segments.room(self.page);
        let capacity = self.capacity.min(room.len());
        (&mut room[..capacity], &mut self.len)
    }

    /// Keeps the first `bytes`, of a segment without external memory: discards what could not be written.
    pub fn truncate(&mut self, bytes: usize) {
        debug_assert!(self.external.is_none(), "a part of the bytes lies elsewhere");
        self.len = self.len.min(bytes);
        self.sum = None;
    }

    /// Whether the sum is that of its bytes. 0 and 0xffff are the same number.
    fn is_sum_right(&mut self) -> bool {
        let sum = self.sum.map(|sum| sum % 0xffff);
        let bytes = &self.stack.segments.room(self.page)[..self.len];
        sum == Some(folded(dp::sum::of(bytes)) % 0xffff)
    }

    /// Queues it behind all others. It is sent as it is: its bytes and boundaries never change, except
    /// that it is cut if EMSS drops before it is sent, or by the persist timer. An empty segment is
    /// dropped.
    pub fn push(mut self) {
        if self.is_empty() {
            return;
        }
        debug_assert!(self.sum.is_none() || self.external.is_some() || self.is_sum_right(), "another sum");
        let (mut parts, connections, _) = self.stack.split(self.stack.now);
        if let Some((id, conn)) = connections.get_mut(self.slot) {
            let mut ctx = parts.ctx(id, conn.listener);
            match self.external {
                None => conn.tcb.push(&mut ctx, self.len, self.sum),
                Some(external) => conn.tcb.push_external(&mut ctx, self.len - external.0.len(), external),
            }
            *self.pushed = true;
            *self.opened = false;
        }
    }
}
