//! Queueing segments on a connection.

use super::Stack;
use crate::SendError;
use crate::tcp::PageKey;

/// Queues segments on one connection.
///
/// Its timers and its place in the ready queue are updated once, when this is dropped.
pub struct Sender<'a> {
    pub(super) stack: &'a mut Stack,
    pub(super) slot: u32,
    pub(super) pushed: bool,
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
        Ok(SegmentBuf {
            stack: &mut *self.stack,
            slot: self.slot,
            pushed: &mut self.pushed,
            page,
            capacity,
            len: 0,
        })
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        let pushed = self.pushed;
        let (mut parts, connections, _) = self.stack.split(self.stack.now);
        let Some((id, conn)) = connections.get_mut(self.slot) else { return };
        let mut ctx = parts.ctx(id, conn.listener);
        // A page that was opened and not pushed to returns its buffer.
        conn.tcb.close_page(&mut ctx);
        if pushed {
            conn.tcb.on_pushed(&mut ctx);
            self.stack.settle(self.slot);
        }
    }
}

/// A segment under construction, in a buffer that TCP owns: up to EMSS bytes of whole FPDUs.
///
/// [`push`](Self::push) queues it; dropping it discards it.
pub struct SegmentBuf<'a> {
    stack: &'a mut Stack,
    slot: u32,
    pushed: &'a mut bool,
    page: PageKey,
    capacity: usize,
    len: usize,
}

impl SegmentBuf<'_> {
    /// Bytes it can hold in all (EMSS).
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Grows by `bytes` and returns them for writing (they have old contents), or `None` if they do not
    /// fit.
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.capacity - self.len {
            return None;
        }
        let start = self.len;
        self.len += bytes;
        self.stack.segments.room(self.page).get_mut(start..start + bytes)
    }

    /// All bytes that it can hold (they have old contents), and how many from the front on are written. The
    /// caller updates the number.
    pub fn room(&mut self) -> (&mut [u8], &mut usize) {
        let room = self.stack.segments.room(self.page);
        let capacity = self.capacity.min(room.len());
        (&mut room[..capacity], &mut self.len)
    }

    /// Keeps the first `bytes`: discards what could not be written.
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes);
    }

    /// Queues it behind all others. It is sent as it is: its bytes and boundaries never change, except
    /// that it is cut if EMSS drops before it is sent, or by the persist timer. An empty segment is
    /// dropped.
    pub fn push(self) {
        if self.len == 0 {
            return;
        }
        let (mut parts, connections, _) = self.stack.split(self.stack.now);
        if let Some((id, conn)) = connections.get_mut(self.slot) {
            conn.tcb.push(&mut parts.ctx(id, conn.listener), self.len);
            *self.pushed = true;
        }
    }
}
