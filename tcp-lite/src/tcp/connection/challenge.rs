//! Challenge ACKs: answers to segments whose numbers do not fit, but not too many (RFC 5961 section
//! 7).

use super::Tcb;
use crate::tcp::ctx::{Ctx, Seconds};
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::receive::is_ecn_setup;

/// Answers in a second to bare segments (without payload, SYN, FIN) that are out of place, of an
/// old time or with an old acknowledgement. Each is due (RFC 9293 section 3.10.7.4, RFC 7323
/// section 5.3, RFC 5961 section 5.2), so that probes are answered and a half-open connection is
/// found; but where acknowledgements overtake each other on both ways, the answers would be
/// answered without end.
const BARE_ANSWERS_PER_SECOND: u16 = 8;

/// Challenge ACKs asked for in a second (RFC 5961 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    second: Seconds,
    all: u16,
    /// By bare segments, answered or not.
    bare: u16,
}

impl Challenges {
    /// What is counted in this second.
    fn now(&mut self, ctx: &Ctx<'_>) -> &mut Self {
        let second = ctx.second();
        if self.second != second {
            *self = Self { second, ..Self::default() };
        }
        self
    }
}

impl Tcb {
    /// An ACK in answer to a segment whose numbers do not fit, seldom to a bare one.
    pub(super) fn answer_misplaced(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, bytes: usize) {
        if self.is_syn_again(header) && !is_ecn_setup(header) {
            // The peer's SYN or SYN-ACK, which we have. Whoever has received one that does not set
            // up ECN should not mark any more (RFC 3168 section 6.1.1); echoes of earlier marks are
            // still answered.
            self.send.stop_ect();
        }
        if bytes > 0 || header.flags.intersects(Flags::SYN | Flags::FIN) {
            return self.challenge(ctx);
        }
        let challenges = self.challenges.now(ctx);
        challenges.bare = challenges.bare.saturating_add(1);
        if challenges.bare <= BARE_ANSWERS_PER_SECOND {
            self.challenge(ctx);
        } else {
            ctx.counters.challenge_acks_withheld += 1;
        }
    }

    /// An ACK in answer to what should not be, but not too often (RFC 5961 section 7). Each
    /// connection counts for itself: what all shared would tell one of them about the others
    /// (CVE-2016-5696).
    pub(super) fn challenge(&mut self, ctx: &mut Ctx<'_>) {
        let challenges = self.challenges.now(ctx);
        challenges.all = challenges.all.saturating_add(1);
        if u32::from(challenges.all) <= ctx.config.challenge_acks_per_second {
            ctx.counters.challenge_acks += 1;
            self.receive.send_ack();
        } else {
            ctx.counters.challenge_acks_withheld += 1;
        }
    }
}
