//! Registered regions as external memory ([`ExtBuf`]), for sending without a copy.
//!
//! A region stays mapped while a packet buffer refers to it, even after the region was deregistered. The
//! caller may unmap its own memory after deregistration, so the bytes of caller memory are always copied.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dp::{ExtBuf, Region};

use crate::memory::access::{Access, PdId};
use crate::memory::epoch::EpochGuard;
use crate::memory::slot::SlotNumber;
use crate::memory::stag::Stag;

/// The regions that the slots of a table refer to.
#[derive(Default)]
pub(super) struct Regions {
    /// A thread holds the lock only to look up, insert or remove an entry, and never waits while it holds the
    /// lock.
    by_slot: Mutex<HashMap<SlotNumber, RegionEntry>>,
}

struct RegionEntry {
    /// The region, which this reference does not keep alive.
    region: Weak<Region>,
    /// The region as external memory. The value is made at its first use, since most regions are never sent
    /// without a copy.
    external: Option<ExtBuf>,
}

impl Regions {
    /// Records that the registration in this slot, which is not valid yet, uses `region`.
    pub(super) fn insert(&self, slot: SlotNumber, region: &Arc<Region>) {
        self.lock().insert(slot, RegionEntry { region: Arc::downgrade(region), external: None });
    }

    /// Removes the region of the slot. The caller has destroyed the registration in this slot.
    pub(super) fn remove(&self, slot: SlotNumber) {
        let removed = self.lock().remove(&slot);
        // The lock is released before the drop, since the drop may unmap the region.
        drop(removed);
    }

    fn external(&self, slot: SlotNumber) -> Option<ExtBuf> {
        let mut regions = self.lock();
        let RegionEntry { region, external } = regions.get_mut(&slot)?;
        if external.is_none() {
            *external = Some(of_region(region.upgrade()?));
        }
        external.clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SlotNumber, RegionEntry>> {
        // Code that holds the lock panics only if memory runs out, which aborts the process. So poisoning is
        // ignored.
        self.by_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns all bytes of a region as external memory.
fn of_region(region: Arc<Region>) -> ExtBuf {
    let (start, len): (NonNull<u8>, usize) = (region.as_ptr(), region.len());
    // SAFETY: the region is one readable mapping of `len` initialised bytes while the returned value, which
    // owns the region, exists. A region gives out only its address, and its users access the bytes only by
    // raw copies and atomics, as the contract of `RawBytes` says.
    unsafe { ExtBuf::from_raw(start, len, region) }
}

impl EpochGuard<'_> {
    /// Returns the `len` bytes at `addr` of `lkey` as external memory, for a request of protection domain
    /// `pd`. Returns `None` if the bytes are memory of the caller, or if a check of
    /// [`check_source`](Self::check_source) fails.
    pub(crate) fn external(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Option<ExtBuf> {
        let shared = self.shared();
        let (lease, record) = shared.lookup(lkey).ok()?;
        record.admit_local(pd, Access::empty()).ok()?;
        let ptr = record.locate(addr, len).ok()?;
        let whole = shared.regions.external(shared.slot_of(lkey.index())?)?;
        let at = ptr.addr().checked_sub(whole.as_ptr().addr().get())?;
        let part = whole.into_slice(at..at + len as usize);
        // If the registration is unchanged, the region that was found belongs to the registration.
        part.filter(|_| lease.is_current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, Base, MemoryTable, RegisterOptions, StreamId};

    #[test]
    fn a_region_outlives_its_registration_while_it_is_external_memory() {
        let table = MemoryTable::new(4, [7; 32]);
        let region = Arc::new(Region::new(8192).unwrap());
        let pd = PdId(3);
        let options = RegisterOptions {
            pd,
            access: Access::LOCAL_WRITE,
            base: Base::Zero,
            ..RegisterOptions::default()
        };
        let registration = table.register(Arc::clone(&region), &options).unwrap();
        registration.memory().write_at(100, b"registered").unwrap();
        let (engine, stag) = (table.join(), registration.stag());
        let guard = engine.enter();
        let external = guard.external(stag, 100, 10, pd).unwrap();
        let mut bytes = [0; 10];
        assert_eq!((external.copy_to(0, &mut bytes), &bytes), (10, b"registered"));
        for (stag, addr, len, pd) in [
            (stag, 8190, 3, pd),
            (stag, u64::MAX, 1, pd),
            (stag, 0, 1, PdId(4)),
            (Stag(stag.0 ^ 1), 0, 1, pd),
        ] {
            assert!(guard.external(stag, addr, len, pd).is_none(), "{stag:?} {addr} {len} {pd:?}");
        }
        drop(guard);
        registration.invalidate();
        assert!(engine.enter().external(stag, 100, 10, pd).is_none());
        registration.deregister();
        assert!(engine.enter().external(stag, 100, 10, pd).is_none());
        assert_eq!(external.copy_to(0, &mut bytes), 10);
        assert_eq!(Arc::strong_count(&region), 2, "ours, and the packet buffers'");
        drop(external);
        assert_eq!(Arc::strong_count(&region), 1);
    }

    #[test]
    fn fast_registered_regions_are_external_memory_and_memory_of_the_caller_is_not() {
        use crate::memory::{Accessor, FastBind, Prepare};
        let table = MemoryTable::new(4, [7; 32]);
        let (pd, engine) = (PdId(3), table.join());
        let region = Arc::new(Region::new(8192).unwrap());
        let prepared = table.prepare(region, &Prepare { pd, ..Prepare::default() }).unwrap();
        prepared.memory().write_at(4100, b"fast").unwrap();
        let stag = prepared.stag(9);
        let bind = FastBind { stag, offset: 4096, len: 100, access: Access::empty(), base: Base::Zero };
        let guard = engine.enter();
        assert!(guard.external(stag, 4, 4, pd).is_none(), "not registered yet");
        guard.fast_register(&bind, Accessor { pd, stream: StreamId(1) }).unwrap();
        let mut bytes = [0; 4];
        assert_eq!(guard.external(stag, 4, 4, pd).unwrap().copy_to(0, &mut bytes), 4);
        assert_eq!(&bytes, b"fast");
        drop(guard);

        let mut own = vec![0_u8; 64];
        let options = RegisterOptions { pd, ..RegisterOptions::default() };
        // SAFETY: the vector exists until the end of the test, and no code accesses the vector until then.
        let registration = unsafe { table.register_user(own.as_mut_ptr(), 64, &options) }.unwrap();
        assert!(engine.enter().external(registration.stag(), registration.base_to(), 8, pd).is_none());
        registration.deregister();
    }
}
