//! Registration of memory, and its owner's handle.

use std::fmt;
use std::sync::Arc;

use dp::Region;

pub use crate::memory::access::RegisterError;
use crate::memory::access::{Access, Base, RegisterOptions, check_rights};
use crate::memory::bytes::RawBytes;
use crate::memory::guard;
use crate::memory::handle::Handle;
use crate::memory::slot::{AddressRange, Record, Traits};
use crate::memory::stag::Stag;
use crate::memory::table::{MemoryTable, UserMemory};

/// The end of the addresses that a process can map: those of four-level page tables. A processor of x86-64
/// reports an access beyond them without its address. (Linux maps higher addresses only for a program that
/// asks for them.)
pub const ADDRESS_SPACE: usize = if cfg!(target_arch = "x86_64") { 1 << 47 } else { 1 << 48 };

/// Registered memory. Dropping this value deregisters the memory and ends the windows that are bound to the
/// memory.
///
/// RFC 5040 section 8.1.1 (RDMAP-353), RFC 5041 section 8.3.1 (DDP-229): the consumer makes and revokes the
/// binding of a buffer to an STag and a range of tagged offsets.
pub struct Registration {
    /// The handle of the slot. This field is dropped first, since the memory must exist until no engine uses
    /// the memory any more.
    handle: Handle,
    record: Record,
    memory: RawBytes,
}

// SAFETY: only the addresses in `record` and `memory` make the type `!Send`. `memory` accesses the bytes by
// raw copies and atomics, which any thread may execute. `record` does not access the bytes. Dropping this
// value does not free memory of the caller, and any thread may free a region. `handle` is `Send`.
unsafe impl Send for Registration {}
// SAFETY: `&self` accesses the bytes only by the raw copies and atomics of `RawBytes`, which several threads
// may do at the same time. `handle` is `Sync`: `handle` accesses the table only by atomics and under the
// table's lock. `record` changes only through `&mut self`.
unsafe impl Sync for Registration {}

impl MemoryTable {
    /// Registers a whole region, which stays alive until no engine can access it any more.
    ///
    /// # Errors
    /// [`RegisterError`] says why the memory could not be registered.
    pub fn register(
        &self,
        region: Arc<Region>,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        self.insert(RawBytes::of_region(region), options)
    }

    /// Registers memory of the caller. `len` may be 0: then only accesses of 0 bytes pass the checks, and no
    /// byte at `ptr` is ever accessed.
    ///
    /// # Errors
    /// [`RegisterError`] says why the memory could not be registered.
    ///
    /// # Safety
    /// Until the registration is dropped or [`Registration::deregister`] has returned, `ptr..ptr + len` stays
    /// mapped, readable and (if `options` allow any writing) writable. During that time the caller accesses
    /// these bytes only through raw pointers or atomics, which allow other threads to read and change the
    /// bytes, and never through a reference to plain bytes.
    pub unsafe fn register_user(
        &self,
        ptr: *mut u8,
        len: usize,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        // SAFETY: the caller promises that the memory is mapped and accessible until the registration is
        // dropped, and that its own accesses allow concurrent accesses. The registration owns `memory` and a
        // `Handle`. The registration drops the `Handle` first, which waits until no engine uses the memory
        // any more.
        let memory = unsafe { self.user_memory(ptr, len, options.access.allows_writing())? };
        self.insert(memory, options)
    }

    /// Registers a range of addresses of the caller, of which any byte may or may not be mapped at any time
    /// (on-demand paging). An access to a byte that is not mapped, or whose mapping does not allow the
    /// access, fails as if the STag were invalid.
    ///
    /// # Errors
    /// [`RegisterError::NoGuard`] if the table or this system has no fault guard.
    /// [`RegisterError::NotMapped`] if the range exceeds [`ADDRESS_SPACE`]. [`RegisterError`] lists the other
    /// reasons.
    ///
    /// # Safety
    /// Until the registration is dropped or [`Registration::deregister`] has returned, the caller and all
    /// other code of the process access mapped bytes of `ptr..ptr + len` only through raw pointers or
    /// atomics, which allow other threads to read and (if `options` allow any writing) change the bytes,
    /// unless no peer and no request of the caller names these bytes.
    pub unsafe fn register_on_demand(
        &self,
        ptr: *mut u8,
        len: usize,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        if !self.shared().is_owner_process() {
            return Err(RegisterError::Forked);
        }
        // The fault at an address beyond has no address, so the guard would not recognise it.
        if ptr.addr().checked_add(len).is_none_or(|end| end > ADDRESS_SPACE) {
            return Err(RegisterError::NotMapped { at: ADDRESS_SPACE as u64 });
        }
        let is_guarded = match self.shared().user_memory() {
            UserMemory::Guarded => guard::install().map_err(|_| RegisterError::NoGuard)?,
            UserMemory::Trusted => false,
        };
        if !is_guarded {
            return Err(RegisterError::NoGuard);
        }
        // SAFETY: the guard catches the fault of each access to a byte that is not mapped or not writable.
        // The caller promises that accesses to the other bytes allow concurrent accesses.
        let memory = unsafe { RawBytes::of_user(ptr, len, options.access.allows_writing(), true) };
        self.insert(memory, options)
    }

    /// Checks memory of the caller (except memory of 0 bytes), and installs the fault guard if the table uses
    /// the guard. Fails in a forked child.
    ///
    /// # Safety
    /// While the value exists, `ptr..ptr + len` stays mapped, readable and, if `writable`, writable. All
    /// threads access these bytes only by raw copies and atomics, never through a reference to plain bytes.
    pub(super) unsafe fn user_memory(
        &self,
        ptr: *mut u8,
        len: usize,
        writable: bool,
    ) -> Result<RawBytes, RegisterError> {
        if !self.shared().is_owner_process() {
            return Err(RegisterError::Forked);
        }
        if len == 0 {
            // SAFETY: the length is 0, so no byte at `ptr` is ever accessed.
            return Ok(unsafe { RawBytes::of_user(ptr, 0, writable, false) });
        }
        self.shared().mappings.check(ptr, len, writable)?;
        let guarded = match self.shared().user_memory() {
            UserMemory::Guarded => guard::install().map_err(|_| RegisterError::NoGuard)?,
            UserMemory::Trusted => false,
        };
        // SAFETY: the caller promises that, while the value exists, the memory is mapped, readable and, if
        // `writable`, writable, and that all threads access it only by raw copies and atomics.
        Ok(unsafe { RawBytes::of_user(ptr, len, writable, guarded) })
    }

    fn insert(&self, memory: RawBytes, options: &RegisterOptions) -> Result<Registration, RegisterError> {
        let mut record = record(&memory, options)?;
        let (slot, index) = self.shared().allocate(None)?;
        let handle = Handle { table: self.clone(), slot, index };
        record.stag = Stag::new(index, options.key);
        if let Some(region) = memory.region() {
            self.shared().regions.insert(slot, region);
        }
        self.shared().republish(slot, &record, AddressRange::from(&memory))?;
        Ok(Registration::new(handle, &record, memory))
    }
}

impl Registration {
    pub(super) fn new(handle: Handle, record: &Record, memory: RawBytes) -> Self {
        Self { handle, record: *record, memory }
    }

    /// The STag of the registration, which is both its lkey and its rkey.
    pub fn stag(&self) -> Stag {
        self.record.stag
    }

    /// The tagged offset of the memory's first byte.
    pub fn base_to(&self) -> u64 {
        self.record.base_to
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The rights with which the memory was registered, or last registered again
    /// ([`revalidate`](Self::revalidate)).
    pub fn access(&self) -> Access {
        self.record.access
    }

    /// The registered bytes, which the owner may read and, if they are writable, write.
    pub fn memory(&self) -> &RawBytes {
        &self.memory
    }

    /// The region that was registered; `None` for memory of the caller.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.memory.region()
    }

    /// Whether the STag is valid. The owner, a request in a send queue or a peer may have invalidated the
    /// STag.
    pub fn is_valid(&self) -> bool {
        self.handle.is_valid(self.record.stag)
    }

    /// Invalidates the STag. The index of the STag stays reserved. When this function returns, no engine
    /// writes the memory or copies bytes from it any more through the STag or through windows that are bound
    /// to it. [`Registration::revalidate`] makes the STag valid again, but not the windows.
    ///
    /// The function waits for the epochs that are open on other threads. The caller may be inside an epoch.
    pub fn invalidate(&self) {
        self.handle.revoke();
    }

    /// Makes the STag valid with new rights and a new key (`ibv_rereg_mr`), and returns the new STag. When
    /// this function returns, all accesses that only the old STag or the old rights allowed have ended. The
    /// old and the new STag may be equal.
    ///
    /// RFC 5040 section 8.1.1 (RDMAP-354), RFC 5041 section 8.3.1 (DDP-230): the consumer grants and
    /// withdraws rights.
    ///
    /// # Errors
    /// [`RegisterError::RemoteWithoutLocalWrite`] or [`RegisterError::UnknownRights`] if the rights are
    /// inconsistent or unknown. [`RegisterError::ReadOnly`] if the memory does not allow the rights.
    /// [`RegisterError::Bound`] if a window is bound to the registration. [`RegisterError::Forked`] in a
    /// child of the process that made the table. After each of these errors nothing has changed.
    /// [`RegisterError::Overlap`] if a strict table refuses the rights: in this case the STag is invalid.
    pub fn revalidate(&mut self, key: u8, access: Access) -> Result<Stag, RegisterError> {
        check_rights(access, self.memory.is_writable())?;
        let shared = self.handle.table.shared();
        if !shared.is_owner_process() {
            return Err(RegisterError::Forked);
        }
        if self.revoke_unbound() {
            shared.synchronize();
        } else {
            return Err(RegisterError::Bound);
        }
        let record = Record { access, stag: Stag::new(self.record.stag.index(), key), ..self.record };
        shared.republish(self.handle.slot, &record, AddressRange::from(&self.memory))?;
        self.record = record;
        Ok(self.record.stag)
    }

    /// Deregisters the memory and ends windows that are bound to it. When this function returns, no engine
    /// writes the memory or copies bytes from it any more.
    pub fn deregister(self) {
        drop(self);
    }

    /// Deregisters the memory (`ibv_dereg_mr`), unless a window is bound to the registration.
    ///
    /// # Errors
    /// The unchanged registration, if a window is bound to the registration.
    pub fn deregister_unbound(self) -> Result<(), Box<Self>> {
        if self.revoke_unbound() {
            drop(self);
            Ok(())
        } else {
            Err(Box::new(self))
        }
    }

    /// Returns the number of STags of other protection domains through which a peer may write to these bytes.
    /// An STag also counts if a peer may write only after a request in a send queue (binding a window or a
    /// fast registration). The function walks the whole table. In a forked child it returns 0.
    pub fn other_writers(&self) -> usize {
        let shared = self.handle.table.shared();
        if !shared.is_owner_process() {
            return 0;
        }
        shared.writers(&shared.control(), self.record.pd, AddressRange::from(&self.memory))
    }

    /// Marks the slot as invalid unless a window is bound to the registration. Returns `false` if a window is
    /// bound. After the slot is invalid, no window can be bound. Does not wait. In a forked child the
    /// function does nothing and returns `true`.
    fn revoke_unbound(&self) -> bool {
        let shared = self.handle.table.shared();
        if !shared.is_owner_process() {
            return true;
        }
        // The lock is held from the check until the revocation, so that no other thread can bind a window in
        // between.
        let control = shared.control();
        if self.record.access.contains(Access::MW_BIND) && control.is_bound(shared, self.handle.slot) {
            return false;
        }
        shared.revoke_slot(self.handle.slot);
        true
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("stag", &self.record.stag)
            .field("base_to", &self.record.base_to)
            .field("len", &self.len())
            .field("access", &self.record.access)
            .finish_non_exhaustive()
    }
}

/// Returns the fields of the slot for a registration, or the error for invalid options. The caller sets the
/// STag.
fn record(memory: &RawBytes, options: &RegisterOptions) -> Result<Record, RegisterError> {
    let RegisterOptions { pd, stream, access, base, keep, key: _ } = *options;
    let (ptr, len) = (memory.as_ptr(), memory.len());
    check_rights(access, memory.is_writable())?;
    let base_to = base_to(base, ptr, len)?;
    let mut traits = Traits::empty();
    traits.set(Traits::NO_REMOTE_INVALIDATE, keep);
    traits.set(Traits::GUARDED, memory.is_guarded());
    Ok(Record { stag: Stag(0), access, traits, pd, stream, base_to, ptr, len, parent: None })
}

/// Returns the tagged offset of the first of the `len` bytes at `ptr`. Fails if the tagged offsets of the
/// bytes would exceed 2^64 - 1.
pub(super) fn base_to(base: Base, ptr: *mut u8, len: usize) -> Result<u64, RegisterError> {
    let base_to = match base {
        Base::VirtualAddress => ptr.addr() as u64,
        Base::Iova(to) => to,
        Base::Zero => 0,
    };
    // The check subtracts so that it allows a range that ends exactly at 2^64. (The last byte of such a range
    // cannot be accessed.)
    if (len as u64).saturating_sub(1) > u64::MAX - base_to {
        Err(RegisterError::BaseWraps)
    } else {
        Ok(base_to)
    }
}
