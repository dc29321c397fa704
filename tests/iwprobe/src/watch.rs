//! Rules for every segment that the endpoint sends, in all cases. Violations are collected during a run and
//! reported at its end.

use std::cell::RefCell;
use std::rc::Rc;

use crate::wire::{Segment, opcode};

/// A group of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// FPDUs: CRC, pad, markers, and no FIN inside an FPDU.
    Fpdu,
    /// The minimum length of a segment, and DDP's version and reserved bits.
    Ddp,
    /// RDMAP's header, for example the version, the opcode, and the queue of each opcode.
    Rdmap,
    /// The order of segments: message sequence numbers, offsets, and the continuation of tagged messages.
    Sequence,
}

/// The violations seen, each only once, and the number of segments.
#[derive(Clone, Debug, Default)]
pub struct Watch(Rc<RefCell<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    segments: u64,
    amiss: Vec<(Topic, String)>,
}

/// The progress of one connection: the next MSN of each queue, and the next offset in each unfinished
/// message.
#[derive(Clone, Debug)]
pub struct Progress {
    next_msn: [u32; 4],
    next_mo: [u32; 4],
    tagged: Option<(u8, u32, u64)>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { next_msn: [1; 4], next_mo: [0; 4], tagged: None }
    }
}

impl Watch {
    /// Returns the number of segments seen so far.
    pub fn segments(&self) -> u64 {
        self.0.borrow().segments
    }

    /// Returns the violations of `topic`.
    pub fn amiss(&self, topic: Topic) -> Vec<String> {
        self.0.borrow().amiss.iter().filter(|(t, _)| *t == topic).map(|(_, text)| text.clone()).collect()
    }

    /// Records a violation, unless it is already known.
    pub fn complain(&self, topic: Topic, text: String) {
        let mut seen = self.0.borrow_mut();
        if !seen.amiss.iter().any(|(t, known)| *t == topic && *known == text) {
            seen.amiss.push((topic, text));
        }
    }

    /// Checks a received segment.
    pub fn segment(&self, segment: &Segment, progress: &mut Progress) {
        self.0.borrow_mut().segments += 1;
        if !segment.is_whole() {
            self.complain(Topic::Ddp, format!("a segment of {} bytes", segment.bytes.len()));
            return;
        }
        if segment.control_byte() & 0x3f != 0x01 {
            self.complain(Topic::Ddp, format!("DDP control byte {:02x}", segment.control_byte()));
        }
        if segment.rdmap_byte() & 0xf0 != 0x40 {
            self.complain(Topic::Rdmap, format!("RDMAP control byte {:02x}", segment.rdmap_byte()));
        }
        self.fields(segment);
        progress.step(self, segment);
    }

    fn fields(&self, segment: &Segment) {
        let (tagged, queue, length) = match segment.opcode() {
            opcode::WRITE | opcode::READ_RESPONSE => (true, 0, None),
            opcode::READ_REQUEST => (false, 1, Some(28)),
            opcode::SEND..=opcode::SEND_SE_INVALIDATE => (false, 0, None),
            opcode::TERMINATE => (false, 2, None),
            opcode::IMMEDIATE | opcode::IMMEDIATE_SE => (false, 0, Some(8)),
            opcode::ATOMIC_REQUEST => (false, 1, Some(52)),
            opcode::ATOMIC_RESPONSE => (false, 3, Some(12)),
            reserved => return self.complain(Topic::Rdmap, format!("opcode {reserved}")),
        };
        let name = crate::wire::describe::message(segment.opcode());
        if segment.is_tagged() != tagged {
            self.complain(Topic::Rdmap, format!("{name} with T={}", u8::from(segment.is_tagged())));
        } else if !tagged && segment.qn() != queue {
            self.complain(Topic::Rdmap, format!("{name} on queue {}", segment.qn()));
        }
        let invalidates = matches!(segment.opcode(), opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
        if !tagged && !invalidates && segment.stag() != 0 {
            self.complain(Topic::Rdmap, format!("{name} with Invalidate STag {:08x}", segment.stag()));
        }
        if length.is_some_and(|length| segment.payload().len() != length) {
            self.complain(Topic::Rdmap, format!("{name} with {} bytes", segment.payload().len()));
        }
    }
}

impl Progress {
    fn step(&mut self, watch: &Watch, segment: &Segment) {
        let length = segment.payload().len();
        if segment.is_tagged() {
            // A tagged message continues where the previous segment ended, with the same opcode and STag.
            let here = (segment.rdmap_byte(), segment.stag(), segment.to());
            if self.tagged.is_some_and(|expected| expected != here) {
                watch.complain(
                    Topic::Sequence,
                    "a tagged message whose segments do not follow each other".into(),
                );
            }
            self.tagged = (!segment.is_last())
                .then(|| (segment.rdmap_byte(), segment.stag(), segment.to().wrapping_add(length as u64)));
            return;
        }
        let Some(queue) = usize::try_from(segment.qn()).ok().filter(|queue| *queue < 4) else { return };
        if segment.msn() != self.next_msn[queue] {
            let expected = self.next_msn[queue];
            watch.complain(
                Topic::Sequence,
                format!("queue {queue}: MSN {} where {expected} is due", segment.msn()),
            );
        }
        if segment.mo() != self.next_mo[queue] {
            watch.complain(
                Topic::Sequence,
                format!("queue {queue}: MO {} where {} is due", segment.mo(), self.next_mo[queue]),
            );
        }
        self.next_mo[queue] = if segment.is_last() { 0 } else { segment.mo().wrapping_add(length as u32) };
        self.next_msn[queue] = segment.msn().wrapping_add(u32::from(segment.is_last()));
    }
}
