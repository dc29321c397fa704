//! HyStart++ (RFC 9406): if the round-trip time increases in slow start, the window grows more slowly. If the
//! increase persists, slow start ends, usually before the bottleneck queue overflows.

use super::Ack;

/// Number of samples that a round needs before it is evaluated (section 4.3, N_RTT_SAMPLE).
const SAMPLES: u8 = 8;
/// The increase of the round-trip time that indicates congestion: an eighth of the round-trip time, but at
/// least 4 ms and at most 16 ms (section 4.3: MIN_RTT_DIVISOR, MIN_RTT_THRESH, MAX_RTT_THRESH).
const THRESHOLD_DIVISOR: u32 = 8;
const THRESHOLD_US: (u32, u32) = (4_000, 16_000);
/// In conservative slow start, the window grows at 1/4 of the rate of slow start (section 4.3:
/// CSS_GROWTH_DIVISOR), for `ROUNDS` rounds (CSS_ROUNDS).
const GROWTH_DIVISOR: u32 = 4;
const ROUNDS: u8 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// The window grows by this many bytes.
    By(u32),
    /// Slow start ends, and the threshold becomes the current window.
    Ends,
}

/// The first slow start of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round ends with the first acknowledgement beyond this position.
    round_end: u64,
    samples: u8,
    /// Smallest round-trip time of this round in microseconds.
    current_us: u32,
    /// Smallest round-trip time of the previous round.
    last_us: u32,
    conservative: Option<Conservative>,
}

/// Conservative slow start (section 4.2).
#[derive(Clone, Copy, Debug)]
struct Conservative {
    /// The round-trip time in microseconds when conservative slow start began. If a later round-trip time is
    /// smaller, the increase was spurious.
    baseline_us: u32,
    /// Number of completed rounds of conservative slow start.
    rounds: u8,
}

impl HyStart {
    pub(super) fn new() -> Self {
        Self { round_end: 0, samples: 0, current_us: u32::MAX, last_us: u32::MAX, conservative: None }
    }

    /// Called for an acknowledgement in slow start. Returns how the window grows, or that slow start ends.
    pub(super) fn on_ack(&mut self, ack: &Ack, mss: u32) -> Growth {
        if ack.una > self.round_end && self.next_round(ack.nxt) {
            return Growth::Ends;
        }
        // The growth is computed first, because the sample of this acknowledgement affects only later
        // acknowledgements.
        let bytes = match self.conservative {
            Some(_) => ack.slow_start_bytes(mss) / GROWTH_DIVISOR,
            None => ack.slow_start_bytes(mss),
        };
        if let Some(rtt_us) = ack.rtt_us {
            self.samples = self.samples.saturating_add(1);
            self.current_us = self.current_us.min(rtt_us);
        }
        self.update_phase();
        Growth::By(bytes)
    }

    /// Called at the end of a round. Returns whether slow start ends as well.
    fn next_round(&mut self, nxt: u64) -> bool {
        self.round_end = nxt;
        self.last_us = self.current_us;
        self.current_us = u32::MAX;
        self.samples = 0;
        let Some(conservative) = &mut self.conservative else { return false };
        conservative.rounds += 1;
        conservative.rounds >= ROUNDS
    }

    fn update_phase(&mut self) {
        if self.samples < SAMPLES || self.current_us == u32::MAX {
            return;
        }
        match self.conservative {
            None if self.last_us != u32::MAX => {
                let (least, most) = THRESHOLD_US;
                let growth_us = (self.last_us / THRESHOLD_DIVISOR).clamp(least, most);
                if self.current_us >= self.last_us.saturating_add(growth_us) {
                    self.conservative = Some(Conservative { baseline_us: self.current_us, rounds: 0 });
                }
            }
            Some(Conservative { baseline_us, .. }) if self.current_us < baseline_us => {
                self.conservative = None;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ack;
    use super::*;

    /// Runs a round of eight acknowledgements of 1000 bytes with this round-trip time. Returns the number of
    /// bytes by which the window grew; `None` if slow start has ended.
    fn round(hystart: &mut HyStart, number: u64, rtt_us: u32) -> Option<u32> {
        let mut grown = 0;
        for part in 1..=8 {
            let una = number * 8 + part;
            let ack = Ack { una, nxt: number * 8 + 8, rtt_us: Some(rtt_us), ..ack(1000) };
            match hystart.on_ack(&ack, 1000) {
                Growth::By(bytes) => grown += bytes,
                Growth::Ends => return None,
            }
        }
        Some(grown)
    }

    #[test]
    fn growth_slows_down_when_the_round_trip_grows_and_ends_five_rounds_later() {
        let mut hystart = HyStart::new();
        assert_eq!(round(&mut hystart, 0, 40_000), Some(8000));
        assert_eq!(round(&mut hystart, 1, 44_900), Some(8000), "less than an eighth");
        let slower = round(&mut hystart, 2, 50_600);
        assert_eq!(slower, Some(8000), "the eighth sample tells");
        for number in 3..7 {
            assert_eq!(round(&mut hystart, number, 51_000), Some(2000));
        }
        assert_eq!(round(&mut hystart, 7, 51_000), None);
    }

    #[test]
    fn a_round_trip_that_falls_again_was_an_accident() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 0, 40_000);
        round(&mut hystart, 1, 50_000);
        round(&mut hystart, 2, 40_000);
        assert_eq!(round(&mut hystart, 3, 40_000), Some(8000));
    }

    #[test]
    fn the_threshold_is_an_eighth_but_at_most_sixteen_milliseconds() {
        for (before_us, grown_us) in [(100_000, 112_500), (128_000, 144_000), (400_000, 416_000)] {
            for (rtt_us, next) in [(grown_us - 1, 8000), (grown_us, 2000)] {
                let mut hystart = HyStart::new();
                round(&mut hystart, 0, before_us);
                round(&mut hystart, 1, rtt_us);
                assert_eq!(round(&mut hystart, 2, rtt_us), Some(next), "{before_us} us, then {rtt_us}");
            }
        }
    }

    #[test]
    fn the_smallest_of_a_round_counts_and_each_round_begins_anew() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 0, 40_000);
        // One round-trip time is short among many long round-trip times.
        let early = Ack { una: 9, nxt: 16, rtt_us: Some(40_000), ..ack(1000) };
        assert_eq!(hystart.on_ack(&early, 1000), Growth::By(1000));
        for una in 10..=16 {
            let late = Ack { una, nxt: 16, rtt_us: Some(90_000), ..ack(1000) };
            assert_eq!(hystart.on_ack(&late, 1000), Growth::By(1000));
        }
        assert_eq!(round(&mut hystart, 2, 60_000), Some(8000));
        assert_eq!(round(&mut hystart, 3, 60_000), Some(2000));
    }

    #[test]
    fn one_acknowledgement_adds_sixty_four_segments_at_most_unless_what_it_lets_go_is_paced() {
        let many = |paced| Ack { paced, rtt_us: Some(40_000), nxt: 0, ..ack(100_000) };
        let mut hystart = HyStart::new();
        assert_eq!(hystart.on_ack(&many(false), 1000), Growth::By(64_000));
        assert_eq!(hystart.on_ack(&many(true), 1000), Growth::By(100_000));
        round(&mut hystart, 0, 40_000);
        round(&mut hystart, 1, 60_000);
        let conservative = |paced| Ack { una: 16, nxt: 16, rtt_us: Some(60_000), ..many(paced) };
        assert_eq!(hystart.on_ack(&conservative(false), 1000), Growth::By(16_000));
        assert_eq!(hystart.on_ack(&conservative(true), 1000), Growth::By(25_000));
    }

    #[test]
    fn short_paths_need_four_milliseconds_more() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 0, 50);
        assert_eq!(round(&mut hystart, 1, 4000), Some(8000));
        assert_eq!(round(&mut hystart, 2, 8001), Some(8000));
        assert_eq!(round(&mut hystart, 3, 8001), Some(2000));
    }
}
