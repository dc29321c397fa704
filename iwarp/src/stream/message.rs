//! A message being sent (RFC 5041 sections 4.2, 4.3 and 5.2): the headers of its segments, and the source of
//! its payload.

use arrayvec::ArrayVec;

use crate::ddp::{HeaderWords, Segment, Segmenter, TaggedHeader, UntaggedHeader};
use crate::memory::{Accessor, EpochGuard, Fault, Source, Stag};
use crate::mpa::{FpduAround, FpduPlan, FpduWriter, Framer, UlpduHead};
use crate::queues::{Payload, SendEntry, Sge};
use crate::rdmap::{AtomicRequest, Opcode, Terminate};

use super::peer_request::{PeerOp, PeerRequest};

/// Bytes of the longest message that RDMAP makes itself: a Terminate, or an Atomic Request.
pub(super) const MAX_OWN_BYTES: usize =
    if Terminate::MAX_LEN > AtomicRequest::LEN { Terminate::MAX_LEN } else { AtomicRequest::LEN };

/// The fields that the headers of all segments of a message share.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addressing {
    /// By STag and tagged offset: RDMA Write and Read Response.
    ///
    /// RFC 5041 section 5.2 (DDP-115): the message comes with both.
    Tagged { opcode: Opcode, stag: Stag, to: u64 },
    /// By queue and MSN. `field`: the four bytes after the control byte. An invalidating Send has its STag
    /// there, other messages have 0. With InfiniBand's semantics, other Sends have a limit there.
    Untagged { opcode: Opcode, field: u32, msn: u32 },
    /// A message of queue 4, with InfiniBand's semantics. It has one segment.
    Profile(UntaggedHeader),
}

/// The source of the payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum PayloadSource {
    /// The oldest request of the send queue.
    Posted,
    /// Bytes of RDMAP itself: Immediate Data, and headers that it sends as payload.
    Own,
    /// Registered memory that the peer reads.
    Remote,
}

/// References to the payload of each source.
pub(super) struct Payloads<'a> {
    pub(super) posted: Option<&'a SendEntry>,
    pub(super) own: &'a OwnBytes,
    pub(super) answering: Option<&'a PeerRequest>,
}

/// A message that RDMAP makes itself.
pub(super) type OwnBytes = ArrayVec<u8, MAX_OWN_BYTES>;

/// Why bytes could not be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchError {
    /// Memory of our user: key, range or rights are no longer valid.
    OwnMemory,
    /// Memory that the peer reads, which was revoked after the request was checked.
    PeerMemory(Fault),
}

/// A message with segments still to be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) addressing: Addressing,
    pub(super) segmenter: Segmenter,
    pub(super) source: PayloadSource,
}

impl Addressing {
    /// The header of one of the segments.
    #[inline]
    pub(super) fn head(&self, segment: &Segment) -> UlpduHead {
        match *self {
            Addressing::Tagged { opcode, stag, to } => {
                // RFC 5041 section 4.2 (DDP-065, DDP-066, DDP-072, DDP-073): opcode and STag are those of the
                // message, the same in all segments. RFC 5040 sections 5.1 and 5.2.2 (RDMAP-204, RDMAP-232):
                // so a Write or a Read Response reaches one remote buffer.
                // RFC 5041 section 5.2 (DDP-116): the first tagged offset plus the offset of the payload. The
                // peer refuses a sum past 2^64.
                let to = to.wrapping_add(u64::from(segment.offset));
                head_of(opcode.tagged_header(stag, to, segment.last).to_words())
            }
            Addressing::Untagged { opcode, field, msn } => {
                // RFC 5041 section 4.3 (DDP-082, DDP-086, DDP-087, DDP-092, DDP-093): the opcode, which has
                // its queue, the Invalidate STag and the MSN are those of the message, the same in all
                // segments.
                // RFC 5041 section 5.2 (DDP-111): MO is the offset of the payload in the message.
                let mut header = opcode.untagged_header(Stag(field), msn, segment.offset, segment.last);
                let [_, at @ ..] = &mut header.rsvd_ulp;
                *at = field.to_be_bytes();
                head_of(header.to_words())
            }
            Addressing::Profile(header) => head_of(header.to_words()),
        }
    }
}

impl Message {
    pub(super) fn tagged(opcode: Opcode, stag: Stag, to: u64, length: u32, source: PayloadSource) -> Self {
        let addressing = Addressing::Tagged { opcode, stag, to };
        Self { addressing, segmenter: Segmenter::tagged(length), source }
    }

    pub(super) fn untagged(opcode: Opcode, field: u32, msn: u32, length: u32, source: PayloadSource) -> Self {
        let addressing = Addressing::Untagged { opcode, field, msn };
        Self { addressing, segmenter: Segmenter::untagged(length), source }
    }

    /// A message of queue 4. Its payload is among the bytes of RDMAP itself.
    pub(super) fn profile(header: UntaggedHeader, length: u32) -> Self {
        let addressing = Addressing::Profile(header);
        Self { addressing, segmenter: Segmenter::untagged(length), source: PayloadSource::Own }
    }

    /// The header of one of the message's segments.
    #[inline]
    fn head(&self, segment: &Segment) -> UlpduHead {
        self.addressing.head(segment)
    }

    /// The registered memory with the whole payload; `None` if the payload has another source. The result is
    /// valid for all segments in one epoch: each copy checks that the registration is still the same.
    pub(super) fn look_up<'g>(
        &self,
        payloads: &Payloads<'_>,
        (guard, by): (&'g EpochGuard<'g>, Accessor),
    ) -> Result<Option<Source<'g>>, FetchError> {
        let len = self.segmenter.message_bytes();
        let source = match self.source {
            PayloadSource::Posted => match payloads.posted.map(|request| &*request.payload) {
                Some(Payload::Gather(sg_list)) => match only_element(sg_list, 0, len) {
                    Some(sge) => guard.check_source(Stag(sge.lkey), sge.addr, u64::from(len), by.pd),
                    None => return Ok(None),
                },
                Some(Payload::Inline(_)) | None => return Ok(None),
            },
            PayloadSource::Own => return Ok(None),
            // RFC 5040 section 5.2.1 (RDMAP-221): the source of a zero-length Read is not checked.
            PayloadSource::Remote if len == 0 => return Ok(None),
            PayloadSource::Remote => {
                let Some(PeerRequest { op: PeerOp::Read(request), .. }) = payloads.answering else {
                    debug_assert!(false, "a request of the peer is kept until it is answered");
                    return Err(FetchError::PeerMemory(Fault::InvalidStag));
                };
                guard.check_read(request.source_stag, request.source_to, u64::from(len), by)
            }
        };
        source.map(Some).map_err(|fault| self.fetch_error(fault))
    }

    /// Writes the FPDU of one of the message's segments to `out`, with a payload that
    /// [`look_up`](Self::look_up) found.
    #[inline(always)]
    pub(super) fn write(
        &self,
        segment: &Segment,
        source: &Source<'_>,
        framer: &mut Framer,
        (plan, out): (FpduPlan, &mut [u8]),
    ) -> Result<(), FetchError> {
        framer
            .frame_source(plan, out, &self.head(segment), source, segment.offset as usize)
            .map_err(|fault| self.fetch_error(fault))
    }

    /// Writes the FPDU of one of the message's segments to `out`, with a payload from elsewhere.
    #[inline(never)]
    pub(super) fn write_other(
        &self,
        segment: &Segment,
        payloads: &Payloads<'_>,
        framer: &mut Framer,
        (plan, out): (FpduPlan, &mut [u8]),
        (guard, by): (&EpochGuard<'_>, Accessor),
    ) -> Result<(), FetchError> {
        let &Segment { offset, len, .. } = segment;
        let mut fpdu = framer.begin_with(plan, out, &self.head(segment));
        let bytes: &[u8] = match self.source {
            PayloadSource::Posted => match payloads.posted.map(|request| &*request.payload) {
                Some(Payload::Gather(sg_list)) => {
                    gather(sg_list, offset, len, &mut fpdu, guard, by)?;
                    fpdu.finish();
                    return Ok(());
                }
                Some(Payload::Inline(bytes)) => bytes,
                None => {
                    debug_assert!(false, "a request stays in its queue until its last segment is written");
                    return Err(FetchError::OwnMemory);
                }
            },
            PayloadSource::Own => payloads.own,
            PayloadSource::Remote => &[],
        };
        fpdu.put(&bytes[offset as usize..(offset + len) as usize]);
        fpdu.finish();
        Ok(())
    }

    fn fetch_error(&self, fault: Fault) -> FetchError {
        match self.source {
            PayloadSource::Posted | PayloadSource::Own => FetchError::OwnMemory,
            PayloadSource::Remote => FetchError::PeerMemory(fault),
        }
    }

    /// Makes the bytes around the payload of one of the message's segments. The payload is that of the posted
    /// request, which has one element, and is not copied.
    pub(super) fn write_around(
        &self,
        segment: &Segment,
        posted: Option<&SendEntry>,
        (framer, plan): (&Framer, FpduPlan),
        (guard, by): (&EpochGuard<'_>, Accessor),
    ) -> Result<FpduAround, FetchError> {
        let &Segment { offset, len, .. } = segment;
        let Some(Payload::Gather(sg_list)) = posted.map(|request| &*request.payload) else {
            debug_assert!(false, "a request stays in its queue until its last segment is written");
            return Err(FetchError::OwnMemory);
        };
        let sge = only_element(sg_list, offset, len).ok_or(FetchError::OwnMemory)?;
        guard
            .check_source(Stag(sge.lkey), sge.addr + u64::from(offset), u64::from(len), by.pd)
            .map_err(|_| FetchError::OwnMemory)?;
        Ok(framer.frame_around(plan, &self.head(segment)))
    }

    /// Bytes of the header of a segment.
    pub(super) fn header_len(&self) -> usize {
        match self.addressing {
            Addressing::Tagged { .. } => TaggedHeader::LEN,
            Addressing::Untagged { .. } | Addressing::Profile(_) => UntaggedHeader::LEN,
        }
    }
}

#[inline]
fn head_of(HeaderWords { first, second, third }: HeaderWords) -> UlpduHead {
    UlpduHead { first, second, third }
}

/// The element with all bytes of a segment, if the message has only one element.
#[inline]
fn only_element(sg_list: &[Sge], offset: u32, len: u32) -> Option<&Sge> {
    let [sge] = sg_list else { return None };
    (len > 0 && u64::from(offset) + u64::from(len) <= u64::from(sge.length)).then_some(sge)
}

fn gather(
    sg_list: &[Sge],
    offset: u32,
    len: u32,
    fpdu: &mut FpduWriter<'_>,
    guard: &EpochGuard<'_>,
    by: Accessor,
) -> Result<(), FetchError> {
    let (mut skip, mut left) = (offset, len);
    for sge in sg_list {
        if left == 0 {
            break;
        }
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let take = (sge.length - skip).min(left);
        guard
            .check_source(Stag(sge.lkey), sge.addr + u64::from(skip), u64::from(take), by.pd)
            .and_then(|source| fpdu.fill_from(&source, 0, take as usize))
            .map_err(|_| FetchError::OwnMemory)?;
        skip = 0;
        left -= take;
    }
    debug_assert_eq!(left, 0, "a scatter/gather list shorter than its message");
    Ok(())
}
