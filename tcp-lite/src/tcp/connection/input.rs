//! Processes an arriving segment (RFC 9293 section 3.10.7.4, RFC 5961, RFC 7323 section 5). After the checks,
//! the sending half handles the segment's acknowledgement, and the receiving half handles its payload.

use dp::Mbuf;

use super::Tcb;
use crate::CloseReason;
use crate::ip::Ecn;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::receive::is_ecn_setup;
use crate::tcp::send::AckInfo;

/// What the caller does after a segment was handled.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// The segment was processed or dropped. If an answer is due, [`Tcb::next_transmission`] returns it.
    Done,
    /// The caller sends this RST. The connection remains.
    Reset(TcpHeader),
    /// In TIME-WAIT, this SYN may start a new connection. If a listener accepts the SYN, the caller replaces
    /// this control block with the new connection (RFC 9293 section 3.10.7.4, RFC 6191). Otherwise the caller
    /// keeps the control block.
    Reopen,
}

impl Tcb {
    /// Handles any segment with a correct checksum. This is the general path of
    /// [`on_predicted`](Self::on_predicted). The payload may be empty, or a chain. `segments` is the number
    /// of segments that were merged (`stack/gro.rs`). Segments are merged only if the first segment
    /// [`is_next`](Self::is_next).
    pub(crate) fn on_segment(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &TcpHeader,
        ecn: Ecn,
        (payload, segments): (Mbuf, usize),
    ) -> Verdict {
        match self.state {
            // The connection has ended, but its RST may still wait to be sent.
            State::Closed => return header.rst_reply(payload.len()).map_or(Verdict::Done, Verdict::Reset),
            State::SynSent => return self.on_segment_in_syn_sent(ctx, header),
            State::SynReceived if self.is_syn_again(header) && header.ack.is_none() => {
                // Our SYN-ACK was lost. (The SYN-ACK of a simultaneous open is handled below, because it
                // contains an ACK.) If the repeated SYN no longer requests ECN, we must not use ECN either,
                // because the peer does not know that we agreed to ECN (RFC 3168 section 6.1.1).
                if !self.agrees_on_ecn(ctx.config, header) {
                    self.decline_ecn();
                }
                self.receive.learn_timestamp(ctx, header, 0);
                self.send.send_syn();
                return Verdict::Done;
            }
            State::TimeWait if self.may_reopen(ctx.config, header) => return Verdict::Reopen,
            _ => {}
        }
        self.on_segment_synchronized(ctx, header, ecn, (payload, segments))
    }

    fn on_segment_synchronized(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &TcpHeader,
        ecn: Ecn,
        (payload, segments): (Mbuf, usize),
    ) -> Verdict {
        let flags = header.flags;
        let syn_ack_again = self.state == State::SynReceived && self.is_syn_again(header);
        // The payload of a SYN starts one sequence number later. Our answer acknowledges only the SYN, so the
        // peer sends the payload again.
        let pos = self.receive.position(header.seq) + i64::from(syn_ack_again);
        let bytes = if syn_ack_again { 0 } else { payload.len() };

        // This check comes before the steps of RFC 9293 section 3.10.7.4. In SYN-RECEIVED, a segment that
        // acknowledges anything but our SYN is answered with RST, whatever its sequence number is (RFC 9293
        // section 3.5.2, group 2). A challenge ACK could cause an endless exchange of ACKs.
        let is_rst = flags.contains(Flags::RST);
        if self.state == State::SynReceived && !is_rst && !self.acknowledges_our_syn(header) {
            return header.rst_reply(bytes).map_or(Verdict::Done, Verdict::Reset);
        }
        // First step: the timestamp (RFC 7323 section 5.3, R1) and the sequence number.
        if self.receive.is_old(ctx, header) {
            ctx.counters.rx_old_timestamps += 1;
            self.on_unexpected(ctx, header, bytes);
            return Verdict::Done;
        }
        let len = bytes + usize::from(flags.contains(Flags::FIN));
        if !self.receive.is_acceptable(pos, len) {
            self.on_unacceptable(ctx, header, pos, bytes);
            return Verdict::Done;
        }
        // Second step: RST. (The third step, security, is not implemented.)
        if is_rst {
            self.on_reset(ctx, pos);
            return Verdict::Done;
        }
        // Fourth step: SYN.
        if flags.contains(Flags::SYN) && !syn_ack_again {
            self.challenge(ctx);
            return Verdict::Done;
        }
        // Fifth step: ACK.
        let Some(ack) = header.ack else { return Verdict::Done };
        let ack = self.send.position(ack);
        if self.state == State::SynReceived {
            self.establish(ctx, header);
            if syn_ack_again {
                // The SYN-ACK of a simultaneous open only establishes the connection. If the SYN-ACK has a
                // payload or a FIN, both are dropped, and the peer sends them again.
                self.receive.learn_timestamp(ctx, header, pos);
                self.receive.send_ack();
                return Verdict::Done;
            }
        }
        if !self.send.is_ack_acceptable(ack) {
            self.on_unexpected(ctx, header, bytes);
            return Verdict::Done;
        }
        // The timestamp is stored only now, because an attacker who has guessed only a sequence number must
        // not set the timestamp that PAWS uses.
        self.restart_keepalive(ctx);
        self.receive.learn_timestamp(ctx, header, pos);
        let ack = ack.max(0) as u64;
        let ack_info = AckInfo {
            ack,
            pos,
            len,
            window: header.window,
            sack: &header.options.sack,
            echo: header.options.timestamps.map(|(_, echo)| echo),
            ece: flags.contains(Flags::ECE),
        };
        if self.send.on_ack(ctx, &ack_info) {
            self.on_fin_acked(ctx);
        }
        if bytes > 0 {
            self.receive.on_ecn(ctx, flags, ecn);
        }

        // Sixth step: URG, which is ignored. Seventh step: the segment text. Eighth step: FIN.
        let fin = flags.contains(Flags::FIN);
        if self.takes_payload() {
            let outcome = self.receive.on_payload(ctx, pos, (payload, segments), fin);
            if outcome.refused {
                // The acknowledgement would report nothing new, so it counts as a challenge ACK. Without the
                // limit of challenge ACKs, each segment of an attacker would cause an answer.
                self.challenge(ctx);
            }
            if outcome.finished {
                self.on_peer_closed(ctx);
            }
        } else if self.state == State::TimeWait && fin {
            self.receive.send_ack();
        }
        Verdict::Done
    }

    fn on_unacceptable(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, pos: i64, bytes: usize) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        if pos < self.receive.nxt() as i64 {
            // The segment is a duplicate, a keepalive or a window probe, so the peer is alive.
            self.restart_keepalive(ctx);
            self.send.on_heard();
            ctx.counters.rx_duplicate_bytes += bytes as u64;
            if bytes > 0 {
                self.receive.report_duplicate(pos, bytes);
            }
        }
        if self.state == State::TimeWait && header.flags.contains(Flags::FIN) {
            self.on_fin_in_time_wait(ctx, pos + bytes as i64);
        }
        self.on_unexpected(ctx, header, bytes);
    }

    /// Answers a segment with unexpected numbers by an ACK, unless the limit of such answers is reached.
    fn on_unexpected(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, bytes: usize) {
        if self.is_syn_again(header) && !is_ecn_setup(header) {
            // The peer sent its SYN or SYN-ACK again. A host that has received a SYN or SYN-ACK without ECN
            // setup should not send ECN-capable packets any more (RFC 3168 section 6.1.1). Echoes of earlier
            // marks are still handled.
            self.send.stop_ect();
        }
        self.answer_unexpected(ctx, header.flags, bytes);
    }

    /// Handles an acceptable RST. If the sequence number of the RST is RCV.NXT, the RST ends the connection.
    /// Otherwise the RST causes a challenge ACK (RFC 5961 section 3.2). In TIME-WAIT the RST is ignored.
    fn on_reset(&mut self, ctx: &mut Ctx<'_>, pos: i64) {
        if self.state == State::TimeWait {
            return;
        }
        if pos != self.receive.nxt() as i64 {
            return self.challenge(ctx);
        }
        let reason = match self.state {
            State::SynReceived => CloseReason::Refused,
            _ => CloseReason::Reset,
        };
        self.terminate(ctx, reason, false);
    }
}
