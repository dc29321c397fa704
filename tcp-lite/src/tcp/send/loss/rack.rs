//! RACK: a segment counts as lost when a segment that was sent later has arrived and the reordering window
//! has passed (RFC 8985 section 6). A segment in flight is called *overtaken* if a segment that was sent
//! later has arrived.
//!
//! This module has RACK's state of a connection. `SentSegments::detect_lost` (`queue/scoreboard.rs`) visits
//! the segments in flight, oldest transmission first. The order includes retransmissions, so lost
//! retransmissions are found like any other lost segment. Of RFC 6675, only `DupThresh` is used: until
//! reordering is seen, the reordering window is zero during a recovery, and once `DupThresh` segments above a
//! hole have arrived (section 6.2, step 4). RACK needs SACK. Without SACK, NewReno's rules apply
//! (`recovery.rs`).

use crate::tcp::send::ack_sample::AckSample;
use crate::tcp::slabs::Sent;
use crate::{Duration, Instant};

/// Number of segments above a hole that must have arrived before the hole counts as lost, unless reordering
/// is known to occur (RFC 6675, `DupThresh`). Without SACK, the number of duplicate acknowledgements (RFC
/// 5681).
pub(super) const DUP_THRESHOLD: u32 = 3;

/// Number of recoveries for which a widened reordering window is kept (section 6.2, step 4).
const PERSIST_RECOVERIES: u8 = 16;

#[derive(Clone, Copy, Debug)]
pub(in crate::tcp::send) struct Rack {
    /// The latest transmission known to have arrived (`RACK.segment`).
    latest: Sent,
    /// The time in microseconds between a transmission and its acknowledgement, measured at the last
    /// acknowledgement that reported an arrival (`RACK.rtt`).
    rtt_us: u32,
    /// Position after the highest byte that is known to have arrived (`RACK.fack`).
    fack: u64,
    /// True if a segment that was sent once arrived after a segment with higher positions, or if a fast
    /// recovery was spurious.
    reordering_seen: bool,
    /// The reordering window in quarters of the lowest round-trip time.
    quarters: u8,
    /// Number of recoveries without D-SACK after which `quarters` becomes 1 again.
    persist: u8,
    /// Further D-SACKs are ignored until this position is acknowledged (`RACK.dsack_round`). With the value
    /// 0, no D-SACK is ignored.
    dsack_round: u64,
}

impl Rack {
    pub(in crate::tcp::send) fn new() -> Self {
        Self {
            latest: Sent::NEVER,
            rtt_us: 0,
            fack: 0,
            reordering_seen: false,
            quarters: 1,
            persist: 0,
            dsack_round: 0,
        }
    }

    /// Performs steps 2 and 3 (section 6.2). Returns whether reordering was seen for the first time.
    pub(in crate::tcp::send) fn on_ack(&mut self, now: Instant, sample: &AckSample) -> bool {
        if let Some(sent) = sample.latest {
            self.on_arrival((now - sent.at).total_micros(), sent);
        }
        self.on_arrived(sample.lowest_original, sample.highest)
    }

    /// Like [`on_ack`](Self::on_ack), for consecutive segments that were each sent once. `sent` is the
    /// transmission of the last of these segments, which was sent `rtt_us` microseconds ago. `first_end` and
    /// `end` are the end positions of the first and of the last of these segments.
    #[inline]
    pub(super) fn on_run(&mut self, rtt_us: u64, sent: Sent, (first_end, end): (u64, u64)) -> bool {
        self.on_arrival(rtt_us, sent);
        self.on_arrived(first_end, end)
    }

    #[inline]
    fn on_arrival(&mut self, rtt_us: u64, sent: Sent) {
        self.rtt_us = rtt_us.min(u64::from(u32::MAX)) as u32;
        if sent.is_after(self.latest) {
            self.latest = sent;
        }
    }

    #[inline]
    fn on_arrived(&mut self, lowest_original: u64, highest: u64) -> bool {
        let reordered = lowest_original < self.fack && !self.reordering_seen;
        self.fack = self.fack.max(highest);
        self.reordering_seen |= reordered;
        reordered
    }

    /// Called when a recovery was spurious. The latest known arrival may be a retransmission of this
    /// recovery, so the arrival of an original segment in `sample` replaces it.
    pub(super) fn on_spurious(&mut self, sample: &AckSample) {
        if let Some(original) = sample.latest {
            self.latest = original;
        }
    }

    /// Called when reordering was detected by other means. Returns whether reordering was seen for the first
    /// time.
    pub(super) fn on_reordering(&mut self) -> bool {
        !std::mem::replace(&mut self.reordering_seen, true)
    }

    /// Called when a D-SACK arrived: widens the reordering window, once for each round trip (step 4).
    pub(super) fn on_dsack(&mut self, una: u64, nxt: u64) {
        if una >= self.dsack_round {
            self.dsack_round = nxt;
            self.quarters = self.quarters.saturating_add(1);
            self.persist = PERSIST_RECOVERIES;
        }
    }

    /// Called when a recovery ended: after [`PERSIST_RECOVERIES`] recoveries without D-SACK, the reordering
    /// window is no longer widened.
    pub(super) fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// The reordering window: the time, in addition to a round trip, after which an overtaken segment counts
    /// as lost (step 4).
    pub(super) fn reordering_window(&self, circumstances: &ReorderingInputs) -> Duration {
        let ReorderingInputs { recovering, sacked_segments, min_rtt_us, srtt_us } = *circumstances;
        if !self.reordering_seen && (recovering || sacked_segments >= DUP_THRESHOLD) {
            return Duration::ZERO;
        }
        let window_us = u64::from(self.quarters) * u64::from(min_rtt_us) / 4;
        Duration::from_micros(window_us.min(u64::from(srtt_us)))
    }

    /// Whether a segment that was sent after the transmission `sent` has arrived.
    #[inline]
    pub(in crate::tcp::send) fn overtakes(&self, sent: Sent) -> bool {
        self.latest.is_after(sent)
    }

    /// The time at which a transmission counts as lost, if it was overtaken or if its segment timed out.
    pub(in crate::tcp::send) fn lost_at(&self, sent_at: Instant, window: Duration) -> Instant {
        sent_at + self.loss_delay(window)
    }

    /// The time from the transmission of an overtaken segment until the segment counts as lost: a round trip
    /// and the reordering window.
    #[inline]
    pub(super) fn loss_delay(&self, window: Duration) -> Duration {
        Duration::from_micros(u64::from(self.rtt_us)) + window
    }
}

/// The inputs of the reordering window that are not in RACK's own state.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReorderingInputs {
    pub(super) recovering: bool,
    pub(super) sacked_segments: u32,
    /// `RACK.min_RTT` in microseconds.
    pub(super) min_rtt_us: u32,
    /// SRTT in microseconds.
    pub(super) srtt_us: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: i64) -> Instant {
        Instant::from_micros(us)
    }

    /// A transmission at this time in microseconds. The number of the transmission is also `us`.
    fn sent(us: i64) -> Sent {
        Sent { at: at(us), nr: us as u32 }
    }

    /// One acknowledgement of segments that were each sent once. Each element of `segments` has the time at
    /// which a segment was sent, and the segment's end position.
    fn sample(segments: &[(i64, u64)]) -> AckSample {
        let mut sample = AckSample::default();
        for &(sent_us, end) in segments {
            sample.deliver(sent(sent_us), end, 100, false);
        }
        sample
    }

    const CALM: ReorderingInputs =
        ReorderingInputs { recovering: false, sacked_segments: 1, min_rtt_us: 400, srtt_us: 500 };

    #[test]
    fn only_what_was_sent_before_the_latest_arrival_is_overtaken() {
        let mut rack = Rack::new();
        let _ = rack.on_ack(at(1500), &sample(&[(1000, 300)]));
        assert!(rack.overtakes(sent(999)) && !rack.overtakes(sent(1001)));
        assert!(rack.overtakes(Sent { at: at(1000), nr: 999 }), "of one moment, in the order of departure");
        assert!(!rack.overtakes(sent(1000)), "nor the segment itself");
        assert_eq!(rack.lost_at(at(900), Duration::from_micros(100)), at(900 + 500 + 100));
        let _ = rack.on_ack(at(1700), &sample(&[(800, 100)]));
        assert!(rack.overtakes(sent(999)), "an older arrival does not set it back");
        assert_eq!(rack.lost_at(at(0), Duration::ZERO), at(900), "but is the latest measurement");
    }

    #[test]
    fn no_time_is_given_in_recovery_or_after_three_unless_reordering_was_seen() {
        let mut rack = Rack::new();
        let window = |rack: &Rack, circumstances| rack.reordering_window(&circumstances).total_micros();
        assert_eq!(window(&rack, CALM), 100);
        assert_eq!(window(&rack, ReorderingInputs { sacked_segments: 3, ..CALM }), 0);
        assert_eq!(window(&rack, ReorderingInputs { recovering: true, ..CALM }), 0);
        assert!(!rack.on_ack(at(10), &sample(&[(1, 300)])));
        assert!(!rack.on_ack(at(11), &sample(&[(1, 300)])), "the same, which the peer had taken back");
        assert!(!rack.on_ack(at(11), &sample(&[(1, 400), (1, 500)])), "in order");
        assert!(rack.on_ack(at(12), &sample(&[(1, 200)])), "below what arrived before");
        assert!(!rack.on_ack(at(13), &sample(&[(1, 100)])), "known already");
        assert_eq!(window(&rack, ReorderingInputs { recovering: true, sacked_segments: 9, ..CALM }), 100);
    }

    #[test]
    fn what_was_sent_again_shows_no_reordering() {
        let mut rack = Rack::new();
        let _ = rack.on_ack(at(10), &sample(&[(1, 300)]));
        let mut repaired = AckSample::default();
        repaired.deliver(sent(5), 200, 100, true);
        assert!(!rack.on_ack(at(11), &repaired));
    }

    #[test]
    fn duplicates_widen_the_window_once_a_round_until_sixteen_recoveries_had_none() {
        let mut rack = Rack::new();
        let _ = rack.on_reordering();
        let window = |rack: &Rack| rack.reordering_window(&CALM).total_micros();
        rack.on_dsack(100, 1000);
        assert_eq!(window(&rack), 200);
        rack.on_dsack(999, 2000);
        assert_eq!(window(&rack), 200, "the same round");
        rack.on_dsack(1000, 2000);
        assert_eq!(window(&rack), 300);
        for round in 3..300 {
            rack.on_dsack(round * 1000, round * 1000);
        }
        assert_eq!(window(&rack), 500, "never more than SRTT");
        for _ in 0..15 {
            rack.on_recovered();
        }
        assert_eq!(window(&rack), 500);
        rack.on_recovered();
        assert_eq!(window(&rack), 100);
    }
}
