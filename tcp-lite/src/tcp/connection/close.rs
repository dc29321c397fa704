//! CLOSE and ABORT, and the end of a connection (RFC 9293 sections 3.6, 3.10.4 and 3.10.5).

use super::timer::ConnTimer;
use super::{Reported, Tcb};
use crate::CloseReason;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;

impl Tcb {
    /// Called when no more segments will be pushed: sends FIN after all queued segments (RFC 9293 section
    /// 3.10.4). In SYN-SENT, ends the connection instead.
    pub(crate) fn close(&mut self, ctx: &mut Ctx<'_>) {
        match self.state {
            State::SynSent => self.terminate(ctx, CloseReason::Aborted, false),
            State::SynReceived => self.send.close(),
            State::Established => {
                self.send.close();
                self.state = State::FinWait1;
                self.send.await_fin(ctx);
            }
            State::CloseWait => {
                self.send.close();
                self.state = State::LastAck;
                self.send.await_fin(ctx);
            }
            _ => {}
        }
    }

    /// Drops all queued segments, and sends RST, except in SYN-SENT and TIME-WAIT. Generates
    /// `Event::Closed(Aborted)` (RFC 9293 section 3.10.5), if the user knows the connection and no
    /// `Event::Closed` was generated before.
    pub(crate) fn abort(&mut self, ctx: &mut Ctx<'_>) {
        let send_rst = !matches!(self.state, State::SynSent | State::TimeWait);
        self.terminate(ctx, CloseReason::Aborted, send_rst);
    }

    /// Called when the peer cannot be reached: ends the connection for the given reason without RST, even if
    /// an RST was still to be sent.
    pub(crate) fn unreachable(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        self.terminate(ctx, reason, false);
        self.rst_due = false;
    }

    /// Called when the peer did not answer in time: ends the connection.
    pub(super) fn give_up(&mut self, ctx: &mut Ctx<'_>) {
        // As long as the peer has not acknowledged our SYN, it probably has no established connection to
        // reset.
        let send_rst = self.send.is_syn_acked();
        self.terminate(ctx, CloseReason::TimedOut, send_rst);
    }

    /// Called when all bytes up to the peer's FIN have arrived.
    pub(super) fn on_peer_closed(&mut self, ctx: &mut Ctx<'_>) {
        self.receive.on_stream_complete();
        ctx.peer_closed();
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(ctx),
            _ => {}
        }
    }

    pub(super) fn on_fin_acked(&mut self, ctx: &mut Ctx<'_>) {
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.enter_time_wait(ctx),
            State::LastAck => self.terminate(ctx, CloseReason::Graceful, false),
            _ => {}
        }
    }

    /// Ends the connection if it has not ended yet: releases the connection's memory in the slabs, stops its
    /// timers, generates `Event::Closed` if the user knows the connection, and has an RST sent if `send_rst`.
    pub(super) fn terminate(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason, send_rst: bool) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        self.dispose(ctx);
        self.send.stop();
        self.receive.stop();
        self.rst_due = send_rst;
        if send_rst {
            // If the RST cannot be sent within the user timeout, the control block is dropped.
            self.timer = Some((ctx.now + ctx.config.user_timeout, ConnTimer::End));
        }
        self.raise_closed(ctx, reason);
    }

    /// Releases the connection's memory in the slabs, and stops the timers. Called when the connection ends,
    /// and before a control block that is not yet [droppable](Self::is_droppable) is dropped.
    pub(crate) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.send.dispose(ctx);
        self.receive.dispose(ctx);
        self.timer = None;
    }

    pub(super) fn raise_closed(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        if std::mem::replace(&mut self.reported, Reported::Closed) == Reported::Opened {
            ctx.closed(reason);
        }
    }
}
