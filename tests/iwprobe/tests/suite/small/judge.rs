//! The checks that the small endpoint makes on the segment of an FPDU with a valid CRC.

use iwprobe::wire::{Code, Segment, opcode};

use super::Flaw;
use super::end::End;
use super::target::Region;

const UNEXPECTED: Code = Code(0, 2, 6);

impl End<'_> {
    pub(super) fn judge(&self, segment: &Segment) -> Option<Code> {
        if self.flaw == Flaw::ChecksReserved && segment.control_byte() & 0x3c != 0 {
            return Some(Code(0, 2, 0xff));
        }
        let by_ddp = match (segment.is_tagged(), segment.control_byte() & 3) {
            (true, 1) => self.tagged_faults(segment),
            (false, 1) => self.untagged_faults(segment),
            (true, _) => Some(Code(1, 1, 4)),
            (false, _) => Some(Code(1, 2, 6)),
        };
        by_ddp.or_else(|| self.by_rdmap(segment))
    }

    fn tagged_faults(&self, segment: &Segment) -> Option<Code> {
        let length = segment.payload().len() as u64;
        if length == 0 && self.flaw != Flaw::ChecksEmptyWrites {
            return None;
        }
        let (base, room) = if segment.opcode() == opcode::READ_RESPONSE {
            let Some(read) = self.asked.front().filter(|read| read.kind == 'r') else {
                return Some(UNEXPECTED);
            };
            if segment.stag() != read.stag {
                return Some(Code(1, 1, 0));
            }
            (0, read.length as u64)
        } else {
            let Some(region) = self.region(segment.stag()) else { return Some(Code(1, 1, 0)) };
            if matches!(region.scope, 'x' | 'o') {
                return Some(Code(1, 1, 2));
            }
            if !region.rights.contains('w') && self.flaw != Flaw::WritesWithoutRight {
                return Some(Code(1, 1, 0));
            }
            (region.to, region.bytes.len() as u64)
        };
        self.outside(segment.to(), length, base, room, Code(1, 1, 1), Code(1, 1, 3))
    }

    fn outside(&self, to: u64, length: u64, base: u64, room: u64, bounds: Code, wrap: Code) -> Option<Code> {
        let length = if self.flaw == Flaw::NoEnd { length.min(1) } else { length };
        match to.checked_add(length) {
            None => Some(wrap),
            Some(end) if to < base || end > base + room => Some(bounds),
            Some(_) => None,
        }
    }

    pub(super) fn region(&self, stag: u32) -> Option<&Region> {
        self.target.regions.iter().find(|region| region.stag == stag && region.valid)
    }

    fn untagged_faults(&self, segment: &Segment) -> Option<Code> {
        let length = segment.payload().len();
        match segment.qn() {
            0 => {
                let Some(room) = self.target.receives.front() else { return Some(Code(1, 2, 2)) };
                if segment.msn() != self.next_receive {
                    return Some(Code(1, 2, 3));
                }
                match segment.mo() as usize {
                    mo if mo > *room => Some(Code(1, 2, 4)),
                    mo if mo + length > *room => Some(Code(1, 2, 5)),
                    _ => None,
                }
            }
            1 if segment.msn() != self.next_request => Some(Code(1, 2, 3)),
            1 if length > 28 && segment.opcode() != opcode::ATOMIC_REQUEST => Some(Code(1, 2, 5)),
            1..=3 => None,
            _ => Some(Code(1, 2, 1)),
        }
    }

    fn by_rdmap(&self, segment: &Segment) -> Option<Code> {
        if segment.rdmap_byte() >> 6 != 1 {
            return Some(Code(0, 2, 5));
        }
        let is_asked = |kinds: &str| self.asked.front().is_some_and(|asked| kinds.contains(asked.kind));
        match (segment.opcode(), segment.is_tagged(), segment.qn()) {
            (opcode::WRITE, true, _) => None,
            (opcode::READ_RESPONSE, true, _) if is_asked("r-") => None,
            (opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE, false, 0) if segment.is_last() => {
                match self.region(segment.stag()) {
                    Some(region) if region.scope == 'q' => None,
                    _ => Some(Code(0, 1, 9)),
                }
            }
            (opcode::SEND..=opcode::SEND_SE_INVALIDATE, false, 0) => None,
            (opcode::IMMEDIATE | opcode::IMMEDIATE_SE, false, 0) => {
                let length = segment.mo() as usize + segment.payload().len();
                (segment.is_last() && length != 8).then_some(UNEXPECTED)
            }
            (opcode::READ_REQUEST, false, 1) => self.read(segment),
            (opcode::ATOMIC_REQUEST, false, 1) => self.atomic(segment.payload()),
            (opcode::ATOMIC_RESPONSE, false, 3) if is_asked("fc") => None,
            (opcode::TERMINATE, false, 2) => None,
            _ => Some(UNEXPECTED),
        }
    }

    fn read(&self, segment: &Segment) -> Option<Code> {
        // This endpoint refuses a Read Request that arrives in two segments.
        let Some(read) = segment.as_read_request() else { return Some(Code(0, 2, 0xff)) };
        if read.size == 0 {
            return None;
        }
        let Some(region) = self.region(read.source_stag) else { return Some(Code(0, 1, 0)) };
        if matches!(region.scope, 'x' | 'o') {
            return Some(Code(0, 1, 3));
        }
        if !region.rights.contains('r') && self.flaw != Flaw::ReadsWithoutRight {
            return Some(Code(0, 1, 2));
        }
        let room = region.bytes.len() as u64;
        self.outside(read.source_to, read.size.into(), region.to, room, Code(0, 1, 1), Code(0, 1, 4))
    }

    fn atomic(&self, payload: &[u8]) -> Option<Code> {
        if payload.len() != 52 || !matches!(payload[3] & 15, 0 | 2) {
            return Some(UNEXPECTED);
        }
        let (stag, to) = place(payload);
        let Some(region) = self.region(stag) else { return Some(Code(0, 1, 0)) };
        if !region.rights.contains('a') && self.flaw != Flaw::AtomicsWithoutRight {
            return Some(Code(0, 1, 2));
        }
        let outside = self.outside(to, 8, region.to, region.bytes.len() as u64, Code(0, 1, 1), Code(0, 1, 4));
        outside.or_else(|| (!to.is_multiple_of(8)).then_some(Code(0, 2, 7)))
    }
}

/// Returns the STag and the offset of an Atomic Request.
pub(super) fn place(payload: &[u8]) -> (u32, u64) {
    (u32::from_be_bytes(payload[8..12].try_into().unwrap()), long(payload, 12))
}

pub(super) fn long(payload: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(payload[at..at + 8].try_into().unwrap())
}
