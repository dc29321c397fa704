//! The loads whose instructions are counted, and their limits.

use crate::counted::Side;
use crate::stream::{Load, Op, WireKind};

const MIB: usize = 1 << 20;

/// The work of a load, which runs under callgrind in its own process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// FPDUs between two engines.
    Stream(Load),
    /// Acknowledgements between two stacks. With holes, one segment in 32 is lost.
    Acks { holes: bool },
}

/// A load with its name. Each side that the load counts is a row of the baseline: `NAME/SIDE`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedWork {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

/// Maximum cost of a row. `None` means that there is no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit {
    pub(crate) instructions: Option<f64>,
    pub(crate) locked: Option<f64>,
}

impl Limit {
    /// The limit of the row with this name.
    pub(crate) fn of(row: &str) -> Self {
        let of = |limits: &[(&str, u32)]| {
            limits.iter().find(|(name, _)| *name == row).map(|(_, most)| f64::from(*most))
        };
        Self { instructions: of(&INSTRUCTIONS), locked: of(&LOCKED) }
    }
}

/// Maximum number of instructions by row.
const INSTRUCTIONS: [(&str, u32); 18] = [
    ("write-64/sent", 3500),
    ("write-64/received", 2400),
    ("write-64-engines-16/sent", 3600),
    ("write-64-engines-16/received", 2150),
    ("send-64/sent", 3600),
    ("send-64/received", 2900),
    ("write-64-many/sent", 1100),
    ("write-64-many/received", 600),
    ("write-1m-1500/sent", 1800),
    ("write-1m-1500/received", 1500),
    ("write-1m-1500-plain/sent", 2400),
    ("write-1m-1500-plain/received", 2300),
    ("write-1m-9000/sent", 6897),
    ("write-1m-9000/received", 6405),
    ("write-1m-9000-markers/sent", 8987),
    ("write-1m-9000-markers/received", 7624),
    ("ack-in-order/acknowledged", 1100),
    ("ack-holes/acknowledged", 1500),
];

/// Maximum number of locked instructions by row.
const LOCKED: [(&str, u32); 4] = [
    ("write-64/sent", 12),
    ("write-64/received", 6),
    ("write-64-engines-16/sent", 8),
    ("write-64-engines-16/received", 3),
];

/// Pairs of loads whose rows have to cost the same within [`SAME_PERCENT`] percent, since the idle engines of
/// a host must not raise the cost of its busy engine.
const SAME: [(&str, &str); 3] = [
    ("write-1m-1500-engines-2/", "write-1m-1500/"),
    ("write-1m-1500-engines-4/", "write-1m-1500/"),
    ("write-1m-1500-engines-16/", "write-1m-1500/"),
];

/// Maximum difference in percent of two rows that have to cost the same.
pub(crate) const SAME_PERCENT: f64 = 1.0;

/// The row that has to cost the same as `row`, or `None` if there is no such row.
pub(crate) fn same_as(row: &str) -> Option<String> {
    SAME.iter().find_map(|(load, other)| Some(format!("{other}{}", row.strip_prefix(load)?)))
}

impl NamedWork {
    /// The sides that the load counts separately.
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

    /// The load with this name, or `None` if there is no such load.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }
}

/// One message in flight: each message has its own frame, and its own poll of each engine.
const fn alone(op: Op) -> Load {
    Load {
        op,
        bytes: 64,
        depth: 1,
        wire: WireKind::Virtual { mtu: 1500 },
        markers: false,
        ib_semantics: false,
        warm_up: 2000,
        counted: 4000,
        engines: 1,
    }
}

/// Many messages in flight: each poll and each segment has many FPDUs.
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
        ib_semantics: false,
        warm_up: 32,
        counted: 32,
        engines: 1,
    }
}

const fn row(name: &'static str, load: Load) -> NamedWork {
    NamedWork { name, work: Work::Stream(load) }
}

/// All loads. In a load of Reads, the responder is the side that sends, and the requester is the side that
/// receives.
pub(crate) const ROWS: [NamedWork; 19] = [
    row("write-64", alone(Op::Write)),
    row("write-64-many", many(Op::Write)),
    row("send-64", alone(Op::Send)),
    row("send-64-many", many(Op::Send)),
    // With `ib_semantics`, a request completes when the peer has accepted its message, as with programs of
    // libibverbs.
    row("write-64-ib", Load { ib_semantics: true, ..alone(Op::Write) }),
    row("send-64-ib", Load { ib_semantics: true, ..alone(Op::Send) }),
    row("send-64-ib-many", Load { ib_semantics: true, ..many(Op::Send) }),
    row("write-1m-1500", bulk(Op::Write, 1500)),
    // A wire without offloads: software computes the checksums, and each segment is one frame.
    row("write-1m-1500-plain", Load { wire: WireKind::Plain { mtu: 1500 }, ..bulk(Op::Write, 1500) }),
    row("write-1m-9000", bulk(Op::Write, 9000)),
    row("write-1m-9000-markers", Load { markers: true, ..bulk(Op::Write, 9000) }),
    row("read-1m-9000", bulk(Op::Read, 9000)),
    row("read-1m-9000-markers", Load { markers: true, ..bulk(Op::Read, 9000) }),
    row("write-64-engines-16", Load { engines: 16, ..alone(Op::Write) }),
    row("write-1m-1500-engines-2", Load { engines: 2, ..bulk(Op::Write, 1500) }),
    row("write-1m-1500-engines-4", Load { engines: 4, ..bulk(Op::Write, 1500) }),
    row("write-1m-1500-engines-16", Load { engines: 16, ..bulk(Op::Write, 1500) }),
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

    #[test]
    fn each_limit_is_of_a_row() {
        let rows: Vec<String> =
            ROWS.iter().flat_map(|row| row.sides().iter().map(|side| row.full_name(*side))).collect();
        for (name, _) in INSTRUCTIONS.iter().chain(&LOCKED) {
            assert!(rows.iter().any(|row| row == name), "{name}");
        }
        let pairs: Vec<_> = rows.iter().filter_map(|row| same_as(row)).collect();
        assert_eq!(pairs.len(), 2 * SAME.len());
        assert!(pairs.iter().all(|other| rows.contains(other)), "{pairs:?}");
    }
}
