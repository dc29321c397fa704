//! The bound on progress: the maximum time for which a connection may make no progress.
//!
//! A connection that is not over has to make progress no later than `min(rto_max, 2 (S + R)) + R` after its
//! last progress or after the last fault, whichever is later. Progress is one of these: bytes are
//! acknowledged on the wire; the user gets an event; or a RST ends an earlier connection on the same ports
//! that one host still had. Such a RST counts once for each earlier connection: after it, the new connection
//! advances only when the SYN's retransmission timer expires (RFC 9293 sections 3.5.1 and 3.10.7.3).
//!
//! `R` is one second (the RTO before a measurement, RFC 6298 section 2.1) plus four times the sum of all
//! regular delays: of the wire, of full queues, of delayed acknowledgements, of pauses of users. `S` is the
//! larger of two times: the longest period without progress so far, and the longest time so far from the
//! first transmission of a byte (of either side) to its acknowledgement. `S` therefore covers the last wait
//! for a timer, since the timer runs from the time when the oldest unacknowledged byte was sent. The next
//! wait may be twice as long, since a timer stays backed off when a retransmission is acknowledged (RFC 6298
//! section 5). A second wait is not needed: either the retransmission arrives, or there has been another
//! fault (a full queue is also a fault). (Pacing delays a segment by at most a smoothed round trip, which is
//! less than a timeout.)
//!
//! If both sides use timestamps, the bound is `min(rto_max, 6 (S + R)) + R`. The echo of a delayed
//! acknowledgement then counts as a round trip (RFC 7323 section 4.1). After a measurement of `S`, the
//! timeout is `3 S` (RFC 6298 section 2.2), and it may be doubled.
//!
//! A tail loss probe restarts the bound, since the RTO then runs in full from the time when the probe was
//! sent (RFC 8985 section 7.3). The probe delays the end by at most `min(rto_max, 2 (S + R))`. The reasons: a
//! probe is due `2 SRTT` after the last progress (section 7.2); no measured `SRTT` is longer than `S + R`;
//! and the next probe needs a new measurement (section 7.3). The answer to the probe may be useless. If it
//! selectively acknowledges a retransmission and arrives sooner than the lowest round trip, it counts for the
//! original segment and shows no loss (section 6.2, step 2).
//!
//! A port that accepts no frames, a pool without buffers and a stopped host count as faults for as long as
//! they last. Frames that wait for the port of their own host are not lost, so the sender must not take them
//! for lost and split segments for a smaller path.
//!
//! A SYN may reuse the ports of an earlier connection. If its sequence number is not above those of the
//! earlier connection, the SYN waits until TIME-WAIT is over, unless both hosts use timestamps (RFC 6191
//! section 2). No RST ends TIME-WAIT (RFC 1337 section 3, fix F1).

/// The parameters of the bound, except `S`, which depends on the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressBound {
    /// The larger of the two hosts' maximum RTOs, in microseconds.
    pub(super) rto_max_us: u64,
    /// `R`, in microseconds.
    pub(super) pause_us: u64,
    /// Whether both sides use timestamps.
    pub(super) timestamps: bool,
}

impl ProgressBound {
    fn timer_us(&self, times: u64, longest_wait_us: u64) -> u64 {
        self.rto_max_us.min(times * (longest_wait_us + self.pause_us))
    }

    /// Returns the maximum time in microseconds without progress. `longest_wait_us` is `S`.
    pub(super) fn bound_us(&self, longest_wait_us: u64) -> u64 {
        self.timer_us(if self.timestamps { 6 } else { 2 }, longest_wait_us) + self.pause_us
    }

    /// Whether a connection may make no progress for `since_fault_us` after its last progress or the last
    /// fault, whichever is later, if the last tail loss probe was sent `probed_us` ago.
    pub(super) fn allows(&self, longest_wait_us: u64, since_fault_us: u64, probed_us: u64) -> bool {
        let bound_us = self.bound_us(longest_wait_us);
        since_fault_us.min(probed_us) <= bound_us
            && since_fault_us <= bound_us + self.timer_us(2, longest_wait_us)
    }
}

#[cfg(test)]
mod tests {
    use super::ProgressBound;

    #[test]
    fn the_timer_is_bounded_by_what_was_measured_and_by_its_most() {
        let bound = ProgressBound { rto_max_us: 60_000_000, pause_us: 1_000_000, timestamps: false };
        assert_eq!(bound.bound_us(500_000), 3_000_000 + 1_000_000);
        assert_eq!(ProgressBound { timestamps: true, ..bound }.bound_us(500_000), 9_000_000 + 1_000_000);
        assert_eq!(ProgressBound { timestamps: true, ..bound }.bound_us(14_000_000), 60_000_000 + 1_000_000);
    }

    #[test]
    fn the_timer_runs_anew_from_a_probe_that_came_in_time() {
        let bound = ProgressBound { rto_max_us: 60_000_000, pause_us: 1_000_000, timestamps: true };
        let allows = |since_fault_us, probed_us| bound.allows(500_000, since_fault_us, probed_us);
        assert!(allows(10_000_000, 50_000_000) && !allows(10_000_001, 50_000_000), "no probe since");
        assert!(allows(13_000_000, 10_000_000) && !allows(13_000_000, 10_000_001));
        assert!(!allows(13_000_001, 9_000_000), "the probe came too late");
    }
}
