//! TIME-WAIT: how long it lasts, and what ends it early (RFC 9293 sections 3.6.1 and 3.10.7.4, RFC
//! 6191).
//!
//! A RST does not end it, against RFC 9293 section 3.10.7.4. Old segments may still be in flight.
//! Without timestamps or a higher initial sequence number the next connection would take them for
//! its own (RFC 1337 section 3, fix F1). A CRC does not help: an old FPDU has a good one.
//!
//! It is there for the peer whose FIN we have acknowledged, should that be lost: whoever sends its
//! FIN again has to find us. So it lasts as [`TcpConfig::time_wait`](crate::TcpConfig) says, but no
//! less than the peer may wait until it tries again: three and a half of our RTO at first, as Linux
//! has it; and when a FIN comes again, four times as long as that took, since its sender doubles
//! its timer. That the connection makes room when there are too many is the stack's decision.

use super::Tcb;
use super::timer::Watch;
use crate::facade::TcpSeqNumber;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::{Flags, TcpHeader};
use crate::{CloseReason, Duration, TcpConfig};

/// The longest wait for another FIN: twice the largest RTO of other stacks.
const LONGEST: Duration = Duration::from_secs(240);

impl Tcb {
    /// Both FINs are acknowledged; a silence follows.
    pub(super) fn enter_time_wait(&mut self, ctx: &mut Ctx<'_>) {
        self.state = State::TimeWait;
        self.dispose(ctx);
        self.fin_at = ctx.now;
        self.wait_for_silence(ctx, self.send.rto() * 7 / 2);
        self.raise_closed(ctx, CloseReason::Graceful);
    }

    /// A segment with a FIN in TIME-WAIT that ends at `end`: the peer's own, again, restarts the
    /// wait.
    pub(super) fn on_fin_in_time_wait(&mut self, ctx: &Ctx<'_>, end: i64) {
        if self.receive.fin().is_some_and(|fin| end == fin as i64) {
            let gap = ctx.now - self.fin_at;
            self.fin_at = ctx.now;
            self.wait_for_silence(ctx, gap * 4);
        }
    }

    fn wait_for_silence(&mut self, ctx: &Ctx<'_>, at_least: Duration) {
        let wait = ctx.config.time_wait.max(at_least.min(LONGEST));
        // Never shorter than what was said before.
        let mut until = ctx.now + wait;
        if let Some((before, Watch::End)) = self.timer {
            until = until.max(before);
        }
        self.timer = Some((until, Watch::End));
    }

    /// Whether this SYN may start a new connection (RFC 6191 section 2). Where the old connection
    /// had timestamps, and the new one will, a later timestamp is needed, or the same one and a
    /// higher sequence number. Where only the new one will have them, nothing else is needed. Where
    /// the new one will have none, its sequence number has to be higher.
    ///
    /// Any other SYN is answered by a challenge ACK (RFC 9293 section 3.10.7.4, of later date than
    /// RFC 6191, which drops it). The peer sends its SYN again until TIME-WAIT is over.
    pub(super) fn may_reopen(&self, config: &TcpConfig, header: &TcpHeader) -> bool {
        if !header.flags.contains(Flags::SYN) || header.flags.contains(Flags::RST) || header.ack.is_some() {
            return false;
        }
        // The last number that the old connection used is that of its FIN, just below RCV.NXT.
        let by_sequence = self.receive.position(header.seq) >= self.receive.nxt() as i64;
        let ts_recent = self.receive.ts_recent();
        match header.options.timestamps.filter(|_| config.timestamps) {
            Some(_) if !self.send.agreed().timestamps => true,
            Some((value, _)) if value != ts_recent => value.wrapping_sub(ts_recent) as i32 > 0,
            _ => by_sequence,
        }
    }

    /// An initial sequence number for the next connection of the same name, which is above all that
    /// this one used (RFC 9293 section 3.6.1); `iss` if that is.
    pub(crate) fn next_iss(&self, iss: TcpSeqNumber) -> TcpSeqNumber {
        self.send.next_iss(iss)
    }
}
