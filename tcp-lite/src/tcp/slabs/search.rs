//! A search for a larger EMSS: its stages and its probe (RFC 8899 section 5.2), in a slab of the
//! stack, so that a connection that does not search has none. When one begins, and what follows
//! from its outcome, is in `path_mtu.rs`.

use std::num::NonZeroU16;

use dp::Mbuf;
use slab::Slab;

use crate::invariant::{Check, ensure};

/// A search is over when what may be left to gain is less than this, bytes.
const GRANULARITY: u32 = 8;

/// How far behind SND.UNA a probe may begin, bytes. Its bytes are taken anew before that: at
/// twice as far its sequence numbers come around, and what was sent long ago would be taken for
/// what comes next. (No window is larger than this.)
const REACH: u64 = 1 << 30;

/// Names a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchKey(NonZeroU16);

impl SearchKey {
    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Searches of the connections that probe now.
pub(crate) struct SearchSlab {
    records: Slab<Search>,
    limit: usize,
}

impl SearchSlab {
    /// Room for `limit` searches, 65,535 at most, taken now.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.min(usize::from(u16::MAX));
        Self { records: Slab::with_capacity(limit), limit }
    }

    /// Searches under way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// A probe's payload, to be sent as a segment's is.
    pub(crate) fn buf(&self, key: SearchKey) -> Option<&Mbuf> {
        self.records[key.record()].probe.as_ref().map(|probe| &probe.buf)
    }

    pub(in crate::tcp) fn take(&mut self, search: Search) -> Option<SearchKey> {
        let room = self.records.len() < self.limit;
        room.then(|| SearchKey(NonZeroU16::MIN.saturating_add(self.records.insert(search) as u16)))
    }

    /// The search of a connection, whose probe waits to be sent if `waits`.
    pub(in crate::tcp) fn check_search(&self, key: SearchKey, waits: bool) -> Check {
        let Some(search) = self.records.get(key.record()) else {
            return Err(format!("{key:?} is not there"));
        };
        let gathered = search.probe.as_ref().map_or(0, |probe| probe.buf.len() as u32);
        let whole = gathered == search.size;
        ensure!(whole || search.stage == Stage::Gathering, "{gathered} of {} bytes sent", search.size);
        ensure!(gathered <= search.size && search.size <= search.high, "{gathered}, {}", search.size);
        ensure!(waits == (search.stage == Stage::Ready), "{:?}, a probe waits: {waits}", search.stage);
        Ok(())
    }

    /// So many connections search.
    pub(crate) fn check(&self, searching: usize) -> Check {
        ensure!(self.records.len() == searching, "{} searches of {searching}", self.records.len());
        Ok(())
    }

    pub(in crate::tcp) fn get_mut(&mut self, key: SearchKey) -> &mut Search {
        &mut self.records[key.record()]
    }

    pub(in crate::tcp) fn remove(&mut self, key: SearchKey) {
        self.records.remove(key.record());
    }
}

/// Bytes that are acknowledged, to be sent once more.
pub(in crate::tcp) struct Probe {
    pub(in crate::tcp) buf: Mbuf,
    /// Position of the first (`seq.rs`).
    pub(in crate::tcp) pos: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Stage {
    /// Bytes are taken over as they are acknowledged.
    Gathering,
    /// There are enough; they wait for their turn.
    Ready,
    /// Sent.
    Flying,
}

/// A search for a larger EMSS. All sizes are bytes of payload.
pub(in crate::tcp) struct Search {
    pub(in crate::tcp) stage: Stage,
    /// Of the probe (PROBED_SIZE).
    pub(in crate::tcp) size: u32,
    /// The largest that may still be carried.
    high: u32,
    /// Probes of this size lost in a row (PROBE_COUNT).
    pub(in crate::tcp) lost: u8,
    pub(in crate::tcp) probe: Option<Probe>,
}

impl Search {
    /// From `emss` to `most`, which is tried first: most paths that narrowed are wide again.
    pub(in crate::tcp) fn new(most: u32) -> Self {
        Self { stage: Stage::Gathering, size: most, high: most, lost: 0, probe: None }
    }

    /// What is tried next between `emss`, which the path carries, and `high`. `false`: nothing, the
    /// search is over.
    pub(in crate::tcp) fn aim(&mut self, emss: u32) -> bool {
        self.size = (emss + self.high).div_ceil(2);
        self.stage = Stage::Gathering;
        self.lost = 0;
        self.probe = None;
        self.high >= emss + GRANULARITY
    }

    /// Forgets bytes that are out of [`REACH`] of `una`; others of the same size are to be
    /// gathered. Returns whether they were.
    pub(in crate::tcp) fn renew(&mut self, una: u64) -> bool {
        let far = self.probe.as_ref().is_some_and(|probe| una - probe.pos > REACH);
        if far {
            self.stage = Stage::Gathering;
            self.probe = None;
        }
        far
    }

    /// The path does not carry more than `high`.
    pub(in crate::tcp) fn refute(&mut self, emss: u32, high: u32) -> bool {
        self.high = high;
        self.aim(emss)
    }
}
