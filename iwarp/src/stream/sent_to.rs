//! The targets of a started request at the peer. A Terminate names the request by these targets (RFC 5040
//! section 4.8).

use crate::ddp::Header;
use crate::memory::Stag;
use crate::queues::SentTo;
use crate::rdmap::{Queue, Terminate};

/// The message that a Terminate of the peer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The oldest Read or atomic that waits for its response, since the peer answers requests in order.
    Request,
    /// The message of a segment with this header.
    Message(Header),
}

/// Whether a segment with this header goes to one of the targets.
pub(super) fn goes_to(header: &Header, targets: &SentTo) -> bool {
    match header {
        Header::Tagged(tagged) => targets.memory.is_some_and(|memory| {
            let at = tagged.to.checked_sub(memory.addr);
            tagged.stag == Stag(memory.rkey) && at.is_some_and(|at| at <= u64::from(targets.length))
        }),
        Header::Untagged(untagged) => {
            let (last, count) = targets.sends;
            untagged.qn == Queue::Send.number() && last.wrapping_sub(untagged.msn) < count
        }
    }
}

impl Refused {
    /// Returns the message that a Terminate names; `None` if it names no message.
    pub(super) fn of(terminate: &Terminate) -> Option<Self> {
        if terminate.read_request.is_some() {
            return Some(Self::Request);
        }
        match Header::parse(terminate.ddp_header.as_ref()?).ok()? {
            Header::Untagged(header) if header.qn == Queue::ReadRequest.number() => Some(Self::Request),
            header => Some(Self::Message(header)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::{TaggedHeader, UntaggedHeader};
    use crate::queues::RemoteAddr;
    use crate::rdmap::TerminateError;

    fn tagged(stag: u32, to: u64) -> Header {
        Header::Tagged(TaggedHeader { last: true, rsvd_ulp: 0, stag: Stag(stag), to })
    }

    fn untagged(qn: u32, msn: u32) -> Header {
        Header::Untagged(UntaggedHeader { last: true, rsvd_ulp: [0; 5], qn, msn, mo: 0 })
    }

    /// A Write with Immediate Data is found by its memory, or by the MSN of its Immediate Data.
    #[test]
    fn a_request_is_found_by_its_memory_and_by_its_numbers() {
        let memory = Some(RemoteAddr { addr: 1000, rkey: 7 });
        let target = SentTo { memory, length: 50, sends: (3, 1) };
        let hits = [tagged(7, 1000), tagged(7, 1050), untagged(0, 3)];
        assert_eq!(hits.map(|header| goes_to(&header, &target)), [true; 3]);
        let misses = [
            tagged(7, 999),
            tagged(7, 1051),
            tagged(8, 1000),
            untagged(0, 2),
            untagged(0, 4),
            untagged(1, 3),
        ];
        assert_eq!(misses.map(|header| goes_to(&header, &target)), [false; 6]);
        // The Immediate Data and the Send of one request have consecutive MSNs, even where the MSN wraps.
        let joined = SentTo { memory: None, length: 50, sends: (0, 2) };
        assert_eq!([u32::MAX, 0, 1].map(|msn| goes_to(&untagged(0, msn), &joined)), [true, true, false]);
        let write = SentTo { memory, length: 50, sends: (3, 0) };
        assert!(!goes_to(&untagged(0, 3), &write), "a Write has no number");
    }

    #[test]
    fn a_terminate_names_a_message() {
        let of = |header: &[u8]| {
            Refused::of(&Terminate::of_segment(TerminateError::DdpBounds, header, header.len(), None))
        };
        let Header::Tagged(write) = tagged(7, 1000) else { unreachable!() };
        assert_eq!(of(&write.to_bytes()), Some(Refused::Message(tagged(7, 1000))));
        let Header::Untagged(request) = untagged(1, 1) else { unreachable!() };
        assert_eq!(of(&request.to_bytes()), Some(Refused::Request));
        assert_eq!(Refused::of(&Terminate::bare(TerminateError::LocalCatastrophic)), None);
    }
}
