//! Deliberate defects between the stack and the model. The model has to find each defect.

use iwarp::verbs::{WcOpcode, WcStatus, WorkCompletion};

use super::memory::{Region, Span};
use super::names::Validity;
use super::world::Registered;

/// A deliberate defect. A defect of the wire lasts for the whole run, and any other defect happens once:
/// `Leak` at the end, and the others at the sixth opportunity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// A completion is lost.
    LostCompletion,
    /// A completion is reported twice.
    RepeatedCompletion,
    /// Two completions are exchanged.
    SwappedCompletions,
    /// A failure is reported as a success.
    FalseSuccess,
    /// A success is reported as flushed.
    FalseFlush,
    /// A receive completes with a length that is one byte too large.
    WrongLength,
    /// A placed byte changes.
    WrongByte,
    /// A byte next to the placed bytes changes.
    StrayByte,
    /// Memory changes after its revocation.
    RevokedByte,
    /// A window is not freed at the end.
    Leak,
    /// The wire corrupts payload under correct TCP checksums, and no CRC is used.
    Wire,
    /// The wire corrupts payload as with `Wire`, but CRCs are used, and the model allows that the corruption
    /// ends streams.
    WireUnderCrc,
}

impl Defect {
    /// The defects that must be found.
    pub(crate) const ALL: [Self; 11] = [
        Self::LostCompletion,
        Self::RepeatedCompletion,
        Self::SwappedCompletions,
        Self::FalseSuccess,
        Self::FalseFlush,
        Self::WrongLength,
        Self::WrongByte,
        Self::StrayByte,
        Self::RevokedByte,
        Self::Leak,
        Self::Wire,
    ];
}

pub(crate) struct Sabotage {
    defect: Defect,
    /// Number of opportunities before the defect happens.
    left: usize,
}

impl Sabotage {
    pub(crate) fn new(defect: Defect) -> Self {
        Self { defect, left: 5 }
    }

    fn is_now(&mut self, defect: Defect) -> bool {
        if self.defect != defect {
            return false;
        }
        let now = self.left == 0;
        self.left = self.left.wrapping_sub(1);
        now
    }

    /// Returns the completions that the model sees in place of the completions `taken` from one queue.
    pub(crate) fn completions(&mut self, taken: Vec<WorkCompletion>) -> Vec<WorkCompletion> {
        let mut told = Vec::new();
        for mut wc in taken {
            let success = wc.status == WcStatus::Success;
            if self.is_now(Defect::LostCompletion) {
                continue;
            }
            if success && self.is_now(Defect::FalseFlush) {
                wc.status = WcStatus::WrFlushError;
            }
            if !success && self.is_now(Defect::FalseSuccess) {
                wc.status = WcStatus::Success;
            }
            if wc.opcode == WcOpcode::Recv && self.is_now(Defect::WrongLength) {
                wc.byte_len += 1;
            }
            if self.is_now(Defect::RepeatedCompletion) {
                told.push(wc);
            }
            told.push(wc);
        }
        let queue = |wc: &WorkCompletion| (wc.qp_num, wc.opcode == WcOpcode::Recv);
        if let [first, second, ..] = &mut told[..]
            && queue(first) == queue(second)
            && self.is_now(Defect::SwappedCompletions)
        {
            std::mem::swap(first, second);
        }
        told
    }

    pub(crate) fn memory(&mut self, memory: &[Option<Registered>], placed: &[Span]) {
        if let Some(span) = placed.iter().find(|span| span.len > 0)
            && let Some(region) = &memory[span.region]
        {
            if self.is_now(Defect::WrongByte) {
                flip(region, span.at);
            }
            if span.end() < region.len() && self.is_now(Defect::StrayByte) {
                flip(region, span.end());
            }
        }
    }

    pub(crate) fn rest(&mut self, memory: &[Option<Registered>], regions: &[Region]) {
        let gone = memory.iter().zip(regions).find(|(_, region)| region.life == Validity::Gone);
        if let Some((Some(region), _)) = gone
            && self.is_now(Defect::RevokedByte)
        {
            flip(region, 0);
        }
    }

    /// Whether a window outlives the run.
    pub(crate) fn leaks(&self) -> bool {
        self.defect == Defect::Leak
    }

    /// Whether the model allows that the wire ends streams.
    pub(crate) fn is_known_wire(&self) -> bool {
        self.defect == Defect::WireUnderCrc
    }

    /// Whether the wire corrupts payload under a correct TCP checksum.
    pub(crate) fn is_wire(&self) -> bool {
        matches!(self.defect, Defect::Wire | Defect::WireUnderCrc)
    }
}

fn flip(region: &Registered, at: usize) {
    let mut byte = [0];
    region.read_at(at, &mut byte).expect("inside the region");
    region.write_at(at, &[byte[0] ^ 0x10]).expect("inside the region");
}
