//! The agreement on InfiniBand's semantics ([`ConnParam::ib_semantics`]).
//!
//! Eight bytes behind the private data of the Request offer them, and eight others behind that of the Reply
//! agree to them. MPA itself has no field for it: its reserved bits are 0 (RFC 5044 section 7.1.1). Programs
//! of InfiniBand get more private data than was sent, with zeros at its end, so bytes behind their own do
//! them no harm. An end takes off the bytes that it knows. A peer that echoes private data does not agree
//! thereby, since the two differ.

use std::time::Duration;

use crate::mpa::startup::PrivateData;
use crate::verbs::{AGREEMENT_BYTES, ConnParam};

/// Of a Request.
const OFFER: [u8; AGREEMENT_BYTES] = *b"uwarp?01";

/// Of a Reply.
const CONSENT: [u8; AGREEMENT_BYTES] = *b"uwarp!01";

/// What both ends have agreed to, and what the user of this end wants of it.
#[derive(Clone, Copy, Default)]
pub(super) struct Agreement {
    pub(super) ib_semantics: bool,
    /// As [`ConnParam::rnr_timeout`].
    pub(super) rnr_timeout: Option<Duration>,
}

/// The private data of a Request with these parameters.
pub(super) fn request_data(param: &ConnParam) -> PrivateData {
    with(&param.private_data, param.ib_semantics.then_some(OFFER))
}

/// The private data of a Reply that accepts a Request.
pub(super) fn reply_data(param: &ConnParam, agreed: bool) -> PrivateData {
    with(&param.private_data, agreed.then_some(CONSENT))
}

/// Whether the private data of a Request has the offer, which is taken off.
pub(super) fn take_offer(private_data: &mut PrivateData) -> bool {
    take(private_data, OFFER)
}

/// Whether the private data of a Reply has the consent, which is taken off.
pub(super) fn take_consent(private_data: &mut PrivateData) -> bool {
    take(private_data, CONSENT)
}

fn with(private_data: &PrivateData, behind: Option<[u8; AGREEMENT_BYTES]>) -> PrivateData {
    let mut data = private_data.clone();
    if let Some(behind) = behind {
        let fits = data.try_extend_from_slice(&behind).is_ok();
        debug_assert!(fits, "the call of the user has checked the length");
    }
    data
}

fn take(private_data: &mut PrivateData, wanted: [u8; AGREEMENT_BYTES]) -> bool {
    let has = private_data.ends_with(&wanted);
    if has {
        private_data.truncate(private_data.len() - AGREEMENT_BYTES);
    }
    has
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: &[u8]) -> PrivateData {
        bytes.iter().copied().collect()
    }

    #[test]
    fn an_offer_is_no_consent_and_is_taken_off_once() {
        let param = ConnParam { ib_semantics: true, ..ConnParam::default() };
        let param = param.with_private_data(b"mine").unwrap();
        let mut sent = request_data(&param);
        assert!(!take_consent(&mut sent) && take_offer(&mut sent) && !take_offer(&mut sent));
        assert_eq!(sent, data(b"mine"));
        let mut sent = reply_data(&param, true);
        assert!(!take_offer(&mut sent) && take_consent(&mut sent));
        assert_eq!(sent, data(b"mine"));
        assert_eq!(reply_data(&param, false), data(b"mine"));
        assert_eq!(request_data(&ConnParam::default()), data(b""));
    }

    #[test]
    fn private_data_that_is_too_short_has_no_offer() {
        for len in 0..AGREEMENT_BYTES {
            let mut short = data(&OFFER[AGREEMENT_BYTES - len..]);
            assert!(!take_offer(&mut short));
            assert_eq!(short.len(), len);
        }
    }
}
