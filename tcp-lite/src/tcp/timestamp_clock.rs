//! Our timestamps (RFC 7323): a clock that ticks in milliseconds, with a different offset for each
//! connection.

use crate::{Duration, Instant};

/// The clock of one connection's timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimestampClock {
    /// The offset that is added to the time in milliseconds (RFC 7323 section 7.1).
    offset: u32,
}

impl TimestampClock {
    #[inline]
    pub(crate) fn new(offset: u32) -> Self {
        Self { offset }
    }

    /// TSval of a segment that is sent now (RFC 7323 section 3.2).
    #[inline]
    pub(crate) fn value(self, now: Instant) -> u32 {
        self.offset.wrapping_add(now.total_millis() as u32)
    }

    /// The time in milliseconds at which we sent the segment whose TSval the peer echoes.
    #[inline]
    pub(super) fn sent_ms(self, echo: u32) -> u32 {
        echo.wrapping_sub(self.offset)
    }
}

/// The RTT of a segment that was sent at `sent_ms`, the time of the echoed timestamp. This RTT is unambiguous
/// even for retransmitted segments (RFC 7323 section 4). `longest` is the largest RTO. Returns `None` if the
/// echo is not valid.
#[inline]
pub(super) fn rtt_us(now: Instant, sent_ms: u32, longest: Duration) -> Option<u64> {
    let elapsed_ms = (now.total_millis() as u32).wrapping_sub(sent_ms);
    // An echo that is older than the largest RTO, or later than our clock, is not an echo of our timestamp.
    (u64::from(elapsed_ms) <= longest.total_millis()).then(|| u64::from(elapsed_ms.max(1)) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_tells_when_its_segment_was_sent_even_if_the_clock_wraps() {
        for (offset, ms) in [(0, 5), (u32::MAX, 5), (77, (1_i64 << 32) + 5)] {
            let clock = TimestampClock::new(offset);
            let value = clock.value(Instant::from_millis(ms));
            assert_eq!(value, offset.wrapping_add(5));
            assert_eq!(clock.sent_ms(value), 5);
        }
    }

    #[test]
    fn an_echo_from_the_future_or_of_long_ago_measures_nothing() {
        let longest = Duration::from_secs(60);
        let (now, now_ms) = (Instant::from_millis((1_i64 << 32) + 10), 10_u32);
        assert_eq!(rtt_us(now, now_ms + 1, longest), None);
        assert_eq!(rtt_us(now, now_ms, longest), Some(1000), "within a tick");
        assert_eq!(rtt_us(now, now_ms.wrapping_sub(70), longest), Some(70_000));
        assert_eq!(rtt_us(now, now_ms.wrapping_sub(60_000), longest), Some(60_000_000));
        assert_eq!(rtt_us(now, now_ms.wrapping_sub(60_001), longest), None);
    }
}
