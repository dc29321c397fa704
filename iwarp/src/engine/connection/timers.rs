//! The deadlines of a connection.

use std::time::Duration;

use tcp_lite::Instant;

/// What a connection waits for: the deadline of its phase, and the idle timeout.
pub(super) struct Timers {
    /// The deadline of the phase.
    deadline: Option<Instant>,
    /// How long the connection may be idle once it is established.
    idle_timeout: Option<Duration>,
    /// When to check whether it was idle for too long.
    idle_check: Option<Instant>,
}

impl Timers {
    pub(super) fn new(deadline: Option<Instant>) -> Self {
        Self { deadline, idle_timeout: None, idle_check: None }
    }

    /// The next time at which the connection has to be called.
    pub(super) fn next(&self) -> Option<Instant> {
        match (self.deadline, self.idle_check) {
            (Some(deadline), Some(check)) => Some(deadline.min(check)),
            (deadline, check) => deadline.or(check),
        }
    }

    /// The deadline of the phase.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Sets the deadline of the phase.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// The phase has no deadline.
    pub(super) fn clear_deadline(&mut self) {
        self.deadline = None;
    }

    /// Whether the deadline of the phase has passed. It is reported once.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.deadline.take_if(|deadline| *deadline <= now).is_some()
    }

    /// Watches for an idle connection from now on, if there is a timeout.
    pub(super) fn watch_idle(&mut self, now: Instant, timeout: Option<Duration>) {
        self.idle_timeout = timeout;
        self.idle_check = timeout.map(|timeout| now + duration(timeout));
    }

    /// Watches again, with the timeout of [`watch_idle`](Self::watch_idle).
    pub(super) fn rewatch_idle(&mut self, now: Instant) {
        self.watch_idle(now, self.idle_timeout);
    }

    /// Watches no more, until [`rewatch_idle`](Self::rewatch_idle).
    pub(super) fn unwatch_idle(&mut self) {
        self.idle_check = None;
    }

    /// Whether to check now whether the connection was idle for too long. It is reported once.
    pub(super) fn take_idle_check(&mut self, now: Instant) -> bool {
        self.idle_check.take_if(|check| *check <= now).is_some()
    }

    /// Whether the connection was idle for too long if its last progress was at `progress`. If not, the next
    /// check is set.
    pub(super) fn is_idle(&mut self, progress: Instant, now: Instant) -> bool {
        let Some(timeout) = self.idle_timeout else { return false };
        let due = progress + duration(timeout);
        self.idle_check = (due > now).then_some(due);
        due <= now
    }
}

/// Converts to the stack's type. A duration beyond the range of its instants becomes a very long one: a sum
/// must not wrap into the past.
pub(super) fn duration(duration: Duration) -> tcp_lite::Duration {
    const FOR_EVER: u64 = i64::MAX as u64 / 4;
    tcp_lite::Duration::from_micros(
        u64::try_from(duration.as_micros()).map_or(FOR_EVER, |us| us.min(FOR_EVER)),
    )
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
}
