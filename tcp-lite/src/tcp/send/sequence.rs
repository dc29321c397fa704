//! What the rest of the connection asks about the sequence numbers and timestamps of the sending half (RFC
//! 9293 section 3.4, RFC 7323 section 3).

use super::SendHalf;
use crate::Instant;
use crate::facade::TcpSeqNumber;
use crate::invariant::Check;

impl SendHalf {
    /// The position of the next new byte (SND.NXT).
    #[inline]
    pub(in crate::tcp) fn nxt(&self) -> u64 {
        self.queue.nxt()
    }

    /// The positions after the last pushed byte, and after the last acknowledged byte.
    pub(in crate::tcp) fn pushed_and_acknowledged(&self) -> (u64, u64) {
        let positions = self.queue.positions();
        (positions.end(), positions.acknowledged())
    }

    #[inline]
    pub(in crate::tcp) fn seq(&self, pos: u64) -> TcpSeqNumber {
        self.queue.positions().seq(pos)
    }

    /// The position nearest to SND.UNA that has this sequence number. A position before the SYN is negative.
    #[inline]
    pub(in crate::tcp) fn position(&self, seq: TcpSeqNumber) -> i64 {
        self.queue.positions().position(seq)
    }

    /// Whether this sequence number was sent and is not acknowledged. An ICMP error that quotes any other
    /// number is not plausible (RFC 5927).
    pub(in crate::tcp) fn covers_outstanding(&self, seq: TcpSeqNumber) -> bool {
        self.queue.positions().covers_outstanding(seq)
    }

    /// Whether an acknowledgement is acceptable (RFC 5961 section 5.2): every acknowledged byte was sent, and
    /// the acknowledgement is not too old.
    #[inline]
    pub(in crate::tcp) fn is_ack_acceptable(&self, ack: i64) -> bool {
        self.queue.is_ack_acceptable(ack)
    }

    /// Whether `ack` is between SND.UNA and SND.NXT, inclusive.
    #[inline]
    pub(in crate::tcp) fn is_ack_expected(&self, ack: TcpSeqNumber) -> bool {
        self.queue.positions().is_ack_expected(ack)
    }

    /// Whether `ack` acknowledges exactly our SYN, and the SYN was sent.
    pub(in crate::tcp) fn is_ack_of_syn(&self, ack: TcpSeqNumber) -> bool {
        self.queue.positions().is_ack_of_syn(ack)
    }

    /// Whether the peer has acknowledged our SYN, so that the peer knows of the connection.
    pub(in crate::tcp) fn is_syn_acked(&self) -> bool {
        self.queue.positions().is_syn_acked()
    }

    /// Whether our FIN has to be sent, perhaps after other segments.
    pub(in crate::tcp) fn is_fin_due(&self) -> bool {
        self.queue.is_fin_due()
    }

    /// An initial sequence number for the next connection with the same 4-tuple. Returns `iss` if `iss` is
    /// far enough above all numbers that this connection used, otherwise a higher number (RFC 9293 section
    /// 3.6.1).
    pub(in crate::tcp) fn next_iss(&self, iss: TcpSeqNumber) -> TcpSeqNumber {
        self.queue.positions().next_iss(iss)
    }

    /// TSval of a segment that is sent now (RFC 7323 section 3.2).
    #[inline]
    pub(in crate::tcp) fn timestamp(&self, now: Instant) -> u32 {
        self.clock.value(now)
    }

    /// Checks that our FIN has the expected state: not requested by the user if `not_asked`, acknowledged if
    /// `acked`, otherwise due or in flight.
    pub(in crate::tcp) fn check_fin(&self, not_asked: bool, acked: bool) -> Check {
        self.queue.positions().check_fin(not_asked, acked)
    }
}
