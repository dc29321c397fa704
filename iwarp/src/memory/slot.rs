//! One registration or window as the engines read it: a seqlock of atomic words.
//!
//! `state` is a generation count whose lowest bit means "valid". Fields change only while the slot is
//! invalid, and each change of validity changes the generation. So two equal valid states around a read of
//! the fields prove that the fields belong together. All fields are atomics: a read that races with a change
//! is not undefined behaviour, and its result is discarded.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::memory::access::{Access, Accessor, PdId, StreamId};
use crate::memory::bytes::RawBytes;
use crate::memory::fault::Fault;
use crate::memory::stag::Stag;

/// The lowest bit of a state, which is set while the registration may be used.
const VALID: u64 = 1;

bitflags::bitflags! {
    /// Properties of an STag besides its rights.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Traits: u32 {
        /// The STag names a memory window. Only peers may use a window, and only while its region is valid.
        const WINDOW = 1 << 31;
        /// The STag names a window of type 1. Such a window cannot be invalidated: the consumer ends its
        /// binding by another bind request.
        const REBOUND_ONLY = 1 << 30;
        /// No peer may invalidate the STag.
        const NO_REMOTE_INVALIDATE = 1 << 29;
        /// The memory belongs to the caller, and is accessed under the fault guard.
        const GUARDED = 1 << 28;
    }
}

/// The fields of a slot, which were all read in one generation of the slot.
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
    /// For a window, the slot of the region to which the window is bound. The window is usable only while the
    /// region is in this generation. `None` if the STag names no window.
    pub(super) parent: Option<(SlotNumber, Generation)>,
}

/// The index of a slot in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotNumber(pub(super) u32);

/// A generation in which a slot was valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// One registration or window, in one cache line. Slots are allocated on demand and exist as long as the
/// table.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Slot {
    state: AtomicU64,
    stag: AtomicU32,
    /// The bits of [`Access`] and [`Traits`].
    access: AtomicU32,
    pd: AtomicU32,
    /// The number of the region's slot plus 1, or 0 if the STag names no window.
    parent: AtomicU32,
    parent_generation: AtomicU64,
    /// The one stream whose peer may use the STag, or 0 if every stream of the protection domain may.
    stream: AtomicU64,
    base_to: AtomicU64,
    ptr: AtomicPtr<u8>,
    len: AtomicUsize,
}

const _: () = assert!(size_of::<Slot>() == 64, "a lookup costs one cache line");

impl Slot {
    /// Reads the fields of the slot. Returns `None` if the slot is invalid, or if the slot changes during the
    /// read.
    #[inline(always)]
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

    /// Whether the slot is still in this generation, and therefore valid with the same fields.
    pub(super) fn is_current(&self, generation: Generation) -> bool {
        self.state.load(Ordering::Acquire) == generation.0
    }

    /// Whether the slot is in this generation or in a later generation; for tests.
    pub(super) fn has_reached(&self, generation: Generation) -> bool {
        generation.0 & VALID != 0 && generation.0 <= self.state.load(Ordering::Acquire)
    }

    /// The STag of the last registration in this slot, even if it is no longer valid; for tests.
    pub(super) fn last_stag(&self) -> Stag {
        Stag(self.stag.load(Ordering::Relaxed))
    }

    /// Makes an invalid slot valid with these fields. The caller holds the control lock.
    pub(super) fn publish(&self, record: &Record) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert_eq!(state & VALID, 0, "fields change only while the slot is invalid");
        // A reader that sees a new field also sees a changed state when it loads the state again.
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

    pub(super) fn is_valid(&self) -> bool {
        self.state.load(Ordering::Acquire) & VALID != 0
    }

    /// Makes the slot invalid if it is still in this generation. Returns whether this call made the slot
    /// invalid. Any thread may call this function without a lock.
    pub(super) fn revoke(&self, generation: Generation) -> bool {
        self.state
            .compare_exchange(generation.0, generation.0.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Makes the slot invalid, whatever its generation. Returns whether this call made the slot invalid.
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

/// The slot in which the valid STag of a region (not of a window) was found. The value only makes the next
/// search faster: [`find_again`] reads the slot again, and the caller makes all checks of the record again.
///
/// [`find_again`]: crate::memory::table::TableShared::find_again
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(super) number: SlotNumber,
    pub(super) generation: Generation,
}

/// An STag that was found valid, with the generations by which its holder can check that the STag is still
/// valid.
#[derive(Clone, Copy)]
pub(super) struct Lease<'t> {
    pub(super) slot: &'t Slot,
    pub(super) generation: Generation,
    /// For a window, the region to which the window is bound, with its generation. `None` if the STag names
    /// no window.
    pub(super) parent: Option<(&'t Slot, Generation)>,
}

impl Lease<'_> {
    /// Whether the STag is still valid and unchanged. For a window, the region to which it is bound must also
    /// be valid and unchanged.
    pub(super) fn is_current(&self) -> bool {
        self.slot.is_current(self.generation)
            && self.parent.is_none_or(|(slot, generation)| slot.is_current(generation))
    }

    /// Makes the STag invalid if it is unchanged. Returns whether this call made the STag invalid.
    pub(super) fn revoke(&self) -> bool {
        self.slot.revoke(self.generation)
    }
}

impl Record {
    /// Returns the address of the `len` bytes at tagged offset `to`. Returns [`Fault::Bounds`] if the bytes
    /// are not inside the registration, and [`Fault::Wrap`] if `to + len` is 2^64 or more.
    ///
    /// RFC 5041 sections 7.1 and 8.3.1 (DDP-182 to DDP-184, DDP-228), RFC 5040 sections 7.2 and 8.1.1
    /// (RDMAP-342 to RDMAP-344, RDMAP-352): the sum of offset and length does not wrap, and all bytes lie in
    /// the registered range.
    pub(super) fn locate(&self, to: u64, len: u64) -> Result<*mut u8, Fault> {
        // RFC 5042 section 6.2.1 (SEC-097): no access reaches a byte outside the range of the STag.
        to.checked_add(len).ok_or(Fault::Wrap)?;
        let offset = to.checked_sub(self.base_to).ok_or(Fault::Bounds)?;
        let room = (self.len as u64).checked_sub(offset).ok_or(Fault::Bounds)?;
        if len > room {
            return Err(Fault::Bounds);
        }
        // The offset is within the range, so `wrapping_add` does not wrap.
        Ok(self.ptr.wrapping_add(offset as usize))
    }

    /// Checks that a peer on stream `by` has the rights `need`.
    ///
    /// RFC 5041 sections 4.2, 7.1 and 8.3.1 (DDP-068, DDP-180, DDP-181, DDP-230), RFC 5040 sections 7.2 and
    /// 8.1.1 (RDMAP-341, RDMAP-350, RDMAP-351): the STag is associated with the stream and gives the rights.
    pub(super) fn admit_remote(&self, by: Accessor, need: Access) -> Result<(), Fault> {
        if !self.access.intersects(Access::REMOTE) {
            return Err(Fault::InvalidStag);
        }
        if !self.is_associated(by) {
            return Err(Fault::NotAssociated);
        }
        if self.access.contains(need) { Ok(()) } else { Err(Fault::AccessRights) }
    }

    /// Checks that a request of the consumer in protection domain `pd` may use the STag. Only peers may use a
    /// window.
    ///
    /// RFC 5041 section 8.3.2 (DDP-234), RFC 5040 section 8.1.2 (RDMAP-364): a request cannot use memory of
    /// another domain.
    pub(super) fn admit_local(&self, pd: PdId, need: Access) -> Result<(), Fault> {
        if self.traits.contains(Traits::WINDOW) {
            return Err(Fault::InvalidStag);
        }
        if self.pd != pd {
            return Err(Fault::NotAssociated);
        }
        if self.access.contains(need) { Ok(()) } else { Err(Fault::AccessRights) }
    }

    /// Whether the record belongs to the stream of `by`. If the record has no stream, whether it belongs to
    /// the protection domain of `by`.
    ///
    /// RFC 5041 sections 8.2, 8.3.1 and 8.3.2 (DDP-211 to DDP-213, DDP-226, DDP-227, DDP-236): an STag is
    /// associated with a protection domain or with a stream.
    pub(super) fn is_associated(&self, by: Accessor) -> bool {
        // RFC 5042 sections 3 and 6.1.1 (SEC-051, SEC-090, SEC-091): a stream cannot use an STag of another
        // protection domain, or an STag that is limited to another stream.
        self.stream.map_or(self.pd == by.pd, |stream| stream == by.stream)
    }
}

/// Address and length of memory, as plain values that can be stored. Code that accesses the memory through
/// these values needs its own safety argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
    pub(super) writable: bool,
    pub(super) guarded: bool,
}

// SAFETY: the value is an address, a length and two flags, and none of its methods accesses the address.
unsafe impl Send for AddressRange {}
// SAFETY: the value is an address, a length and two flags, and none of its methods accesses the address.
unsafe impl Sync for AddressRange {}

impl From<&RawBytes> for AddressRange {
    fn from(memory: &RawBytes) -> Self {
        Self {
            ptr: memory.as_ptr(),
            len: memory.len(),
            writable: memory.is_writable(),
            guarded: memory.is_guarded(),
        }
    }
}
