//! The table of loads.

use crate::counted::Side;
use crate::stream::{Load, Op, WireKind};

const MIB: usize = 1 << 20;

/// The work of a load. It runs under callgrind in its own process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// FPDUs between two engines.
    Stream(Load),
    /// Acknowledgements between two stacks; with holes: one segment in 32 is lost.
    Acks { holes: bool },
}

/// A load with its name. Each side that it counts is a row of the baseline: `NAME/SIDE`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedWork {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

impl NamedWork {
    /// The sides that it counts separately.
    pub(crate) fn sides(&self) -> &'static [Side] {
        match self.work {
            Work::Stream(_) => &[Side::Sent, Side::Received],
            Work::Acks { .. } => &[Side::Acknowledged],
        }
    }

    /// The name of a row of the baseline.
    pub(crate) fn full_name(&self, side: Side) -> String {
        format!("{}/{}", self.name, side.name())
    }

    /// The load with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }
}

/// One message in flight: each has its own frame and its own poll of either engine.
const fn alone(op: Op) -> Load {
    Load {
        op,
        bytes: 64,
        depth: 1,
        wire: WireKind::Virtual { mtu: 1500 },
        markers: false,
        warm_up: 2000,
        counted: 4000,
    }
}

/// Many messages in flight: a poll and a segment have many FPDUs.
const fn many(op: Op) -> Load {
    Load { depth: 64, warm_up: 4096, counted: 16_384, ..alone(op) }
}

/// Messages of 1 MiB, four in flight.
const fn bulk(op: Op, mtu: u16) -> Load {
    Load {
        op,
        bytes: MIB,
        depth: 4,
        wire: WireKind::Virtual { mtu },
        markers: false,
        warm_up: 32,
        counted: 32,
    }
}

const fn row(name: &'static str, load: Load) -> NamedWork {
    NamedWork { name, work: Work::Stream(load) }
}

/// All loads. In a Read, the responder sends FPDUs and the requester receives them.
pub(crate) const ROWS: [NamedWork; 12] = [
    row("write-64", alone(Op::Write)),
    row("write-64-many", many(Op::Write)),
    row("send-64", alone(Op::Send)),
    row("send-64-many", many(Op::Send)),
    row("write-1m-1500", bulk(Op::Write, 1500)),
    // No offloads: checksums in software, each segment a frame.
    row("write-1m-1500-plain", Load { wire: WireKind::Plain { mtu: 1500 }, ..bulk(Op::Write, 1500) }),
    row("write-1m-9000", bulk(Op::Write, 9000)),
    row("write-1m-9000-markers", Load { markers: true, ..bulk(Op::Write, 9000) }),
    row("read-1m-9000", bulk(Op::Read, 9000)),
    row("read-1m-9000-markers", Load { markers: true, ..bulk(Op::Read, 9000) }),
    NamedWork { name: "ack-in-order", work: Work::Acks { holes: false } },
    NamedWork { name: "ack-holes", work: Work::Acks { holes: true } },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            assert!(NamedWork::named(row.name).is_some());
        }
    }
}
