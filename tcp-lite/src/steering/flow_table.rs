//! A table of the connections of a host, each with the number of its stack. All stacks read and write the
//! table without locks.
//!
//! A stack writes to the table when a connection begins and when it ends. Apart from that, a stack reads the
//! table only for a segment (or an ICMP error about a segment) that belongs to none of its own connections.
//!
//! An entry has a keyed hash of the 4-tuple, and the number of the stack. If the 56-bit hashes of two
//! connections are equal, the second connection is refused, as if it existed already. The entry of a flow can
//! be in only two cache lines, so a search reads at most two lines, however often entries are added and
//! removed.
//!
//! `tests/loom_flow_table.rs` compiles this file with loom's atomics, and tries every interleaving of two
//! stacks that claim and release a flow.

use super::atomic::{AtomicU64, Ordering, fence};

/// Number of entries in a cache line.
const LINE: usize = 8;
/// Number of lines in which the entry of a flow may be.
const WINDOW: usize = 2;
/// Number of entries for each possible connection. With this number, all 16 places of a flow are occupied in
/// less than one case in a hundred million.
const ENTRIES_PER_CONNECTION: usize = 8;
/// Mask of the part of an entry that contains the number of its stack.
const OWNER: u64 = 0xff;
/// The value of an unused entry.
const FREE: u64 = 0;

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; LINE]);

pub(crate) struct FlowTable {
    /// The entries. The number of lines is a power of two.
    lines: Box<[Line]>,
}

/// Why a flow cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimError {
    /// A stack has the flow already, or another stack claims the flow at this moment.
    Taken,
    /// All places of the flow are occupied.
    Full,
}

/// The keyed hash of a 4-tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHash(u64);

impl FlowHash {
    pub(crate) fn new(hash: u64) -> Self {
        // The bits of the hash must not all be 0, because the value 0 is a free entry.
        let named = hash & !OWNER;
        Self(if named == FREE { OWNER + 1 } else { named })
    }
}

impl FlowTable {
    pub(crate) fn new(connections: usize) -> Self {
        let lines = (connections * ENTRIES_PER_CONNECTION).div_ceil(LINE).next_power_of_two().max(WINDOW);
        Self { lines: (0..lines).map(|_| Line::default()).collect() }
    }

    /// The stack that has this flow; `None` if no stack has the flow.
    pub(crate) fn owner(&self, flow: FlowHash) -> Option<u8> {
        let entry = self.places(flow).map(|place| place.load(Ordering::Acquire));
        entry.into_iter().find(|entry| entry & !OWNER == flow.0).map(|entry| (entry & OWNER) as u8)
    }

    /// Adds a flow of stack `owner`, unless a stack has the flow. If two stacks claim one flow at the same
    /// time, at most one of the two claims succeeds, and possibly both fail.
    ///
    /// # Errors
    /// [`ClaimError::Taken`] if a stack has the flow, or another stack claims the flow at the same time.
    /// [`ClaimError::Full`] if all places of the flow are occupied.
    pub(crate) fn claim(&self, flow: FlowHash, owner: u8) -> Result<(), ClaimError> {
        if self.owner(flow).is_some() {
            return Err(ClaimError::Taken);
        }
        let entry = flow.0 | u64::from(owner);
        let take = |place: &&AtomicU64| {
            place.compare_exchange(FREE, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = self.places(flow).find(take).ok_or(ClaimError::Full)?;
        // If two stacks claim the flow, the stack that executes this fence later finds the entry of the other
        // stack.
        fence(Ordering::SeqCst);
        let claims = |place: &&AtomicU64| place.load(Ordering::Acquire) & !OWNER == flow.0;
        if self.places(flow).filter(claims).count() > 1 {
            place.store(FREE, Ordering::Release);
            return Err(ClaimError::Taken);
        }
        Ok(())
    }

    /// Removes a flow of stack `owner`.
    pub(crate) fn release(&self, flow: FlowHash, owner: u8) {
        let entry = flow.0 | u64::from(owner);
        if let Some(place) = self.places(flow).find(|place| place.load(Ordering::Relaxed) == entry) {
            place.store(FREE, Ordering::Release);
        }
    }

    /// Removes all flows of a stack that is gone.
    pub(crate) fn release_all(&self, owner: u8) {
        for place in self.lines.iter().flat_map(|line| &line.0) {
            let entry = place.load(Ordering::Relaxed);
            if entry != FREE && entry & OWNER == u64::from(owner) {
                place.store(FREE, Ordering::Release);
            }
        }
    }

    /// The places in which the entry of a flow may be.
    fn places(&self, flow: FlowHash) -> impl Iterator<Item = &AtomicU64> {
        let mask = self.lines.len() - 1;
        let home = (flow.0 >> 8) as usize;
        (home..home + WINDOW).flat_map(move |line| &self.lines[line & mask].0)
    }
}
