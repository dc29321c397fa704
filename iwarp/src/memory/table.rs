//! The table of registrations and windows. Threads add and free registrations under a lock. Engines look up
//! and invalidate registrations without this lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use crate::memory::access::{Access, PdId, RegisterError, StreamId, WindowKind};
use crate::memory::copy;
use crate::memory::external::Regions;
use crate::memory::fault::Fault;
use crate::memory::guard::Unmapped;
use crate::memory::index::{IndexAllocator, IndexMap, MAX_LIVE};
use crate::memory::mapped::Mappings;
use crate::memory::process::OwnerProcess;
use crate::memory::quiescence::Quiescence;
use crate::memory::slot::{AddressRange, Found, Lease, Record, Slot, SlotNumber, Traits};
use crate::memory::stag::Stag;
use crate::memory::stride::Stride;

mod invariants;

/// Number of slots that are allocated together. The last chunk of the table may have fewer slots. A slot is a
/// cache line, so 256 slots take 16 KiB. Larger chunks would cost memory in a table with few registrations,
/// and smaller chunks would need more allocations.
const CHUNK: usize = 256;

/// All registrations and windows of a context. Clones are cheap and share the table.
#[derive(Clone)]
pub struct MemoryTable {
    shared: Arc<TableShared>,
}

/// Limits and options of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// Maximum number of registrations. A number below 1 or above 2^20 is replaced by 1 or 2^20.
    pub max_mr: usize,
    /// Maximum number of memory windows. A number above 2^20 is replaced by 2^20.
    pub max_mw: usize,
    /// How the library accesses memory of callers.
    pub user_memory: UserMemory,
    /// Whether the table refuses remote write access to memory that peers of another protection domain may
    /// write to (RFC 5042 section 6.3.6). If so, each registration that lets peers write, directly or through
    /// a window, and each preparation of writable memory walks the table.
    pub strict_overlap: bool,
}

impl Default for TableConfig {
    /// At most 65,536 registrations and 65,536 windows. With these limits, the slots of a full table take 8
    /// MiB. Slots are allocated when they are first used.
    fn default() -> Self {
        Self { max_mr: 65_536, max_mw: 65_536, user_memory: UserMemory::Guarded, strict_overlap: false }
    }
}

/// How the library accesses memory of callers, which a caller may unmap too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserMemory {
    /// On Linux on x86-64 and aarch64, an access to unmapped memory ends in an error: a handler of SIGSEGV
    /// and SIGBUS catches the fault. (On other systems there is no handler, and such an access crashes the
    /// process.) A registration of caller memory installs our handler if it is not installed. Our handler
    /// passes every other fault to the handler that was installed before. If a program has its own signal
    /// handlers, its author must know the following:
    ///
    /// - **Order.** If the program installs a handler after a registration, and this handler does not call
    ///   ours, the guard is disabled until the next registration of caller memory. From that registration on,
    ///   our handler passes signals to the program's handler, until the program restores the action that it
    ///   replaced. Our handler can be installed in front of at most eight different actions per signal.
    /// - **Flags.** The previous handler receives the signal with its own `sa_mask`, and its flags
    ///   `SA_SIGINFO`, `SA_RESETHAND`, `SA_NODEFER` and `SA_RESTART` have their usual effect. `SA_ONSTACK` is
    ///   different: our handler asks for the alternate stack, so the previous handler also runs on that stack
    ///   if the thread has an alternate stack (`sigaltstack`; the threads of a Rust program usually have
    ///   one). Then the previous handler must not need more space than that stack has.
    /// - **Blocked signals.** A fault whose signal the thread has blocked kills the process before any
    ///   handler runs. Threads that poll engines or post requests must not block SIGSEGV and SIGBUS.
    /// - **Loaded later.** If this library is in a shared object that is opened at run time (`dlopen` of a
    ///   `cdylib`), the first access of a thread to the handler's thread-local word may allocate the word.
    ///   Threads that use this library have made this access before they can fault under the guard. If
    ///   another thread faults inside `malloc`, the handler may hang instead of passing the fault on. The
    ///   object must never be unloaded, since its handler stays installed.
    /// - **Shadow stacks.** After a fault under the guard, the thread leaves a function without returning
    ///   from it. With a shadow stack (x86 CET, aarch64 GCS) this kills the process. By default, Rust
    ///   programs are not built with shadow stacks.
    /// - **aarch64.** The guard works in the same way as on x86-64, with the callee-saved registers of
    ///   aarch64's procedure call standard. This project's tests do not build or run the guard for aarch64.
    ///
    /// With [`UserMemory::Trusted`] none of these rules applies.
    #[default]
    Guarded,
    /// No signal handler is installed: an access to unmapped memory crashes the process.
    Trusted,
}

/// How many registrations and memory windows a table has, may have, and has refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Number of existing registrations.
    pub registered: usize,
    /// Maximum number of registrations (`max_mr`).
    pub limit: usize,
    /// Number of existing memory windows, including windows that are not bound.
    pub windows: usize,
    /// Maximum number of memory windows (`max_mw`).
    pub max_mw: usize,
    /// Number of registrations that were refused because of `limit`.
    pub refused: u64,
    /// Number of windows that were refused because of `max_mw`.
    pub windows_refused: u64,
}

/// The state that all clones of a table share.
pub(super) struct TableShared {
    slots: Box<[OnceLock<Box<[Slot]>>]>,
    index: IndexMap,
    control: Mutex<TableControl>,
    pub(super) regions: Regions,
    pub(super) quiescence: Quiescence,
    /// Threads that copy outside an epoch hold this lock for reading.
    outside_copies: RwLock<()>,
    config: TableConfig,
    pub(super) mappings: Mappings,
    owner: OwnerProcess,
}

/// The part of the table that the control lock protects. Reads and writes of registered memory do not use
/// this part.
pub(super) struct TableControl {
    allocator: IndexAllocator,
    free: Vec<SlotNumber>,
    /// Number of slots that were ever used: all slots with a lower number than this value.
    used: u32,
    /// The slots that a request in a send queue may make valid, with the conditions for this.
    templates: HashMap<SlotNumber, Template>,
    registered: usize,
    windows: usize,
    refused: u64,
    windows_refused: u64,
}

/// The conditions under which a request in a send queue may make an STag valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    pub(super) pd: PdId,
    pub(super) keep: bool,
    pub(super) form: Form,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// The request binds a memory window to a region.
    Window(WindowKind),
    /// The request registers a range of memory that was prepared for fast registration.
    Prepared { stream: Option<StreamId>, extent: AddressRange },
}

impl MemoryTable {
    /// Returns a table for at most `max_mr` registrations, with the default of every other option. The
    /// indices of the STags are derived from `seed`.
    pub fn new(max_mr: usize, seed: [u8; 32]) -> Self {
        Self::with(&TableConfig { max_mr, ..TableConfig::default() }, seed)
    }

    /// Returns a table whose indices of STags are derived from `seed`. Outside of tests the seed is random
    /// data from the system.
    pub fn with(config: &TableConfig, seed: [u8; 32]) -> Self {
        let max_mr = config.max_mr.clamp(1, MAX_LIVE / 2);
        let max_mw = config.max_mw.min(MAX_LIVE / 2);
        let shared = TableShared {
            slots: (0..(max_mr + max_mw).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            index: IndexMap::new(),
            control: Mutex::new(TableControl {
                allocator: IndexAllocator::new(ChaCha20Rng::from_seed(seed)),
                free: Vec::new(),
                used: 0,
                templates: HashMap::new(),
                registered: 0,
                windows: 0,
                refused: 0,
                windows_refused: 0,
            }),
            regions: Regions::default(),
            quiescence: Quiescence::default(),
            outside_copies: RwLock::new(()),
            config: TableConfig { max_mr, max_mw, ..*config },
            mappings: Mappings::default(),
            owner: OwnerProcess::current(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Checks that a request of protection domain `pd` may use `len` bytes at `addr` of `lkey`. The function
    /// is called when a request is posted, so that a bad request is refused early. The engine checks again
    /// when it copies the bytes. An element of 0 bytes needs no right. Prepared memory that is not registered
    /// passes the check, since an earlier request in the queue may register it.
    ///
    /// # Errors
    /// The [`Fault`] of the first check that fails.
    pub fn check_local(&self, pd: PdId, lkey: u32, addr: u64, len: u32, access: Access) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        match self.shared.lookup(Stag(lkey)) {
            Ok((_, record)) => {
                record.admit_local(pd, access)?;
                record.locate(addr, u64::from(len)).map(drop)
            }
            Err(fault) if !self.shared.is_owner_process() => Err(fault),
            Err(fault) => match self.shared.control().template(&self.shared, Stag(lkey)) {
                Some((_, Template { pd: other, form: Form::Prepared { .. }, .. })) if other != pd => {
                    Err(Fault::NotAssociated)
                }
                Some((_, Template { form: Form::Prepared { .. }, .. })) => {
                    addr.checked_add(u64::from(len)).map(drop).ok_or(Fault::Wrap)
                }
                Some((_, Template { form: Form::Window(_), .. })) | None => Err(fault),
            },
        }
    }

    /// Does what [`check_local`](Self::check_local) does, for one element to read from. Returns the slot in
    /// which the element is registered, so that [`source_again`](crate::memory::EpochGuard::source_again)
    /// need not search for it. Returns `None` if the element is empty or not registered: in this case the
    /// caller has to call `check_local`.
    ///
    /// # Errors
    /// The errors of [`check_local`](Self::check_local).
    #[inline]
    pub(crate) fn find_source(
        &self,
        pd: PdId,
        lkey: u32,
        addr: u64,
        len: u32,
    ) -> Result<Option<Found>, Fault> {
        let Some((found, record)) = self.shared.find(Stag(lkey)).filter(|_| len > 0) else { return Ok(None) };
        record.admit_local(pd, Access::empty())?;
        record.locate(addr, u64::from(len))?;
        Ok(Some(found))
    }

    /// Copies registered bytes to `out` without an epoch. A thread that posts inline data uses this function.
    ///
    /// # Errors
    /// The errors of [`MemoryTable::check_local`]. Also [`Fault::InvalidStag`] if the memory is prepared but
    /// not registered, or if the caller's memory is no longer mapped.
    pub fn fetch_local(&self, pd: PdId, lkey: u32, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        if out.is_empty() {
            return Ok(());
        }
        if !self.shared.is_owner_process() {
            return Err(Fault::InvalidStag);
        }
        let _copying = self.shared.outside_copies.read().unwrap_or_else(PoisonError::into_inner);
        let (_, record) = self.shared.lookup(Stag(lkey))?;
        record.admit_local(pd, Access::empty())?;
        let ptr = record.locate(addr, out.len() as u64)?;
        // SAFETY: `lookup` found the slot valid after `outside_copies` was locked for reading. A thread that
        // has revoked the slot since then locks `outside_copies` for writing in `synchronize`, so the memory
        // stays mapped until this copy ends. `locate` checked that the range is inside the registration, and
        // every registration is readable. Other threads access the bytes only by raw copies and atomics
        // (`RawBytes`).
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, record.traits.contains(Traits::GUARDED)) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }

    /// Returns the usage and the limits of the table. In a forked child all counts are 0.
    pub fn usage(&self) -> TableUsage {
        let TableConfig { max_mr, max_mw, .. } = self.shared.config;
        let limits = TableUsage { limit: max_mr, max_mw, ..TableUsage::default() };
        if !self.shared.is_owner_process() {
            return limits;
        }
        let control = self.shared.control();
        TableUsage {
            registered: control.registered,
            windows: control.windows,
            refused: control.refused,
            windows_refused: control.windows_refused,
            ..limits
        }
    }

    /// Returns the number of bytes of all registrations that are valid now. The function walks the whole
    /// table. In a forked child the number is 0.
    pub(crate) fn registered_bytes(&self) -> u64 {
        if !self.shared.is_owner_process() {
            return 0;
        }
        let used = self.shared.control().used;
        let records = (0..used).filter_map(|number| self.shared.slot(SlotNumber(number))?.read());
        // A window is a part of a region, which is already counted.
        records.filter(|(record, _)| record.parent.is_none()).map(|(record, _)| record.len as u64).sum()
    }

    pub(super) fn shared(&self) -> &TableShared {
        &self.shared
    }
}

impl TableShared {
    /// Returns the record that `stag` names, and a lease that shows whether the record is still valid. Fails
    /// if the STag is not valid. A window is valid only while the region to which it is bound is valid.
    ///
    /// The function is inlined, since each caller uses only a few fields, which then stay in registers.
    #[inline(always)]
    pub(super) fn lookup(&self, stag: Stag) -> Result<(Lease<'_>, Record), Fault> {
        if !self.is_owner_process() {
            return Err(Fault::InvalidStag);
        }
        let slot = self.slot_of(stag.index()).and_then(|slot| self.slot(slot)).ok_or(Fault::InvalidStag)?;
        let (record, generation) = slot.read().ok_or(Fault::InvalidStag)?;
        let parent = match record.parent {
            Some((number, generation)) => Some((self.slot(number).ok_or(Fault::InvalidStag)?, generation)),
            None => None,
        };
        let lease = Lease { slot, generation, parent };
        // `read` has already checked that the slot itself is valid.
        let parent_is_current = parent.is_none_or(|(slot, generation)| slot.is_current(generation));
        if record.stag == stag && parent_is_current { Ok((lease, record)) } else { Err(Fault::InvalidStag) }
    }

    /// Does what [`lookup`](Self::lookup) does, for an STag that names no window. Returns the slot with its
    /// generation instead of a lease, and `None` if the STag is not valid or names a window.
    #[inline]
    fn find(&self, stag: Stag) -> Option<(Found, Record)> {
        if !self.is_owner_process() {
            return None;
        }
        let number = self.slot_of(stag.index())?;
        let (record, generation) = self.slot(number)?.read()?;
        (record.stag == stag && record.parent.is_none()).then_some((Found { number, generation }, record))
    }

    /// Returns the record that was found in this slot, if the slot is still in the same generation. Then the
    /// STag and all other fields are unchanged.
    #[inline(always)]
    pub(super) fn find_again(&self, found: Found) -> Option<(Lease<'_>, Record)> {
        if !self.is_owner_process() {
            return None;
        }
        let slot = self.slot(found.number)?;
        let (record, generation) = slot.read()?;
        (generation == found.generation).then_some((Lease { slot, generation, parent: None }, record))
    }

    /// Whether the current process made the table. In a child process the table refuses every use. In the
    /// child, no function waits for anything or takes a lock, since the thread that holds a lock may not
    /// exist in the child.
    pub(super) fn is_owner_process(&self) -> bool {
        self.owner.is_current()
    }

    #[inline]
    pub(super) fn slot_of(&self, index: u32) -> Option<SlotNumber> {
        self.index.slot(index).map(SlotNumber)
    }

    #[inline]
    pub(super) fn slot(&self, slot: SlotNumber) -> Option<&Slot> {
        let chunk = self.slots.get(slot.0 as usize / CHUNK)?.get()?;
        chunk.get(slot.0 as usize % CHUNK)
    }

    /// Allocates a slot, which is still invalid, and an index. With a `template`, requests in a send queue
    /// may make the slot valid. Fails if a limit is reached, if a strict table refuses the template's memory,
    /// or in a forked child.
    ///
    /// RFC 5040 section 8.1.2 (RDMAP-365), RFC 5041 section 8.3.2 (DDP-235): the table limits registrations
    /// and windows.
    pub(super) fn allocate(&self, template: Option<Template>) -> Result<(SlotNumber, u32), RegisterError> {
        if !self.is_owner_process() {
            return Err(RegisterError::Forked);
        }
        let mut control = self.control();
        if let Some(Template { pd, form: Form::Prepared { extent, .. }, .. }) = template
            && extent.writable
        {
            self.check_overlap(&control, pd, extent, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        }
        let TableConfig { max_mr, max_mw, .. } = self.config;
        if matches!(template, Some(Template { form: Form::Window(_), .. })) {
            // RFC 5042 sections 3 and 6.4.1 (SEC-048, SEC-049, SEC-121): the table grants registrations and
            // windows, under its lock and within their limits.
            if control.windows == max_mw {
                control.windows_refused += 1;
                return Err(RegisterError::WindowLimit { max_mw });
            }
            control.windows += 1;
        } else {
            if control.registered == max_mr {
                control.refused += 1;
                return Err(RegisterError::Limit { max_mr });
            }
            control.registered += 1;
        }
        let number = control.free.pop().unwrap_or_else(|| {
            control.used += 1;
            SlotNumber(control.used - 1)
        });
        let first = number.0 as usize / CHUNK * CHUNK;
        let count = (max_mr + max_mw - first).min(CHUNK);
        self.slots[first / CHUNK].get_or_init(|| (0..count).map(|_| Slot::default()).collect());
        let index = control.allocator.allocate(&self.index, number.0);
        if let Some(template) = template {
            control.templates.insert(number, template);
        }
        Ok((number, index))
    }

    /// Makes an invalid slot valid with new fields and the same index.
    ///
    /// # Errors
    /// [`RegisterError::Overlap`] if a strict table does not allow these rights.
    pub(super) fn republish(
        &self,
        number: SlotNumber,
        record: &Record,
        extent: AddressRange,
    ) -> Result<(), RegisterError> {
        let control = self.control();
        self.check_overlap(&control, record.pd, extent, record.access)?;
        if let Some(slot) = self.slot(number) {
            slot.publish(record);
        }
        Ok(())
    }

    pub(super) fn user_memory(&self) -> UserMemory {
        self.config.user_memory
    }

    /// Whether overlapping remote write access is refused.
    pub(super) fn is_strict(&self) -> bool {
        self.config.strict_overlap
    }

    /// Whether a slot is valid now. For a window, the region to which it is bound must also be valid.
    pub(super) fn is_valid(&self, number: SlotNumber) -> bool {
        let Some((record, _)) = self.slot(number).and_then(Slot::read) else { return false };
        self.lookup(record.stag).is_ok()
    }

    /// Makes a slot invalid. Does not wait.
    pub(super) fn revoke_slot(&self, number: SlotNumber) {
        if let Some(slot) = self.slot(number) {
            slot.revoke_any();
        }
    }

    /// Makes a slot invalid and waits until no thread uses its memory any more.
    ///
    /// RFC 5041 section 8.3.1 (DDP-231), RFC 5040 section 8.1.1 (RDMAP-355): after that the network cannot
    /// modify the memory.
    pub(super) fn revoke(&self, number: SlotNumber) {
        self.revoke_slot(number);
        self.synchronize();
    }

    /// Ends a registration or window for good: revokes the STag, waits until no thread uses the memory, and
    /// frees slot and index. In a forked child the function does nothing.
    pub(super) fn retire(&self, number: SlotNumber, index: u32) {
        if !self.is_owner_process() {
            return;
        }
        let mut control = self.control();
        // The index is freed first, under the lock: a request that is still in a send queue must not make the
        // slot valid again.
        control.allocator.free(&self.index, index);
        let template = control.templates.remove(&number);
        drop(control);
        self.revoke(number);
        self.regions.remove(number);
        // The slot counts towards the limit until this point, where it becomes free.
        let mut control = self.control();
        control.free.push(number);
        match template {
            Some(Template { form: Form::Window(_), .. }) => control.windows -= 1,
            _ => control.registered -= 1,
        }
    }

    /// Waits for all epochs that are open on other threads, and for all copies outside of an epoch. In a
    /// forked child the function does not wait. The caller must not hold the control lock, since a thread
    /// inside an epoch may wait for that lock.
    pub(super) fn synchronize(&self) {
        if !self.is_owner_process() {
            return;
        }
        // RFC 5042 section 6.2.2 (SEC-101): when a revocation returns, no copy through the STag is under way.
        self.quiescence.synchronize();
        drop(self.outside_copies.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn control(&self) -> MutexGuard<'_, TableControl> {
        // Code that holds the lock panics only if memory runs out, which aborts the process. So poisoning is
        // ignored.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableControl {
    /// Number of slots that were ever used.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Returns the template of a slot. `None` if no request in a send queue may make the slot valid.
    pub(super) fn template_of(&self, number: SlotNumber) -> Option<Template> {
        self.templates.get(&number).copied()
    }

    /// Returns the slot and the template that belong to the index of `stag`, even if the slot is invalid now.
    /// Returns `None` if the index has no template.
    pub(super) fn template(&self, shared: &TableShared, stag: Stag) -> Option<(SlotNumber, Template)> {
        let slot = shared.slot_of(stag.index())?;
        self.templates.get(&slot).map(|template| (slot, *template))
    }

    /// Whether a window is bound to the current generation of the region in this slot.
    pub(super) fn is_bound(&self, shared: &TableShared, region: SlotNumber) -> bool {
        let behind = |window: SlotNumber| shared.slot(window)?.read()?.0.parent;
        let is_behind = |(number, generation)| {
            number == region && shared.slot(region).is_some_and(|slot| slot.is_current(generation))
        };
        let windows = self.templates.iter().filter(|(_, template)| matches!(template.form, Form::Window(_)));
        windows.filter_map(|(window, _)| behind(*window)).any(is_behind)
    }
}
