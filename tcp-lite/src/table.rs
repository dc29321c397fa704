//! Demultiplexer: a hash table that maps 4-tuples to connection slots. The hash has a secret key, so that
//! attackers cannot choose tuples that collide.
//!
//! The table stores only hashes and slots. The caller reads the connection's state anyway, and compares the
//! tuple in this state with the wanted tuple. Two connections rarely have the same hash. A lookup usually
//! reads one cache line, which can be prefetched. A lookup in a map of tuples would read more cache lines.

use std::hash::BuildHasher;

use crate::four_tuple::FourTuple;
use crate::invariant::{Check, ensure};
use crate::secrets::KeyedState;

/// The hash table. The table grows only when a connection is created.
///
/// The table uses open addressing with linear probing: a search goes from the home position of the hash up to
/// the next free entry.
#[derive(Debug)]
pub(crate) struct ConnTable {
    keyed: KeyedState,
    /// The entries: their number is a power of two, or 0. At most half of the entries are in use.
    places: Vec<TableEntry>,
    taken: usize,
}

/// The hash of a tuple, as stored in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TupleHash(u32);

impl TupleHash {
    /// The home position of the hash in a table of `places` entries, a power of two.
    const fn home_of(self, places: usize) -> usize {
        self.0 as usize & (places - 1)
    }
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    hash: TupleHash,
    /// The slot; [`FREE`] if the entry is unused.
    slot: u32,
}

/// No connection has this slot number.
const FREE: u32 = u32::MAX;

/// Size of the smallest table: two cache lines.
const MIN_PLACES: usize = 16;

impl ConnTable {
    pub(crate) const fn new(keyed: KeyedState) -> Self {
        Self { keyed, places: Vec::new(), taken: 0 }
    }

    pub(crate) fn hash(&self, tuple: &FourTuple) -> TupleHash {
        TupleHash(self.keyed.hash_one(tuple) as u32)
    }

    /// The first slot with this hash for which `is_it` returns `true`; `None` if there is no such slot.
    pub(crate) fn find(&self, hash: TupleHash, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let is_it = |place: &&TableEntry| place.hash == hash && is_it(place.slot);
        self.from(self.home(hash)?).find(is_it).map(|place| place.slot)
    }

    /// Prefetches the entry that [`find`](Self::find) reads first.
    pub(crate) fn prefetch(&self, hash: TupleHash) {
        if let Some(at) = self.home(hash) {
            dp::prefetch(&self.places[at]);
        }
    }

    /// Adds a slot, which is not `u32::MAX`.
    pub(crate) fn insert(&mut self, hash: TupleHash, slot: u32) {
        if 2 * (self.taken + 1) > self.places.len() {
            let more = (2 * self.places.len()).max(MIN_PLACES);
            let before = std::mem::replace(
                &mut self.places,
                vec![TableEntry { hash: TupleHash(0), slot: FREE }; more],
            );
            before.into_iter().filter(|place| place.slot != FREE).for_each(|place| self.put(place));
        }
        self.put(TableEntry { hash, slot });
        self.taken += 1;
    }

    /// Removes a slot, if it is in the table.
    pub(crate) fn remove(&mut self, hash: TupleHash, slot: u32) {
        let Some(home) = self.home(hash) else { return };
        let Some(behind) = self.from(home).position(|place| place.slot == slot) else { return };
        let mask = self.places.len() - 1;
        let mut gap = (home + behind) & mask;
        let mut at = gap;
        self.taken -= 1;
        // Later entries move into the gap, except entries whose home position is after the gap: a search
        // would no longer find an entry that is before its home position.
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place.slot == FREE {
                break;
            }
            let home = place.hash.home_of(self.places.len());
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.places[gap] = place;
                gap = at;
            }
        }
        self.places[gap].slot = FREE;
    }

    /// Checks that `slots` entries are in use, at most half of the table, and that each slot is found by its
    /// hash.
    pub(crate) fn check(&self, slots: usize) -> Check {
        let taken = || self.places.iter().filter(|place| place.slot != FREE);
        let count = taken().count();
        ensure!((self.taken, count) == (slots, slots), "{} and {count} places for {slots}", self.taken);
        ensure!(2 * count <= self.places.len(), "{count} of {} places", self.places.len());
        let lost = taken().find(|place| self.find(place.hash, |slot| slot == place.slot).is_none());
        ensure!(lost.is_none(), "slot {:?} is not found by its hash", lost.map(|place| place.slot));
        Ok(())
    }

    /// The home position of a hash; `None` if the table is empty.
    fn home(&self, hash: TupleHash) -> Option<usize> {
        (!self.places.is_empty()).then(|| hash.home_of(self.places.len()))
    }

    /// The entries from `at` up to the next free entry.
    fn from(&self, at: usize) -> impl Iterator<Item = &TableEntry> {
        let (before, behind) = self.places.split_at(at);
        behind.iter().chain(before).take_while(|place| place.slot != FREE)
    }

    fn put(&mut self, place: TableEntry) {
        let mask = self.places.len() - 1;
        let mut at = place.hash.home_of(self.places.len());
        while self.places[at].slot != FREE {
            at = (at + 1) & mask;
        }
        self.places[at] = place;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::facade::IpAddress;
    use crate::invariant::assert_found;
    use crate::secrets::Secrets;

    fn table() -> ConnTable {
        ConnTable::new(Secrets::new([7; 32]).table_state())
    }

    proptest! {
        // Compares the table with a map. Many hashes have the same home position, some of them at the end of
        // the table, and some hashes are equal.
        #[test]
        fn finds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0_u32..40), 0..400),
            hashes in prop::collection::vec(prop_oneof![0_u32..4, u32::MAX - 3..=u32::MAX, any::<u32>()], 40),
        ) {
            let (mut table, mut model) = (table(), HashMap::new());
            for (put, slot) in steps {
                let hash = TupleHash(hashes[slot as usize]);
                if put && model.insert(slot, hash).is_none() {
                    table.insert(hash, slot);
                } else if !put {
                    model.remove(&slot);
                    table.remove(hash, slot);
                }
                prop_assert_eq!(table.taken, model.len());
                prop_assert!(2 * table.taken <= table.places.len());
                for slot in 0..40 {
                    let hash = TupleHash(hashes[slot as usize]);
                    let found = table.find(hash, |other| other == slot);
                    prop_assert_eq!(found, model.contains_key(&slot).then_some(slot));
                    // Only slots with the hash `hash` are passed to the closure.
                    table.find(hash, |other| {
                        assert_eq!(model[&other], hash);
                        false
                    });
                }
            }
        }
    }

    #[test]
    fn an_empty_table_has_nothing_and_takes_no_memory() {
        let table = table();
        assert_eq!((table.find(TupleHash(0), |_| true), table.places.capacity()), (None, 0));
        table.prefetch(TupleHash(5));
    }

    #[test]
    fn tuples_that_differ_in_anything_have_hashes_that_differ() {
        let table = table();
        let tuple = FourTuple {
            local: IpAddress::v4(10, 0, 0, 1),
            local_port: 7471,
            remote: IpAddress::v4(10, 0, 0, 2),
            remote_port: 49_152,
        };
        let others = [
            FourTuple { local: IpAddress::v4(10, 0, 0, 3), ..tuple },
            FourTuple { local_port: 7472, ..tuple },
            FourTuple { remote: IpAddress::v4(10, 0, 0, 4), ..tuple },
            FourTuple { remote_port: 49_153, ..tuple },
        ];
        assert!(others.iter().all(|other| table.hash(other) != table.hash(&tuple)));
        assert_eq!(table.hash(&tuple), table.hash(&tuple.clone()));
    }

    #[test]
    fn a_table_whose_parts_disagree_is_found() {
        type Break = fn(&mut ConnTable);
        let broken: [(Break, &str); 6] = [
            (|table| table.taken += 1, "3 and 2 places for 2"),
            (|table| table.taken -= 1, "1 and 2 places for 2"),
            (|table| table.places[0].slot = FREE, "2 and 1 places for 2"),
            (|table| table.places.truncate(3), "2 of 3 places"),
            (|table| table.places[1].hash = TupleHash(9), "slot Some(1) is not found by its hash"),
            (|table| table.places.swap(1, 2), "slot Some(1) is not found by its hash"),
        ];
        for (break_it, what) in broken {
            let mut table = table();
            for slot in [0, 1] {
                table.insert(TupleHash(0), slot);
            }
            table.check(2).unwrap();
            break_it(&mut table);
            assert_found(table.check(2), what);
        }
    }
}
