//! Congestion marks and their echo (RFC 3168 section 6.1), on connections that agreed on them.
//!
//! Who agreed is a matter of what each host has said and heard: a SYN may come again without asking, and
//! late.

use crate::sim::packet::flag;

/// New segments that may go out before one says that an echo was heard: a window is smaller.
const PATIENCE_SEGMENTS: u32 = 256;

/// Marks and echoes of one host on one connection.
#[derive(Debug, Default)]
pub(super) struct Ecn {
    /// What it has said by its SYNs and SYN-ACKs, and what the peer's that arrived said.
    said: Setup,
    heard: Setup,
    /// It has sent what routers may mark: then echoes have to be answered from there on (RFC 3168 section
    /// 6.1.1).
    marks: bool,
    /// Where the first bytes began that have arrived marked since the last echo.
    owed: Option<u64>,
    /// What had been sent when CWR was last: echoes up to there are of the same congestion.
    reduced: u64,
    /// An echo has arrived here; so many new segments went out since without CWR.
    heard_echo: Option<u32>,
}

/// Which kinds of SYNs and SYN-ACKs there were (RFC 3168 section 6.1.1).
#[derive(Clone, Copy, Debug, Default)]
struct Setup {
    /// One that sets up ECN.
    asks: bool,
    /// One that does not.
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
    /// The host sends a SYN or SYN-ACK.
    pub(super) fn on_syn_sent(&mut self, flags: u8) {
        self.said.note(flags);
    }

    /// One of the peer's arrives.
    pub(super) fn on_syn_arrival(&mut self, flags: u8) {
        self.heard.note(flags);
    }

    /// Whether what the host sends may be marked: both have asked, and neither has said no, as far as it
    /// knows.
    pub(super) fn may_mark(&self) -> bool {
        self.said.asks && self.heard.asks && !self.said.declines && !self.heard.declines
    }

    /// Whether the host has to echo marks: it has asked, and the peer has not said no.
    fn must_echo(&self) -> bool {
        self.said.asks && self.heard.asks && !self.heard.declines
    }

    /// A segment arrives. `ack`: how far it acknowledges, if the host has to take it in; `marked`: it has new
    /// bytes from there on, and a mark.
    ///
    /// An echo tells of what was sent up to the acknowledgement that it comes with, however much others have
    /// acknowledged that overtook it; and an old segment tells nothing.
    pub(super) fn on_arrival(&mut self, flags: u8, ack: Option<u64>, marked: Option<u64>) {
        if flags & flag::CWR != 0 {
            // What was marked before belongs to the congestion that the sender has heard of.
            self.owed = None;
        }
        self.owed = self.owed.into_iter().chain(marked).min().filter(|_| self.must_echo());
        let news = ack.is_some_and(|ack| ack > self.reduced);
        if self.marks && news && flags & flag::ECE != 0 && flags & flag::SYN == 0 {
            self.heard_echo.get_or_insert(0);
        }
    }

    /// The host sends a segment that acknowledges up to `ack`, and has sent up to `high`; `fresh` with new
    /// bytes, `marks`: which may be marked. What is acknowledged in front of a mark need not echo it (RFC
    /// 8257 section 3.2).
    ///
    /// # Errors
    /// What it should have said.
    pub(super) fn on_sent(
        &mut self,
        flags: u8,
        ack: u64,
        high: u64,
        (fresh, marks): (bool, bool),
    ) -> Result<(), String> {
        self.marks |= marks;
        if flags & flag::ECE != 0 || !self.must_echo() {
            self.owed = None;
        } else if self.owed.is_some_and(|start| ack > start) {
            return Err("bytes arrived with a congestion mark and are acknowledged without an echo".into());
        }
        if flags & flag::CWR != 0 {
            self.heard_echo = None;
            self.reduced = high;
        } else if let Some(segments) = &mut self.heard_echo {
            *segments += u32::from(fresh);
            if *segments > PATIENCE_SEGMENTS {
                return Err("congestion was echoed and the sender never says that it heard (CWR)".into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Ecn, PATIENCE_SEGMENTS};
    use crate::sim::packet::flag;

    const ASKS: u8 = flag::SYN | flag::ECE | flag::CWR;
    const AGREES: u8 = flag::SYN | flag::ACK | flag::ECE;

    /// A host that has asked, and one that has agreed.
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

    /// Sends new bytes until that is one too many, if it ever is.
    fn is_waited_for(ecn: &mut Ecn) -> bool {
        (0..=PATIENCE_SEGMENTS).any(|_| ecn.on_sent(flag::ACK, 0, 1000, (true, true)).is_err())
    }

    #[test]
    fn an_echo_counts_where_it_is_news_and_is_taken_in() {
        let echo = flag::ACK | flag::ECE;
        for (flags, ack, waited_for) in [
            (echo, Some(1001), true),
            (flag::ACK, Some(1001), false),
            // Held back on its way while others went on.
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
