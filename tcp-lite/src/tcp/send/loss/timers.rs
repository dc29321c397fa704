//! The timer of the sending half, and the times from which its deadlines are computed (RFC 6298, RFC 8985
//! section 7.2, RFC 9293 sections 3.8.1 and 3.8.6.1).
//!
//! This module does not use the queue or the window. `deadline.rs` decides which event to wait for, and
//! `expiry.rs` acts when the timer is due.

use crate::{Deadline, Duration, Instant};

/// The event for which the running timer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp::send) enum SendTimer {
    /// An acknowledgement of the bytes in flight (RTO).
    Rto,
    /// An acknowledgement of segments that may be lost or only reordered (RFC 8985, the reordering timer).
    Reorder,
    /// An acknowledgement of the segment that was sent last (RFC 8985, PTO).
    LossProbe,
    /// A larger window, while nothing is in flight (persist timer).
    Persist,
    /// The transmission of a SYN, a FIN or a retransmission, which was not possible yet.
    Stuck,
}

/// The running timer, and the times that the deadlines depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    running: Option<(Instant, SendTimer)>,
    /// The time at which the next overtaken segment will count as lost.
    reorder: Deadline,
    /// The time at which our SYN or FIN was last sent.
    control_sent_at: Instant,
    /// The time at which new data was last sent, or at which SND.UNA last advanced. The PTO starts at this
    /// time.
    pto_from: Instant,
    /// The RTO does not expire before this time.
    rto_not_before: Instant,
    /// The time of the last progress. The user timeout starts at this time.
    progress: Instant,
    /// True if a timer has expired since `progress`.
    tried: bool,
    /// The time at which data was last sent, for the first time or again. The idle time starts at this time
    /// (RFC 5681 section 4.1).
    data_sent_at: Instant,
    persist_backoff: u32,
    /// Number of transmissions of our SYN or SYN-ACK, including answers to repeated SYNs of the peer.
    syn_sends: u8,
    /// Number of timeouts of our SYN (RFC 9293 section 3.8.3 counts timeouts, not answers).
    syn_timeouts: u8,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            running: None,
            reorder: Deadline::NONE,
            control_sent_at: now,
            pto_from: now,
            rto_not_before: now,
            progress: now,
            tried: false,
            data_sent_at: now,
            persist_backoff: 0,
            syn_sends: 0,
            syn_timeouts: 0,
        }
    }

    pub(super) fn stop(&mut self) {
        self.running = None;
        self.reorder = Deadline::NONE;
    }

    /// The running timer, and the time at which it is due; `None` if no timer runs.
    #[inline]
    pub(super) fn running(&self) -> Option<(Instant, SendTimer)> {
        self.running
    }

    /// The time at which `timer` is due; `None` if `timer` does not run.
    #[inline]
    pub(super) fn due(&self, timer: SendTimer) -> Option<Instant> {
        self.running.filter(|(_, running)| *running == timer).map(|(at, _)| at)
    }

    /// Starts `timer` in place of the running timer. If a timer has expired since the last progress, `timer`
    /// is due at the end of the user timeout at the latest.
    #[inline]
    pub(super) fn start(&mut self, now: Instant, (at, timer): (Instant, SendTimer), user_timeout: Duration) {
        let at = if self.tried { at.min((self.progress + user_timeout).max(now)) } else { at };
        self.running = Some((at, timer));
    }

    /// Stops the timer, because there is nothing to wait for.
    #[inline]
    pub(super) fn cancel(&mut self) {
        self.running = None;
    }

    /// If the running timer is due, stops the timer and returns its kind. Otherwise returns `None`.
    pub(super) fn expired(&mut self, now: Instant) -> Option<SendTimer> {
        let (_, timer) = self.running.take_if(|(at, _)| *at <= now)?;
        Some(timer)
    }

    /// Called when a timer has expired. Returns whether the user timeout has expired as well (RFC 9293
    /// section 3.8.3). The user timeout expires only if an earlier timer has expired since the last progress,
    /// because that timer gave the peer another chance to answer. If the first timer expires after the user
    /// timeout has passed, the stack was not polled for a long time. Such a pause says nothing about the
    /// peer, so the user timeout starts again.
    pub(super) fn is_given_up(&mut self, now: Instant, user_timeout: Duration) -> bool {
        let is_over = now >= self.progress + user_timeout;
        let was_tried = std::mem::replace(&mut self.tried, true);
        if is_over && !was_tried {
            self.progress = now;
        }
        is_over && was_tried
    }

    #[inline]
    pub(super) fn restart_user_timeout(&mut self, now: Instant) {
        (self.progress, self.tried) = (now, false);
    }

    pub(super) fn on_established(&mut self, now: Instant) {
        self.restart_user_timeout(now);
        self.running = None;
    }

    /// Called when our SYN or SYN-ACK was sent, perhaps again.
    pub(super) fn on_syn_sent(&mut self, now: Instant) {
        self.control_sent_at = now;
        self.syn_sends = self.syn_sends.saturating_add(1);
    }

    pub(super) fn syn_sends(&self) -> u8 {
        self.syn_sends
    }

    pub(super) fn control_sent_at(&self) -> Instant {
        self.control_sent_at
    }

    /// Called when our SYN timed out. Returns whether the SYN may be sent again, which is possible `retries`
    /// times.
    pub(super) fn on_syn_timeout(&mut self, retries: u8) -> bool {
        let again = self.syn_timeouts < retries;
        self.syn_timeouts += u8::from(again);
        again
    }

    /// Called when new data was sent. `idle` is true if nothing was outstanding before.
    #[inline]
    pub(super) fn on_data_sent(&mut self, now: Instant, idle: bool) {
        self.on_first_sent(now, idle);
        self.data_sent_at = now;
    }

    pub(super) fn on_data_sent_again(&mut self, now: Instant) {
        self.data_sent_at = now;
    }

    pub(super) fn idle_time(&self, now: Instant) -> Duration {
        now - self.data_sent_at
    }

    /// Called when our FIN was sent for the first time. `idle` is true if nothing was outstanding before.
    pub(super) fn on_fin_sent(&mut self, now: Instant, idle: bool) {
        self.on_first_sent(now, idle);
        self.control_sent_at = now;
    }

    pub(super) fn on_fin_sent_again(&mut self, now: Instant) {
        self.control_sent_at = now;
    }

    #[inline]
    fn on_first_sent(&mut self, now: Instant, idle: bool) {
        if idle {
            self.restart_user_timeout(now);
        }
        self.pto_from = now;
    }

    /// Called when SND.UNA advanced. This shows that the path works, so the deadlines allow one more round
    /// trip for the bytes that are still in flight.
    #[inline]
    pub(super) fn on_acked(&mut self, now: Instant, srtt: Duration) {
        self.restart_user_timeout(now);
        self.running = None;
        self.pto_from = now;
        self.rto_not_before = now + srtt;
    }

    /// Delays the RTO, so that it does not expire before `at`.
    pub(super) fn delay_rto(&mut self, at: Instant) {
        self.rto_not_before = at;
    }

    /// The time at which the RTO expires for a segment that was last sent at `sent_at`. If `sent_at` is
    /// `None`, the segment is our SYN or FIN.
    #[inline]
    pub(super) fn rto_at(&self, sent_at: Option<Instant>, rto: Duration) -> Instant {
        (sent_at.unwrap_or(self.control_sent_at) + rto).max(self.rto_not_before)
    }

    /// The time at which a tail loss probe with the delay `pto` is due.
    #[inline]
    pub(super) fn pto_at(&self, pto: Duration) -> Instant {
        self.pto_from + pto
    }

    /// The time at which the next overtaken segment will count as lost; `None` if no segment is overtaken.
    #[inline]
    pub(super) fn reorder_at(&self) -> Option<Instant> {
        self.reorder.get()
    }

    #[inline]
    pub(super) fn set_reorder(&mut self, at: Option<Instant>) {
        self.reorder = at.into();
    }

    /// The number of times that the persist timer has expired since the window was last large enough.
    pub(super) fn persist_backoff(&self) -> u32 {
        self.persist_backoff
    }

    /// Called when the persist timer expired: the next wait is longer.
    pub(super) fn back_off_persist(&mut self) {
        self.persist_backoff += 1;
    }

    /// Resets the backoff of the persist timer. Called when the peer's window is large enough, and when the
    /// link is up again.
    #[inline]
    pub(super) fn forget_persist_backoff(&mut self) {
        self.persist_backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER_TIMEOUT: Duration = Duration::from_secs(10);

    fn at(ms: i64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn one_timer_runs_and_expires_once() {
        let mut timers = Timers::new(at(0));
        timers.start(at(0), (at(500), SendTimer::Persist), USER_TIMEOUT);
        timers.start(at(0), (at(300), SendTimer::Rto), USER_TIMEOUT);
        assert_eq!((timers.due(SendTimer::Persist), timers.due(SendTimer::Rto)), (None, Some(at(300))));
        assert_eq!(timers.expired(at(299)), None);
        assert_eq!((timers.expired(at(300)), timers.expired(at(600))), (Some(SendTimer::Rto), None));
    }

    #[test]
    fn no_timer_is_later_than_the_user_timeout_which_counts_from_the_last_progress() {
        let mut timers = Timers::new(at(0));
        timers.on_acked(at(1000), Duration::ZERO);
        assert!(!timers.is_given_up(at(1200), USER_TIMEOUT), "the first timer");
        timers.start(at(1200), (at(60_000), SendTimer::Rto), USER_TIMEOUT);
        assert_eq!(timers.running(), Some((at(11_000), SendTimer::Rto)));
        assert!(
            !timers.is_given_up(at(10_999), USER_TIMEOUT) && timers.is_given_up(at(11_000), USER_TIMEOUT)
        );
        timers.start(at(12_000), (at(60_000), SendTimer::Rto), USER_TIMEOUT);
        assert_eq!(timers.running(), Some((at(12_000), SendTimer::Rto)), "not in the past");
    }

    #[test]
    fn the_first_timer_is_as_late_as_it_is_set_and_ends_nothing() {
        let mut timers = Timers::new(at(0));
        timers.start(at(0), (at(60_000), SendTimer::Rto), USER_TIMEOUT);
        assert_eq!(timers.running(), Some((at(60_000), SendTimer::Rto)));
        assert!(!timers.is_given_up(at(60_000), USER_TIMEOUT));
        timers.start(at(60_000), (at(90_000), SendTimer::Rto), USER_TIMEOUT);
        assert_eq!(timers.running(), Some((at(70_000), SendTimer::Rto)), "from the first timer on");
        // After each kind of progress, the next timer that expires counts as the first.
        let progress: [fn(&mut Timers); 4] = [
            |timers| timers.on_acked(at(1000), Duration::ZERO),
            |timers| timers.on_data_sent(at(1000), true),
            |timers| timers.on_fin_sent(at(1000), true),
            |timers| timers.on_established(at(1000)),
        ];
        for progress in progress {
            let mut timers = Timers::new(at(0));
            assert!(!timers.is_given_up(at(500), USER_TIMEOUT));
            progress(&mut timers);
            assert!(!timers.is_given_up(at(11_000), USER_TIMEOUT), "the first timer since");
            assert!(!timers.is_given_up(at(20_999), USER_TIMEOUT));
            assert!(timers.is_given_up(at(21_000), USER_TIMEOUT));
        }
    }

    #[test]
    fn an_acknowledgement_gives_what_is_in_flight_one_more_round_trip() {
        let mut timers = Timers::new(at(0));
        let rto = Duration::from_millis(200);
        timers.on_data_sent(at(100), true);
        timers.start(at(100), (at(300), SendTimer::Rto), USER_TIMEOUT);
        timers.on_acked(at(290), Duration::from_millis(50));
        assert_eq!(timers.running(), None);
        assert_eq!(timers.rto_at(Some(at(100)), rto), at(340));
        assert_eq!(timers.rto_at(Some(at(200)), rto), at(400));
    }

    #[test]
    fn a_syn_is_sent_again_as_often_as_is_allowed() {
        let mut timers = Timers::new(at(0));
        assert_eq!([(); 4].map(|()| timers.on_syn_timeout(2)), [true, true, false, false]);
    }
}
