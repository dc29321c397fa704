//! The tests of iwperf, and the operation of each test.

/// A test, named by its operation and by the figure that it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Bandwidth of RDMA Writes (`ib_write_bw`).
    WriteBw,
    /// Bandwidth of RDMA Reads (`ib_read_bw`).
    ReadBw,
    /// Bandwidth of Sends (`ib_send_bw`).
    SendBw,
    /// Half the round trip of two RDMA Writes (`ib_write_lat`).
    WriteLat,
    /// The round trip of an RDMA Read (`ib_read_lat`).
    ReadLat,
    /// Half the round trip of two Sends (`ib_send_lat`).
    SendLat,
    /// Bandwidth of RDMA Writes with Immediate Data (`ib_write_bw --write_with_imm`).
    WriteImmBw,
    /// Rate of atomics (`ib_atomic_bw`).
    AtomicBw,
    /// The round trip of an atomic (`ib_atomic_lat`).
    AtomicLat,
}

/// The operation that moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send.
    Send,
    /// RDMA Write with Immediate Data.
    WriteImmediate,
    /// Atomic on eight bytes.
    Atomic,
}

impl Verb {
    /// Whether the peer answers each request. The completion of such a request confirms the message.
    pub fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }

    /// Whether each request consumes a receive of the peer.
    pub fn uses_receives(self) -> bool {
        matches!(self, Self::Send | Self::WriteImmediate)
    }
}

/// The operation of an atomic test, by perftest's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
pub enum AtomicKind {
    /// Compare and swap. Each operation succeeds.
    #[value(name = "CMP_AND_SWAP")]
    #[serde(rename = "CMP_AND_SWAP")]
    CompareSwap,
    /// Fetch and add 1.
    #[default]
    #[value(name = "FETCH_AND_ADD")]
    #[serde(rename = "FETCH_AND_ADD")]
    FetchAdd,
}

/// Number of bytes of an atomic.
pub const ATOMIC_BYTES: u32 = 8;

impl Test {
    /// All tests, in the order of their numbers in our private data.
    pub const ALL: [Self; 9] = [
        Self::WriteBw,
        Self::ReadBw,
        Self::SendBw,
        Self::WriteLat,
        Self::ReadLat,
        Self::SendLat,
        Self::WriteImmBw,
        Self::AtomicBw,
        Self::AtomicLat,
    ];

    /// The operation that moves the data.
    pub fn verb(self) -> Verb {
        match self {
            Self::WriteBw | Self::WriteLat => Verb::Write,
            Self::ReadBw | Self::ReadLat => Verb::Read,
            Self::SendBw | Self::SendLat => Verb::Send,
            Self::WriteImmBw => Verb::WriteImmediate,
            Self::AtomicBw | Self::AtomicLat => Verb::Atomic,
        }
    }

    /// Whether the test measures latency (true) or bandwidth (false).
    pub fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat)
    }

    /// Whether the target gives the source credits: one for each message for which the target has posted a
    /// new receive request.
    pub fn has_credits(self) -> bool {
        self.verb().uses_receives() && !self.is_latency()
    }

    /// The name of the test on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write-bw",
            Self::ReadBw => "read-bw",
            Self::SendBw => "send-bw",
            Self::WriteLat => "write-lat",
            Self::ReadLat => "read-lat",
            Self::SendLat => "send-lat",
            Self::WriteImmBw => "write-imm-bw",
            Self::AtomicBw => "atomic-bw",
            Self::AtomicLat => "atomic-lat",
        }
    }
}
