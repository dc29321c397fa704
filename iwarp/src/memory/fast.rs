//! Fast registration: memory is prepared once, and then registered and invalidated by requests of a send
//! queue.
//!
//! [`MemoryTable::prepare`] allocates an invalid STag for memory that may be registered later (*prepared
//! memory*). A request makes the STag valid for a range of that memory ([`EpochGuard::fast_register`]), and
//! an invalidation makes the STag invalid again. The STag never gives access to a byte outside the prepared
//! memory (RFC 5042 section 2.3.2).

use std::sync::Arc;

use dp::Region;

use crate::memory::access::{Access, Accessor, Base, PdId, RegisterError, StreamId, check_rights};
use crate::memory::bytes::RawBytes;
use crate::memory::epoch::EpochGuard;
use crate::memory::handle::Handle;
use crate::memory::registration::base_to;
use crate::memory::slot::{AddressRange, Record, Traits};
use crate::memory::stag::Stag;
use crate::memory::table::{Form, MemoryTable, Template};
use crate::memory::window::{BindError, publish};

/// Options of prepared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepare {
    /// The protection domain of the memory.
    pub pd: PdId,
    /// The one stream whose peer may use the STag. If the field is `None`, the peers of all streams of the
    /// protection domain may use the STag.
    pub stream: Option<StreamId>,
    /// If `true`, no peer may invalidate the STag.
    pub keep: bool,
}

/// A fast registration: the range that an STag names, and the rights of the STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastBind {
    /// The new STag: the index of the prepared memory, with any key.
    pub stag: Stag,
    /// Offset of the first byte in the prepared memory.
    pub offset: u64,
    /// Number of bytes, at least 1.
    pub len: u64,
    /// Rights, as in [`RegisterOptions::access`](crate::memory::RegisterOptions::access).
    pub access: Access,
    /// Where tagged offsets start.
    pub base: Base,
}

/// The owner's handle of prepared memory. Dropping the handle deregisters the memory.
pub struct FastRegistration {
    /// The handle of the slot. This field is dropped first, since the memory must exist until no engine uses
    /// the memory any more.
    handle: Handle,
    memory: RawBytes,
}

// SAFETY: only the address in `memory` makes the type `!Send`. `memory` accesses the bytes by raw copies and
// atomics, which any thread may execute. Dropping this value does not free memory of the caller, and any
// thread may free a region. `handle` is `Send`.
unsafe impl Send for FastRegistration {}
// SAFETY: `&self` accesses the bytes only by the raw copies and atomics of `RawBytes`, which several threads
// may do at the same time. `handle` is `Sync`: `handle` accesses the table only by atomics and under the
// table's lock.
unsafe impl Sync for FastRegistration {}

impl MemoryTable {
    /// Prepares a whole region: allocates an STag for it. The STag is invalid until a request registers the
    /// memory.
    ///
    /// # Errors
    /// [`RegisterError::Limit`] if the table already has its maximum number of registrations.
    /// [`RegisterError::Overlap`] if a strict table finds peers of another protection domain that may write
    /// to the memory. [`RegisterError::Forked`] in a child of the process that made the table.
    pub fn prepare(&self, region: Arc<Region>, options: &Prepare) -> Result<FastRegistration, RegisterError> {
        self.prepare_memory(RawBytes::of_region(region), options)
    }

    /// Prepares memory of the caller for reading and, if `writable`, for writing.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare), [`RegisterError::Empty`] if `len` is 0, and those errors of
    /// [`MemoryTable::register_user`] that say why the caller's memory cannot be used.
    ///
    /// # Safety
    /// Until the registration is dropped, `ptr..ptr + len` stays mapped, readable and, if `writable`,
    /// writable. During that time the caller accesses these bytes only through raw pointers or atomics, which
    /// allow other threads to read and change the bytes, and never through a reference to plain bytes.
    pub unsafe fn prepare_user(
        &self,
        ptr: *mut u8,
        len: usize,
        writable: bool,
        options: &Prepare,
    ) -> Result<FastRegistration, RegisterError> {
        // SAFETY: the caller promises that the memory is mapped and accessible until the registration is
        // dropped, and that its own accesses allow concurrent accesses. The registration owns `memory` and a
        // `Handle`. The registration drops the `Handle` first, which waits until no engine uses the memory
        // any more.
        let memory = unsafe { self.user_memory(ptr, len, writable)? };
        if memory.is_empty() {
            return Err(RegisterError::Empty);
        }
        self.prepare_memory(memory, options)
    }

    fn prepare_memory(&self, memory: RawBytes, options: &Prepare) -> Result<FastRegistration, RegisterError> {
        let Prepare { pd, stream, keep } = *options;
        let template =
            Template { pd, keep, form: Form::Prepared { stream, extent: AddressRange::from(&memory) } };
        let (slot, index) = self.shared().allocate(Some(template))?;
        if let Some(region) = memory.region() {
            self.shared().regions.insert(slot, region);
        }
        Ok(FastRegistration { handle: Handle { table: self.clone(), slot, index }, memory })
    }
}

impl FastRegistration {
    /// The STag of the prepared memory, with `key` in its low 8 bits. The STag may be invalid.
    pub fn stag(&self, key: u8) -> Stag {
        Stag::new(self.handle.index, key)
    }

    /// The prepared bytes, which the owner may read and, if they are writable, write.
    pub fn memory(&self) -> &RawBytes {
        &self.memory
    }

    /// The region that was prepared; `None` for memory of the caller.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.memory.region()
    }

    /// Whether the memory is registered with the STag `stag`.
    pub fn is_valid(&self, stag: Stag) -> bool {
        stag.index() == self.handle.index && self.handle.is_valid(stag)
    }

    /// Makes the STag invalid, if it is valid. When this function returns, no engine writes the memory or
    /// copies bytes from it through the STag.
    pub fn invalidate(&self) {
        self.handle.revoke();
    }
}

impl std::fmt::Debug for FastRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FastRegistration")
            .field("index", &self.handle.index)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl EpochGuard<'_> {
    /// Makes an invalid STag valid, for a request in the send queue of `by`. The function does not wait for
    /// engines: if other engines could still use the previous registration, the invalidation of that
    /// registration waits for these engines.
    ///
    /// RFC 5041 section 8.3 (DDP-218): the consumer establishes a range of tagged offsets, and an
    /// invalidation revokes that range.
    ///
    /// # Errors
    /// [`BindError`] says why the memory could not be registered. After an error nothing has changed.
    pub fn fast_register(&self, bind: &FastBind, by: Accessor) -> Result<(), BindError> {
        let FastBind { stag, offset, len, access, base } = *bind;
        let shared = self.shared();
        if !shared.is_owner_process() {
            return Err(BindError::UnknownStag);
        }
        let control = shared.control();
        let (number, template) = control.template(shared, stag).ok_or(BindError::UnknownStag)?;
        let Form::Prepared { stream, extent } = template.form else { return Err(BindError::UnknownStag) };
        if template.pd != by.pd {
            return Err(BindError::NotAssociated);
        }
        if len == 0 {
            return Err(BindError::Empty);
        }
        let room = (extent.len as u64).checked_sub(offset).filter(|room| len <= *room);
        if room.is_none() {
            return Err(BindError::Region(crate::memory::Fault::Bounds));
        }
        check_rights(access, extent.writable).map_err(|_| BindError::Rights)?;
        let ptr = extent.ptr.wrapping_add(offset as usize);
        let base_to = base_to(base, ptr, len as usize).map_err(|_| BindError::BaseWraps)?;
        let mut traits = Traits::empty();
        traits.set(Traits::NO_REMOTE_INVALIDATE, template.keep);
        traits.set(Traits::GUARDED, extent.guarded);
        let len = len as usize;
        let record =
            Record { stag, access, traits, pd: template.pd, stream, base_to, ptr, len, parent: None };
        publish(shared, &control, number, &record)
    }
}
