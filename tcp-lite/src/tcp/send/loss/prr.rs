//! Proportional rate reduction: limits transmission during fast recovery (RFC 6937, obsoleted by RFC 9937).
//!
//! While more bytes are in flight than the new threshold, transmission is proportional to the bytes that
//! arrive. So the number of bytes in flight falls to the threshold by the end of the round. Below the
//! threshold, the slow start reduction bound lets the number of bytes in flight grow again, but only on
//! acknowledgements that advance SND.UNA and reveal no further loss. On all other acknowledgements, packet
//! conservation applies (as in Linux).

/// State of one recovery in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prr {
    /// Number of bytes in flight when the recovery began (`RecoverFS`).
    flight: u64,
    /// Number of bytes delivered since the recovery began (`prr_delivered`).
    delivered: u64,
    /// Number of bytes sent since the recovery began (`prr_out`).
    out: u64,
    /// Maximum number of bytes that may be in flight now.
    cwnd: u64,
}

impl Prr {
    /// The state when a recovery begins, with `flight` bytes sent and not acknowledged.
    pub(super) fn new(flight: u64) -> Self {
        Self { flight: flight.max(1), ..Self::default() }
    }

    /// Called for an acknowledgement that reports `delivered` bytes while `pipe` bytes are in the network.
    /// `safe_ack` is true if the acknowledgement advances SND.UNA and reveals no loss (RFC 9937, `SafeACK`).
    pub(super) fn on_ack(&mut self, delivered: u64, pipe: u64, ssthresh: u32, mss: u32, safe_ack: bool) {
        let (ssthresh, mss) = (u64::from(ssthresh), u64::from(mss));
        self.delivered += delivered;
        let mut send = if pipe > ssthresh {
            (self.delivered * ssthresh).div_ceil(self.flight).saturating_sub(self.out)
        } else {
            let conserved = self.delivered.saturating_sub(self.out).max(delivered);
            (conserved + if safe_ack { mss } else { 0 }).min(ssthresh - pipe)
        };
        if self.out == 0 {
            // PRR does not delay the first retransmission.
            send = send.max(mss);
        }
        self.cwnd = pipe + send;
    }

    #[inline]
    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    pub(super) fn cwnd(&self) -> u64 {
        self.cwnd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    /// Sends whole segments while the limit allows it. Returns the number of these segments, and the number
    /// of bytes in flight after that.
    fn send(prr: &mut Prr, mut pipe: u64) -> (u64, u64) {
        let mut segments = 0;
        while pipe < prr.cwnd() {
            prr.on_sent(MSS);
            pipe += MSS;
            segments += 1;
        }
        (segments, pipe)
    }

    #[test]
    fn half_the_window_goes_out_spread_over_the_round() {
        // RFC 6937 section 4, the first example: 20 segments are in flight, the first segment is lost, and
        // the threshold is 10 segments.
        let mut prr = Prr::new(20 * MSS);
        let mut pipe = 20 * MSS - 3 * MSS - MSS;
        let mut sent = Vec::new();
        prr.on_ack(3 * MSS, pipe, 10_000, MSS as u32, false);
        for _ in 0..17 {
            let (segments, now) = send(&mut prr, pipe);
            sent.push(segments);
            pipe = now - MSS;
            prr.on_ack(MSS, pipe, 10_000, MSS as u32, false);
        }
        assert_eq!(sent, [2, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1]);
        assert_eq!(pipe, 9 * MSS);
    }

    #[test]
    fn after_heavy_losses_the_flight_grows_back_but_not_while_more_is_found_lost() {
        // 15 of 20 segments are lost. The remaining 5 segments in flight are below the threshold of 10.
        let start = || {
            let mut prr = Prr::new(20 * MSS);
            prr.on_ack(MSS, 4 * MSS, 10_000, MSS as u32, false);
            let (segments, pipe) = send(&mut prr, 4 * MSS);
            assert_eq!(segments, 1, "packet for packet");
            (prr, pipe)
        };
        let (mut prr, pipe) = start();
        prr.on_ack(MSS, pipe - MSS, 10_000, MSS as u32, true);
        assert_eq!(send(&mut prr, pipe - MSS).0, 2, "one more than arrived");
        let (mut prr, pipe) = start();
        prr.on_ack(MSS, pipe - MSS, 10_000, MSS as u32, false);
        assert_eq!(send(&mut prr, pipe - MSS).0, 1);
        prr.on_ack(9 * MSS, 9_500, 10_000, MSS as u32, true);
        assert_eq!(prr.cwnd(), 10_000, "never above the threshold");
    }

    #[test]
    fn what_is_left_over_counts() {
        let mut prr = Prr::new(3 * MSS);
        prr.on_sent(MSS);
        // A third of 3001 is more than the 1000 bytes sent.
        prr.on_ack(3001, 2 * MSS, 1000, MSS as u32, false);
        assert_eq!(prr.cwnd(), 2 * MSS + 1);
    }

    #[test]
    fn the_first_retransmission_does_not_wait() {
        let mut prr = Prr::new(20 * MSS);
        prr.on_ack(0, 18 * MSS, 10_000, MSS as u32, false);
        assert_eq!(send(&mut prr, 18 * MSS).0, 1);
    }
}
