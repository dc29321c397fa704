//! Challenge ACKs: a limited number of answers to segments that are not acceptable (RFC 5961 section 7).

use super::Tcb;
use crate::tcp::ctx::{Ctx, Seconds};
use crate::tcp::header::Flags;

/// Maximum number of answers per second to bare segments (without payload, SYN and FIN) that are out of
/// window, or have an old timestamp or an unacceptable acknowledgement. The RFCs require an answer to each
/// such segment, for example to a keepalive (RFC 9293 section 3.10.7.4, RFC 7323 section 5.3, RFC 5961
/// section 5.2). But if acknowledgements are reordered in both directions, both endpoints could answer each
/// other's answers without end. Eight answers per second are enough for probes, and bound such an exchange.
const BARE_ANSWERS_PER_SECOND: u16 = 8;

/// Numbers of segments that required an answer in the current second (RFC 5961 section 7).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    second: Seconds,
    all: u16,
    /// Number of bare segments in this second that required an answer. Segments that got no answer count as
    /// well.
    bare: u16,
}

impl Challenges {
    /// The counts of the current second. When a new second begins, the counts are reset.
    fn now(&mut self, ctx: &Ctx<'_>) -> &mut Self {
        let second = ctx.second();
        if self.second != second {
            *self = Self { second, ..Self::default() };
        }
        self
    }
}

impl Tcb {
    /// Answers a segment with unexpected numbers by a challenge ACK. Bare segments have a limit of their own
    /// as well.
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

    /// Sends a challenge ACK, unless the connection is at its limit (RFC 5961 section 7). Each connection has
    /// its own count, because a shared count would reveal the traffic of other connections (CVE-2016-5696).
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
