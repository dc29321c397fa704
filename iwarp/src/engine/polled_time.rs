//! The time of an engine: the time of its clock, less the time for which nobody polled the engine although a
//! poll was due.
//!
//! A process may stand still: stopped by a signal or a debugger, its machine suspended, paused or migrated.
//! During a standstill nothing is sent, and frames of the peer may be lost. So that time is no evidence that
//! a peer is gone, that a peer is slow, or that a link stays down, and no timeout counts it.

use tcp_lite::{Duration, Instant};

/// A poll that is late by more than this means a standstill. A busy machine delays polls by less.
const LATE: Duration = Duration::from_millis(500);

/// After a standstill, everything that would be due gets this time again, or the time that it still had if
/// that is shorter: the peer may answer, or retransmit lost data.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct PolledTime {
    /// The time of the last poll, without standstills.
    now: Instant,
    /// The sum of all standstills.
    standstills: Duration,
    /// Everything that is due until then has got its time again.
    graced: Instant,
}

impl PolledTime {
    pub(super) fn new() -> Self {
        Self { now: Instant::ZERO, standstills: Duration::ZERO, graced: Instant::ZERO }
    }

    /// The time when the clock says `clock`, and whether the last poll was so long ago that there may have
    /// been a [standstill](Self::skip_standstill). The time never goes back.
    #[inline]
    pub(super) fn advance(&mut self, clock: Instant) -> (Instant, bool) {
        let (now, last) = (self.of(clock), self.now);
        if now <= last + LATE {
            self.now = now.max(last);
            return (self.now, false);
        }
        (now, true)
    }

    /// Sets the time to when the clock says `clock`, after a pause. `due` is when the engine had to be
    /// polled, if at all.
    pub(super) fn end_pause(&mut self, clock: Instant, due: Option<Instant>) -> Instant {
        let (now, last) = (self.of(clock), self.now);
        self.now = match due.map(|due| due.max(last)) {
            Some(due) if now > due + LATE => {
                // If every poll is late, every second one still reaches the due time.
                let resumed = if last >= self.graced { last.max(due - GRACE) } else { due };
                self.graced = self.graced.max(due);
                self.standstills += now - resumed;
                resumed
            }
            _ => now,
        };
        self.now
    }

    /// The time when the clock says `clock`.
    pub(super) fn of(&self, clock: Instant) -> Instant {
        clock - self.standstills
    }

    /// What the clock says at `time`.
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

    /// A poll at `clock` of an engine that was due at `due`.
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
        // Due after 200 ms, polled after 11 s.
        assert_eq!(poll(&mut time, 12_000, Some(1200)), 1000);
        assert_eq!(time.clock_at(at(1200)), at(12_200));
        assert_eq!((poll(&mut time, 12_200, Some(1200)), time.of(at(12_300))), (1200, at(1300)));
        assert_eq!(poll(&mut time, 12_900, Some(1400)), 1900, "due in the time of the engine");
        // The same happens in the next late poll.
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
