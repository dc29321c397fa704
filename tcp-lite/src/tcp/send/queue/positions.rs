//! The positions up to which our bytes, including the SYN and the FIN, were pushed, sent and acknowledged
//! (RFC 9293 sections 3.3.1 and 3.4; ISS, SND.UNA and SND.NXT).

use crate::facade::TcpSeqNumber;
use crate::invariant::{Check, ensure};
use crate::tcp::seq::SeqSpace;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// The user has not closed.
    NotAsked,
    /// The FIN has to be sent after the queued segments, for the first time or, after a timeout, again.
    Due,
    Sent,
    Acked,
}

/// The positions of one connection, as defined in `seq.rs`. `una` and `nxt` also count the SYN and the FIN.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Positions {
    space: SeqSpace,
    fin: Fin,
    /// The oldest unacknowledged position (SND.UNA).
    una: u64,
    /// The next position to send (SND.NXT).
    nxt: u64,
    /// Position after the last pushed byte, which is the position of the FIN.
    end: u64,
}

/// The positions that were sent and are not acknowledged, at one moment: those from `una` (SND.UNA) to before
/// `nxt` (SND.NXT).
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp::send) struct SendRange {
    pub(in crate::tcp::send) una: u64,
    pub(in crate::tcp::send) nxt: u64,
}

impl SendRange {
    /// Number of positions in the range.
    #[inline]
    pub(in crate::tcp::send) fn outstanding(self) -> u64 {
        self.nxt - self.una
    }
}

impl Positions {
    /// The state before anything was sent. `iss` is the sequence number of the SYN.
    pub(super) fn new(iss: TcpSeqNumber) -> Self {
        Self { space: SeqSpace::new(iss), fin: Fin::NotAsked, una: 0, nxt: 0, end: 1 }
    }

    #[inline]
    pub(in crate::tcp) fn una(&self) -> u64 {
        self.una
    }

    #[inline]
    pub(in crate::tcp) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Position after the last pushed byte, which is the position of the FIN.
    #[inline]
    pub(in crate::tcp) fn end(&self) -> u64 {
        self.end
    }

    /// Number of pushed bytes that are not acknowledged, whether sent or unsent.
    #[inline]
    pub(in crate::tcp) fn queued(&self) -> u64 {
        self.end.saturating_sub(self.una.max(1))
    }

    /// Number of positions that were sent and are not acknowledged: SND.NXT - SND.UNA.
    #[inline]
    pub(in crate::tcp) fn outstanding(&self) -> u64 {
        self.nxt - self.una
    }

    /// Position after the last acknowledged byte.
    pub(in crate::tcp) fn acknowledged(&self) -> u64 {
        self.end - self.queued()
    }

    #[inline]
    pub(in crate::tcp) fn seq(&self, pos: u64) -> TcpSeqNumber {
        self.space.seq(pos)
    }

    /// The position nearest to SND.UNA that has this sequence number. A position before the SYN is negative.
    #[inline]
    pub(in crate::tcp) fn position(&self, seq: TcpSeqNumber) -> i64 {
        self.space.pos(seq, self.una)
    }

    /// Whether this sequence number was sent and is not acknowledged. An ICMP error that quotes any other
    /// number is not plausible (RFC 5927).
    pub(in crate::tcp) fn covers_outstanding(&self, seq: TcpSeqNumber) -> bool {
        let pos = self.position(seq);
        (self.una as i64..self.nxt as i64).contains(&pos)
    }

    /// Whether an acknowledgement is acceptable (RFC 5961 section 5.2): every acknowledged byte was sent, and
    /// the acknowledgement is not too old. `max_window` is the largest window that the peer has announced.
    #[inline]
    pub(in crate::tcp) fn is_ack_acceptable(&self, ack: i64, max_window: u64) -> bool {
        let oldest = self.una as i64 - max_window as i64;
        ack <= self.nxt as i64 && ack >= oldest
    }

    /// Whether `ack` is between SND.UNA and SND.NXT, inclusive.
    #[inline]
    pub(in crate::tcp) fn is_ack_expected(&self, ack: TcpSeqNumber) -> bool {
        let pos = self.position(ack);
        self.una as i64 <= pos && pos <= self.nxt as i64
    }

    /// Whether `ack` acknowledges exactly our SYN, and the SYN was sent.
    pub(in crate::tcp) fn is_ack_of_syn(&self, ack: TcpSeqNumber) -> bool {
        self.nxt > 0 && ack == self.space.seq(1)
    }

    /// An initial sequence number for the next connection with the same 4-tuple. Returns `iss` if `iss`
    /// exceeds every number that this connection used by more than an unscaled window. Otherwise returns a
    /// higher number (RFC 9293 section 3.6.1).
    pub(in crate::tcp) fn next_iss(&self, iss: TcpSeqNumber) -> TcpSeqNumber {
        // Like Linux in `tcp_timewait_state_process`: SND.NXT + 65535 + 2, which is beyond a whole window.
        let least = self.nxt + u64::from(u16::MAX) + 2;
        let above = self.space.pos(iss, self.nxt) >= least as i64;
        if above { iss } else { self.space.seq(least) }
    }

    /// Called when our SYN was sent, perhaps again.
    pub(in crate::tcp) fn on_syn_sent(&mut self) {
        self.nxt = self.nxt.max(1);
    }

    pub(in crate::tcp) fn on_syn_acked(&mut self) {
        self.una = 1;
    }

    /// Whether the peer has acknowledged our SYN, so that the peer knows of the connection.
    #[inline]
    pub(in crate::tcp) fn is_syn_acked(&self) -> bool {
        self.una > 0
    }

    #[inline(always)]
    pub(super) fn on_pushed(&mut self, bytes: usize) {
        self.end += bytes as u64;
    }

    /// Called when the segment at the front of the unsent segments has been sent. The segment ends at `end`.
    #[inline]
    pub(super) fn on_sent(&mut self, end: u64) {
        self.nxt = end;
    }

    /// Called when all positions below `ack`, which is at most SND.NXT, are acknowledged. Returns the number
    /// of newly acknowledged positions.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, ack: u64) -> u64 {
        let acked = ack.saturating_sub(self.una);
        self.una = self.una.max(ack);
        acked
    }

    /// Like [`on_acknowledged`](Self::on_acknowledged), for an `ack` that is above SND.UNA.
    #[inline]
    pub(super) fn on_run_acknowledged(&mut self, ack: u64) {
        debug_assert!(self.una < ack, "nothing is newly acknowledged");
        self.una = ack;
    }

    /// Called when the user has closed: a FIN follows the queued segments (RFC 9293 section 3.10.4).
    pub(in crate::tcp) fn close(&mut self) {
        self.fin = Fin::Due;
    }

    pub(in crate::tcp) fn may_push(&self) -> bool {
        self.fin == Fin::NotAsked
    }

    /// Whether our FIN has to be sent, perhaps after other segments.
    #[inline]
    pub(in crate::tcp) fn is_fin_due(&self) -> bool {
        self.fin == Fin::Due
    }

    /// Called when our FIN was sent. Returns whether our FIN had been sent before.
    pub(in crate::tcp) fn on_fin_sent(&mut self) -> bool {
        let again = self.nxt > self.end;
        self.fin = Fin::Sent;
        self.nxt = self.end + 1;
        again
    }

    /// Called when our FIN may be lost. If the FIN was sent and is not acknowledged, it has to be sent again.
    pub(in crate::tcp) fn send_fin_again(&mut self) {
        if self.fin == Fin::Sent {
            self.fin = Fin::Due;
        }
    }

    /// Whether our FIN was acknowledged since the last call.
    #[inline]
    pub(in crate::tcp) fn take_fin_acked(&mut self) -> bool {
        let acked = self.fin != Fin::Acked && self.una > self.end;
        if acked {
            self.fin = Fin::Acked;
        }
        acked
    }

    /// Called when the connection has ended: no FIN is sent.
    pub(in crate::tcp) fn forget_fin(&mut self) {
        self.fin = Fin::NotAsked;
    }

    /// Checks that our FIN has the expected state: not requested by the user if `not_asked`, acknowledged if
    /// `acked`, otherwise due or in flight.
    pub(in crate::tcp) fn check_fin(&self, not_asked: bool, acked: bool) -> Check {
        let fits = (self.fin == Fin::NotAsked, self.fin == Fin::Acked) == (not_asked, acked);
        ensure!(fits, "our FIN is {:?}", self.fin);
        Ok(())
    }

    /// Checks that SND.UNA is at most SND.NXT, and that SND.NXT is at most one position after `end`, since
    /// the FIN is at `end`.
    pub(super) fn check(&self) -> Check {
        let Self { una, nxt, end, .. } = *self;
        ensure!(una <= nxt && nxt <= end + 1, "SND.UNA {una}, SND.NXT {nxt}, end {end}");
        Ok(())
    }
}

#[cfg(test)]
impl Positions {
    /// Sets SND.UNA, SND.NXT and the position after the last pushed byte.
    pub(super) fn set(&mut self, una: u64, nxt: u64, end: u64) {
        (self.una, self.nxt, self.end) = (una, nxt, end);
    }

    /// Acts as if `bytes` more bytes had been sent and acknowledged.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.set(self.una + bytes, self.nxt + bytes, self.end + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;

    const ISS: TcpSeqNumber = TcpSeqNumber(-2);

    /// Positions with SND.NXT 301, SND.UNA 101, and bytes up to 501.
    fn positions() -> Positions {
        let mut positions = Positions::new(ISS);
        positions.on_syn_sent();
        positions.on_syn_acked();
        positions.on_pushed(500);
        positions.on_sent(301);
        assert_eq!(positions.on_acknowledged(101), 100);
        positions.check().expect("invariants");
        positions
    }

    #[test]
    fn what_is_acknowledged_sent_and_pushed() {
        let mut positions = positions();
        assert_eq!((positions.una(), positions.nxt(), positions.end()), (101, 301, 501));
        assert_eq!((positions.queued(), positions.outstanding(), positions.acknowledged()), (400, 200, 101));
        assert_eq!(positions.on_acknowledged(51), 0, "an old acknowledgement");
        assert_eq!(positions.una(), 101);
        let new = Positions::new(ISS);
        assert_eq!((new.queued(), new.outstanding(), new.acknowledged()), (0, 0, 1));
        assert!(!new.is_syn_acked() && positions.is_syn_acked());
    }

    #[test]
    fn acknowledgements_of_what_is_in_flight_are_acceptable_and_older_ones_within_a_window() {
        let positions = positions();
        let acceptable = |ack| positions.is_ack_acceptable(ack, 200);
        assert_eq!([-100, -99, 101, 301, 302].map(acceptable), [false, true, true, true, false]);
        let expected = |pos| positions.is_ack_expected(positions.seq(pos));
        assert_eq!([100, 101, 301, 302].map(expected), [false, true, true, false]);
        let covers = |pos| positions.covers_outstanding(positions.seq(pos));
        assert_eq!([100, 101, 300, 301].map(covers), [false, true, true, false]);
        assert_eq!(positions.position(ISS + 301), 301);
        assert_eq!(positions.position(ISS - 1), -1, "before the SYN");
    }

    #[test]
    fn only_a_syn_that_was_sent_is_acknowledged() {
        let mut positions = Positions::new(ISS);
        assert!(!positions.is_ack_of_syn(ISS + 1));
        positions.on_syn_sent();
        positions.on_syn_sent();
        assert!(positions.is_ack_of_syn(ISS + 1) && !positions.is_ack_of_syn(ISS + 2));
        assert_eq!(positions.nxt(), 1, "again");
    }

    #[test]
    fn the_next_connection_begins_beyond_a_window_behind_this_one() {
        let positions = positions();
        let least = positions.seq(301 + 65_535 + 2);
        assert_eq!(positions.next_iss(least), least);
        assert_eq!(positions.next_iss(least + 1), least + 1);
        assert_eq!(positions.next_iss(least - 1), least);
    }

    #[test]
    fn a_fin_is_sent_behind_everything_and_acknowledged_once() {
        let mut positions = positions();
        positions.on_sent(501);
        positions.send_fin_again();
        assert!(positions.may_push() && !positions.is_fin_due(), "not asked for");
        positions.close();
        assert!(!positions.may_push() && positions.is_fin_due());
        assert!(!positions.on_fin_sent());
        assert_eq!((positions.nxt(), positions.is_fin_due()), (502, false));
        positions.send_fin_again();
        assert!(positions.is_fin_due() && positions.on_fin_sent(), "again");
        positions.on_acknowledged(501);
        assert!(!positions.take_fin_acked(), "all but the FIN");
        positions.check_fin(false, false).expect("in flight");
        positions.on_acknowledged(502);
        assert!(positions.take_fin_acked() && !positions.take_fin_acked());
        positions.check_fin(false, true).expect("acknowledged");
        positions.send_fin_again();
        assert!(!positions.is_fin_due());
        assert_eq!(positions.queued(), 0);
    }

    #[test]
    fn positions_out_of_order_are_found() {
        for (una, nxt, what) in [(302, 301, "SND.UNA 302, SND.NXT 301"), (101, 503, "SND.NXT 503, end 501")] {
            let mut positions = positions();
            positions.set(una, nxt, 501);
            assert_found(positions.check(), what);
        }
        let mut positions = positions();
        positions.close();
        assert_found(positions.check_fin(true, false), "our FIN is Due");
    }
}
