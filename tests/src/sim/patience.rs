//! The bound on progress: how long a connection may stand still.
//!
//! A connection that is not over makes progress (bytes acknowledged on the wire, something told to its user,
//! or, once, a RST that ends what is left of a connection before, after which its SYN waits for its timer:
//! RFC 9293 sections 3.5.1 and 3.10.7.3) no later than `min(rto_max, 2 (S + R)) + R` after its last progress
//! or the last harm that the wire did, whichever is later. `R` is one second (the RTO before a measurement,
//! RFC 6298 section 2.1) and four times everything that takes its time without being wrong: delays, full
//! queues, delayed acknowledgements, pauses of users. `S` is the longest time that the connection has stood
//! still so far, or that a byte of either side has waited for its acknowledgement since it was first sent. It
//! holds the last wait for a timer, which runs from when the oldest byte was sent, whatever was acknowledged
//! before it since; and the next is twice as long: a timer stays backed off when what was sent again is
//! acknowledged (RFC 6298 section 5). A second wait is never due: what is sent then arrives, or the wire has
//! done harm again, be it by a full queue. (Pacing holds a segment up for a smoothed round trip at most,
//! which is less than a timeout.)
//!
//! Where both sides have timestamps it is `min(rto_max, 6 (S + R)) + R`: an acknowledgement that was held up
//! measures that as a round trip, by its echo (RFC 7323 section 4.1), and the timeout after a measurement of
//! `S` is `3 S` (RFC 6298 section 2.2) before it is doubled.
//!
//! A tail loss probe begins this anew, since the RTO runs in full from when the probe was sent (RFC 8985
//! section 7.3). That puts the end off by `min(rto_max, 2 (S + R))` at most: a probe is due `2 SRTT` after
//! the last progress (section 7.2), no measured `SRTT` is longer than `S + R`, and the next probe needs a new
//! measurement (section 7.3). (The probe's own answer may be of no use: one that selectively acknowledges a
//! retransmission and comes sooner than the lowest round trip counts for the original, and shows no loss:
//! section 6.2, step 2.)
//!
//! A port that takes nothing, a pool without buffers and a host that is stopped do harm as long as they are
//! so. (But what waits for its host's own port is not lost, so that nothing may be cut for a smaller path.)
//!
//! A SYN that uses ports again waits until TIME-WAIT is over if its number is not above those of the
//! connection before, unless both hosts have timestamps (RFC 6191 section 2). No RST ends TIME-WAIT (RFC 1337
//! section 3, fix F1).

/// What the bound on progress depends on, beside how long a connection has stood still already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The longest RTO of a host.
    pub(super) rto_max_us: u64,
    /// `R`.
    pub(super) pause_us: u64,
    /// Both sides have timestamps.
    pub(super) echoes: bool,
}

impl Patience {
    fn timer_us(&self, times: u64, stood_us: u64) -> u64 {
        self.rto_max_us.min(times * (stood_us + self.pause_us))
    }

    /// How long a connection may stand still that has stood still for `stood_us` before (`S`).
    pub(super) fn bound_us(&self, stood_us: u64) -> u64 {
        self.timer_us(if self.echoes { 6 } else { 2 }, stood_us) + self.pause_us
    }

    /// Whether it may stand still for `well_us`, with a tail loss probe sent `probed_us` ago, if any.
    pub(super) fn allows(&self, stood_us: u64, well_us: u64, probed_us: u64) -> bool {
        let bound_us = self.bound_us(stood_us);
        well_us.min(probed_us) <= bound_us && well_us <= bound_us + self.timer_us(2, stood_us)
    }
}

#[cfg(test)]
mod tests {
    use super::Patience;

    #[test]
    fn the_timer_is_bounded_by_what_was_measured_and_by_its_most() {
        let patience = Patience { rto_max_us: 60_000_000, pause_us: 1_000_000, echoes: false };
        assert_eq!(patience.bound_us(500_000), 3_000_000 + 1_000_000);
        assert_eq!(Patience { echoes: true, ..patience }.bound_us(500_000), 9_000_000 + 1_000_000);
        assert_eq!(Patience { echoes: true, ..patience }.bound_us(14_000_000), 60_000_000 + 1_000_000);
    }

    #[test]
    fn the_timer_runs_anew_from_a_probe_that_came_in_time() {
        let patience = Patience { rto_max_us: 60_000_000, pause_us: 1_000_000, echoes: true };
        let allows = |well_us, probed_us| patience.allows(500_000, well_us, probed_us);
        assert!(allows(10_000_000, 50_000_000) && !allows(10_000_001, 50_000_000), "no probe since");
        assert!(allows(13_000_000, 10_000_000) && !allows(13_000_000, 10_000_001));
        assert!(!allows(13_000_001, 9_000_000), "it came too late");
    }
}
