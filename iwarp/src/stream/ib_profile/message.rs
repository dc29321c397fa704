//! The messages of queue 4, which is used if both peers have agreed on the profile.
//!
//! Each message is an untagged DDP message of one segment (RFC 5041 section 4.3). The first MSN of the queue
//! is 1. RDMAP's opcode is 15, which no document has assigned (RFC 5040 section 4.3, RFC 7306 section 10).
//! The four bytes after the control byte, which are the STag in a Send with Invalidate, contain the kind. The
//! payload is eight bytes:
//!
//! | kind | message | payload |
//! |---|---|---|
//! | 1 | [`Limit`](ProfileMessage::Limit) | an MSN of queue 0, 32 bits, after 32 bits that are 0 |
//! | 2 | [`NotReady`](ProfileMessage::NotReady) | an MSN of queue 0, as above |
//! | 3 | [`Ready`](ProfileMessage::Ready) | 0 |
//! | 4 | [`Resume`](ProfileMessage::Resume) | the next MSN of queue 0 and of queue 1, 32 bits each |
//! | 5 | [`AcceptedUntil`](ProfileMessage::AcceptedUntil) | a stream offset, 64 bits |
//!
//! A stream offset counts the bytes that the receiver of the message has sent on this TCP connection,
//! including the bytes of MPA's startup.
//!
//! A Send, and a Send with Solicited Event, has the MSN of `Limit` in the four bytes after the control byte,
//! unless it follows Immediate Data that belongs to it. So if a user answers with a Send, no `Limit` message
//! is needed.

use crate::ddp::UntaggedHeader;

/// The number of the queue.
pub(crate) const QUEUE: u32 = 4;

/// RDMAP's control byte, with version 1 and opcode 15.
const CONTROL: u8 = 0x4F;

/// Length of the payload in bytes.
pub(crate) const PAYLOAD_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileMessage {
    /// Each message to queue 0 up to this MSN has found a receive request, or will find one.
    Limit(u32),
    /// The message to queue 0 with this MSN has found no receive request. This message and all later
    /// requests, up to [`Resume`](Self::Resume), are dropped.
    NotReady(u32),
    /// There is now a receive request for the message that the last [`NotReady`](Self::NotReady) named.
    Ready,
    /// The request that [`NotReady`](Self::NotReady) named and all later requests follow. `send_msn` and
    /// `request_msn` are the next MSNs on queue 0 and queue 1.
    Resume { send_msn: u32, request_msn: u32 },
    /// The messages that end at or before this offset were accepted. No later message will be accepted.
    AcceptedUntil(u64),
}

impl ProfileMessage {
    /// Returns header and payload of the message with this MSN.
    pub(crate) fn to_segment(self, msn: u32) -> (UntaggedHeader, [u8; PAYLOAD_BYTES]) {
        let (kind, payload) = match self {
            Self::Limit(msn) => (1, u64::from(msn)),
            Self::NotReady(msn) => (2, u64::from(msn)),
            Self::Ready => (3, 0),
            Self::Resume { send_msn, request_msn } => (4, u64::from(send_msn) << 32 | u64::from(request_msn)),
            Self::AcceptedUntil(offset) => (5, offset),
        };
        let rsvd_ulp = [CONTROL, 0, 0, 0, kind];
        (UntaggedHeader { last: true, rsvd_ulp, qn: QUEUE, msn, mo: 0 }, payload.to_be_bytes())
    }

    /// Returns the message of a segment, which has to have this MSN; `None` if the segment is not in the
    /// table of this module.
    pub(crate) fn of_segment(header: &UntaggedHeader, payload: &[u8], msn: u32) -> Option<Self> {
        let payload = u64::from_be_bytes(payload.try_into().ok()?);
        let low = payload as u32;
        let message = match header.rsvd_ulp[4] {
            1 => Self::Limit(low),
            2 => Self::NotReady(low),
            3 => Self::Ready,
            4 => Self::Resume { send_msn: (payload >> 32) as u32, request_msn: low },
            5 => Self::AcceptedUntil(payload),
            _ => return None,
        };
        // Given the MSN and the message, every field has only one valid value, so the whole header is
        // compared.
        let (expected, bytes) = message.to_segment(msn);
        (*header == expected && bytes == payload.to_be_bytes()).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ProfileMessage; 5] = [
        ProfileMessage::Limit(0x0102_0304),
        ProfileMessage::NotReady(u32::MAX),
        ProfileMessage::Ready,
        ProfileMessage::Resume { send_msn: 0xFFFF_FFFE, request_msn: 7 },
        ProfileMessage::AcceptedUntil(u64::MAX),
    ];

    #[test]
    fn a_message_comes_back_from_its_bytes() {
        let mut payloads = Vec::new();
        for (message, kind) in ALL.into_iter().zip(1..) {
            let (header, payload) = message.to_segment(9);
            assert_eq!((header.rsvd_ulp, header.qn, header.msn), ([0x4F, 0, 0, 0, kind], 4, 9));
            assert_eq!(ProfileMessage::of_segment(&header, &payload, 9), Some(message));
            payloads.push(payload);
        }
        assert_eq!(payloads[0], [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(payloads[3], [0xFF, 0xFF, 0xFF, 0xFE, 0, 0, 0, 7]);
    }

    #[test]
    fn a_segment_with_one_wrong_field_is_no_message() {
        type Break = fn(&mut UntaggedHeader, &mut Vec<u8>);
        let broken: [Break; 10] = [
            |header, _| header.last = false,
            |header, _| header.rsvd_ulp[0] = 0x0F,
            |header, _| header.rsvd_ulp[1] = 1,
            |header, _| header.rsvd_ulp[4] = 0,
            |header, _| header.rsvd_ulp[4] = 6,
            |header, _| header.qn = 0,
            |header, _| header.msn = 8,
            |header, _| header.mo = 8,
            |_, payload| payload.truncate(7),
            |_, payload| payload.push(0),
        ];
        for message in ALL {
            for break_it in broken {
                let (mut header, payload) = message.to_segment(9);
                let mut payload = payload.to_vec();
                break_it(&mut header, &mut payload);
                assert_eq!(ProfileMessage::of_segment(&header, &payload, 9), None);
            }
        }
        for (message, payload) in [
            (ProfileMessage::Ready, 1),
            (ProfileMessage::Limit(0), 1 << 32),
            (ProfileMessage::NotReady(0), 1 << 63),
        ] {
            let (header, _) = message.to_segment(9);
            assert_eq!(
                ProfileMessage::of_segment(&header, &u64::to_be_bytes(payload), 9),
                None,
                "{message:?}"
            );
        }
    }
}
