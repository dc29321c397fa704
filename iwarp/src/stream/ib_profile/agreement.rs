//! The agreement on InfiniBand's semantics.
//!
//! Twelve bytes after the private data of the Request offer these semantics, and eight other bytes after the
//! private data of the Reply agree to the offer. The bytes are part of the private data because MPA has no
//! field for an offer: its reserved bits are 0 (RFC 5044 section 7.1.1). A program for InfiniBand usually
//! gets more private data than the peer's program has sent, with zeros at the end, so additional bytes at the
//! end do no harm. The offer and the consent differ, so a peer that echoes private data does not agree by the
//! echo.
//!
//! The last byte of the offer and of the consent has two values that InfiniBand's connection manager
//! exchanges. The five upper bits are a code of InfiniBand for a time. After this time, the other side may
//! repeat a message that found no receive request. The three lower bits tell the other side how often to
//! retry such a message: 0 to 6 times, or 7 for ever (InfiniBand's RNR retry count).
//!
//! In the Request, the four bytes before the last byte are computed from TCP's two initial sequence numbers
//! ([`mark_of`]). The responder compares these bytes with the value that it computes for its own connection.
//! The values differ if a proxy terminates the TCP connection. Then there is no agreement, because the
//! proxy's acknowledgements do not show what the peer has accepted.

//!
//! The offer and the consent also name the type of the queue pair, RC or UC, in their last character. Both
//! ends must have the same type. If a queue pair of type UC is on one side only, no connection is made.

use std::time::Duration;

use crate::mpa::startup::PrivateData;

/// Length of the offer in bytes.
pub(crate) const OFFER_BYTES: usize = 12;
const CONSENT_BYTES: usize = 8;

/// The first bytes of the offer in a Request, between queue pairs of type RC and of type UC. The mark of the
/// connection and the last byte follow.
const OFFER: [u8; OFFER_BYTES - 5] = *b"uwarp?3";
const OFFER_UC: [u8; OFFER_BYTES - 5] = *b"uwarp?u";

/// The first bytes of the offer in a Request of an older version. The last byte follows. The older version
/// uses a TCP option that this version does not support.
const OLD_OFFER: [u8; 7] = *b"uwarp?2";

/// The private data of a Reply that rejects a Request with the older offer.
pub(crate) const REFUSES_OLD: &[u8] =
    b"uwarp: this end has version 3 of InfiniBand's semantics, the other one 2";

/// The private data of a Reply that rejects a Request of a queue pair of the other type.
pub(crate) const REFUSES_TYPE: &[u8] = b"uwarp: one queue pair is of type UC, and the other is not";

/// The first bytes of the consent in a Reply, between queue pairs of type RC and of type UC. The last byte
/// follows.
const CONSENT: [u8; CONSENT_BYTES - 1] = *b"uwarp!3";
const CONSENT_UC: [u8; CONSENT_BYTES - 1] = *b"uwarp!u";

/// The times of InfiniBand's codes in units of 10 us (InfiniBand Architecture Specification, volume 1, table
/// "Encoding for RNR NAK Timer Field").
const RNR_TIMES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The parameters for retries of a message that finds no receive request. Each side sends its parameters to
/// the other side, which applies them to its own messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RnrConfig {
    /// The code for the time between two retries of the other side; less than 32.
    pub(crate) min_rnr_timer: u8,
    /// How often the other side retries a message: 0 to 6 times, or 7 for ever.
    pub(crate) rnr_retry: u8,
}

impl RnrConfig {
    fn of_byte(byte: u8) -> Self {
        Self { min_rnr_timer: byte >> 3, rnr_retry: byte & 7 }
    }

    fn to_byte(self) -> u8 {
        self.min_rnr_timer << 3 | self.rnr_retry
    }

    /// Returns the time between two retries of the side that has received these parameters.
    pub(crate) fn rnr_time(self) -> Duration {
        let units = RNR_TIMES.get(usize::from(self.min_rnr_timer)).copied().unwrap_or_default();
        Duration::from_micros(10 * u64::from(units))
    }
}

/// The parameters on which both peers have agreed, and the settings of this side's user.
#[derive(Clone, Copy, Default)]
pub(crate) struct Agreement {
    /// The peer's parameters; `None` if there is no agreement.
    pub(crate) peer_rnr: Option<RnrConfig>,
    /// Maximum time that a message of the peer waits for a receive request before the connection fails;
    /// `None`: for ever.
    pub(crate) rnr_timeout: Option<Duration>,
    /// Whether this side's queue pair stays usable after the peer has ended the connection.
    pub(crate) outlives_peer: bool,
}

/// What this side's user wants of the agreement.
#[derive(Clone, Copy)]
pub(crate) struct OwnTerms {
    /// This side's parameters; `None` if the user does not want InfiniBand's semantics.
    pub(crate) rnr: Option<RnrConfig>,
    /// As [`Agreement::rnr_timeout`].
    pub(crate) rnr_timeout: Option<Duration>,
    /// As [`Agreement::outlives_peer`].
    pub(crate) outlives_peer: bool,
    /// Whether this side's queue pair is of type UC.
    pub(crate) is_unreliable: bool,
}

/// What the peer wants of the agreement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerTerms {
    pub(crate) rnr: RnrConfig,
    /// Whether the peer's queue pair is of type UC.
    pub(crate) is_unreliable: bool,
}

impl OwnTerms {
    /// Adds an offer to the private data of our Request, if the user wants InfiniBand's semantics. `mark` is
    /// the [mark](mark_of) of the TCP connection.
    pub(crate) fn offer(self, request: &mut PrivateData, mark: u32) {
        if let Some(rnr) = self.rnr {
            add_offer(request, PeerTerms { rnr, is_unreliable: self.is_unreliable }, mark);
        }
    }

    /// Whether the peer's queue pair, whose Request has this offer, has the type of ours. Without an offer,
    /// the peer's queue pair is not of type UC.
    pub(crate) fn have_type_of(self, offered: Option<PeerTerms>) -> bool {
        self.is_unreliable == offered.is_some_and(|offered| offered.is_unreliable)
    }

    /// Returns the agreement of the responder. `offered` contains the peer's parameters if the Request has an
    /// offer. If both peers want InfiniBand's semantics, adds the consent to the private data of our Reply.
    pub(crate) fn answer(self, offered: Option<PeerTerms>, reply: &mut PrivateData) -> Agreement {
        let Some((rnr, offered)) = self.rnr.zip(offered) else { return self.with_peer(None) };
        add_consent(reply, PeerTerms { rnr, is_unreliable: self.is_unreliable });
        self.with_peer(Some(offered.rnr))
    }

    /// Returns the agreement of the initiator. If the user wants InfiniBand's semantics, removes the peer's
    /// consent from the private data of the Reply.
    pub(crate) fn conclude(self, reply: &mut PrivateData) -> Agreement {
        self.with_peer(self.rnr.and_then(|_| take_consent(reply, self.is_unreliable)))
    }

    fn with_peer(self, peer_rnr: Option<RnrConfig>) -> Agreement {
        Agreement { peer_rnr, rnr_timeout: self.rnr_timeout, outlives_peer: self.outlives_peer }
    }
}

impl Agreement {
    /// Whether both peers want InfiniBand's semantics.
    pub(crate) fn ib_semantics(&self) -> bool {
        self.peer_rnr.is_some()
    }
}

/// The offer in the private data of a Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// The Request has no offer.
    None,
    /// An offer with the peer's parameters.
    Made(PeerTerms),
    /// An offer that was made on another TCP connection: a proxy has forwarded it.
    ByProxy,
    /// An offer of an older version.
    Old,
}

/// Returns the mark of a TCP connection: a number that both endpoints compute from the two initial sequence
/// numbers. If a proxy terminates the connection, the endpoints compute different numbers, except by chance.
pub(crate) fn mark_of((iss, irs): (u32, u32)) -> u32 {
    iss ^ irs
}

/// Adds an offer with the parameters `own` to the private data of a Request. `mark` is the
/// [mark](mark_of) of the TCP connection.
fn add_offer(data: &mut PrivateData, own: PeerTerms, mark: u32) {
    append(data, if own.is_unreliable { &OFFER_UC } else { &OFFER });
    append(data, &mark.to_be_bytes());
    append(data, &[own.rnr.to_byte()]);
}

/// Adds the consent with the parameters `own` to the private data of a Reply.
fn add_consent(data: &mut PrivateData, own: PeerTerms) {
    append(data, if own.is_unreliable { &CONSENT_UC } else { &CONSENT });
    append(data, &[own.rnr.to_byte()]);
}

/// Removes the offer from the private data of a Request, and returns it. `mark` is the mark of the TCP
/// connection. An offer of an older version is returned but not removed.
pub(crate) fn take_offer(private_data: &mut PrivateData, mark: u32) -> Offer {
    if let Some((rest, &[m0, m1, m2, m3, told])) = private_data.split_last_chunk()
        && (rest.ends_with(&OFFER) || rest.ends_with(&OFFER_UC))
    {
        let is_of_peer = [m0, m1, m2, m3] == mark.to_be_bytes();
        let terms = PeerTerms { rnr: RnrConfig::of_byte(told), is_unreliable: rest.ends_with(&OFFER_UC) };
        private_data.truncate(private_data.len() - OFFER_BYTES);
        return if is_of_peer { Offer::Made(terms) } else { Offer::ByProxy };
    }
    match private_data.split_last() {
        Some((_, rest)) if rest.ends_with(&OLD_OFFER) => Offer::Old,
        _ => Offer::None,
    }
}

/// Removes the consent of a queue pair of our type from the private data of a Reply, and returns its
/// parameters; `None` without such a consent.
fn take_consent(private_data: &mut PrivateData, is_unreliable: bool) -> Option<RnrConfig> {
    let (&told, rest) = private_data.split_last()?;
    let consent = if is_unreliable { &CONSENT_UC } else { &CONSENT };
    let len = rest.ends_with(consent).then(|| private_data.len() - CONSENT_BYTES)?;
    private_data.truncate(len);
    Some(RnrConfig::of_byte(told))
}

fn append(data: &mut PrivateData, bytes: &[u8]) {
    let fits = data.try_extend_from_slice(bytes).is_ok();
    debug_assert!(fits, "the call of the user has checked the length");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: &[u8]) -> PrivateData {
        bytes.iter().copied().collect()
    }

    const RNR: RnrConfig = RnrConfig { min_rnr_timer: 18, rnr_retry: 5 };
    const OWN: PeerTerms = PeerTerms { rnr: RNR, is_unreliable: false };
    const UC: PeerTerms = PeerTerms { rnr: RNR, is_unreliable: true };

    fn offered(mark: u32) -> PrivateData {
        let mut sent = data(b"mine");
        add_offer(&mut sent, OWN, mark);
        sent
    }

    #[test]
    fn an_offer_is_no_consent_and_is_taken_off_once() {
        let mut sent = offered(0x0102_0304);
        assert_eq!(sent, data(b"mineuwarp?3\x01\x02\x03\x04\x95"));
        assert_eq!(take_consent(&mut sent, false), None);
        assert_eq!([(); 2].map(|()| take_offer(&mut sent, 0x0102_0304)), [Offer::Made(OWN), Offer::None]);
        assert_eq!(sent, data(b"mine"));
        add_consent(&mut sent, OWN);
        assert_eq!(sent, data(b"mineuwarp!3\x95"));
        assert_eq!((take_offer(&mut sent, 0), take_consent(&mut sent, false)), (Offer::None, Some(RNR)));
        assert_eq!(sent, data(b"mine"));
    }

    /// A proxy terminates the TCP connection and forwards the private data unchanged. The offer is recognized
    /// as forwarded, and is removed.
    #[test]
    fn an_offer_for_another_connection_is_none() {
        for other in [8, 7 << 8, 7 << 24, 1 << 24 | 7] {
            let mut sent = offered(7);
            assert_eq!((take_offer(&mut sent, other), &sent), (Offer::ByProxy, &data(b"mine")));
        }
    }

    /// Both endpoints compute the same mark, and each of the two numbers changes it.
    #[test]
    fn both_ends_know_the_mark_of_their_connection() {
        let (iss, irs) = (0x8102_0304, 0x0f0e_0d0c);
        assert_eq!([mark_of((iss, irs)), mark_of((irs, iss))], [0x8e0c_0e08; 2]);
        assert_ne!(mark_of((iss + 1, irs)), mark_of((iss, irs)));
    }

    /// The peers agree if both want InfiniBand's semantics. Otherwise the private data is not changed.
    #[test]
    fn peers_agree_if_both_want_to() {
        let peer = RnrConfig { min_rnr_timer: 3, rnr_retry: 7 };
        for (own, is_unreliable) in [(None, false), (Some(RNR), false), (Some(RNR), true)] {
            let rnr_timeout = Some(Duration::from_millis(8));
            let terms = OwnTerms { rnr: own, rnr_timeout, outlives_peer: true, is_unreliable };
            let typed = |rnr| PeerTerms { rnr, is_unreliable };
            let kept = |agreement: Agreement| (agreement.rnr_timeout, agreement.outlives_peer);
            let mut request = data(b"mine");
            terms.offer(&mut request, 7);
            assert_eq!(take_offer(&mut request, 7), own.map_or(Offer::None, |rnr| Offer::Made(typed(rnr))));
            assert_eq!(request, data(b"mine"));
            for offered in [None, Some(peer)] {
                let mut reply = data(b"mine");
                let answered = terms.answer(offered.map(typed), &mut reply);
                assert_eq!(
                    (answered.peer_rnr, kept(answered)),
                    (own.and(offered), kept(terms.with_peer(None)))
                );
                assert_eq!(take_consent(&mut reply, !is_unreliable), None, "of the other type");
                assert_eq!(take_consent(&mut reply, is_unreliable), own.filter(|_| offered.is_some()));
                assert_eq!(reply, data(b"mine"));
            }
            for consents in [false, true] {
                let mut reply = data(b"mine");
                if consents {
                    add_consent(&mut reply, typed(peer));
                }
                let received = reply.clone();
                let concluded = terms.conclude(&mut reply);
                let agreed = own.is_some() && consents;
                assert_eq!(
                    (concluded.peer_rnr, kept(concluded)),
                    (agreed.then_some(peer), (Some(Duration::from_millis(8)), true))
                );
                assert_eq!(reply, if agreed { data(b"mine") } else { received });
            }
        }
    }

    #[test]
    fn ends_agree_if_there_are_the_peers_parameters() {
        let of = |peer_rnr| Agreement { peer_rnr, ..Agreement::default() }.ib_semantics();
        assert_eq!((of(None), of(Some(RnrConfig::default()))), (false, true));
    }

    /// The offer and the consent name the type. Only queue pairs of the same type agree.
    #[test]
    fn an_offer_and_a_consent_name_the_type() {
        let mut sent = data(b"mine");
        add_offer(&mut sent, UC, 0x0102_0304);
        assert_eq!(sent, data(b"mineuwarp?u\x01\x02\x03\x04\x95"));
        assert_eq!(take_offer(&mut sent, 0x0102_0304), Offer::Made(UC));
        add_consent(&mut sent, UC);
        assert_eq!(sent, data(b"mineuwarp!u\x95"));
        assert_eq!(take_consent(&mut sent, false), None);
        assert_eq!((take_consent(&mut sent, true), sent), (Some(RNR), data(b"mine")));
        let own = |is_unreliable| OwnTerms {
            rnr: Some(RNR),
            rnr_timeout: None,
            outlives_peer: true,
            is_unreliable,
        };
        for (offered, types) in [(None, [true, false]), (Some(OWN), [true, false]), (Some(UC), [false, true])]
        {
            assert_eq!([false, true].map(|uc| own(uc).have_type_of(offered)), types);
        }
    }

    #[test]
    fn an_older_offer_is_known() {
        let mut old = data(b"mineuwarp?2\x95");
        assert_eq!((take_offer(&mut old, 0), old.len()), (Offer::Old, 12));
        assert_eq!(take_offer(&mut data(b"uwarp?2"), 0), Offer::None, "the last byte is missing");
    }

    #[test]
    fn private_data_that_is_too_short_has_no_offer() {
        let offer = [&OFFER[..], &[0, 0, 0, 0, 7]].concat();
        for len in 0..OFFER_BYTES {
            let mut short = data(&offer[OFFER_BYTES - len..]);
            assert_eq!(take_offer(&mut short, 0), Offer::None);
            assert_eq!(short.len(), len);
        }
        let consent = [&CONSENT[..], &[7]].concat();
        for len in 0..CONSENT_BYTES {
            let mut short = data(&consent[CONSENT_BYTES - len..]);
            assert_eq!((take_consent(&mut short, false), short.len()), (None, len));
        }
    }

    #[test]
    fn the_codes_of_times_are_those_of_infiniband() {
        let us = |code: u8| RnrConfig::of_byte(code << 3).rnr_time().as_micros();
        assert_eq!([0, 1, 12, 31].map(us), [655_360, 10, 640, 491_520]);
    }
}
