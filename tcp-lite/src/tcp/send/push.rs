//! Queues the user's segments (RFC 9293 section 3.10.2, SEND).

use dp::ExtBuf;

use super::SendHalf;
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::PageKey;
use crate::{Instant, SendError};

impl SendHalf {
    /// Returns a page for a segment, and the maximum number of bytes of the segment: EMSS, or fewer if only a
    /// small buffer is used or free. `following` is the number of bytes that
    /// the user is known to write next. The next call must be [`push`](Self::push),
    /// [`push_external`](Self::push_external) or [`close_page`](Self::close_page).
    #[inline(always)]
    pub(in crate::tcp) fn page_for_segment(
        &mut self,
        ctx: &mut Ctx<'_>,
        following: impl FnOnce() -> usize,
    ) -> Result<(PageKey, usize), SendError> {
        let (queued, emss) = (self.queue.queued(), self.path.emss());
        // The limits of a connection do not apply to an empty queue.
        if queued > 0 {
            let full = queued + u64::from(emss) > u64::from(ctx.config.send_buffer_bytes);
            if full || ctx.segments.is_full_for(self.queue.segment_count()) {
                return Err(self.full());
            }
        } else if ctx.segments.is_full() {
            // Other connections hold all records, and no acknowledgement on this connection frees a record.
            // No `Writable` event would follow, so the user has to try again.
            return Err(SendError::NoMbuf);
        }
        match self.queue.page(ctx.segments, (ctx.pool, ctx.bulk_pool), emss as usize, following) {
            Ok(page) => Ok(page),
            Err(SendError::BufferFull) => Err(self.full()),
            Err(error) => {
                ctx.counters.tx_no_mbuf += 1;
                Err(error)
            }
        }
    }

    /// Called when the send buffer is full: the user will receive an event when the send buffer has space
    /// again.
    #[cold]
    fn full(&mut self) -> SendError {
        self.events.on_refused();
        SendError::BufferFull
    }

    /// Called if nothing was written to the page that [`page_for_segment`](Self::page_for_segment) returned:
    /// frees the page, if it has no earlier segments.
    pub(in crate::tcp) fn close_page(&mut self, ctx: &mut Ctx<'_>) {
        self.queue.close_page(ctx.segments);
    }

    /// Queues a segment: the first `bytes` bytes of the page that
    /// [`page_for_segment`](Self::page_for_segment) returned, at least one byte. `checksum` is their
    /// partial Internet checksum, if it is known. After the last of several segments, the caller calls
    /// [`on_pushed`](Self::on_pushed).
    #[inline]
    pub(in crate::tcp) fn push(&mut self, ctx: &mut Ctx<'_>, bytes: usize, checksum: Option<u16>) {
        self.before_push(ctx);
        self.queue.push(ctx.segments, bytes, checksum);
    }

    /// Like [`push`](Self::push), but the segment also has external memory: `external` has this memory, and
    /// the number of bytes of the page before it.
    #[inline(never)]
    pub(in crate::tcp) fn push_external(&mut self, ctx: &mut Ctx<'_>, bytes: usize, external: (ExtBuf, u32)) {
        self.before_push(ctx);
        self.queue.push_external(ctx.segments, bytes, external);
    }

    #[inline(always)]
    fn before_push(&mut self, ctx: &mut Ctx<'_>) {
        let is_empty = self.queue.head().is_none();
        debug_assert_eq!(
            is_empty,
            self.queue.queued() == 0,
            "the queue is empty once all of its bytes are acknowledged"
        );
        if is_empty {
            self.loss.restart_user_timeout(ctx.now);
            // Only data ends the idle time. Acknowledgements and probes do not end it.
            self.rate.on_idle(ctx.now, self.loss.idle_time(ctx.now));
        }
    }

    #[inline]
    pub(in crate::tcp) fn on_pushed(&mut self, now: Instant) {
        self.rate.advance_pace(now);
    }

    /// Raises `Event::Writable` if a segment was refused and there is room again: nothing is queued, or a
    /// quarter of the send buffer is free and the connection's share of records and buffers allows the next
    /// segment. The threshold of a quarter makes such events rare.
    #[inline]
    pub(super) fn raise_writable(&mut self, ctx: &mut Ctx<'_>) {
        if self.events.wants_writable() {
            self.raise_wanted(ctx);
        }
    }

    fn raise_wanted(&mut self, ctx: &mut Ctx<'_>) {
        let queued = self.queue.queued();
        let room = queued <= u64::from(ctx.config.send_buffer_bytes) * 3 / 4
            && !ctx.segments.is_full_for(self.queue.segment_count())
            && self.queue.may_have_page(ctx.segments, ctx.bulk_pool, self.path.emss() as usize);
        if (queued == 0 || room) && self.events.on_space(self.queue.may_push()) {
            ctx.writable();
        }
    }
}
