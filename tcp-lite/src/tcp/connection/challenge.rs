//! Challenge ACKs: a limited number of answers to segments with unexpected sequence numbers (RFC 5961
//! section 7).

use super::Tcb;
use crate::tcp::ctx::{Ctx, Seconds};
use crate::tcp::header::Flags;

/// Answers per second to bare segments (no payload, SYN or FIN) that are out of window or have an old
/// timestamp or acknowledgement. An answer to each is due (RFC 9293 section 3.10.7.4, RFC 7323 section
/// 5.3, RFC 5961 section 5.2), so that probes are answered and a half-open connection is found. But
/// where acknowledgements overtake each other in both directions, the answers would be answered without
/// end. Eight leaves room for probes, and bounds such an exchange.
const BARE_ANSWERS_PER_SECOND: u16 = 8;

/// Challenge ACKs asked for in the current second (RFC 5961 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    second: Seconds,
    all: u16,
    /// The part of them that bare segments asked for, answered or not.
    bare: u16,
}

impl Challenges {
    /// The counts of the current second.
    fn now(&mut self, ctx: &Ctx<'_>) -> &mut Self {
        let second = ctx.second();
        if self.second != second {
            *self = Self { second, ..Self::default() };
        }
        self
    }
}

impl Tcb {
    /// Answers a segment with unexpected numbers by an ACK. The rate for bare ones is low.
    pub(super) fn answer_unexpected(&mut self, ctx: &mut Ctx<'_>, flags: Flags, bytes: usize) {
        if bytes > 0 || flags.intersects(Flags::SYN | Flags::FIN) {
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

    /// Sends a challenge ACK, within the limit (RFC 5961 section 7). Each connection has its own count:
    /// a shared one would reveal other connections' traffic (CVE-2016-5696).
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
