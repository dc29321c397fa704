//! Dispatches timers to the two halves of a connection. This module also has the timers that belong to
//! neither half: keepalive, and the end of TIME-WAIT or of the attempts to send an RST (RFC 9293 sections
//! 3.8.4 and 3.10.8).

use super::Tcb;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::send::first_of;
use crate::tcp::slabs::SegmentSlab;
use crate::{CloseReason, Instant, Keepalive, TcpConfig};

/// The purpose of the connection's own timer. A connection has at most one such timer at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnTimer {
    /// The next keepalive probe.
    Keepalive,
    /// The end of TIME-WAIT, or the end of the attempts to send an RST.
    End,
}

impl Tcb {
    /// Sets the timer of the sending half for the data that is outstanding or queued now. The caller has to
    /// call this function after each call that takes a [`Ctx`], or once after several such calls.
    #[inline]
    pub(crate) fn arm(&mut self, now: Instant, config: &TcpConfig, segments: &SegmentSlab) {
        // A closed connection has no timer except the connection's own timer.
        if self.state != State::Closed {
            self.send.arm(now, config, segments);
        }
    }

    /// Whether the connection has a timer of only microseconds, or would get such a timer from
    /// [`arm`](Self::arm). Pacing uses such timers, and RACK uses them for segments that may be lost or only
    /// reordered.
    #[inline]
    pub(crate) fn has_short_timer(&self) -> bool {
        self.send.has_short_timer()
    }

    /// The time at which [`on_timer`](Self::on_timer) has to be called; `None` if no timer runs.
    /// [`arm`](Self::arm) may change this time.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let halves = first_of(self.send.deadline(), self.receive.deadline());
        first_of(halves, self.timer.map(|(at, _)| at))
    }

    /// Runs the timers that are due at `ctx.now`. Returns whether the retransmission timer expired.
    pub(crate) fn on_timer(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let watch = self.timer.filter(|(at, _)| *at <= ctx.now).map(|(_, watch)| watch);
        if watch == Some(ConnTimer::End) {
            self.terminate(ctx, CloseReason::Graceful, false);
            // If an RST still waits to be sent, it could not be sent in time and is dropped.
            self.rst_due = false;
            return false;
        }
        self.receive.on_timer(ctx.now);
        if watch == Some(ConnTimer::Keepalive) {
            self.on_keepalive(ctx);
        }
        let expired = self.send.on_timer(ctx);
        if expired.give_up {
            self.give_up(ctx);
        }
        expired.unanswered
    }

    /// Sends the next keepalive probe, or gives up the connection (RFC 9293 section 3.8.4). Only restarts the
    /// idle time if keepalive is off, or if other timers already detect a silent peer.
    fn on_keepalive(&mut self, ctx: &mut Ctx<'_>) {
        let Some(Keepalive { interval, probes, .. }) = self.keepalive(ctx) else {
            return self.restart_keepalive(ctx);
        };
        if self.send.is_waiting() {
            return self.restart_keepalive(ctx);
        }
        if self.keepalive_probes >= probes {
            return self.give_up(ctx);
        }
        self.keepalive_probes += 1;
        self.timer = Some((ctx.now + interval, ConnTimer::Keepalive));
        self.send.send_window_probe();
    }

    /// Restarts the idle time of keepalive, and forgets the probes that were sent.
    #[inline]
    pub(super) fn restart_keepalive(&mut self, ctx: &Ctx<'_>) {
        self.keepalive_probes = 0;
        if self.state != State::TimeWait {
            self.timer =
                self.keepalive(ctx).map(|keepalive| (ctx.now + keepalive.idle, ConnTimer::Keepalive));
        }
    }

    /// The keepalive settings of this connection; `None` if keepalive is off. If the connection has no
    /// settings of its own, the settings of the stack apply.
    #[inline]
    fn keepalive(&self, ctx: &Ctx<'_>) -> Option<Keepalive> {
        match &self.keepalive {
            Some(own) => **own,
            None => ctx.config.keepalive(),
        }
    }

    pub(crate) fn set_keepalive(&mut self, ctx: &Ctx<'_>, keepalive: Option<Keepalive>) {
        self.keepalive = Some(Box::new(keepalive));
        if !matches!(self.state, State::SynSent | State::SynReceived) {
            self.restart_keepalive(ctx);
        }
    }

    /// Called when the link has been down for too long: ends the connection without RST, which could not be
    /// sent. A connection in SYN-SENT or TIME-WAIT does not end.
    pub(crate) fn on_link_lost(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.state, State::SynSent | State::TimeWait) {
            self.terminate(ctx, CloseReason::LinkDown, false);
            self.rst_due = false;
        }
    }

    /// Called when the port was removed: ends the connection in any state, without RST.
    pub(crate) fn on_port_gone(&mut self, ctx: &mut Ctx<'_>) {
        self.terminate(ctx, CloseReason::PortGone, false);
        self.rst_due = false;
    }

    /// Called when no host has the Ethernet address of the next hop any more: ends the connection without
    /// RST, even if RST was still to be sent.
    pub(crate) fn on_neighbor_gone(&mut self, ctx: &mut Ctx<'_>) {
        let reason = match self.state {
            State::SynSent => CloseReason::Unreachable,
            _ => CloseReason::LinkDown,
        };
        self.terminate(ctx, reason, false);
        self.rst_due = false;
    }

    /// Called when the link is up again: starts to retransmit outstanding segments at once.
    pub(crate) fn on_link_up(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.state, State::Closed | State::TimeWait) {
            self.send.on_link_up(ctx);
        }
    }
}
