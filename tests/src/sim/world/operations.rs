//! The operations of the users of an iWARP connection, and their memory. Each operation has its own ranges,
//! so that its effect can be distinguished from the effects of other operations. Only the atomics of a side
//! share their target: one counter of the peer.

use iwarp::memory::{Access, Base};
use iwarp::verbs::{
    AtomicOp, MemoryRegion, MrOptions, ProtectionDomain, RecvRequest, RemoteAddr, SendOp, SendRequest, Sge,
    VerbsError,
};

use crate::pattern::Pattern;

/// Value with which a completed target is overwritten, so that a later write to this target is visible.
const SPENT: u8 = 0xa5;

/// Initial value of memory, except of the counter. The value must not change where no bytes may be placed.
const UNTOUCHED: u8 = 0x5a;

/// Number of bytes between two ranges.
const GUARD: usize = 16;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Send.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Write with Immediate Data.
    WriteImmediate,
    /// An RDMA Read.
    Read,
    /// A fetch and add of this value.
    FetchAdd(u64),
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The kind of the operation.
    pub kind: Kind,
    /// Number of bytes. The number has no meaning for an atomic.
    pub bytes: usize,
    /// Minimum time in microseconds from the post of this operation to the post of the next operation.
    pub think_us: u64,
}

impl Operation {
    /// Whether the operation consumes a receive request of the peer.
    pub fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::WriteImmediate)
    }
}

/// The ranges of an operation: their offsets in the poster's memory and in the peer's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    pub(super) own: usize,
    pub(super) peer: usize,
    /// Offset at which the peer receives a message.
    pub(super) receive: usize,
}

/// The operations of both sides, with their ranges.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) places: [Vec<Places>; 2],
    /// Offset of each side's counter, to which the peer's atomics add.
    pub(super) counter: [usize; 2],
    pub(super) bytes: [usize; 2],
    /// The parts of each side's memory that may change: offset and length.
    pub(super) used: [Vec<(usize, usize)>; 2],
}

impl Layout {
    pub(super) fn new(operations: &[Vec<Operation>; 2]) -> Self {
        let mut bytes = [8 + GUARD; 2];
        let mut used = [vec![(0, 8)], vec![(0, 8)]];
        let mut take = |side: usize, length: usize| {
            let at = bytes[side];
            bytes[side] += length.next_multiple_of(8) + GUARD;
            used[side].push((at, length));
            at
        };
        let places = [0, 1].map(|side: usize| {
            let one = |operation: &Operation| match operation.kind {
                Kind::Send => Places {
                    own: take(side, operation.bytes),
                    peer: 0,
                    receive: take(1 - side, operation.bytes),
                },
                Kind::Write | Kind::Read => Places {
                    own: take(side, operation.bytes),
                    peer: take(1 - side, operation.bytes),
                    receive: 0,
                },
                Kind::WriteImmediate => Places {
                    own: take(side, operation.bytes),
                    peer: take(1 - side, operation.bytes),
                    receive: take(1 - side, 8),
                },
                Kind::FetchAdd(_) => Places { own: take(side, 8), peer: 0, receive: 0 },
            };
            operations[side].iter().map(one).collect()
        });
        Self { places, counter: [0, 0], bytes, used }
    }
}

/// The memory of one side.
pub(super) struct Memory {
    region: MemoryRegion,
    spent: Vec<(usize, usize)>,
}

impl Memory {
    /// Registers memory whose addresses begin at 0, since the addresses in the process differ from run to
    /// run.
    pub(super) fn new(pd: &ProtectionDomain, bytes: usize) -> Result<Self, VerbsError> {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let options = MrOptions { base: Base::Zero, ..MrOptions::new(all) };
        let region = pd.reg_mr_with(bytes, &options)?;
        region.write_at(0, &vec![UNTOUCHED; bytes])?;
        region.write_at(0, &[0; 8])?;
        Ok(Self { region, spent: Vec::new() })
    }

    pub(super) fn fill(&self, at: usize, bytes: usize, pattern: Pattern) -> Result<(), String> {
        let mut content = vec![0; bytes];
        pattern.fill(0, &mut content);
        self.region.write_at(at, &content).map_err(|error| error.to_string())
    }

    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, String> {
        let mut content = vec![0; bytes];
        self.region.read_at(at, &mut content).map_err(|error| error.to_string())?;
        Ok(content)
    }

    pub(super) fn counter(&self, at: usize) -> Result<u64, String> {
        let bytes = self.read(at, 8)?;
        bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)).ok_or_else(|| "eight bytes".into())
    }

    /// Checks that the bytes delivered to `at` match `pattern`. After this call, no bytes may be placed
    /// there.
    pub(super) fn check(&mut self, at: usize, bytes: usize, pattern: Pattern) -> Result<(), String> {
        if let Some(wrong) = pattern.first_wrong(0, &self.read(at, bytes)?) {
            return Err(format!("byte {wrong} of {bytes} delivered is wrong"));
        }
        self.spend(at, bytes)
    }

    pub(super) fn spend(&mut self, at: usize, bytes: usize) -> Result<(), String> {
        self.spent.push((at, bytes));
        self.region.write_at(at, &vec![SPENT; bytes]).map_err(|error| error.to_string())
    }

    /// Checks that no bytes were placed outside `used`, whose ranges are sorted and begin with the counter at
    /// 0.
    pub(super) fn check_guards(&self, used: &[(usize, usize)]) -> Result<(), String> {
        let all = self.read(0, self.region.len())?;
        let ends = used.iter().map(|(at, bytes)| at + bytes);
        let begins = used.iter().map(|(at, _)| *at).skip(1).chain([all.len()]);
        for (from, to) in ends.zip(begins) {
            if let Some(wrong) = all[from..to].iter().position(|byte| *byte != UNTOUCHED) {
                return Err(format!("memory at {} changed, outside of all operations", from + wrong));
            }
        }
        Ok(())
    }

    /// Checks bytes at `at` that may have been placed but were never delivered. These bytes also have to be
    /// correct, since no bytes are placed before their CRC is checked.
    pub(super) fn check_undelivered(&self, at: usize, bytes: usize, pattern: Pattern) -> Result<(), String> {
        if self.spent.contains(&(at, bytes)) {
            return Ok(());
        }
        let mut right = vec![0; bytes];
        pattern.fill(0, &mut right);
        let found = self.read(at, bytes)?;
        let wrong = found.iter().zip(&right).position(|(byte, right)| byte != right && *byte != UNTOUCHED);
        match wrong {
            None => Ok(()),
            Some(wrong) => Err(format!("byte {wrong} of {bytes} placed at {at} and not delivered is wrong")),
        }
    }

    /// Checks that no bytes were placed where bytes had been delivered before.
    pub(super) fn check_spent(&self) -> Result<(), String> {
        for &(at, bytes) in &self.spent {
            if self.read(at, bytes)?.iter().any(|byte| *byte != SPENT) {
                return Err(format!("memory at {at}, {bytes} bytes, changed after it was delivered"));
            }
        }
        Ok(())
    }

    pub(super) fn receive(&self, number: u64, at: usize, bytes: usize) -> RecvRequest {
        RecvRequest::new(number, self.sge(at, bytes))
    }

    fn sge(&self, at: usize, bytes: usize) -> Sge {
        self.region.sge(at, bytes)
    }

    pub(super) fn rkey(&self) -> u32 {
        self.region.rkey()
    }
}

/// A request that the peer has to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A Write past the end of the peer's memory.
    WriteBeyond,
    /// A Write with an unknown STag.
    WriteNowhere,
    /// A Read past the end of the peer's memory.
    ReadBeyond,
}

/// Returns the request of `fault`, which has 8 bytes.
pub(super) fn faulty(number: u64, fault: Fault, own: &Memory, peer: &Memory) -> SendRequest {
    let beyond = RemoteAddr { addr: peer.region.len() as u64 - 4, rkey: peer.rkey() };
    let op = match fault {
        Fault::WriteBeyond => SendOp::Write { remote: beyond },
        Fault::WriteNowhere => SendOp::Write { remote: RemoteAddr { addr: 0, rkey: !peer.rkey() } },
        Fault::ReadBeyond => SendOp::Read { remote: beyond },
    };
    SendRequest::new(number, op, own.sge(0, 8))
}

/// Returns the request of `operation`, which the owner of `own` posts. The peer of the request is the owner
/// of `peer`.
pub(super) fn request(
    number: u64,
    operation: &Operation,
    places: Places,
    own: &Memory,
    peer: &Memory,
    counter: usize,
) -> SendRequest {
    let remote = |at: usize| RemoteAddr { addr: at as u64, rkey: peer.rkey() };
    let (op, bytes) = match operation.kind {
        Kind::Send => (SendOp::Send, operation.bytes),
        Kind::Write => (SendOp::Write { remote: remote(places.peer) }, operation.bytes),
        Kind::WriteImmediate => {
            let data = number.to_be_bytes();
            (SendOp::WriteImmediate { remote: remote(places.peer), data }, operation.bytes)
        }
        Kind::Read => (SendOp::Read { remote: remote(places.peer) }, operation.bytes),
        Kind::FetchAdd(add) => {
            let op = AtomicOp::FetchAdd { add, mask: 0 };
            (SendOp::Atomic { remote: remote(counter), op }, 8)
        }
    };
    SendRequest::new(number, op, own.sge(places.own, bytes))
}
