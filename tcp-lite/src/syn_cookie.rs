//! SYN cookies (RFC 4987 section 3.6). When the backlog of a listener is full, and
//! [`Limits::syn_cookies`](crate::Limits::syn_cookies) is set, the sequence number of our SYN-ACK encodes the
//! SYN, and the peer's ACK returns this number. Therefore peers can connect even during a flood of SYNs.
//!
//! A cookie has 5 bits of time, 3 bits for the MSS, and 24 bits that only we can compute. The other options
//! of the SYN are encoded in the low bits of our timestamp, which the ACK echoes. If the SYN has no
//! timestamps, or our timestamps are off, the other options are not used.

use std::hash::{Hash, Hasher as _};

use siphasher::sip::SipHasher24;

use crate::TcpConfig;
use crate::facade::{Instant, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::secrets::HashBytes;
use crate::tcp::header::{Flags, Options, TcpHeader};

/// Length of a period. A cookie is valid in the period in which it was sent and in the next period, so for
/// one to two minutes, as in Linux. The five bits of time distinguish 32 periods.
const PERIOD_SECS: i64 = 64;
/// MSS values that a cookie can encode. The cookie has the largest of these values that is not above the
/// peer's MSS. The values are the minimum that we accept, the default of RFC 9293, and the MSS of small
/// paths, of tunnels, of Ethernet with IPv6 and IPv4, and of jumbo frames of 4 and 9 kB.
const MSS: [u16; 8] = [64, 536, 1200, 1380, 1440, 1460, 4036, 8940];
/// Flags of a SYN that offers ECN (RFC 3168 section 6.1.1).
const ECN_SETUP: Flags = Flags::ECE.union(Flags::CWR);

/// Creates and verifies cookies.
pub(crate) struct SynCookies {
    key: SipHasher24,
    /// The time at which the last cookie was created; `None` if no cookie was created yet. While no valid
    /// cookie can exist, acknowledgements are not verified.
    latest: Option<Instant>,
}

impl SynCookies {
    pub(crate) fn new(key: SipHasher24) -> Self {
        Self { key, latest: None }
    }

    /// Reduces `syn` to the part that a cookie encodes, because the SYN-ACK may answer only this part. The
    /// options of `syn` must include the peer's MSS.
    pub(crate) fn forget_the_rest(config: &TcpConfig, syn: &mut TcpHeader) {
        let mss = syn.options.mss.map(|mss| MSS[index_of(mss)]);
        if config.timestamps && syn.options.timestamps.is_some() {
            syn.options.mss = mss;
        } else {
            syn.options = Options { mss, ..Options::default() };
            syn.flags = Flags::SYN;
        }
    }

    /// The sequence number of the SYN-ACK for `syn`, which [`forget_the_rest`](Self::forget_the_rest) has
    /// reduced to the part that a cookie encodes.
    pub(crate) fn make(&mut self, now: Instant, tuple: &FourTuple, syn: &TcpHeader) -> TcpSeqNumber {
        self.latest = Some(now);
        self.cookie(period(now), tuple, syn.seq, syn.options.mss.map_or(0, index_of))
    }

    /// Whether a cookie was ever created.
    #[inline]
    pub(crate) fn were_made(&self) -> bool {
        self.latest.is_some()
    }

    /// Encodes the options of `syn` in the timestamp of the SYN-ACK. The encoding sets the timestamp back by
    /// less than 128 ms.
    pub(crate) fn mark(syn_ack: &mut TcpHeader, syn: &TcpHeader) {
        if let Some((clock, _)) = &mut syn_ack.options.timestamps {
            *clock = (clock.wrapping_sub(64) & !63) | offer_bits(syn);
        }
    }

    /// The SYN whose cookie `ack` acknowledges; `None` if `ack` acknowledges no cookie.
    pub(crate) fn recall(&self, now: Instant, tuple: &FourTuple, ack: &TcpHeader) -> Option<TcpHeader> {
        if !self.is_awaited(now) || ack.flags.intersects(Flags::SYN | Flags::RST) {
            return None;
        }
        let (cookie, peer_seq) = (TcpSeqNumber(ack.ack?.0.wrapping_sub(1)), ack.seq - 1);
        let index = (cookie.0 >> 24 & 7) as usize;
        let current = period(now);
        [current, current - 1].into_iter().find(|at| self.cookie(*at, tuple, peer_seq, index) == cookie)?;
        let mut syn = TcpHeader {
            src_port: ack.src_port,
            dst_port: ack.dst_port,
            seq: peer_seq,
            ack: None,
            flags: Flags::SYN,
            window: ack.window,
            options: Options { mss: Some(MSS[index]), ..Options::default() },
        };
        if let Some((value, echo)) = ack.options.timestamps {
            syn.options.timestamps = Some((value, 0));
            restore_offer(&mut syn, echo);
        }
        Some(syn)
    }

    /// Whether `segment` may have arrived before the ACK of a cookie, although the peer sent it later. Such a
    /// segment cannot be verified, because the cookie includes the peer's sequence number, which only the
    /// first segment after the SYN has. The result is `false` if the segment has no payload and no FIN, or if
    /// the time bits of the acknowledged number do not belong to a valid period.
    pub(crate) fn may_be_overtaken(&self, now: Instant, segment: &TcpHeader, bytes: usize) -> bool {
        let (Some(ack), current) = (segment.ack, period(now)) else { return false };
        let made = ack.0.wrapping_sub(1) as u32 >> 27;
        self.is_awaited(now)
            && !segment.flags.intersects(Flags::SYN | Flags::RST)
            && (bytes > 0 || segment.flags.contains(Flags::FIN))
            && [current, current - 1].into_iter().any(|at| at as u32 & 31 == made)
    }

    /// Whether a valid cookie may exist, so that its ACK may still arrive.
    fn is_awaited(&self, now: Instant) -> bool {
        self.latest.is_some_and(|latest| period(now) <= period(latest) + 1)
    }

    fn cookie(&self, period: i64, tuple: &FourTuple, peer_seq: TcpSeqNumber, index: usize) -> TcpSeqNumber {
        let mut bytes = HashBytes::default();
        tuple.hash(&mut bytes);
        bytes.write(&peer_seq.0.to_ne_bytes());
        bytes.write(&period.to_ne_bytes());
        bytes.write(&(index as u64).to_ne_bytes());
        let secret = self.key.hash(bytes.as_slice()) as u32 & 0x00ff_ffff;
        TcpSeqNumber(((period as u32) << 27 | (index as u32) << 24 | secret) as i32)
    }
}

fn period(at: Instant) -> i64 {
    at.secs() / PERIOD_SECS
}

/// The index of the largest MSS of the table that is not above `mss`; 0 if all are above `mss`.
fn index_of(mss: u16) -> usize {
    MSS.iter().rposition(|known| *known <= mss).unwrap_or(0)
}

/// The offers of `syn` in six bits: window scale (15 if `syn` has no window scale), SACK, and ECN.
fn offer_bits(syn: &TcpHeader) -> u32 {
    let scale = syn.options.window_scale.map_or(15, u32::from);
    let ecn = syn.flags.contains(ECN_SETUP);
    scale | u32::from(syn.options.sack_permitted) << 4 | u32::from(ecn) << 5
}

/// Sets the offers of `syn` from the result of [`offer_bits`].
fn restore_offer(syn: &mut TcpHeader, bits: u32) {
    syn.options.window_scale = Some((bits & 15) as u8).filter(|scale| *scale < 15);
    syn.options.sack_permitted = bits & 16 != 0;
    syn.flags.set(ECN_SETUP, bits & 32 != 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facade::IpAddress;

    fn remembered(mut syn: TcpHeader) -> TcpHeader {
        SynCookies::forget_the_rest(&TcpConfig::default(), &mut syn);
        syn
    }

    fn cookies() -> SynCookies {
        SynCookies::new(SipHasher24::new_with_keys(1, 2))
    }

    fn tuple(remote_port: u16) -> FourTuple {
        FourTuple {
            local: IpAddress::v4(10, 0, 0, 1),
            local_port: 80,
            remote: IpAddress::v4(10, 0, 0, 2),
            remote_port,
        }
    }

    fn syn(mss: u16, options: Options) -> TcpHeader {
        TcpHeader {
            src_port: 9,
            dst_port: 80,
            seq: TcpSeqNumber(-5),
            ack: None,
            flags: Flags::SYN | ECN_SETUP,
            window: 1000,
            options: Options { mss: Some(mss), ..options },
        }
    }

    /// The ACK of the SYN-ACK for `syn`.
    fn ack(syn: &TcpHeader, cookie: TcpSeqNumber, clock: u32) -> TcpHeader {
        let options = Options { timestamps: Some((77, clock)), ..Options::default() };
        TcpHeader { seq: syn.seq + 1, ack: Some(cookie + 1), flags: Flags::empty(), options, ..syn.clone() }
    }

    #[test]
    fn an_ack_brings_back_what_the_syn_offered() {
        let (mut cookies, now) = (cookies(), Instant::from_secs(1000));
        for scale in [None, Some(0), Some(7), Some(14)] {
            for sack_permitted in [false, true] {
                for mss in [100, 536, 1460, 1500, 9000] {
                    let offered = Options { window_scale: scale, sack_permitted, ..Options::default() };
                    let offered = Options { timestamps: Some((76, 0)), ..offered };
                    let syn = remembered(syn(mss, offered));
                    let cookie = cookies.make(now, &tuple(9), &syn);
                    let mut answer = TcpHeader {
                        options: Options { timestamps: Some((5000, 76)), ..Options::default() },
                        ..syn.clone()
                    };
                    SynCookies::mark(&mut answer, &syn);
                    let (clock, _) = answer.options.timestamps.unwrap();
                    assert!((5000 - 127..=5000).contains(&clock), "{clock}");
                    let back = cookies.recall(now, &tuple(9), &ack(&syn, cookie, clock)).unwrap();
                    assert_eq!(back.options.mss, syn.options.mss);
                    assert!(back.options.mss <= Some(mss));
                    assert_eq!(
                        (back.options.window_scale, back.options.sack_permitted),
                        (scale, sack_permitted)
                    );
                    assert_eq!((back.flags, back.seq), (syn.flags, syn.seq));
                }
            }
        }
    }

    #[test]
    fn the_bits_of_an_offer_stand_for_themselves() {
        for bits in 0..64 {
            let mut syn = TcpHeader { flags: Flags::SYN, ..syn(1460, Options::default()) };
            restore_offer(&mut syn, bits);
            assert_eq!(syn.options.window_scale, [Some(bits as u8 & 15), None][usize::from(bits & 15 == 15)]);
            assert_eq!(
                (syn.options.sack_permitted, syn.flags.contains(ECN_SETUP)),
                (bits & 16 > 0, bits & 32 > 0)
            );
            assert_eq!(offer_bits(&syn), bits);
        }
    }

    #[test]
    fn without_timestamps_only_the_mss_is_promised() {
        let offered = Options { window_scale: Some(7), sack_permitted: true, ..Options::default() };
        let kept = remembered(syn(1460, offered));
        assert_eq!(
            (kept.options, kept.flags),
            (Options { mss: Some(1460), ..Options::default() }, Flags::SYN)
        );
    }

    #[test]
    fn a_cookie_is_good_for_its_own_connection_and_for_two_minutes_at_most() {
        let (mut cookies, made) = (cookies(), Instant::from_secs(640));
        let syn = syn(1460, Options::default());
        let cookie = cookies.make(made, &tuple(9), &syn);
        let good = ack(&syn, cookie, 0);
        let recall = |at, remote_port, ack: &TcpHeader| {
            cookies.recall(Instant::from_secs(at), &tuple(remote_port), ack).is_some()
        };
        assert!(recall(640, 9, &good) && recall(767, 9, &good));
        assert!(!recall(768, 9, &good) && !recall(640 + 32 * PERIOD_SECS, 9, &good), "too old");
        assert!(!recall(640, 10, &good), "another port");
        assert!(!recall(640, 9, &TcpHeader { seq: good.seq + 1, ..good.clone() }), "another SYN");
        for guess in 0..1000 {
            let wrong = TcpHeader { ack: good.ack.map(|ack| ack + 1 + guess), ..good.clone() };
            assert!(!recall(640, 9, &wrong));
        }
        // The stack refuses an old cookie even while younger cookies are valid.
        cookies.make(Instant::from_secs(767), &tuple(10), &syn);
        let recall = |at| cookies.recall(Instant::from_secs(at), &tuple(9), &good).is_some();
        assert!(recall(767) && !recall(768) && !recall(831), "too old beside younger ones");
        assert!(SynCookies::new(SipHasher24::new_with_keys(1, 2)).recall(made, &tuple(9), &good).is_none());
    }
}
