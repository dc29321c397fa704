//! Queueing segments on a connection.

use dp::{ExtBuf, Offloads};

use super::connections::FoundConn;
use super::transmit::EXTERNAL;
use crate::SendError;
use crate::checksum::folded;
use crate::frame::Framing;
use crate::tcp::{Ctx, EXTERNAL_VIEWS, PageKey};

/// Queues segments on one connection.
///
/// Its timers and its place in the ready queue are updated once, when this is dropped.
pub struct Sender<'s> {
    pub(super) ctx: Ctx<'s>,
    pub(super) framing: &'s Framing,
    pub(super) found: FoundConn<'s>,
    /// Whether segments were queued.
    pub(super) pushed: bool,
    /// Whether a page was opened, and nothing was pushed since.
    pub(super) opened: bool,
}

impl<'s> Sender<'s> {
    /// An empty segment to write up to EMSS bytes of whole FPDUs into.
    ///
    /// # Errors
    /// [`SendError`]: the connection is closed, the send buffer is full (an `Event::Writable` follows when
    /// it has space again), or no packet buffer is free.
    #[inline(always)]
    pub fn segment(&mut self) -> Result<SegmentBuf<'_, 's>, SendError> {
        let (page, capacity) = self.found.conn.tcb.page_for_segment(&mut self.ctx)?;
        self.opened = true;
        Ok(SegmentBuf { sender: self, page, capacity, len: 0, sum: None, external: None })
    }

    /// Whether segments may have external memory now ([`SegmentBuf::attach`]): the port sends from any
    /// memory, in several buffers and with a checksum of its own, and not too many segments have some.
    pub fn takes_external(&self) -> bool {
        // With a buffer for the headers, a segment takes one more than its views.
        self.framing.offloads.contains(EXTERNAL)
            && self.framing.tso.buffers > EXTERNAL_VIEWS
            && !self.ctx.segments.has_many_externals()
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        if self.opened {
            // A page that was opened and not pushed to returns its buffer.
            self.found.conn.tcb.close_page(&mut self.ctx);
        }
        if self.pushed {
            self.found.conn.tcb.on_pushed(self.ctx.now);
            self.found.follow_up_push();
        }
    }
}

/// A segment under construction, in a buffer that TCP owns: up to EMSS bytes of whole FPDUs.
///
/// [`push`](Self::push) queues it; dropping it discards it.
pub struct SegmentBuf<'a, 's> {
    sender: &'a mut Sender<'s>,
    page: PageKey,
    capacity: usize,
    /// Bytes in it, those of external memory included.
    len: usize,
    /// The sum of its bytes, if the writer has said it.
    sum: Option<u16>,
    /// External memory, and the bytes of the page before it.
    external: Option<(ExtBuf, u32)>,
}

impl SegmentBuf<'_, '_> {
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
        self.sender.found.conn.tcb.send_offsets().0
    }

    /// Appends `memory`, which is sent from where it lies, also when it is sent again. It must not change
    /// until it is acknowledged ([`Stack::acknowledged`](crate::Stack::acknowledged)): the peer would get
    /// different bytes. [`Event::Acknowledged`](crate::Event) follows when it is.
    ///
    /// # Errors
    /// Returns `memory` if it does not fit, if the segment has external memory already, and if the stack
    /// takes none now ([`Sender::takes_external`]).
    pub fn attach(&mut self, memory: ExtBuf) -> Result<(), ExtBuf> {
        let fits = memory.len() <= self.capacity - self.len;
        if !fits || self.external.is_some() || !self.sender.takes_external() {
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
        self.sender.ctx.segments.room(self.page).get_mut(start..start + bytes)
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
        !self.sender.framing.offloads.contains(Offloads::TX_TCP_CHECKSUM)
    }

    /// Says the sum of all bytes in it, as [`dp::checksum::partial`] counts it, once all are written. A
    /// writer that has summed them on the way saves a pass over them.
    #[inline]
    pub fn set_sum(&mut self, sum: u64) {
        self.sum = Some(folded(sum));
    }

    /// All bytes that it can hold (they have old contents), and how many from the front on are written. The
    /// caller updates the number. For segments without external memory.
    #[inline]
    pub fn room(&mut self) -> (&mut [u8], &mut usize) {
        debug_assert!(self.external.is_none(), "a part of the bytes lies elsewhere");
        let room = self.sender.ctx.segments.room(self.page);
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
        let bytes = &self.sender.ctx.segments.room(self.page)[..self.len];
        sum == Some(folded(dp::checksum::partial(bytes)) % 0xffff)
    }

    /// Queues it behind all others. It is sent as it is: its bytes and boundaries never change, except
    /// that it is cut if EMSS drops before it is sent, or by the persist timer. An empty segment is
    /// dropped.
    #[inline]
    pub fn push(mut self) {
        if self.is_empty() {
            return;
        }
        debug_assert!(self.sum.is_none() || self.external.is_some() || self.is_sum_right(), "another sum");
        let Sender { ctx, found, pushed, opened, .. } = self.sender;
        match self.external {
            None => found.conn.tcb.push(ctx, self.len, self.sum),
            Some(external) => found.conn.tcb.push_external(ctx, self.len - external.0.len(), external),
        }
        (*pushed, *opened) = (true, false);
    }
}
