//! What the user queues (RFC 9293 section 3.10.4, SEND).

use super::{Fin, SendHalf, Writable};
use crate::SendError;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::{BULK_SEGMENTS, PageKey};

impl SendHalf {
    /// Where a segment of up to EMSS bytes can be written to; [`push`](Self::push) or
    /// [`close_page`](Self::close_page) has to follow at once.
    pub(in crate::tcp) fn segment(&mut self, ctx: &mut Ctx<'_>) -> Result<(PageKey, usize), SendError> {
        let (queued, emss) = (self.queue.queued(), self.path.emss());
        // A queue that is empty takes one segment in any case.
        if queued > 0 {
            let full = queued + u64::from(emss) > u64::from(ctx.config.send_buffer_bytes);
            if full || ctx.segments.is_full_for(self.queue.segments) {
                return Err(self.full());
            }
        } else if ctx.segments.is_full() {
            // Others hold the records, and no acknowledgement of ours will free any: ask again.
            return Err(SendError::NoMbuf);
        }
        let bulk = ctx.bulk_pool.filter(|_| queued >= BULK_SEGMENTS * u64::from(emss));
        match self.queue.page(ctx.segments, (ctx.pool, bulk), emss as usize) {
            Ok(page) => Ok((page, emss as usize)),
            Err(SendError::BufferFull) => Err(self.full()),
            Err(error) => {
                ctx.counters.tx_no_mbuf += 1;
                Err(error)
            }
        }
    }

    /// The send buffer is full: its user is told when there is room.
    fn full(&mut self) -> SendError {
        if self.writable == Writable::NotOwed {
            self.writable = Writable::Owed;
        }
        SendError::BufferFull
    }

    /// Nothing was written to the page that [`segment`](Self::segment) gave.
    pub(in crate::tcp) fn close_page(&mut self, ctx: &mut Ctx<'_>) {
        self.queue.close_page(ctx.segments);
    }

    /// Queues a segment: the first `bytes` bytes, at least one, of the page that
    /// [`segment`](Self::segment) gave. [`on_pushed`](Self::on_pushed) is called behind the last of
    /// several.
    pub(in crate::tcp) fn push(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        if self.queue.queued() == 0 {
            self.timers.progress = ctx.now;
            let idle = ctx.now - self.timers.last_sent;
            if idle > self.rtt.rto() {
                self.congestion.on_idle(ctx.now, idle);
            }
        }
        self.queue.push(ctx.segments, bytes);
    }

    /// Segments were queued.
    pub(in crate::tcp) fn on_pushed(&mut self, ctx: &mut Ctx<'_>) {
        self.pace.advance(ctx.now);
        self.arm(ctx);
    }

    /// Raises `Event::Writable` when it is owed and a quarter of the send buffer is free.
    pub(super) fn check_writable(&mut self, ctx: &mut Ctx<'_>) {
        if self.writable != Writable::Owed {
            return;
        }
        let queued = self.queue.queued();
        let room = queued <= u64::from(ctx.config.send_buffer_bytes) * 3 / 4
            && !ctx.segments.is_full_for(self.queue.segments);
        if queued == 0 || room {
            self.writable = Writable::NotOwed;
            if self.fin == Fin::Open {
                self.writable = Writable::Told;
                ctx.writable();
            }
        }
    }

    /// The user has taken `Event::Writable` from the queue of events.
    pub(in crate::tcp) fn on_writable_taken(&mut self) {
        self.writable = Writable::NotOwed;
    }
}
