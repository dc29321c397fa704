//! The positions of our direction: what is pushed, sent and acknowledged, the SYN and the FIN included (RFC
//! 9293 sections 3.3.1 and 3.4; ISS, SND.UNA and SND.NXT).

use crate::facade::TcpSeqNumber;
use crate::invariant::{Check, ensure};
use crate::tcp::seq::SeqSpace;

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// The user has not closed.
    NotAsked,
    /// To be sent behind the queue, for the first time or, after a timeout, again.
    Due,
    Sent,
    Acked,
}

/// The positions of one connection, as in `seq.rs`: `una` and `nxt` also count SYN and FIN.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Positions {
    space: SeqSpace,
    fin: Fin,
    /// The oldest unacknowledged position (SND.UNA).
    una: u64,
    /// The next position to send (SND.NXT).
    nxt: u64,
    /// Position behind the last byte pushed: that of the FIN.
    end: u64,
}

impl Positions {
    /// Nothing was sent, not even the SYN, which has the sequence number `iss`.
    pub(super) fn new(iss: TcpSeqNumber) -> Self {
        Self { space: SeqSpace::new(iss), fin: Fin::NotAsked, una: 0, nxt: 0, end: 1 }
    }

    /// The oldest unacknowledged position (SND.UNA).
    #[inline]
    pub(in crate::tcp) fn una(&self) -> u64 {
        self.una
    }

    /// The next position to send (SND.NXT).
    #[inline]
    pub(in crate::tcp) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Position behind the last byte pushed: that of the FIN.
    #[inline]
    pub(in crate::tcp) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of unacknowledged segments, sent or not.
    #[inline]
    pub(in crate::tcp) fn queued(&self) -> u64 {
        self.end.saturating_sub(self.una.max(1))
    }

    /// Positions sent and not acknowledged: SND.NXT - SND.UNA.
    #[inline]
    pub(in crate::tcp) fn outstanding(&self) -> u64 {
        self.nxt - self.una
    }

    /// Position behind the last byte that is acknowledged.
    pub(in crate::tcp) fn acknowledged(&self) -> u64 {
        self.end - self.queued()
    }

    /// The sequence number of a position.
    #[inline]
    pub(in crate::tcp) fn seq(&self, pos: u64) -> TcpSeqNumber {
        self.space.seq(pos)
    }

    /// The position nearest to SND.UNA that has this sequence number. Negative if it is before the SYN.
    #[inline]
    pub(in crate::tcp) fn position(&self, seq: TcpSeqNumber) -> i64 {
        self.space.pos(seq, self.una)
    }

    /// Whether this sequence number is sent and not acknowledged, so that an ICMP error that quotes it is
    /// plausible (RFC 5927).
    pub(in crate::tcp) fn covers_outstanding(&self, seq: TcpSeqNumber) -> bool {
        let pos = self.position(seq);
        (self.una as i64..self.nxt as i64).contains(&pos)
    }

    /// RFC 5961 section 5.2: rejects acknowledgements of bytes never sent, and too old ones. `max_window`:
    /// the largest window that the peer has announced.
    #[inline]
    pub(in crate::tcp) fn is_ack_acceptable(&self, ack: i64, max_window: u64) -> bool {
        let oldest = self.una as i64 - max_window as i64;
        ack <= self.nxt as i64 && ack >= oldest
    }

    /// Whether `ack` acknowledges no less than earlier segments, and no more than was sent, so that the
    /// segment may be a predicted one.
    #[inline]
    pub(in crate::tcp) fn is_ack_expected(&self, ack: TcpSeqNumber) -> bool {
        let pos = self.position(ack);
        self.una as i64 <= pos && pos <= self.nxt as i64
    }

    /// Whether this acknowledges exactly our SYN, which was sent.
    pub(in crate::tcp) fn is_ack_of_syn(&self, ack: TcpSeqNumber) -> bool {
        self.nxt > 0 && ack == self.space.seq(1)
    }

    /// An initial sequence number for the next connection with the same 4-tuple: `iss`, or a higher one
    /// if `iss` is not above all numbers that this connection used by more than an unscaled window (RFC
    /// 9293 section 3.6.1).
    pub(in crate::tcp) fn next_iss(&self, iss: TcpSeqNumber) -> TcpSeqNumber {
        // As Linux in `tcp_timewait_state_process`: SND.NXT + 65535 + 2, beyond a whole window.
        let least = self.nxt + u64::from(u16::MAX) + 2;
        let above = self.space.pos(iss, self.nxt) >= least as i64;
        if above { iss } else { self.space.seq(least) }
    }

    /// Our SYN was sent, perhaps again.
    pub(in crate::tcp) fn on_syn_sent(&mut self) {
        self.nxt = self.nxt.max(1);
    }

    /// Our SYN is acknowledged.
    pub(in crate::tcp) fn on_syn_acked(&mut self) {
        self.una = 1;
    }

    /// Whether the peer has acknowledged anything, and so knows of the connection.
    #[inline]
    pub(in crate::tcp) fn is_syn_acked(&self) -> bool {
        self.una > 0
    }

    /// A segment of `bytes` was queued.
    #[inline(always)]
    pub(super) fn on_pushed(&mut self, bytes: usize) {
        self.end += bytes as u64;
    }

    /// The first unsent segment, which ends at `end`, was sent.
    #[inline]
    pub(super) fn on_sent(&mut self, end: u64) {
        self.nxt = end;
    }

    /// Everything below `ack`, which is at most SND.NXT, is acknowledged. Returns how many positions are
    /// newly acknowledged.
    #[inline]
    pub(super) fn on_acknowledged(&mut self, ack: u64) -> u64 {
        let acked = ack.saturating_sub(self.una);
        self.una = self.una.max(ack);
        acked
    }

    /// As [`on_acknowledged`](Self::on_acknowledged), for `ack` behind SND.UNA.
    #[inline]
    pub(super) fn on_run_acknowledged(&mut self, ack: u64) {
        debug_assert!(self.una < ack, "nothing is newly acknowledged");
        self.una = ack;
    }

    /// The user has closed: a FIN follows the queue (RFC 9293 section 3.10.4).
    pub(in crate::tcp) fn close(&mut self) {
        self.fin = Fin::Due;
    }

    /// Whether the user has not closed.
    pub(in crate::tcp) fn may_push(&self) -> bool {
        self.fin == Fin::NotAsked
    }

    /// Whether our FIN has to be sent, perhaps behind other segments.
    #[inline]
    pub(in crate::tcp) fn is_fin_due(&self) -> bool {
        self.fin == Fin::Due
    }

    /// Our FIN was sent. Returns whether it was sent before.
    pub(in crate::tcp) fn on_fin_sent(&mut self) -> bool {
        let again = self.nxt > self.end;
        self.fin = Fin::Sent;
        self.nxt = self.end + 1;
        again
    }

    /// Our FIN may be lost: it has to be sent again, if it was sent and is not acknowledged.
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

    /// The connection is over: no FIN is sent.
    pub(in crate::tcp) fn forget_fin(&mut self) {
        self.fin = Fin::NotAsked;
    }

    /// `not_asked`: the user has not closed. `acked`: our FIN is acknowledged. Otherwise it is due or in
    /// flight.
    pub(in crate::tcp) fn check_fin(&self, not_asked: bool, acked: bool) -> Check {
        let fits = (self.fin == Fin::NotAsked, self.fin == Fin::Acked) == (not_asked, acked);
        ensure!(fits, "our FIN is {:?}", self.fin);
        Ok(())
    }

    /// SND.UNA, SND.NXT and the end are in order.
    pub(super) fn check(&self) -> Check {
        let Self { una, nxt, end, .. } = *self;
        ensure!(una <= nxt && nxt <= end + 1, "SND.UNA {una}, SND.NXT {nxt}, end {end}");
        Ok(())
    }
}

#[cfg(test)]
impl Positions {
    /// Sets SND.UNA, SND.NXT and the end.
    pub(super) fn set(&mut self, una: u64, nxt: u64, end: u64) {
        (self.una, self.nxt, self.end) = (una, nxt, end);
    }

    /// As if `bytes` more bytes had been sent and acknowledged.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.set(self.una + bytes, self.nxt + bytes, self.end + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;

    const ISS: TcpSeqNumber = TcpSeqNumber(-2);

    /// Sent up to 301, acknowledged up to 101, with bytes up to 501.
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
