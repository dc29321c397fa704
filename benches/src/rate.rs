//! Load at a given rate: the times at which messages are due, regardless of earlier messages.
//!
//! The schedule is *open*: message *i* is due at its time even if the target stalls, and the latency of the
//! message is measured from that time. A closed loop sends nothing while it waits, so a stall of any length
//! affects only the messages in flight ("coordinated omission"). With an open schedule, a stall affects every
//! message that is due during the stall.

/// A rate in one of the units of `--rate_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// A number of bytes per second.
    Bytes(u64),
    /// A number of messages per second.
    Messages(u64),
}

impl Rate {
    /// The rate in messages of `size` bytes per second.
    pub fn messages_per_s(self, size: u32) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64 / f64::from(size.max(1)),
            Self::Messages(messages) => messages as f64,
        }
    }

    /// Divides the rate into `parts` parts, which differ by at most 1, and returns the part with this index.
    /// A part is at least 1.
    pub fn share(self, index: u64, parts: u64) -> Self {
        let share = |number: u64| (number / parts + u64::from(index < number % parts)).max(1);
        match self {
            Self::Bytes(number) => Self::Bytes(share(number)),
            Self::Messages(number) => Self::Messages(share(number)),
        }
    }

    /// The rate as a number of bytes or messages per second.
    pub fn per_s(self) -> u64 {
        match self {
            Self::Bytes(number) | Self::Messages(number) => number,
        }
    }
}

/// Times at which messages are due, in cycles of the caller's clock.
#[derive(Clone, Debug)]
pub struct Schedule {
    start: u64,
    /// Cycles between two bursts, in units of 2^-32.
    period: u128,
    burst: u64,
    taken: u64,
}

/// Number of fraction bits of [`Schedule::period`]. With these bits, a schedule with some million bursts per
/// second drifts by less than 100 cycles in a day.
const FRACTION_BITS: u32 = 32;

impl Schedule {
    /// Makes a schedule that begins at `start`. In each `hz` cycles, `messages_per_s` messages are due, in
    /// bursts of `burst` messages (at least 1).
    pub fn new(start: u64, hz: u64, messages_per_s: f64, burst: u32) -> Self {
        let burst = burst.max(1);
        let cycles = hz as f64 * f64::from(burst) / messages_per_s;
        // If the rate is too slow for the type, `as` saturates, and only the first burst is ever due.
        let period = (cycles * (1u64 << FRACTION_BITS) as f64) as u128;
        Self { start, period, burst: burst.into(), taken: 0 }
    }

    /// The time at which message `number` is due.
    pub fn due(&self, number: u64) -> u64 {
        let bursts = u128::from(number / self.burst);
        let after = bursts.saturating_mul(self.period) >> FRACTION_BITS;
        self.start.saturating_add(after.min(u64::MAX.into()) as u64)
    }

    /// Whether a message is due at `now`.
    #[inline]
    pub fn is_due(&self, now: u64) -> bool {
        self.due(self.taken) <= now
    }

    /// Removes the next message, and returns the time at which the message was due. Call this function only
    /// if [a message is due](Self::is_due).
    #[inline]
    pub fn take(&mut self) -> u64 {
        let due = self.due(self.taken);
        self.taken += 1;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HZ: u64 = 3_000_000_000;

    /// Removes all messages that are due at `now`. Returns, for each message, when it was due and how long it
    /// waited.
    fn take_all(schedule: &mut Schedule, now: u64) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        while schedule.is_due(now) {
            let due = schedule.take();
            taken.push((due, now - due));
        }
        taken
    }

    proptest! {
        // At any time, no message was sent early, and the number of sent messages differs by at most a burst
        // from the number that the rate demands.
        #[test]
        fn never_early_never_lost(
            rate in 1.0..50_000_000f64,
            burst in 1..64u32,
            looks in prop::collection::vec(0..3_000_000u64, 1..100),
        ) {
            let start = 1 << 40;
            let mut schedule = Schedule::new(start, HZ, rate, burst);
            let (mut now, mut count) = (start, 0u64);
            for look in looks {
                now += look;
                for (due, _) in take_all(&mut schedule, now) {
                    prop_assert!(due <= now);
                    count += 1;
                }
                let bursts = (now - start) as f64 * rate / HZ as f64 / f64::from(burst);
                let expected = (bursts.floor() + 1.0) * f64::from(burst);
                prop_assert!((count as f64 - expected).abs() <= f64::from(burst) + 1e-6 * expected, "{count} {expected}");
            }
        }

        // The latency of a message includes the time for which a stall delayed it. The first message of the
        // backlog has waited for the stall minus one period. Each later message has waited one period less
        // than the message before it.
        #[test]
        fn a_backlog_is_charged_to_those_that_waited(rate in 1_000.0..10_000_000f64, stall_us in 1_000..50_000u64) {
            let mut schedule = Schedule::new(0, HZ, rate, 1);
            take_all(&mut schedule, 0);
            let stall = HZ / 1_000_000 * stall_us;
            let waited: Vec<u64> = take_all(&mut schedule, stall).into_iter().map(|(_, waited)| waited).collect();
            let period = HZ as f64 / rate;
            let expected = stall as f64 / period;
            prop_assert!((waited.len() as f64 - expected).abs() <= 1.0);
            for (number, waited) in waited.iter().enumerate() {
                let full = stall as f64 - (number + 1) as f64 * period;
                prop_assert!((*waited as f64 - full).abs() <= 2.0, "{number}: {waited} {full}");
            }
        }

        #[test]
        fn due_times_never_go_back(rate in 0.001..1e9f64, burst in 1..1000u32, number in 0..1u64 << 40) {
            let schedule = Schedule::new(7, HZ, rate, burst);
            prop_assert!(schedule.due(number) <= schedule.due(number + 1));
        }
    }

    #[test]
    fn a_burst_is_due_at_once() {
        let schedule = Schedule::new(0, 1000, 10.0, 4);
        let due: Vec<u64> = (0..9).map(|number| schedule.due(number)).collect();
        assert_eq!(due, [0, 0, 0, 0, 400, 400, 400, 400, 800]);
    }

    #[test]
    fn a_day_does_not_drift() {
        let schedule = Schedule::new(0, HZ, 3_333_333.0, 1);
        let day = 86_400 * 3_333_333;
        assert!(schedule.due(day).abs_diff(86_400 * HZ) < 100, "{}", schedule.due(day));
    }

    #[test]
    fn bytes_are_messages_of_their_size() {
        assert_eq!(Rate::Bytes(1_000_000).messages_per_s(1000), 1000.0);
        assert_eq!(Rate::Messages(5).messages_per_s(1000), 5.0);
    }
}
