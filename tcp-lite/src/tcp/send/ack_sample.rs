//! What one acknowledgement reveals about the send queue. An `AckSample` is filled in while segments are
//! marked and removed (RFC 8985 section 6.2, step 2; RFC 6298 section 3, Karn's algorithm).

use crate::Instant;
use crate::tcp::slabs::{Marks, RemovedRun, Segment, Sent};

#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    /// Number of positions that were acknowledged cumulatively.
    pub(super) acked: u64,
    /// Number of bytes in segments that are newly known to have arrived. Each segment counts once.
    pub(super) delivered: u64,
    /// The latest transmission that this acknowledgement shows to have arrived; `None` if it shows no such
    /// transmission.
    pub(super) latest: Option<Sent>,
    /// The lowest end position of the newly delivered segments that were sent only once.
    pub(super) lowest_original: u64,
    /// The highest end position of the newly delivered segments.
    pub(super) highest: u64,
    /// True if a segment that was retransmitted in this recovery is acknowledged cumulatively.
    pub(super) retransmitted: bool,
    /// The time at which the last of the cumulatively acknowledged segments was sent. `None` if there is no
    /// RTT sample: no segment is acknowledged cumulatively, one of these segments was sent more than once, or
    /// the last of them had waited at the peer beyond a hole.
    pub(super) sampled: Option<Instant>,
    /// The measured round-trip time in microseconds; `None` if the acknowledgement measured none.
    pub(super) rtt_us: Option<u64>,
    /// Duplicate bytes that a D-SACK reports (RFC 2883); `None` if no D-SACK reports bytes.
    pub(super) dsack: Option<(u64, u64)>,
    /// True if one of the cumulatively acknowledged segments had been retransmitted.
    pub(super) ambiguous: bool,
    /// True if one of the acknowledged segments had external memory.
    pub(super) external: bool,
    pub(super) filter: RetransmitFilter,
}

/// Distinguishes whether the acknowledgement of a retransmitted segment answers the last transmission of that
/// segment or an earlier transmission (RFC 8985 section 6.2, step 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct RetransmitFilter {
    /// The echoed timestamp as a time of our clock in milliseconds; `None` if there is no echo.
    pub(super) echo_ms: Option<u32>,
    /// The present time minus the lowest round-trip time. Transmissions after this time cannot have been
    /// answered yet.
    pub(super) horizon: Instant,
}

impl RetransmitFilter {
    /// Whether a retransmission at `sent_at` can have been answered by now.
    #[inline]
    fn is_long_enough(&self, sent_at: Instant) -> bool {
        sent_at <= self.horizon
    }

    /// Whether the peer echoes a timestamp from before the transmission at `sent_at`. Such an echo answers an
    /// earlier transmission. For segments above a hole, the echo is not used, since the peer does not echo
    /// their timestamps (RFC 7323 section 4.3).
    ///
    /// RFC 8985's pseudocode uses the echo for segments above a hole as well. With that rule, which Linux
    /// follows, the retransmission of one segment would not reveal the loss of the retransmission of another
    /// segment. In the simulator, that rule causes 4 % more timeouts under burst losses. Our rule has a
    /// price: spurious retransmissions if segments are late by many round trips.
    #[inline]
    fn echoes_before(&self, sent_at: Instant) -> bool {
        self.echo_ms.is_some_and(|echo_ms| is_before(echo_ms, sent_at.total_millis() as u32))
    }
}

/// Whether an echoed timestamp is older than `sent_ms`, a time of our clock in milliseconds. Timestamps tick
/// in milliseconds. An echo from the same tick is not older.
#[inline]
pub(super) fn is_before(echo_ms: u32, sent_ms: u32) -> bool {
    (echo_ms.wrapping_sub(sent_ms) as i32) < 0
}

#[cfg(test)]
impl Default for AckSample {
    fn default() -> Self {
        Self::new(RetransmitFilter { echo_ms: None, horizon: Instant::from_millis(i64::MAX / 1_000_000) })
    }
}

impl AckSample {
    #[inline]
    pub(super) fn new(filter: RetransmitFilter) -> Self {
        Self {
            acked: 0,
            delivered: 0,
            latest: None,
            lowest_original: u64::MAX,
            highest: 0,
            retransmitted: false,
            sampled: None,
            rtt_us: None,
            dsack: None,
            ambiguous: false,
            external: false,
            filter,
        }
    }

    #[inline]
    pub(super) fn echo_ms(&self) -> Option<u32> {
        self.filter.echo_ms
    }

    /// Records a segment that is newly known to have arrived, in order or not.
    #[inline]
    pub(super) fn deliver(&mut self, sent: Sent, end: u64, len: u32, retransmitted: bool) {
        self.delivered += u64::from(len);
        self.highest = self.highest.max(end);
        if !retransmitted {
            self.lowest_original = self.lowest_original.min(end);
        }
        let counts = !retransmitted || self.filter.is_long_enough(sent.at);
        if counts && self.latest.is_none_or(|latest| sent.is_after(latest)) {
            self.latest = Some(sent);
        }
    }

    #[inline]
    fn deliver_in_order(&mut self, sent: Sent, end: u64, len: u32, retransmitted: bool) {
        let latest = self.latest;
        self.deliver(sent, end, len, retransmitted);
        if retransmitted && self.filter.echoes_before(sent.at) {
            self.latest = latest;
        }
    }

    /// Like [`acknowledge`](Self::acknowledge), for several segments that were each sent once, in the order
    /// of their positions.
    #[inline]
    pub(super) fn acknowledge_run(&mut self, run: &RemovedRun) {
        let ((pos, first_end), (end, sent)) = (run.first, run.last);
        self.external |= run.external;
        self.delivered += end - pos;
        self.highest = self.highest.max(end);
        self.lowest_original = self.lowest_original.min(first_end);
        if self.latest.is_none_or(|latest| sent.is_after(latest)) {
            self.latest = Some(sent);
        }
        self.sampled = Some(sent.at).filter(|_| !self.ambiguous);
    }

    /// Records that a segment is acknowledged cumulatively. Called in the order of positions.
    #[inline]
    pub(super) fn acknowledge(&mut self, segment: &Segment) {
        let marks = segment.marks;
        self.retransmitted |= marks.contains(Marks::RETRANSMITTED_IN_RECOVERY);
        self.ambiguous |= marks.contains(Marks::RETRANSMITTED);
        self.external |= segment.external.is_some();
        if marks.contains(Marks::SACKED) {
            self.sampled = None;
        } else {
            self.sampled = Some(segment.sent.at).filter(|_| !self.ambiguous);
            self.deliver_in_order(
                segment.sent,
                segment.end(),
                segment.len,
                marks.contains(Marks::RETRANSMITTED),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retransmission_counts_only_when_it_can_have_been_answered() {
        let ms = Instant::from_millis;
        let latest = |echo_ms, horizon, sent_at| {
            let mut sample = AckSample::new(RetransmitFilter { echo_ms, horizon });
            sample.deliver_in_order(Sent { at: sent_at, nr: 1 }, 10, 10, true);
            sample.latest.is_some()
        };
        assert!(latest(Some(20), ms(30), ms(20)));
        assert!(!latest(Some(19), ms(30), ms(20)), "the echo is of what was sent before");
        assert!(!latest(Some(20), ms(19), ms(20)), "faster than ever");
        assert!(latest(None, ms(20), ms(20)));
        let mut above = AckSample::new(RetransmitFilter { echo_ms: Some(19), horizon: ms(30) });
        above.deliver(Sent { at: ms(20), nr: 1 }, 10, 10, true);
        assert!(above.latest.is_some(), "what is above a hole is not echoed");
        assert!(latest(Some(5), ms(1_i64 << 33), ms((1_i64 << 32) + 4)), "the clock of timestamps wraps");
    }
}
