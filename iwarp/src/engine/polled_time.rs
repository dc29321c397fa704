//! The time of an engine: the time of its clock, minus the periods in which no thread polled the engine
//! although a poll was due.
//!
//! A process may stand still: it may be stopped by a signal or a debugger, or its machine may be suspended,
//! paused or migrated. During a standstill nothing is sent, and frames of the peer may be lost. So the
//! standstill does not prove that a peer is gone or slow, or that a link stays down. Therefore timeouts do
//! not include standstills.

use tcp_lite::{Duration, Instant};

/// A poll that is late by more than this time counts as a standstill. A busy machine usually delays polls by
/// less.
const LATE: Duration = Duration::from_millis(500);

/// After a standstill, the timer that is due first usually has this time left, or the time that it had left
/// before the standstill if that time is shorter. In this time the peer may answer, or retransmit lost data.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct PolledTime {
    /// The time of the last poll, without standstills.
    now: Instant,
    /// The sum of all standstills.
    standstills: Duration,
    /// Timers that are due at this time or earlier have already been extended by [`GRACE`].
    graced: Instant,
}

impl PolledTime {
    pub(super) fn new() -> Self {
        Self { now: Instant::ZERO, standstills: Duration::ZERO, graced: Instant::ZERO }
    }

    /// Returns the engine's time when the clock shows `clock`, and whether the last poll was so long ago that
    /// there may have been a [standstill](Self::end_pause). The time never goes back.
    #[inline]
    pub(super) fn advance(&mut self, clock: Instant) -> (Instant, bool) {
        let (now, last) = (self.of(clock), self.now);
        if now <= last + LATE {
            self.now = now.max(last);
            return (self.now, false);
        }
        (now, true)
    }

    /// Sets the engine's time at the end of a pause, when the clock shows `clock`. Returns the engine's time.
    /// `due` is the engine's time at which a poll was due; `None` if no poll was due.
    pub(super) fn end_pause(&mut self, clock: Instant, due: Option<Instant>) -> Instant {
        let (now, last) = (self.of(clock), self.now);
        self.now = match due.map(|due| due.max(last)) {
            Some(due) if now > due + LATE => {
                // The second late poll in a row sets the time to `due`, so timers make progress even if each
                // poll is late.
                let resumed = if last >= self.graced { last.max(due - GRACE) } else { due };
                self.graced = self.graced.max(due);
                self.standstills += now - resumed;
                resumed
            }
            _ => now,
        };
        self.now
    }

    /// Returns the engine's time when the clock shows `clock`.
    pub(super) fn of(&self, clock: Instant) -> Instant {
        clock - self.standstills
    }

    /// Returns what the clock shows at the engine's time `time`.
    pub(super) fn clock_at(&self, time: Instant) -> Instant {
        time + self.standstills
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Instant {
        Instant::from_millis(ms)
    }

    /// Polls an engine at `clock`. The poll was due at `due`. Returns the engine's time.
    fn poll(time: &mut PolledTime, clock: i64, due: Option<i64>) -> i64 {
        let now = match time.advance(at(clock)) {
            (now, false) => now,
            (_, true) => time.end_pause(at(clock), due.map(at)),
        };
        assert!(time.clock_at(now) >= at(clock));
        now.total_millis()
    }

    #[test]
    fn time_passes_while_polls_are_not_late() {
        let mut time = PolledTime::new();
        assert_eq!(poll(&mut time, 5000, None), 5000, "nothing was due");
        assert_eq!(poll(&mut time, 5400, Some(5000)), 5400);
        assert_eq!(poll(&mut time, 5900, Some(5400)), 5900, "not too late yet");
        assert_eq!(poll(&mut time, 60_400, Some(59_900)), 60_400, "it slept until it was due");
        assert_eq!(poll(&mut time, 70_000, Some(80_000)), 70_000, "it was woken before");
        assert_eq!(poll(&mut time, 100_000, None), 100_000);
    }

    #[test]
    fn a_standstill_is_left_out_for_ever() {
        let mut time = PolledTime::new();
        assert_eq!(poll(&mut time, 1000, None), 1000);
        // The poll is due after 200 ms, but happens after 11 s.
        assert_eq!(poll(&mut time, 12_000, Some(1200)), 1000);
        assert_eq!(time.clock_at(at(1200)), at(12_200));
        assert_eq!((poll(&mut time, 12_200, Some(1200)), time.of(at(12_300))), (1200, at(1300)));
        assert_eq!(poll(&mut time, 12_900, Some(1400)), 1900, "due in the time of the engine");
        // The next late poll is treated in the same way as the first.
        assert_eq!(poll(&mut time, 20_000, Some(2000)), 1900);
        assert_eq!(poll(&mut time, 20_001, Some(2000)), 1901);
    }

    #[test]
    fn what_is_due_gets_a_second_again_and_runs_if_polls_stay_late() {
        let mut time = PolledTime::new();
        assert_eq!(poll(&mut time, 1000, None), 1000);
        assert_eq!(poll(&mut time, 30_000, Some(11_000)), 10_000);
        assert_eq!(poll(&mut time, 30_001, Some(11_000)), 10_001);
        assert_eq!(poll(&mut time, 40_000, Some(11_000)), 11_000);
        assert_eq!(poll(&mut time, 50_000, Some(11_300)), 11_000);
        assert_eq!(poll(&mut time, 60_000, Some(11_300)), 11_300);
        assert_eq!(poll(&mut time, 70_000, Some(11_300)), 11_300, "it was due already");
        assert_eq!(poll(&mut time, 80_000, Some(11_200)), 11_300, "or even earlier");
    }

    #[test]
    fn it_never_goes_back() {
        let mut time = PolledTime::new();
        assert_eq!(poll(&mut time, 1000, None), 1000);
        assert_eq!(time.advance(at(998)), (at(1000), false));
        assert_eq!(time.advance(at(1001)), (at(1001), false));
    }
}
