//! A message being sent (RFC 5041 sections 4.2, 4.3 and 5.2): the headers of its segments, and the source of
//! its payload.

use arrayvec::ArrayVec;

use crate::ddp::{HeaderWords, Segment, Segmenter, TaggedHeader, UntaggedHeader};
use crate::memory::{self, Accessor, EpochGuard, Fault, Stag};
use crate::mpa::{FpduWriter, Framer, Room, UlpduHead};
use crate::queues::{Payload, SendEntry, Sge};
use crate::rdmap::{AtomicRequest, Opcode, ReadRequest, Terminate};

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
    /// By queue and MSN; `invalidate` is used by the invalidating opcodes only.
    Untagged { opcode: Opcode, invalidate: Stag, msn: u32 },
}

/// The source of the payload.
#[derive(Clone, Debug)]
pub(super) enum PayloadSource {
    /// The oldest request of the send queue, where it lies in the queue.
    Posted,
    /// Bytes kept here: Immediate Data, and the headers that RDMAP sends as payload.
    Bytes(ArrayVec<u8, MAX_OWN_BYTES>),
    /// Registered memory that the peer reads.
    Remote(ReadRequest),
}

/// Why bytes could not be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchError {
    /// Memory of our user: key, range or rights are no longer valid.
    OwnMemory,
    /// Memory that the peer reads: revoked since the request was checked.
    PeerMemory(Fault),
}

/// A message with segments still to be cut.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) addressing: Addressing,
    pub(super) segmenter: Segmenter,
    pub(super) source: PayloadSource,
}

impl Message {
    pub(super) fn tagged(opcode: Opcode, stag: Stag, to: u64, length: u32, source: PayloadSource) -> Self {
        let addressing = Addressing::Tagged { opcode, stag, to };
        Self { addressing, segmenter: Segmenter::tagged(length), source }
    }

    pub(super) fn untagged(
        opcode: Opcode,
        invalidate: Stag,
        msn: u32,
        length: u32,
        source: PayloadSource,
    ) -> Self {
        let addressing = Addressing::Untagged { opcode, invalidate, msn };
        Self { addressing, segmenter: Segmenter::untagged(length), source }
    }

    /// An untagged message with this payload.
    pub(super) fn of_bytes(opcode: Opcode, msn: u32, bytes: &[u8]) -> Self {
        let source: ArrayVec<u8, MAX_OWN_BYTES> = bytes.iter().copied().collect();
        Self::untagged(opcode, Stag(0), msn, bytes.len() as u32, PayloadSource::Bytes(source))
    }

    /// Begins the FPDU of one of its segments in `out`, up to the DDP header.
    #[inline]
    pub(super) fn begin<'a>(
        &self,
        segment: &Segment,
        framer: &'a mut Framer,
        out: &'a mut [u8],
    ) -> FpduWriter<'a> {
        let payload_bytes = segment.len as usize;
        match self.addressing {
            Addressing::Tagged { opcode, stag, to } => {
                // RFC 5041 section 4.2 (DDP-065, DDP-066, DDP-072, DDP-073): opcode and STag are those of the
                // message, the same in all segments. RFC 5040 sections 5.1 and 5.2.2 (RDMAP-204, RDMAP-232):
                // so a Write or a Read Response reaches one remote buffer.
                // RFC 5041 section 5.2 (DDP-116): the first tagged offset plus the offset of the payload. The
                // peer refuses a sum past 2^64.
                let to = to.wrapping_add(u64::from(segment.offset));
                let header = opcode.tagged_header(stag, to, segment.last);
                framer.begin_with(out, &head_of(header.to_words()), payload_bytes)
            }
            Addressing::Untagged { opcode, invalidate, msn } => {
                // RFC 5041 section 4.3 (DDP-082, DDP-086, DDP-087, DDP-092, DDP-093): the opcode, which has
                // its queue, the Invalidate STag and the MSN are those of the message, the same in all
                // segments.
                // RFC 5041 section 5.2 (DDP-111): MO is the offset of the payload in the message.
                let header = opcode.untagged_header(invalidate, msn, segment.offset, segment.last);
                framer.begin_with(out, &head_of(header.to_words()), payload_bytes)
            }
        }
    }

    /// Bytes of the header of a segment.
    pub(super) fn header_len(&self) -> usize {
        match self.addressing {
            Addressing::Tagged { .. } => TaggedHeader::LEN,
            Addressing::Untagged { .. } => UntaggedHeader::LEN,
        }
    }
}

impl PayloadSource {
    /// Writes the payload of a segment to its FPDU. `posted` is the oldest request of the send queue. The
    /// source is looked up once for all runs between markers.
    #[inline]
    pub(super) fn fetch(
        &self,
        &Segment { offset, len, .. }: &Segment,
        posted: Option<&SendEntry>,
        fpdu: &mut FpduWriter<'_>,
        guard: &EpochGuard,
        by: Accessor,
    ) -> Result<(), FetchError> {
        match self {
            Self::Posted => match posted.map(|request| &request.payload) {
                Some(Payload::Gather(sg_list)) => gather(sg_list, offset, len, fpdu, guard, by),
                Some(Payload::Inline(bytes)) => put(bytes, offset, len, fpdu),
                None => {
                    debug_assert!(false, "a request stays in its queue until its last segment is written");
                    Err(FetchError::OwnMemory)
                }
            },
            Self::Bytes(bytes) => put(bytes, offset, len, fpdu),
            // RFC 5040 section 5.2.1 (RDMAP-221): the source of a zero-length Read is not checked.
            Self::Remote(_) if len == 0 => Ok(()),
            Self::Remote(request) => {
                let to = request.source_to + u64::from(offset);
                guard
                    .check_read(request.source_stag, to, u64::from(len), by)
                    .and_then(|source| fill(fpdu, &source))
                    .map_err(FetchError::PeerMemory)
            }
        }
    }
}

fn head_of(HeaderWords { first, second, third }: HeaderWords) -> UlpduHead {
    UlpduHead { first, second, third }
}

fn put(bytes: &[u8], offset: u32, len: u32, fpdu: &mut FpduWriter<'_>) -> Result<(), FetchError> {
    fpdu.put(&bytes[offset as usize..(offset + len) as usize]);
    Ok(())
}

#[inline]
fn gather(
    sg_list: &[Sge],
    offset: u32,
    len: u32,
    fpdu: &mut FpduWriter<'_>,
    guard: &EpochGuard,
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
            .and_then(|source| fill(fpdu, &source))
            .map_err(|_| FetchError::OwnMemory)?;
        skip = 0;
        left -= take;
    }
    debug_assert_eq!(left, 0, "a scatter/gather list shorter than its message");
    Ok(())
}

/// Writes all of `source` to an FPDU.
fn fill(fpdu: &mut FpduWriter<'_>, source: &memory::Source<'_>) -> Result<(), Fault> {
    fpdu.fill(source.len(), |room| match room {
        Room::Whole(room, crc) => source.fetch_summed(0, room, crc.running()),
        Room::Runs(room, stride) => source.fetch_runs(0, room, stride),
    })
}
