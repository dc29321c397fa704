//! The layout of the regions, and of a `wr_id`.

use iwarp::verbs::MemoryRegion;

use super::mark::Mark;

/// Number of bytes of the control region for each queue pair.
pub(super) const CONTROL_BYTES: usize = 1024;

/// Number of receive buffers that each queue pair has for marks.
pub(super) const MARK_SLOTS: usize = 8;

/// Parts of the control region, each on its own cache line.
#[derive(Clone, Copy, Debug)]
pub(super) enum ControlCell {
    /// The cell into which the peer writes the number of messages for which it has posted a new receive
    /// request.
    Credit,
    /// The source of our writes to the peer's credit cell.
    CreditOut,
    /// A mark to be sent.
    MarkOut,
    /// A received mark.
    MarkIn(u32),
}

impl ControlCell {
    /// Offset of this part for queue pair `index`.
    pub(super) fn at(self, index: usize) -> usize {
        let line = match self {
            Self::Credit => 0,
            Self::CreditOut => 1,
            Self::MarkOut => 2,
            Self::MarkIn(slot) => 3 + slot as usize % MARK_SLOTS,
        };
        index * CONTROL_BYTES + line * 64
    }
}

const _: () = assert!((3 + MARK_SLOTS) * 64 <= CONTROL_BYTES && Mark::BYTES <= 64);

/// The two regions, and the layout of the region for data.
pub(super) struct Memory {
    pub(super) data: MemoryRegion,
    pub(super) control: MemoryRegion,
    pub(super) half: usize,
    /// Number of buffers: one for each queue pair, or fewer buffers that queue pairs share.
    pub(super) buffers: usize,
}

impl Memory {
    /// Offset of the half that queue pair `index`'s own requests use.
    pub(super) fn local(&self, index: usize) -> usize {
        index % self.buffers * self.half
    }

    /// Offset of the half that the peer of queue pair `index` uses. As in perftest, this half is after all
    /// local halves.
    pub(super) fn exposed(&self, index: usize) -> usize {
        (self.buffers + index % self.buffers) * self.half
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of the test.
    Data,
    Mark,
    Credit,
    /// A zero-length Read after the messages that the Read confirms.
    Flush,
}

/// The fields of a `wr_id`: 8 bits for the kind, 16 bits for the queue pair, and 40 bits for the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrId {
    pub(super) kind: Kind,
    pub(super) qp: u16,
    pub(super) number: u64,
}

const NUMBER_BITS: u32 = 40;

impl WrId {
    pub(super) fn data(index: usize, number: u64) -> Self {
        Self { kind: Kind::Data, qp: index as u16, number }
    }

    pub(super) fn encode(self) -> u64 {
        let kind = match self.kind {
            Kind::Data => 0,
            Kind::Mark => 1,
            Kind::Credit => 2,
            Kind::Flush => 3,
        };
        kind << 56 | u64::from(self.qp) << NUMBER_BITS | self.number & ((1 << NUMBER_BITS) - 1)
    }

    pub(super) fn decode(wr_id: u64) -> Self {
        let kind = match wr_id >> 56 {
            0 => Kind::Data,
            1 => Kind::Mark,
            2 => Kind::Credit,
            _ => Kind::Flush,
        };
        Self { kind, qp: (wr_id >> NUMBER_BITS) as u16, number: wr_id & ((1 << NUMBER_BITS) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wr_id_comes_back_as_it_was() {
        for kind in [Kind::Data, Kind::Mark, Kind::Credit, Kind::Flush] {
            for (qp, number) in [(0, 0), (1023, 1), (7, (1 << NUMBER_BITS) - 1)] {
                let id = WrId { kind, qp, number };
                assert_eq!(WrId::decode(id.encode()), id);
            }
        }
    }

    #[test]
    fn control_parts_do_not_overlap() {
        let mut at: Vec<usize> = [ControlCell::Credit, ControlCell::CreditOut, ControlCell::MarkOut]
            .into_iter()
            .chain((0..MARK_SLOTS as u32).map(ControlCell::MarkIn))
            .flat_map(|part| [part.at(0), part.at(1)])
            .collect();
        at.sort_unstable();
        assert!(at.windows(2).all(|w| w[1] - w[0] >= 64));
    }
}
