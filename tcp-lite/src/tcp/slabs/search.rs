//! The state of a search for a larger EMSS: the size to try and the probe (RFC 8899 section 5.2). The state
//! is in a slab of the stack, so a connection that does not search needs no memory for a search.
//! `send/path_mtu.rs` starts a search and uses its result.

use std::num::NonZeroU16;

use dp::Mbuf;
use slab::Slab;

use crate::invariant::{Check, ensure};

/// A search is over when the EMSS could grow by less than this number of bytes, because a smaller gain is not
/// worth another probe.
const GRANULARITY: u32 = 8;

/// Maximum distance of a probe's first byte below SND.UNA. If the distance becomes larger, a probe with later
/// bytes replaces the probe. At twice the distance, the sequence numbers of the probe would wrap, and the
/// peer would treat old bytes as new bytes. (No window is larger than `REACH`.)
const REACH: u64 = 1 << 30;

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
    /// A slab with memory for `limit` searches, at most 65,535.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.min(usize::from(u16::MAX));
        Self { records: Slab::with_capacity(limit), limit }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The payload of a probe, which is sent like the payload of a segment.
    pub(crate) fn buf(&self, key: SearchKey) -> Option<&Mbuf> {
        self.records[key.record()].probe.as_ref().map(|probe| &probe.buf)
    }

    pub(in crate::tcp) fn take(&mut self, search: Search) -> Option<SearchKey> {
        let room = self.records.len() < self.limit;
        room.then(|| SearchKey(NonZeroU16::MIN.saturating_add(self.records.insert(search) as u16)))
    }

    /// Checks the search of a connection. `waits` is true if the probe of the search waits to be sent.
    pub(in crate::tcp) fn check_search(&self, key: SearchKey, waits: bool) -> Check {
        let Some(search) = self.records.get(key.record()) else {
            return Err(format!("{key:?} is not there"));
        };
        let gathered = search.probe.as_ref().map_or(0, |probe| probe.buf.len() as u32);
        let whole = gathered == search.size;
        ensure!(whole || search.stage == SearchStage::Gathering, "{gathered} of {} bytes sent", search.size);
        ensure!(gathered <= search.size && search.size <= search.high, "{gathered}, {}", search.size);
        ensure!(waits == (search.stage == SearchStage::Ready), "{:?}, a probe waits: {waits}", search.stage);
        Ok(())
    }

    /// Checks that there are `searching` searches.
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

/// A probe: acknowledged bytes that are sent once more.
pub(in crate::tcp) struct Probe {
    pub(in crate::tcp) buf: Mbuf,
    /// Position of the first byte (`seq.rs`).
    pub(in crate::tcp) pos: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum SearchStage {
    /// Bytes are copied as they are acknowledged.
    Gathering,
    /// There are enough bytes, and the probe waits to be sent.
    Ready,
    InFlight,
}

/// A search for a larger EMSS. All sizes are bytes of payload.
pub(in crate::tcp) struct Search {
    pub(in crate::tcp) stage: SearchStage,
    /// Size of the probe (PROBED_SIZE).
    pub(in crate::tcp) size: u32,
    /// The largest size that may still be possible.
    high: u32,
    /// Number of consecutive lost probes of this size (PROBE_COUNT).
    pub(in crate::tcp) lost: u8,
    pub(in crate::tcp) probe: Option<Probe>,
}

impl Search {
    /// A search for sizes up to `most`. The size `most` is probed first, because a path whose MTU has fallen
    /// often has its former MTU again later.
    pub(in crate::tcp) fn new(most: u32) -> Self {
        Self { stage: SearchStage::Gathering, size: most, high: most, lost: 0, probe: None }
    }

    /// Sets the next size, half-way between `emss`, which the path carries, and `high`. Returns `false`
    /// if the search is over.
    pub(in crate::tcp) fn set_next_size(&mut self, emss: u32) -> bool {
        self.size = (emss + self.high).div_ceil(2);
        self.stage = SearchStage::Gathering;
        self.lost = 0;
        self.probe = None;
        self.high >= emss + GRANULARITY
    }

    /// If the probe is more than [`REACH`] below `una`, drops the probe, so that bytes for another probe of
    /// the same size are gathered. Returns whether the probe was dropped.
    pub(in crate::tcp) fn drop_outdated_probe(&mut self, una: u64) -> bool {
        let far = self.probe.as_ref().is_some_and(|probe| una - probe.pos > REACH);
        if far {
            self.stage = SearchStage::Gathering;
            self.probe = None;
        }
        far
    }

    /// Notes that the path carries at most `high` bytes of payload. Returns `false` if the search is over.
    pub(in crate::tcp) fn set_upper_bound(&mut self, emss: u32, high: u32) -> bool {
        self.high = high;
        self.set_next_size(emss)
    }
}

#[cfg(test)]
mod tests {
    use dp::Mempool;

    use super::*;
    use crate::invariant::assert_found;

    /// A slab with one search, whose probe of 1000 bytes waits to be sent.
    fn searching() -> (SearchSlab, SearchKey) {
        let mut buf = Mempool::heap("search", 1, 2048).alloc().unwrap();
        assert!(buf.append_slice(&[0; 1000]));
        let probe = Some(Probe { buf, pos: 1 });
        let mut slab = SearchSlab::new(4);
        let key = slab.take(Search { stage: SearchStage::Ready, probe, ..Search::new(1000) }).unwrap();
        (slab, key)
    }

    #[test]
    fn a_search_whose_parts_disagree_is_found() {
        type Break = fn(&mut Search);
        let broken: [(Break, &str); 6] = [
            (|search| search.size = 1001, "1000 of 1001 bytes sent"),
            (|search| search.probe = None, "0 of 1000 bytes sent"),
            (|search| search.high = 999, "1000, 1000"),
            (
                |search| {
                    search.stage = SearchStage::Gathering;
                    search.size = 999;
                },
                "1000, 999",
            ),
            (|search| search.stage = SearchStage::InFlight, "InFlight, a probe waits: true"),
            (|search| search.stage = SearchStage::Gathering, "Gathering, a probe waits: true"),
        ];
        for (break_it, what) in broken {
            let (mut slab, key) = searching();
            slab.check_search(key, true).unwrap();
            break_it(slab.get_mut(key));
            assert_found(slab.check_search(key, true), what);
        }
        let (slab, key) = searching();
        assert_found(slab.check_search(key, false), "Ready, a probe waits: false");
    }

    #[test]
    fn a_search_that_nobody_has_is_found_and_one_that_is_not_there() {
        let (mut slab, key) = searching();
        slab.check(1).unwrap();
        assert_found(slab.check(0), "1 searches of 0");
        slab.remove(key);
        assert_found(slab.check(1), "0 searches of 1");
        assert_found(slab.check_search(key, true), "SearchKey(1) is not there");
    }
}
