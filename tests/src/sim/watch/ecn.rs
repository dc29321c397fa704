//! Congestion marks and their echoes (RFC 3168 section 6.1), on connections that negotiated ECN.
//!
//! Each host has its own view of the negotiation, by the SYNs that it sent and received. A SYN may be
//! retransmitted without ECN, and may arrive late.

use testkit::packet::flag;

/// Maximum number of segments with new bytes before a segment with CWR has to answer an echo: more than a
/// window.
const MAX_SEGMENTS_WITHOUT_CWR: u32 = 256;

/// The ECN state of one host on one connection.
#[derive(Debug, Default)]
pub(super) struct Ecn {
    /// The SYNs and SYN-ACKs that the host has sent. `received`: the SYNs and SYN-ACKs of the peer that have
    /// arrived.
    sent: Setup,
    received: Setup,
    /// Whether the host has sent a packet that routers may mark. From then on, the host has to answer an
    /// ECN-Echo with CWR (RFC 3168 section 6.1.1).
    marks: bool,
    /// Offset of the first bytes that arrived with a mark since the host's last echo.
    mark_unanswered: Option<u64>,
    /// SND.NXT at the last CWR. An echo whose acknowledgement is not above this number belongs to the same
    /// congestion.
    reduced: u64,
    /// If an echo has arrived that the host has not answered: the number of segments with new bytes that the
    /// host has sent since then.
    echo_arrived: Option<u32>,
}

/// The kinds of SYNs and SYN-ACKs that were seen (RFC 3168 section 6.1.1).
#[derive(Clone, Copy, Debug, Default)]
struct Setup {
    /// Whether there was a SYN or SYN-ACK that sets up ECN.
    asks: bool,
    /// Whether there was a SYN or SYN-ACK without ECN.
    declines: bool,
}

impl Setup {
    fn note(&mut self, flags: u8) {
        let asks = flags & (flag::ECE | flag::CWR);
        let answers = flags & flag::ACK != 0;
        let asks = if answers { asks == flag::ECE } else { asks == flag::ECE | flag::CWR };
        self.asks |= asks;
        self.declines |= !asks;
    }
}

impl Ecn {
    /// Records a SYN or SYN-ACK that the host sends.
    pub(super) fn on_syn_sent(&mut self, flags: u8) {
        self.sent.note(flags);
    }

    /// Records a SYN or SYN-ACK of the peer that arrives.
    pub(super) fn on_syn_arrival(&mut self, flags: u8) {
        self.received.note(flags);
    }

    /// Whether the host may send packets that routers may mark: as far as the host knows, both sides asked
    /// for ECN, and neither side declined.
    pub(super) fn may_mark(&self) -> bool {
        self.sent.asks && self.received.asks && !self.sent.declines && !self.received.declines
    }

    /// Whether the host has to echo marks: it asked for ECN, and the peer has not declined.
    fn must_echo(&self) -> bool {
        self.sent.asks && self.received.asks && !self.received.declines
    }

    /// Records a segment that arrives. `ack` is the segment's acknowledgement, if the host has to process the
    /// segment. `marked` is the offset of the segment's new bytes, if the segment has a congestion mark.
    ///
    /// An echo concerns the bytes that were sent before the acknowledgement in the same segment, even if a
    /// later acknowledgement overtook this segment. An old segment has no effect.
    pub(super) fn on_arrival(&mut self, flags: u8, ack: Option<u64>, marked: Option<u64>) {
        if flags & flag::CWR != 0 {
            // Earlier marks belong to congestion that the sender has already answered.
            self.mark_unanswered = None;
        }
        self.mark_unanswered =
            self.mark_unanswered.into_iter().chain(marked).min().filter(|_| self.must_echo());
        let news = ack.is_some_and(|ack| ack > self.reduced);
        if self.marks && news && flags & flag::ECE != 0 && flags & flag::SYN == 0 {
            self.echo_arrived.get_or_insert(0);
        }
    }

    /// Checks a segment that the host sends. The segment acknowledges bytes up to `ack`, and the host has
    /// sent bytes up to `high`. `fresh`: the segment has new bytes. `marks`: routers may mark the segment. An
    /// acknowledgement of bytes before the mark need not echo the mark (RFC 8257 section 3.2).
    ///
    /// # Errors
    /// The flag that is missing.
    pub(super) fn on_sent(
        &mut self,
        flags: u8,
        ack: u64,
        high: u64,
        (fresh, marks): (bool, bool),
    ) -> Result<(), String> {
        self.marks |= marks;
        if flags & flag::ECE != 0 || !self.must_echo() {
            self.mark_unanswered = None;
        } else if self.mark_unanswered.is_some_and(|start| ack > start) {
            return Err("bytes with a congestion mark are acknowledged without an echo (ECE)".into());
        }
        if flags & flag::CWR != 0 {
            self.echo_arrived = None;
            self.reduced = high;
        } else if let Some(segments) = &mut self.echo_arrived {
            *segments += u32::from(fresh);
            if *segments > MAX_SEGMENTS_WITHOUT_CWR {
                return Err("an echo of congestion is never answered with CWR".into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Ecn, MAX_SEGMENTS_WITHOUT_CWR};
    use testkit::packet::flag;

    const ASKS: u8 = flag::SYN | flag::ECE | flag::CWR;
    const AGREES: u8 = flag::SYN | flag::ACK | flag::ECE;

    /// Returns a host that asked for ECN, and a host that agreed.
    fn agreed() -> [Ecn; 2] {
        let [mut a, mut b] = [Ecn::default(), Ecn::default()];
        a.on_syn_sent(ASKS);
        b.on_syn_arrival(ASKS);
        b.on_syn_sent(AGREES);
        a.on_syn_arrival(AGREES);
        [a, b]
    }

    #[test]
    fn a_syn_that_does_not_ask_counts_at_each_end_when_that_knows_of_it() {
        let [mut a, mut b] = agreed();
        assert!(a.may_mark() && b.may_mark());
        a.on_syn_sent(flag::SYN);
        assert!(!a.may_mark() && b.may_mark() && a.must_echo());
        b.on_syn_arrival(flag::SYN);
        assert!(!b.may_mark() && !b.must_echo());
        b.on_syn_sent(flag::SYN | flag::ACK);
        a.on_syn_arrival(flag::SYN | flag::ACK);
        assert!(!a.must_echo());
    }

    /// Sends new bytes until the limit is exceeded. Returns whether the limit is ever exceeded.
    fn is_waited_for(ecn: &mut Ecn) -> bool {
        (0..=MAX_SEGMENTS_WITHOUT_CWR).any(|_| ecn.on_sent(flag::ACK, 0, 1000, (true, true)).is_err())
    }

    #[test]
    fn an_echo_counts_where_it_is_news_and_is_taken_in() {
        let echo = flag::ACK | flag::ECE;
        for (flags, ack, waited_for) in [
            (echo, Some(1001), true),
            (flag::ACK, Some(1001), false),
            // The echo was delayed, and later segments overtook it.
            (echo, Some(1000), false),
            (echo, None, false),
        ] {
            let [mut ecn, _] = agreed();
            ecn.on_sent(flag::ACK | flag::CWR, 0, 1000, (true, true)).unwrap();
            ecn.on_arrival(flag::ACK, Some(1500), None);
            ecn.on_arrival(flags, ack, None);
            assert_eq!(is_waited_for(&mut ecn), waited_for, "{flags} {ack:?}");
        }
    }

    #[test]
    fn who_never_marked_need_not_answer_an_echo() {
        let [mut ecn, _] = agreed();
        ecn.on_arrival(flag::ACK | flag::ECE, Some(1), None);
        assert!(!is_waited_for(&mut ecn));
    }

    #[test]
    fn a_mark_is_echoed_when_it_is_acknowledged() {
        let [mut ecn, _] = agreed();
        ecn.on_arrival(flag::ACK, Some(0), Some(100));
        assert!(ecn.on_sent(flag::ACK, 100, 0, (false, false)).is_ok(), "what was in front of it");
        assert!(ecn.on_sent(flag::ACK, 101, 0, (false, false)).is_err());
        assert!(ecn.on_sent(flag::ACK | flag::ECE, 200, 0, (false, false)).is_ok());
        assert!(ecn.on_sent(flag::ACK, 200, 0, (false, false)).is_ok());
    }
}
