//! The table of registrations: changed under a lock, read without one.

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

/// Slots that are allocated together; fewer at the end of the table. 256 slots of a cache line are 16 KiB:
/// larger chunks cost memory in a table with few registrations, smaller ones more allocations.
const CHUNK: usize = 256;

/// All registrations of a context. Clones are cheap and share the table.
#[derive(Clone)]
pub struct MemoryTable {
    shared: Arc<TableShared>,
}

/// Limits and options of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// Largest number of registrations: at least 1, at most 2^20.
    pub max_mr: usize,
    /// Largest number of memory windows: at most 2^20.
    pub max_mw: usize,
    /// How memory of callers is accessed.
    pub user_memory: UserMemory,
    /// Refuses remote write access to memory that peers of another protection domain may write to (RFC 5042
    /// section 6.3.6). Each registration with remote write access then walks the table.
    pub strict_overlap: bool,
}

impl Default for TableConfig {
    /// 65,536 of each. The slots of a full table then take 8 MiB, and are allocated as they are used.
    fn default() -> Self {
        Self { max_mr: 65_536, max_mw: 65_536, user_memory: UserMemory::Guarded, strict_overlap: false }
    }
}

/// How memory of callers is accessed. A caller may unmap it too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserMemory {
    /// An access to unmapped memory ends in an error. On Linux, on x86-64 and aarch64, a handler of SIGSEGV
    /// and SIGBUS does this. A registration of caller memory installs it if it is not there. It passes every
    /// other fault to the handler that it found. A program with its own signal handlers has to know:
    ///
    /// - **Order.** A handler that it installs after a registration, and that does not call ours, disables
    ///   the guard until the next registration. From then on it gets its signals from ours, until it restores
    ///   the action that it found. Our handler can be installed in front of at most eight different actions
    ///   per signal.
    /// - **Flags.** The previous handler gets the signal with its own `sa_mask`, and as its `SA_SIGINFO`,
    ///   `SA_RESETHAND`, `SA_NODEFER` and `SA_RESTART` say. `SA_ONSTACK` is different: our handler asks for
    ///   the alternate stack, so a handler called by it runs on that stack, with its size, on every thread
    ///   that has one (`sigaltstack`; each Rust thread has).
    /// - **Blocked signals.** A fault whose signal the thread has blocked kills the process before any
    ///   handler runs. Threads that poll engines or post requests leave SIGSEGV and SIGBUS unblocked.
    /// - **Loaded later.** In a shared object that is opened at run time (`dlopen` of a `cdylib`) the first
    ///   access of a thread to the handler's thread-local word may allocate it. Threads that use this library
    ///   have done so before they can fault under the guard. On another thread that faults inside `malloc`,
    ///   the handler may hang instead of passing the fault on. The object must never be unloaded: its handler
    ///   stays installed.
    /// - **Shadow stacks.** A fault under the guard leaves a function without its return. With a shadow stack
    ///   (x86 CET, aarch64 GCS) this kills the process. Rust programs are not built with one.
    /// - **aarch64.** As on x86-64, with the callee-saved registers of its procedure call standard. This
    ///   project's tests neither build nor run it.
    ///
    /// [`UserMemory::Trusted`] needs none of this.
    #[default]
    Guarded,
    /// No handler: an access to unmapped memory crashes the process.
    Trusted,
}

/// How many registrations and memory windows a table has, may have, and has refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Existing registrations.
    pub registered: usize,
    /// Largest number of registrations (`max_mr`).
    pub limit: usize,
    /// Existing memory windows, bound or not.
    pub windows: usize,
    /// Largest number of memory windows (`max_mw`).
    pub max_mw: usize,
    /// Registrations refused because of their limit.
    pub refused: u64,
    /// Windows refused because of their limit.
    pub windows_refused: u64,
}

/// The state that clones share.
pub(super) struct TableShared {
    slots: Box<[OnceLock<Box<[Slot]>>]>,
    index: IndexMap,
    control: Mutex<TableControl>,
    pub(super) regions: Regions,
    pub(super) quiescence: Quiescence,
    /// Held for reading by threads that copy outside an epoch.
    outside_copies: RwLock<()>,
    config: TableConfig,
    pub(super) mappings: Mappings,
    owner: OwnerProcess,
}

/// The part of the table that only creation, binding and destruction of registrations use.
pub(super) struct TableControl {
    allocator: IndexAllocator,
    free: Vec<SlotNumber>,
    /// Number of slots that were ever used: those with lower numbers.
    used: u32,
    /// Slots that a send queue may make valid, with the conditions for it.
    templates: HashMap<SlotNumber, Template>,
    registered: usize,
    windows: usize,
    refused: u64,
    windows_refused: u64,
}

/// The conditions under which a send queue may make an STag valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    pub(super) pd: PdId,
    pub(super) keep: bool,
    pub(super) form: Form,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// A memory window, bound to a region.
    Window(WindowKind),
    /// Prepared memory, registered fast.
    Prepared { stream: Option<StreamId>, extent: AddressRange },
}

impl MemoryTable {
    /// A table for at most `max_mr` registrations, with defaults otherwise. The STags are derived from
    /// `seed`.
    pub fn new(max_mr: usize, seed: [u8; 32]) -> Self {
        Self::with(&TableConfig { max_mr, ..TableConfig::default() }, seed)
    }

    /// A table whose STags are derived from `seed`. Outside of tests the seed is entropy of the system.
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

    /// Checks that a request of protection domain `pd` may use `len` bytes at `addr` of `lkey`. Posting calls
    /// it, to refuse a bad request early. The engine checks again when it copies the bytes. An empty element
    /// needs no right. Prepared memory passes while it is not registered, since an earlier request of the
    /// queue may register it.
    ///
    /// # Errors
    /// The first check that fails.
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

    /// As [`check_local`](Self::check_local), for one element to read from. Returns where it is registered,
    /// so that [`source_again`](crate::memory::EpochGuard::source_again) need not look for it. `None` if it
    /// is empty or not registered: `check_local` has the answer then.
    ///
    /// # Errors
    /// As [`check_local`](Self::check_local).
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

    /// Copies registered bytes for a thread outside an epoch, for posting inline data.
    ///
    /// # Errors
    /// As [`MemoryTable::check_local`].
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
        // SAFETY: `lookup` found the slot valid after `_copying` was locked for reading. A thread that has
        // revoked the slot since then locks it for writing in `synchronize`, so the memory stays mapped until
        // this copy ends. `locate` found the range inside the registration, and every registration is
        // readable. Other threads access the bytes only by raw copies and atomics (`RawBytes`).
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, record.traits.contains(Traits::GUARDED)) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }

    /// The usage of the table. In a forked child all counts are 0.
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

    /// Bytes of all registrations that are valid now. Looks at each of them.
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
    /// The record that `stag` names, if it is valid. A window is valid only while the region behind it is.
    ///
    /// Inlined: each caller uses only a few fields, which then stay in registers.
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
        // `read` has found the slot itself valid.
        let parent_is_current = parent.is_none_or(|(slot, generation)| slot.is_current(generation));
        if record.stag == stag && parent_is_current { Ok((lease, record)) } else { Err(Fault::InvalidStag) }
    }

    /// As [`lookup`](Self::lookup), for an STag that is no window. Returns where the record is.
    #[inline]
    fn find(&self, stag: Stag) -> Option<(Found, Record)> {
        if !self.is_owner_process() {
            return None;
        }
        let number = self.slot_of(stag.index())?;
        let (record, generation) = self.slot(number)?.read()?;
        (record.stag == stag && record.parent.is_none()).then_some((Found { number, generation }, record))
    }

    /// The record that was found there, if its STag is still registered. The same generation has the same
    /// STag and the same fields.
    #[inline(always)]
    pub(super) fn find_again(&self, found: Found) -> Option<(Lease<'_>, Record)> {
        if !self.is_owner_process() {
            return None;
        }
        let slot = self.slot(found.number)?;
        let (record, generation) = slot.read()?;
        (generation == found.generation).then_some((Lease { slot, generation, parent: None }, record))
    }

    /// Whether the current process made the table. In a child every use is refused, nothing is waited for,
    /// and no lock is taken, since its holder may not exist there.
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

    /// Allocates a slot, which is invalid, and an index. `template`: a send queue may make it valid.
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
    /// [`RegisterError::Overlap`].
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

    /// Whether a slot is valid now, and for a window also the region behind it.
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
    /// modify it.
    pub(super) fn revoke(&self, number: SlotNumber) {
        self.revoke_slot(number);
        self.synchronize();
    }

    /// Ends a registration or window for good: revokes it, waits until no thread uses its memory, and frees
    /// slot and index.
    pub(super) fn retire(&self, number: SlotNumber, index: u32) {
        if !self.is_owner_process() {
            return;
        }
        let mut control = self.control();
        // The index is freed first, under the lock: a request still in a send queue must not make the slot
        // valid again.
        control.allocator.free(&self.index, index);
        let template = control.templates.remove(&number);
        drop(control);
        self.revoke(number);
        self.regions.remove(number);
        // The slot counts against the limit until it is free.
        let mut control = self.control();
        control.free.push(number);
        match template {
            Some(Template { form: Form::Window(_), .. }) => control.windows -= 1,
            _ => control.registered -= 1,
        }
    }

    /// Waits for all open epochs and for all copies outside of one. The caller does not hold the control
    /// lock: a thread inside an epoch may wait for it.
    pub(super) fn synchronize(&self) {
        if !self.is_owner_process() {
            return;
        }
        // RFC 5042 section 6.2.2 (SEC-101): when a revocation returns, no copy through the STag is under way.
        self.quiescence.synchronize();
        drop(self.outside_copies.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn control(&self) -> MutexGuard<'_, TableControl> {
        // Code under the lock can only panic for lack of memory, which aborts. So poisoning is ignored.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableControl {
    /// Number of slots that were ever used: those with lower numbers.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// The template of a slot, if a send queue may make it valid.
    pub(super) fn template_of(&self, number: SlotNumber) -> Option<Template> {
        self.templates.get(&number).copied()
    }

    /// The slot of `stag`'s index and its template, valid or not.
    pub(super) fn template(&self, shared: &TableShared, stag: Stag) -> Option<(SlotNumber, Template)> {
        let slot = shared.slot_of(stag.index())?;
        self.templates.get(&slot).map(|template| (slot, *template))
    }

    /// Whether a window is bound to the region in this slot, in its current generation.
    pub(super) fn is_bound(&self, shared: &TableShared, region: SlotNumber) -> bool {
        let behind = |window: SlotNumber| shared.slot(window)?.read()?.0.parent;
        let is_behind = |(number, generation)| {
            number == region && shared.slot(region).is_some_and(|slot| slot.is_current(generation))
        };
        let windows = self.templates.iter().filter(|(_, template)| matches!(template.form, Form::Window(_)));
        windows.filter_map(|(window, _)| behind(*window)).any(is_behind)
    }
}
