//! A message on its way out: what its segments look like and where its payload comes from.

use arrayvec::ArrayVec;

use crate::ddp::{Header, Segment, Segmenter};
use crate::memory::{self, Accessor, EpochGuard, Fault, Stag};
use crate::mpa::{FpduWriter, Room};
use crate::queues::{MAX_INLINE, MAX_SGE, Sge};
use crate::rdmap::{Opcode, ReadRequest};

/// What the headers of a message say.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addressing {
    /// By STag and tagged offset: RDMA Write and Read Response.
    Tagged { opcode: Opcode, stag: Stag, to: u64 },
    /// By queue and message number; `invalidate` is 0 where the opcode names none.
    Untagged { opcode: Opcode, invalidate: Stag, msn: u32 },
}

/// Where the payload comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Our user's registered memory.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// Bytes at hand: inline data, and the headers of Read Request and Terminate.
    Bytes(ArrayVec<u8, MAX_INLINE>),
    /// Registered memory that the peer reads.
    Remote(ReadRequest),
}

/// Why bytes could not be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchError {
    /// Our user's own memory: its key, range or right is wrong by now.
    Local,
    /// What the peer reads: revoked since the request was checked.
    Remote(Fault),
}

/// A message of which segments are still to be cut.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) addressing: Addressing,
    pub(super) segmenter: Segmenter,
    pub(super) source: Source,
}

impl Message {
    pub(super) fn tagged(opcode: Opcode, stag: Stag, to: u64, length: u32, source: Source) -> Self {
        let addressing = Addressing::Tagged { opcode, stag, to };
        Self { addressing, segmenter: Segmenter::tagged(length), source }
    }

    pub(super) fn untagged(opcode: Opcode, invalidate: Stag, msn: u32, length: u32, source: Source) -> Self {
        let addressing = Addressing::Untagged { opcode, invalidate, msn };
        Self { addressing, segmenter: Segmenter::untagged(length), source }
    }

    /// An untagged message whose payload is at hand.
    pub(super) fn of_bytes(opcode: Opcode, msn: u32, bytes: &[u8]) -> Self {
        let source: ArrayVec<u8, MAX_INLINE> = bytes.iter().copied().collect();
        Self::untagged(opcode, Stag(0), msn, bytes.len() as u32, Source::Bytes(source))
    }

    /// The DDP header of one of its segments.
    pub(super) fn header(&self, segment: &Segment) -> Header {
        match self.addressing {
            Addressing::Tagged { opcode, stag, to } => {
                // The sink's range was checked by its owner: an offset beyond 2^64 is the peer's to refuse.
                opcode.tagged_header(stag, to.wrapping_add(u64::from(segment.offset)), segment.last).into()
            }
            Addressing::Untagged { opcode, invalidate, msn } => {
                opcode.untagged_header(invalidate, msn, segment.offset, segment.last).into()
            }
        }
    }

    /// Bytes of that header.
    pub(super) fn header_len(&self) -> usize {
        match self.addressing {
            Addressing::Tagged { .. } => crate::ddp::TaggedHeader::LEN,
            Addressing::Untagged { .. } => crate::ddp::UntaggedHeader::LEN,
        }
    }
}

impl Source {
    /// Writes `len` bytes from `offset` on to an FPDU. What they come from is looked up once, however many
    /// markers cut it.
    pub(super) fn fetch(
        &self,
        offset: u32,
        len: u32,
        fpdu: &mut FpduWriter<'_>,
        guard: &EpochGuard,
        by: Accessor,
    ) -> Result<(), FetchError> {
        match self {
            Self::Bytes(bytes) => {
                fpdu.put(&bytes[offset as usize..(offset + len) as usize]);
                Ok(())
            }
            Self::Remote(_) if len == 0 => Ok(()),
            Self::Remote(request) => {
                let to = request.source_to + u64::from(offset);
                guard
                    .check_read(request.source_stag, to, u64::from(len), by)
                    .and_then(|source| fill(fpdu, &source))
                    .map_err(FetchError::Remote)
            }
            Self::Gather(sg_list) => gather(sg_list, offset, len, fpdu, guard, by),
        }
    }
}

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
            .map_err(|_| FetchError::Local)?;
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
