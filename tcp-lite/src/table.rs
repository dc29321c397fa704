//! Which connection a segment belongs to: a hash table from 4-tuples to slots, keyed against chosen
//! collisions.
//!
//! It knows hashes and slots only. That a slot is the tuple's is looked up there, where the connection's
//! state is wanted anyway; two connections of one hash are rare. One cache line is read where a map of tuples
//! has three, and it can be fetched ahead.

use std::hash::BuildHasher;

use crate::four_tuple::FourTuple;
use crate::invariant::{Check, ensure};
use crate::secrets::KeyedState;

/// The demultiplexer. Grows when connections are created, never by what arrives for existing ones.
///
/// Open addressing with linear probing: a place is looked for from its hash's own on, up to one that is free.
#[derive(Debug)]
pub(crate) struct ConnTable {
    keyed: KeyedState,
    /// A power of two of them, or none; at most half are taken.
    places: Vec<Place>,
    taken: usize,
}

/// The hash of a tuple, as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TupleHash(u32);

impl TupleHash {
    /// Where it is looked for first among `places`, a power of two.
    const fn own_of(self, places: usize) -> usize {
        self.0 as usize & (places - 1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: TupleHash,
    /// [`FREE`] where there is none.
    slot: u32,
}

/// No connection has this slot.
const FREE: u32 = u32::MAX;

/// Of a table with one connection.
const FEWEST_PLACES: usize = 16;

impl ConnTable {
    pub(crate) const fn new(keyed: KeyedState) -> Self {
        Self { keyed, places: Vec::new(), taken: 0 }
    }

    pub(crate) fn hash(&self, tuple: &FourTuple) -> TupleHash {
        TupleHash(self.keyed.hash_one(tuple) as u32)
    }

    /// The first slot of this hash that `is_it`.
    pub(crate) fn find(&self, hash: TupleHash, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let is_it = |place: &&Place| place.hash == hash && is_it(place.slot);
        self.from(self.own(hash)?).find(is_it).map(|place| place.slot)
    }

    /// Has what [`find`](Self::find) will read fetched to the cache.
    pub(crate) fn prefetch(&self, hash: TupleHash) {
        if let Some(at) = self.own(hash) {
            dp::prefetch(&self.places[at]);
        }
    }

    /// Adds a slot, which is not `u32::MAX`.
    pub(crate) fn insert(&mut self, hash: TupleHash, slot: u32) {
        if 2 * (self.taken + 1) > self.places.len() {
            let more = (2 * self.places.len()).max(FEWEST_PLACES);
            let before =
                std::mem::replace(&mut self.places, vec![Place { hash: TupleHash(0), slot: FREE }; more]);
            before.into_iter().filter(|place| place.slot != FREE).for_each(|place| self.put(place));
        }
        self.put(Place { hash, slot });
        self.taken += 1;
    }

    /// Takes a slot out, if it is there.
    pub(crate) fn remove(&mut self, hash: TupleHash, slot: u32) {
        let Some(own) = self.own(hash) else { return };
        let Some(behind) = self.from(own).position(|place| place.slot == slot) else { return };
        let mask = self.places.len() - 1;
        let mut gap = (own + behind) & mask;
        let mut at = gap;
        self.taken -= 1;
        // Those behind it move up, unless their own place is behind the gap: else they would not be found any
        // more.
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place.slot == FREE {
                break;
            }
            let own = place.hash.own_of(self.places.len());
            if (at.wrapping_sub(own) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.places[gap] = place;
                gap = at;
            }
        }
        self.places[gap].slot = FREE;
    }

    /// So many slots are in it, at least half of the places are free, and each slot is found by its hash.
    pub(crate) fn check(&self, slots: usize) -> Check {
        let taken = || self.places.iter().filter(|place| place.slot != FREE);
        let count = taken().count();
        ensure!((self.taken, count) == (slots, slots), "{} and {count} places for {slots}", self.taken);
        ensure!(2 * count <= self.places.len(), "{count} of {} places", self.places.len());
        let lost = taken().find(|place| self.find(place.hash, |slot| slot == place.slot).is_none());
        ensure!(lost.is_none(), "slot {:?} is not found by its hash", lost.map(|place| place.slot));
        Ok(())
    }

    /// Where the slots of a hash are looked for first.
    fn own(&self, hash: TupleHash) -> Option<usize> {
        (!self.places.is_empty()).then(|| hash.own_of(self.places.len()))
    }

    /// The taken places from `at` on up to one that is free.
    fn from(&self, at: usize) -> impl Iterator<Item = &Place> {
        let (before, behind) = self.places.split_at(at);
        behind.iter().chain(before).take_while(|place| place.slot != FREE)
    }

    fn put(&mut self, place: Place) {
        let mask = self.places.len() - 1;
        let mut at = place.hash.own_of(self.places.len());
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
    use crate::secrets::Secrets;

    fn table() -> ConnTable {
        ConnTable::new(Secrets::new([7; 32]).table_state())
    }

    proptest! {
        // Against a map, with hashes of which many have the same place, the last places among them, and some
        // are the same.
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
                    // What is asked about has that hash.
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
}
