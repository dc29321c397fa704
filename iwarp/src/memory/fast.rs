//! Fast registration: memory prepared beforehand, made reachable and unreachable in a send queue.
//!
//! [`MemoryTable::prepare`] allocates an STag that is invalid, over memory that may be registered.
//! A send queue makes it valid for a range of that memory ([`EpochGuard::fast_register`]), and
//! invalidation ends that; both any number of times. Nothing beyond the prepared memory is ever
//! reachable (RFC 5042 section 2.3.2).

use std::sync::Arc;

use dp::Region;

use crate::memory::access::{Access, Accessor, Base, PdId, StreamId};
use crate::memory::bytes::RawBytes;
use crate::memory::handle::{Extent, Handle};
use crate::memory::quiescence::EpochGuard;
use crate::memory::registration::RegisterError;
use crate::memory::slot::{Record, Traits};
use crate::memory::stag::Stag;
use crate::memory::table::{Form, MemoryTable, Template, base_to, check_rights};
use crate::memory::window::{BindError, publish};

/// How memory is prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepare {
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The one stream whose peer may use it; `None`: every stream of the protection domain.
    pub stream: Option<StreamId>,
    /// No peer may invalidate it.
    pub keep: bool,
}

/// What an STag is to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastBind {
    /// Its name from now on: its index, with any key.
    pub stag: Stag,
    /// First byte, counted from the front of the prepared memory.
    pub offset: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Where tagged offsets start.
    pub base: Base,
}

/// Prepared memory, as its owner holds it. Dropping it deregisters.
pub struct FastRegistration {
    /// Goes first: the memory must outlast it.
    handle: Handle,
    memory: RawBytes,
    /// Keeps the memory; `None` for memory of the caller.
    region: Option<Arc<Region>>,
}

// SAFETY: as for `Registration`: the pointers are addresses of memory whose accesses are all raw copies and
// atomics, safe from any thread; everything else is `Send`.
unsafe impl Send for FastRegistration {}
// SAFETY: as above; `&self` gives no more than such accesses.
unsafe impl Sync for FastRegistration {}

impl MemoryTable {
    /// Prepares a whole region; its STag is invalid.
    ///
    /// # Errors
    /// [`RegisterError::Limit`].
    pub fn prepare(&self, region: Arc<Region>, options: &Prepare) -> Result<FastRegistration, RegisterError> {
        self.prepare_memory(RawBytes::of_region(&region), Some(region), options)
    }

    /// Prepares memory of the caller, for writing too if `writable`.
    ///
    /// # Errors
    /// As [`MemoryTable::register_user`].
    ///
    /// # Safety
    /// As [`MemoryTable::register_user`].
    pub unsafe fn prepare_user(
        &self,
        ptr: *mut u8,
        len: usize,
        writable: bool,
        options: &Prepare,
    ) -> Result<FastRegistration, RegisterError> {
        // SAFETY: the caller promises what `user_memory` asks for, for as long as the registration lives.
        let memory = unsafe { self.user_memory(ptr, len, writable)? };
        self.prepare_memory(memory, None, options)
    }

    fn prepare_memory(
        &self,
        memory: RawBytes,
        region: Option<Arc<Region>>,
        options: &Prepare,
    ) -> Result<FastRegistration, RegisterError> {
        let Prepare { pd, stream, keep } = *options;
        let template = Template { pd, keep, form: Form::Prepared { stream, extent: Extent::from(&memory) } };
        let (slot, index) = self.shared().claim(Some(template))?;
        Ok(FastRegistration { handle: Handle { table: self.clone(), slot, index }, memory, region })
    }
}

impl FastRegistration {
    /// Its name with that key.
    pub fn stag(&self, key: u8) -> Stag {
        Stag::new(self.handle.index, key)
    }

    /// The prepared bytes, for their owner.
    pub fn memory(&self) -> &RawBytes {
        &self.memory
    }

    /// The region behind it, unless it is memory of the caller.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// Whether it is valid under that name.
    pub fn is_valid(&self, stag: Stag) -> bool {
        stag.index() == self.handle.index && self.handle.is_valid(stag)
    }

    /// Makes the STag invalid, whatever it names. When this returns, nothing behind it changes or is read any
    /// more.
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

impl EpochGuard {
    /// Makes an STag valid as the consumer asked in the send queue of `by`. It was invalid, and whoever made
    /// it so has waited for the engines that used it.
    ///
    /// # Errors
    /// [`BindError`]; nothing has changed.
    pub fn fast_register(&self, bind: &FastBind, by: Accessor) -> Result<(), BindError> {
        let FastBind { stag, offset, len, access, base } = *bind;
        let shared = self.shared();
        if !shared.is_here() {
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
        traits.set(Traits::KEPT, template.keep);
        traits.set(Traits::GUARDED, extent.guarded);
        let len = len as usize;
        let record =
            Record { stag, access, traits, pd: template.pd, stream, base_to, ptr, len, parent: None };
        publish(shared, &control, number, &record)
    }
}
