//! The agreement on InfiniBand's semantics ([`ConnParam::ib_semantics`]).
//!
//! Eight bytes behind the private data of the Request offer them, and eight others behind that of the Reply
//! agree to them. MPA itself has no field for it: its reserved bits are 0 (RFC 5044 section 7.1.1). Programs
//! of InfiniBand get more private data than was sent, with zeros at its end, so bytes behind their own do
//! them no harm. An end takes off the bytes that it knows. A peer that echoes private data does not agree
//! thereby, since the two differ.
//!
//! The last of the eight bytes tells what InfiniBand's connection manager tells: in its five higher bits the
//! time after which a message that found no receive request may come again, as a code of InfiniBand, and in
//! the three lower ones how often the other end tries.

use std::time::Duration;

use crate::mpa::startup::PrivateData;
use crate::verbs::{AGREEMENT_BYTES, ConnParam};

/// Of a Request, before its last byte.
const OFFER: [u8; AGREEMENT_BYTES - 1] = *b"uwarp?3";

/// Of a Request of an older version, before its last byte: its TCP has an option that this one has not.
const OLD_OFFER: [u8; AGREEMENT_BYTES - 1] = *b"uwarp?2";

/// The private data of a Reply that rejects such a Request.
pub(crate) const REFUSES_OLD: &[u8] =
    b"uwarp: this end has version 3 of InfiniBand's semantics, the other one 2";

/// Of a Reply.
const CONSENT: [u8; AGREEMENT_BYTES - 1] = *b"uwarp!3";

/// The times of InfiniBand's codes, in units of 10 us (InfiniBand Architecture Specification, volume 1, table
/// "Encoding for RNR NAK Timer Field").
const RNR_TIMES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The peer's parameters for receive requests that are not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerRnrConfig {
    /// Its code for the time between two tries of ours.
    min_rnr_timer: u8,
    /// How often we try again.
    pub(crate) rnr_retry: u8,
}

impl PeerRnrConfig {
    fn of_byte(byte: u8) -> Self {
        Self { min_rnr_timer: byte >> 3, rnr_retry: byte & 7 }
    }

    /// The byte that tells the peer of these parameters.
    fn byte_of(param: &ConnParam) -> u8 {
        param.min_rnr_timer << 3 | param.rnr_retry
    }

    /// The time between two tries of ours.
    pub(crate) fn rnr_time(self) -> Duration {
        let units = RNR_TIMES.get(usize::from(self.min_rnr_timer)).copied().unwrap_or_default();
        Duration::from_micros(10 * u64::from(units))
    }
}

/// What both ends have agreed to, and what the user of this end wants of it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Agreement {
    /// The peer's parameters, if they have agreed.
    pub(crate) peer_rnr: Option<PeerRnrConfig>,
    /// As [`ConnParam::rnr_timeout`].
    pub(crate) rnr_timeout: Option<Duration>,
    /// As [`ConnParam::outlives_peer`].
    pub(crate) outlives_peer: bool,
}

impl Agreement {
    /// `peer_rnr`: what the peer has told, if both ends want InfiniBand's semantics.
    pub(crate) fn new(peer_rnr: Option<PeerRnrConfig>, param: &ConnParam) -> Self {
        let ConnParam { rnr_timeout, outlives_peer, .. } = *param;
        Self { peer_rnr, rnr_timeout, outlives_peer }
    }

    /// Whether both ends want InfiniBand's semantics.
    pub(crate) fn ib_semantics(&self) -> bool {
        self.peer_rnr.is_some()
    }
}

/// The private data of a Request with these parameters.
pub(crate) fn request_data(param: &ConnParam) -> PrivateData {
    with(param, param.ib_semantics.then_some(OFFER))
}

/// The private data of a Reply that accepts a Request.
pub(crate) fn reply_data(param: &ConnParam, agreed: bool) -> PrivateData {
    with(param, agreed.then_some(CONSENT))
}

/// The offer in the private data of a Request, which is taken off.
pub(crate) fn take_offer(private_data: &mut PrivateData) -> Option<PeerRnrConfig> {
    take(private_data, OFFER)
}

/// Whether the private data of a Request has the offer of an older version.
pub(crate) fn has_old_offer(private_data: &PrivateData) -> bool {
    private_data.split_last().is_some_and(|(_, rest)| rest.ends_with(&OLD_OFFER))
}

/// The consent in the private data of a Reply, which is taken off.
pub(crate) fn take_consent(private_data: &mut PrivateData) -> Option<PeerRnrConfig> {
    take(private_data, CONSENT)
}

fn with(param: &ConnParam, behind: Option<[u8; AGREEMENT_BYTES - 1]>) -> PrivateData {
    let mut data = param.private_data.clone();
    if let Some(behind) = behind {
        let fits = data.try_extend_from_slice(&behind).is_ok()
            && data.try_push(PeerRnrConfig::byte_of(param)).is_ok();
        debug_assert!(fits, "the call of the user has checked the length");
    }
    data
}

fn take(private_data: &mut PrivateData, wanted: [u8; AGREEMENT_BYTES - 1]) -> Option<PeerRnrConfig> {
    let (&told, rest) = private_data.split_last()?;
    let len = rest.ends_with(&wanted).then(|| private_data.len() - AGREEMENT_BYTES)?;
    private_data.truncate(len);
    Some(PeerRnrConfig::of_byte(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: &[u8]) -> PrivateData {
        bytes.iter().copied().collect()
    }

    #[test]
    fn an_offer_is_no_consent_and_is_taken_off_once() {
        let param = ConnParam { ib_semantics: true, min_rnr_timer: 18, rnr_retry: 5, ..ConnParam::default() };
        let told = Some(PeerRnrConfig { min_rnr_timer: 18, rnr_retry: 5 });
        let param = param.with_private_data(b"mine").unwrap();
        let mut sent = request_data(&param);
        assert_eq!(take_consent(&mut sent), None);
        assert_eq!([take_offer(&mut sent), take_offer(&mut sent)], [told, None]);
        assert_eq!(sent, data(b"mine"));
        let mut sent = reply_data(&param, true);
        assert_eq!([take_offer(&mut sent), take_consent(&mut sent)], [None, told]);
        assert_eq!(sent, data(b"mine"));
        assert_eq!(reply_data(&param, false), data(b"mine"));
        assert_eq!(request_data(&ConnParam::default()), data(b""));
    }

    #[test]
    fn private_data_that_is_too_short_has_no_offer() {
        for len in 0..AGREEMENT_BYTES {
            let mut short = data(&[&OFFER[..], &[7]].concat()[AGREEMENT_BYTES - len..]);
            assert_eq!(take_offer(&mut short), None);
            assert_eq!(short.len(), len);
        }
    }

    /// The codes are not monotonic: 0 is the longest time.
    #[test]
    fn the_codes_of_times_are_those_of_infiniband() {
        let us = |code: u8| PeerRnrConfig::of_byte(code << 3).rnr_time().as_micros();
        assert_eq!([0, 1, 12, 31].map(us), [655_360, 10, 640, 491_520]);
    }
}
