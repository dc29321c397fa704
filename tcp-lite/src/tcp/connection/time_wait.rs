//! TIME-WAIT: how long it lasts, and when a SYN ends it early (RFC 9293 sections 3.6.1 and 3.10.7.4, RFC
//! 6191).
//!
//! Contrary to RFC 9293 section 3.10.7.4, RST does not end TIME-WAIT, because old segments may still be in
//! flight. Without timestamps or a higher initial sequence number, the next connection could accept the old
//! segments (RFC 1337 section 3, fix F1). A CRC does not help, because an old FPDU has a correct CRC.
//!
//! TIME-WAIT exists because our acknowledgement of the peer's FIN may be lost. In this case, the peer sends
//! its FIN again and needs an answer. TIME-WAIT lasts for [`TcpConfig::time_wait`](crate::TcpConfig), but at
//! least as long as the peer is expected to wait before it sends its FIN again (up to `MAX_TIME_WAIT`). The
//! first estimate of the peer's wait is three and a half times our RTO, as in Linux. After each repeated FIN,
//! the estimate is four times the time between the last two FINs, because the peer's next wait is twice this
//! time.

use super::Tcb;
use super::timer::ConnTimer;
use crate::facade::TcpSeqNumber;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::{Flags, TcpHeader};
use crate::{CloseReason, Duration, TcpConfig};

/// The longest wait for another FIN: twice the largest RTO of other stacks (120 s in Linux).
const MAX_TIME_WAIT: Duration = Duration::from_secs(240);

impl Tcb {
    /// Called when our FIN is acknowledged and the peer's FIN has arrived.
    pub(super) fn enter_time_wait(&mut self, ctx: &mut Ctx<'_>) {
        self.state = State::TimeWait;
        self.dispose(ctx);
        self.fin_at = ctx.now;
        self.wait_for_silence(ctx, self.send.info().rto * 7 / 2);
        self.raise_closed(ctx, CloseReason::Graceful);
    }

    /// Handles a segment in TIME-WAIT whose FIN is at position `end`. If the peer has sent its FIN again,
    /// restarts the wait.
    pub(super) fn on_fin_in_time_wait(&mut self, ctx: &Ctx<'_>, end: i64) {
        if self.receive.fin().is_some_and(|fin| end == fin as i64) {
            let gap = ctx.now - self.fin_at;
            self.fin_at = ctx.now;
            self.wait_for_silence(ctx, gap * 4);
        }
    }

    fn wait_for_silence(&mut self, ctx: &Ctx<'_>, at_least: Duration) {
        let wait = ctx.config.time_wait.max(at_least.min(MAX_TIME_WAIT));
        // A repeated FIN never shortens the wait.
        let mut until = ctx.now + wait;
        if let Some((before, ConnTimer::End)) = self.timer {
            until = until.max(before);
        }
        self.timer = Some((until, ConnTimer::End));
    }

    /// Whether this SYN may start a new connection (RFC 6191 section 2). If both connections use timestamps,
    /// the SYN needs a later timestamp, or an equal timestamp and a higher sequence number. If only the new
    /// connection uses timestamps, there is no further condition. If the new connection uses no timestamps,
    /// its sequence number has to be higher.
    ///
    /// The stack answers any other SYN with a challenge ACK, as RFC 9293 section 3.10.7.4 requires. The older
    /// RFC 6191 drops the SYN.
    pub(super) fn may_reopen(&self, config: &TcpConfig, header: &TcpHeader) -> bool {
        if !header.flags.contains(Flags::SYN) || header.flags.contains(Flags::RST) || header.ack.is_some() {
            return false;
        }
        // The highest sequence number that the peer used in the old connection is the number of its FIN, just
        // below RCV.NXT.
        let by_sequence = self.receive.position(header.seq) >= self.receive.nxt() as i64;
        let ts_recent = self.receive.ts_recent();
        match header.options.timestamps.filter(|_| config.timestamps) {
            Some(_) if !self.send.agreed().timestamps => true,
            Some((value, _)) if value != ts_recent => value.wrapping_sub(ts_recent) as i32 > 0,
            _ => by_sequence,
        }
    }

    /// An initial sequence number for the next connection with the same 4-tuple. Returns `iss` if `iss` is
    /// far enough above all numbers that this connection used, otherwise a higher number (RFC 9293 section
    /// 3.6.1).
    pub(crate) fn next_iss(&self, iss: TcpSeqNumber) -> TcpSeqNumber {
        self.send.next_iss(iss)
    }
}
