//! The deadlines of a connection.

use std::time::Duration;

use tcp_lite::{Deadline, Instant};

/// Stands for no limit: some 73,000 years.
const FOR_EVER: tcp_lite::Duration = tcp_lite::Duration::from_micros(i64::MAX as u64 / 4);

/// The times of a connection in any phase: the deadline of the phase, and the idle timeout.
pub(super) struct Timers {
    deadline: Deadline,
    /// Maximum idle time of the connection after it is established, or [`FOR_EVER`].
    idle_timeout: tcp_lite::Duration,
    /// The time to check whether the connection was idle for too long.
    idle_check: Deadline,
}

/// How long messages wait for receive requests on a connection in Full Operation.
pub(super) struct RnrTimers {
    /// Maximum time that a message of the peer waits, or [`FOR_EVER`].
    timeout: tcp_lite::Duration,
    /// The time when the peer first reported that it has no receive request for our waiting message.
    peer_since: Deadline,
    /// The time when our waiting message fails.
    peer: Deadline,
}

impl Timers {
    pub(super) fn new(deadline: Option<Instant>) -> Self {
        Self { deadline: deadline.into(), idle_timeout: FOR_EVER, idle_check: Deadline::NONE }
    }

    /// Returns the earlier one of the deadline and the idle check.
    #[inline]
    pub(super) fn next(&self) -> Deadline {
        self.deadline.min(self.idle_check)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.get()
    }

    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline.into();
    }

    pub(super) fn clear_deadline(&mut self) {
        self.deadline = Deadline::NONE;
    }

    /// Returns whether the deadline of the phase has passed. A passed deadline is reported only once.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        take_if_passed(&mut self.deadline, now)
    }

    /// Starts the idle check with the timeout `timeout`; `None` disables the idle check.
    pub(super) fn watch_idle(&mut self, now: Instant, timeout: Option<Duration>) {
        self.idle_timeout = timeout.map_or(FOR_EVER, duration);
        self.rewatch_idle(now);
    }

    /// Restarts the idle check, with the timeout of [`watch_idle`](Self::watch_idle).
    pub(super) fn rewatch_idle(&mut self, now: Instant) {
        let watches = self.idle_timeout < FOR_EVER;
        self.idle_check = if watches { (now + self.idle_timeout).into() } else { Deadline::NONE };
    }

    /// Stops the idle check, until [`rewatch_idle`](Self::rewatch_idle).
    pub(super) fn unwatch_idle(&mut self) {
        self.idle_check = Deadline::NONE;
    }

    /// Returns whether it is time to check whether the connection was idle for too long. A check that is due
    /// is reported only once.
    pub(super) fn take_idle_check(&mut self, now: Instant) -> bool {
        take_if_passed(&mut self.idle_check, now)
    }

    /// Whether the connection was idle for too long, given that its last progress was at `progress`. If not,
    /// sets the time of the next check, unless there is no timeout.
    pub(super) fn is_idle(&mut self, progress: Instant, now: Instant) -> bool {
        if self.idle_timeout == FOR_EVER {
            return false;
        }
        let due = progress + self.idle_timeout;
        self.idle_check = (due > now).then_some(due).into();
        due <= now
    }
}

impl RnrTimers {
    /// Returns the timers of a connection. A message of the peer may wait for `timeout`; `None` means for
    /// ever.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout: timeout.map_or(FOR_EVER, duration), peer_since: Deadline::NONE, peer: Deadline::NONE }
    }

    /// Returns the deadline by which a message that arrives from the peer now must get a receive request;
    /// `None` means that there is no deadline.
    pub(super) fn limit(&self, now: Instant) -> Option<Instant> {
        (self.timeout < FOR_EVER).then(|| now + self.timeout)
    }

    #[inline]
    pub(super) fn peer(&self) -> Deadline {
        self.peer
    }

    /// Called when the peer has no receive request for a message of ours. The message may wait for `time` in
    /// total; `None` means for ever.
    pub(super) fn peer_is_not_ready(&mut self, now: Instant, time: Option<tcp_lite::Duration>) {
        let since = self.peer_since.get().unwrap_or(now);
        self.peer_since = since.into();
        self.peer = time.map(|time| since + time).into();
    }

    /// Called when the peer has accepted a message of ours.
    pub(super) fn peer_takes(&mut self) {
        (self.peer_since, self.peer) = (Deadline::NONE, Deadline::NONE);
    }

    /// Returns whether our waiting message fails now. The failure is reported only once.
    pub(super) fn take_peer_due(&mut self, now: Instant) -> bool {
        take_if_passed(&mut self.peer, now)
    }
}

/// Converts a duration to TCP's type. A duration beyond the range of TCP's instants becomes [`FOR_EVER`], so
/// that a sum does not wrap into the past.
pub(super) fn duration(duration: Duration) -> tcp_lite::Duration {
    u64::try_from(duration.as_micros()).map_or(FOR_EVER, tcp_lite::Duration::from_micros).min(FOR_EVER)
}

/// Removes a deadline that has passed. Returns whether it has passed.
fn take_if_passed(deadline: &mut Deadline, now: Instant) -> bool {
    let passed = deadline.has_passed(now);
    if passed {
        *deadline = Deadline::NONE;
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_is_not_in_the_past() {
        let now = Instant::from_micros(1_000_000);
        for long in [Duration::MAX, Duration::from_micros(u64::MAX), Duration::from_micros(i64::MAX as u64)] {
            assert!(now + duration(long) > now + duration(Duration::from_secs(1 << 30)), "{long:?}");
        }
    }

    #[test]
    fn each_message_has_the_whole_time_once() {
        let at = Instant::from_micros;
        let time = |us| Some(tcp_lite::Duration::from_micros(us));
        let mut rnr = RnrTimers::new(Some(Duration::from_micros(5)));
        assert_eq!((rnr.limit(at(10)), rnr.peer()), (Some(at(15)), Deadline::NONE));
        rnr.peer_is_not_ready(at(10), time(100));
        rnr.peer_is_not_ready(at(50), time(100));
        assert_eq!(rnr.peer().get(), Some(at(110)), "told twice about one message");
        rnr.peer_is_not_ready(at(60), time(80));
        assert_eq!(rnr.peer().get(), Some(at(90)), "the user has changed the number of tries");
        assert_eq!([89, 90, 91].map(|us| rnr.take_peer_due(at(us))), [false, true, false]);
        rnr.peer_takes();
        rnr.peer_is_not_ready(at(200), time(100));
        assert_eq!(rnr.peer().get(), Some(at(300)), "the next message");
        rnr.peer_is_not_ready(at(210), None);
        assert_eq!(rnr.peer(), Deadline::NONE);
        assert_eq!(RnrTimers::new(None).limit(at(10)), None);
    }
}
