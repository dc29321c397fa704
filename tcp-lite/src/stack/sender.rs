//! Queues segments on a connection.

use dp::{ExtBuf, Offloads};

use super::connections::FoundConn;
use super::transmit::EXTERNAL;
use crate::SendError;
use crate::checksum::folded;
use crate::frame::Framing;
use crate::tcp::{Ctx, EXTERNAL_VIEWS, PageKey};

/// Queues segments on one connection.
///
/// When the `Sender` is dropped, the connection's timers and its place in the ready queue are updated once.
pub struct Sender<'s> {
    pub(super) ctx: Ctx<'s>,
    pub(super) framing: &'s Framing,
    pub(super) found: FoundConn<'s>,
    /// True if segments were queued.
    pub(super) pushed: bool,
    /// True if a page was opened and no segment was pushed after that.
    pub(super) opened: bool,
}

impl<'s> Sender<'s> {
    /// Returns an empty segment, which can hold up to EMSS bytes of whole FPDUs. `following` is the number of
    /// bytes that the caller is known to write to this and the next segments: the rest of a message, or 0.
    ///
    /// # Errors
    /// [`SendError::Closed`] if the connection is closed for sending. [`SendError::BufferFull`] if the send
    /// buffer is full; an `Event::Writable` follows when the buffer has space again. [`SendError::NoMbuf`] if
    /// no packet buffer is free, or if all connections together have reached the limit of segments or of
    /// packet buffers.
    #[inline(always)]
    pub fn segment(&mut self, following: usize) -> Result<SegmentBuf<'_, 's>, SendError> {
        self.segment_before(|| following)
    }

    /// Like [`segment`](Self::segment). The number of bytes is asked for only if it matters.
    ///
    /// # Errors
    /// The errors of [`segment`](Self::segment).
    #[inline(always)]
    pub fn segment_before(
        &mut self,
        following: impl FnOnce() -> usize,
    ) -> Result<SegmentBuf<'_, 's>, SendError> {
        let (page, capacity) = self.found.conn.tcb.page_for_segment(&mut self.ctx, following)?;
        self.opened = true;
        Ok(SegmentBuf { sender: self, page, capacity, len: 0, checksum: None, external: None })
    }

    /// Whether segments may have external memory now ([`SegmentBuf::attach`]). The port must be able to send
    /// from any memory, to send frames of several buffers and to compute the checksum. In addition, the
    /// number of segments with external memory must be below its limit.
    pub fn takes_external(&self) -> bool {
        // The headers take one buffer in addition to the views of a segment.
        self.framing.offloads.contains(EXTERNAL)
            && self.framing.tso.buffers > EXTERNAL_VIEWS
            && !self.ctx.segments.has_many_externals()
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        if self.opened {
            // No segment was pushed since the page was opened. A page without segments is freed.
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
/// [`push`](Self::push) queues the segment. A `SegmentBuf` that is dropped without `push` discards the
/// segment.
pub struct SegmentBuf<'a, 's> {
    sender: &'a mut Sender<'s>,
    page: PageKey,
    capacity: usize,
    /// Number of bytes in the segment, including external memory.
    len: usize,
    /// The partial checksum of the bytes, if the writer has set it.
    checksum: Option<u16>,
    /// External memory, and the number of bytes of the page before the external memory; `None` if the segment
    /// has none.
    external: Option<(ExtBuf, u32)>,
}

impl SegmentBuf<'_, '_> {
    /// The number of bytes that the segment can hold: EMSS, or fewer if the segment is in a shorter buffer.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of bytes in the segment.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the segment is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn external_bytes(&self) -> usize {
        self.external.as_ref().map_or(0, |(memory, _)| memory.len())
    }

    /// The stream offset of the first byte.
    pub fn offset(&self) -> u64 {
        self.sender.found.conn.tcb.send_offsets().0
    }

    /// Appends `memory`, which is sent and retransmitted without a copy. The memory must not change until its
    /// bytes are acknowledged ([`Stack::acknowledged`](crate::Stack::acknowledged)); otherwise the peer could
    /// receive changed bytes. [`Event::Acknowledged`](crate::Event) reports the acknowledgement.
    ///
    /// # Errors
    /// Returns `memory` if it does not fit, if the segment has external memory already, or if the stack
    /// accepts no external memory now ([`Sender::takes_external`]).
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

    /// Appends `bytes` bytes and returns them for writing. Their contents are unspecified. Returns `None` if
    /// the bytes do not fit.
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.capacity - self.len {
            return None;
        }
        let start = self.len - self.external_bytes();
        self.len += bytes;
        self.sender.ctx.segments.room(self.page).get_mut(start..start + bytes)
    }

    /// Appends `bytes`. If they do not fit, appends nothing and returns `false`.
    #[must_use]
    pub fn append_slice(&mut self, bytes: &[u8]) -> bool {
        self.append(bytes.len()).is_some_and(|room| {
            room.copy_from_slice(bytes);
            true
        })
    }

    /// Discards all bytes of the segment.
    pub fn clear(&mut self) {
        (self.len, self.checksum, self.external) = (0, None, None);
    }

    /// Whether the stack can use the partial checksum of the bytes ([`set_checksum`](Self::set_checksum)),
    /// because the port computes no TCP checksum.
    #[inline]
    pub fn wants_checksum(&self) -> bool {
        !self.sender.framing.offloads.contains(Offloads::TX_TCP_CHECKSUM)
    }

    /// Sets the checksum of all bytes in the segment, as [`dp::checksum::partial`] computes it. Call this
    /// function after the last byte is written. If a writer computes the checksum while it writes the bytes,
    /// the stack does not have to read the bytes again.
    #[inline]
    pub fn set_checksum(&mut self, partial: u64) {
        self.checksum = Some(folded(partial));
    }

    /// All bytes that the segment can hold, and the number of written bytes at the front. The contents of the
    /// remaining bytes are unspecified. The caller updates the number of written bytes. This call is only for
    /// segments without external memory.
    #[inline]
    pub fn room(&mut self) -> (&mut [u8], &mut usize) {
        debug_assert!(self.external.is_none(), "a part of the bytes lies elsewhere");
        let room = self.sender.ctx.segments.room(self.page);
        let capacity = self.capacity.min(room.len());
        (&mut room[..capacity], &mut self.len)
    }

    /// Keeps only the first `bytes` bytes of a segment without external memory, and forgets the checksum.
    pub fn truncate(&mut self, bytes: usize) {
        debug_assert!(self.external.is_none(), "a part of the bytes lies elsewhere");
        self.len = self.len.min(bytes);
        self.checksum = None;
    }

    /// Whether the checksum matches the bytes. (In ones' complement, 0 and 0xffff are equal.)
    fn is_checksum_right(&mut self) -> bool {
        let checksum = self.checksum.map(|checksum| checksum % 0xffff);
        let bytes = &self.sender.ctx.segments.room(self.page)[..self.len];
        checksum == Some(folded(dp::checksum::partial(bytes)) % 0xffff)
    }

    /// Queues the segment after all other segments. The bytes of the segment never change. The boundaries of
    /// the segment change in two cases: the segment is cut if the EMSS becomes smaller before the segment is
    /// sent or retransmitted, and may be cut if it does not fit the peer's window when the persist timer has
    /// expired. An empty segment is dropped.
    ///
    /// The connection becomes ready to send when the [`Sender`] is dropped.
    #[inline]
    pub fn push(mut self) {
        if self.is_empty() {
            return;
        }
        debug_assert!(
            self.checksum.is_none() || self.external.is_some() || self.is_checksum_right(),
            "another checksum"
        );
        let Sender { ctx, found, pushed, opened, .. } = self.sender;
        match self.external {
            None => found.conn.tcb.push(ctx, self.len, self.checksum),
            Some(external) => found.conn.tcb.push_external(ctx, self.len - external.0.len(), external),
        }
        (*pushed, *opened) = (true, false);
    }
}
