//! One registration as engines see it: a seqlock of plain words.
//!
//! `state` is a generation count whose lowest bit says "valid". Fields change only while the slot is invalid,
//! and every step forward changes the generation, so two equal valid states around a read of the fields prove
//! that the fields belong together. All fields are atomics: a read that races with a change is harmless, and
//! is discarded.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::memory::access::{Access, Accessor, PdId, StreamId};
use crate::memory::fault::Fault;
use crate::memory::stag::Stag;

/// The lowest bit of a state: the registration may be used.
const VALID: u64 = 1;

bitflags::bitflags! {
    /// What an STag is, beside the rights it gives.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Traits: u32 {
        /// A memory window: a name for peers only, usable while its region is.
        const WINDOW = 1 << 31;
        /// Only whoever bound it by name in its send queue may take it away: a window of type 1.
        const REBOUND_ONLY = 1 << 30;
        /// No peer may invalidate it.
        const KEPT = 1 << 29;
        /// Memory of the caller, accessed under the fault guard.
        const GUARDED = 1 << 28;
    }
}

/// What a slot says, read in one consistent piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) stag: Stag,
    pub(super) access: Access,
    pub(super) traits: Traits,
    pub(super) pd: PdId,
    pub(super) stream: Option<StreamId>,
    pub(super) base_to: u64,
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
    /// The region behind a window: it is usable only while that is in this generation.
    pub(super) parent: Option<(SlotNumber, Generation)>,
}

/// Where a slot is in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotNumber(pub(super) u32);

/// A generation of a slot in which it was valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// One registration, in a cache line. Slots are made on demand and live as long as the table.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Slot {
    state: AtomicU64,
    stag: AtomicU32,
    /// [`Access`] and [`Traits`].
    access: AtomicU32,
    pd: AtomicU32,
    /// One more than the slot's number; 0: none.
    parent: AtomicU32,
    parent_generation: AtomicU64,
    /// 0: every stream of the protection domain.
    stream: AtomicU64,
    base_to: AtomicU64,
    ptr: AtomicPtr<u8>,
    len: AtomicUsize,
}

const _: () = assert!(size_of::<Slot>() == 64, "a lookup costs one cache line");

impl Slot {
    /// Reads the slot if it is valid now.
    #[inline]
    pub(super) fn read(&self) -> Option<(Record, Generation)> {
        let before = self.state.load(Ordering::Acquire);
        if before & VALID == 0 {
            return None;
        }
        let stream = self.stream.load(Ordering::Relaxed);
        let access = self.access.load(Ordering::Relaxed);
        let parent = self.parent.load(Ordering::Relaxed);
        let parent_generation = Generation(self.parent_generation.load(Ordering::Relaxed));
        let record = Record {
            stag: Stag(self.stag.load(Ordering::Relaxed)),
            access: Access::from_bits_truncate(access),
            traits: Traits::from_bits_truncate(access),
            pd: PdId(self.pd.load(Ordering::Relaxed)),
            stream: (stream != 0).then_some(StreamId(stream)),
            base_to: self.base_to.load(Ordering::Relaxed),
            ptr: self.ptr.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            parent: parent.checked_sub(1).map(|number| (SlotNumber(number), parent_generation)),
        };
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == before).then_some((record, Generation(before)))
    }

    /// Whether the slot is still in that generation, and so valid with the same fields.
    pub(super) fn is_current(&self, generation: Generation) -> bool {
        self.state.load(Ordering::Acquire) == generation.0
    }

    /// Makes an invalid slot valid with these fields. Only under the control lock.
    pub(super) fn publish(&self, record: &Record) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert_eq!(state & VALID, 0, "fields change only while the slot is invalid");
        // Readers that see a new field also see, by their second look, that the state moved on.
        fence(Ordering::Release);
        let Record { stag, access, traits, pd, stream, base_to, ptr, len, parent } = *record;
        let (parent, parent_generation) =
            parent.map_or((0, 0), |(number, generation)| (number.0 + 1, generation.0));
        self.stag.store(stag.0, Ordering::Relaxed);
        self.access.store(access.bits() | traits.bits(), Ordering::Relaxed);
        self.parent.store(parent, Ordering::Relaxed);
        self.parent_generation.store(parent_generation, Ordering::Relaxed);
        self.pd.store(pd.0, Ordering::Relaxed);
        self.stream.store(stream.map_or(0, |s| s.0), Ordering::Relaxed);
        self.base_to.store(base_to, Ordering::Relaxed);
        self.ptr.store(ptr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.state.store(state.wrapping_add(1), Ordering::Release);
    }

    /// Whether it is valid now.
    pub(super) fn is_valid(&self) -> bool {
        self.state.load(Ordering::Acquire) & VALID != 0
    }

    /// Makes the slot invalid if it is still in that generation; from any thread, without a lock. Returns
    /// whether this call did it.
    pub(super) fn revoke(&self, generation: Generation) -> bool {
        self.state
            .compare_exchange(generation.0, generation.0.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Makes the slot invalid, whatever it is. Returns whether it was valid.
    pub(super) fn revoke_any(&self) -> bool {
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if state & VALID == 0 {
                return false;
            }
            if self.revoke(Generation(state)) {
                return true;
            }
        }
    }
}

/// An STag that was found valid, and what tells whether it still is.
#[derive(Clone, Copy)]
pub(super) struct Lease<'t> {
    pub(super) slot: &'t Slot,
    pub(super) generation: Generation,
    /// The region behind a window.
    pub(super) parent: Option<(&'t Slot, Generation)>,
}

impl Lease<'_> {
    /// Whether it is valid as it was, and so is the region behind it.
    pub(super) fn is_current(&self) -> bool {
        self.slot.is_current(self.generation)
            && self.parent.is_none_or(|(slot, generation)| slot.is_current(generation))
    }

    /// Makes the STag invalid if it is still as it was. Returns whether this call did it.
    pub(super) fn revoke(&self) -> bool {
        self.slot.revoke(self.generation)
    }
}

impl Record {
    /// The address behind `len` bytes at tagged offset `to`. No wrap, then inside the range, as both
    /// documents have it; a sum of exactly 2^64 counts as wrap.
    pub(super) fn locate(&self, to: u64, len: u64) -> Result<*mut u8, Fault> {
        to.checked_add(len).ok_or(Fault::Wrap)?;
        let offset = to.checked_sub(self.base_to).ok_or(Fault::Bounds)?;
        let room = (self.len as u64).checked_sub(offset).ok_or(Fault::Bounds)?;
        if len > room {
            return Err(Fault::Bounds);
        }
        // `wrapping_add` makes no claim; inside the range the address is right, and `room` bounded the
        // offset.
        Ok(self.ptr.wrapping_add(offset as usize))
    }

    /// Whether a peer on stream `by` may do what `need` says.
    pub(super) fn admit_remote(&self, by: Accessor, need: Access) -> Result<(), Fault> {
        if !self.access.intersects(Access::REMOTE) {
            return Err(Fault::InvalidStag);
        }
        if !self.is_associated(by) {
            return Err(Fault::NotAssociated);
        }
        if self.access.contains(need) { Ok(()) } else { Err(Fault::AccessRights) }
    }

    /// Whether the consumer may use it in a request in protection domain `pd`. A window is no name for its
    /// own side.
    pub(super) fn admit_local(&self, pd: PdId, need: Access) -> Result<(), Fault> {
        if self.traits.contains(Traits::WINDOW) {
            return Err(Fault::InvalidStag);
        }
        if self.pd != pd {
            return Err(Fault::NotAssociated);
        }
        if self.access.contains(need) { Ok(()) } else { Err(Fault::AccessRights) }
    }

    /// The stream's association where there is one, else the protection domain's.
    pub(super) fn is_associated(&self, by: Accessor) -> bool {
        self.stream.map_or(self.pd == by.pd, |stream| stream == by.stream)
    }
}
