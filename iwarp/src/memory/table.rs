//! The table of registrations: made under a lock, read without one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use dp::Region;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use crate::memory::access::{Access, Base, PdId, RegisterOptions, StreamId};
use crate::memory::bytes::RawBytes;
use crate::memory::copy;
use crate::memory::fault::Fault;
use crate::memory::guard::{self, Unmapped};
use crate::memory::handle::{Extent, Handle};
use crate::memory::index::{IndexAllocator, IndexMap, MAX_LIVE};
use crate::memory::mapped;
use crate::memory::origin::Origin;
use crate::memory::quiescence::{Participant, Quiescence};
use crate::memory::registration::{RegisterError, Registration};
use crate::memory::slot::{Lease, Record, Slot, SlotNumber, Traits};
use crate::memory::stag::Stag;
use crate::memory::stride::Stride;
use crate::memory::window::WindowKind;

/// Slots that come into being together; fewer where the table's limits end.
const CHUNK: usize = 256;

/// All registrations of a context. Cheap to clone: clones are the same table.
#[derive(Clone)]
pub struct MemoryTable {
    shared: Arc<Shared>,
}

/// How a table is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// Registrations that may exist: at least 1, at most 2^20.
    pub max_mr: usize,
    /// Memory windows that may exist: at most 2^20.
    pub max_mw: usize,
    /// How memory of callers is accessed.
    pub user_memory: UserMemory,
    /// Memory that peers of one protection domain may write to is not registered for peers of another to
    /// write to (RFC 5042 section 6.3.6). Each such registration walks the table.
    pub strict_overlap: bool,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self { max_mr: 65_536, max_mw: 65_536, user_memory: UserMemory::Guarded, strict_overlap: false }
    }
}

/// How memory of callers is accessed, which they may take away too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserMemory {
    /// An access to memory that is not there ends in an error: on Linux, on x86-64 and aarch64, by a handler
    /// of SIGSEGV and SIGBUS, installed with the first such registration of the process. Every other fault
    /// goes to the handler that was there before. What a program with signal handlers has to know:
    ///
    /// - **Order.** It installs its handlers of these signals before the first registration, or calls ours
    ///   from them. A handler that is installed later and does not call ours ends the guard.
    /// - **Flags.** A handler that was there before gets the signal with its own `sa_mask`, and as its
    ///   `SA_SIGINFO`, `SA_RESETHAND`, `SA_NODEFER` and `SA_RESTART` have it. Not so `SA_ONSTACK`: ours asks
    ///   for the alternate stack, so a handler called by it runs there on every thread that has one
    ///   (`sigaltstack`; each thread of Rust's has), and has that stack's room.
    /// - **Blocked signals.** A fault whose signal the thread has blocked kills the process before any
    ///   handler runs. Threads that poll engines or post requests leave SIGSEGV and SIGBUS unblocked.
    /// - **Loaded later.** In a shared object that is opened at run time (`dlopen` of a `cdylib`) the
    ///   handler's thread-local word may be made by the first access of a thread, which may allocate. Threads
    ///   that use this library have made it before they can fault under the guard; on another thread whose
    ///   fault hits in the middle of `malloc` the handler may hang instead of passing the fault on. The
    ///   object is never to be unloaded: its handler stays installed.
    /// - **Shadow stacks.** A fault under the guard leaves a function otherwise than by its return; with a
    ///   shadow stack (x86 CET, aarch64 GCS) the process dies of it. Programs of Rust are not built for one.
    /// - **aarch64.** As on x86-64, with the registers that its procedure call standard has a callee
    ///   preserve. This project's tests neither build nor run it.
    ///
    /// [`UserMemory::Trusted`] does without all this.
    #[default]
    Guarded,
    /// No handler: an access to memory that is not there is a crash.
    Trusted,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Registrations that exist.
    pub registered: usize,
    /// Registrations that may exist (`max_mr`).
    pub limit: usize,
    /// Memory windows that exist, bound or not.
    pub windows: usize,
    /// Memory windows that may exist (`max_mw`).
    pub max_mw: usize,
    /// Registrations refused because of their limit.
    pub refused: u64,
    /// Windows refused because of their limit.
    pub windows_refused: u64,
}

/// What clones share.
pub(super) struct Shared {
    slots: Box<[OnceLock<Box<[Slot]>>]>,
    index: IndexMap,
    control: Mutex<Control>,
    pub(super) quiescence: Quiescence,
    /// Held for reading by threads that copy outside a turn.
    visits: RwLock<()>,
    config: TableConfig,
    origin: Origin,
}

/// What only creation, binding and destruction touch.
pub(super) struct Control {
    allocator: IndexAllocator,
    free: Vec<SlotNumber>,
    /// Slots that were ever used; those above have not been.
    used: u32,
    /// What slots may be made valid as, from a send queue.
    templates: HashMap<SlotNumber, Template>,
    registered: usize,
    windows: usize,
    refused: u64,
    windows_refused: u64,
}

/// What an STag that is made valid in a send queue may name.
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
    Prepared { stream: Option<StreamId>, extent: Extent },
}

impl MemoryTable {
    /// A table for at most `max_mr` registrations, whose STags follow from `seed`; the rest by default.
    pub fn new(max_mr: usize, seed: [u8; 32]) -> Self {
        Self::with(&TableConfig { max_mr, ..TableConfig::default() }, seed)
    }

    /// A table whose STags follow from `seed`. Outside tests the seed is entropy of the system.
    pub fn with(config: &TableConfig, seed: [u8; 32]) -> Self {
        let max_mr = config.max_mr.clamp(1, MAX_LIVE / 2);
        let max_mw = config.max_mw.min(MAX_LIVE / 2);
        let shared = Shared {
            slots: (0..(max_mr + max_mw).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            index: IndexMap::new(),
            control: Mutex::new(Control {
                allocator: IndexAllocator::new(ChaCha20Rng::from_seed(seed)),
                free: Vec::new(),
                used: 0,
                templates: HashMap::new(),
                registered: 0,
                windows: 0,
                refused: 0,
                windows_refused: 0,
            }),
            quiescence: Quiescence::default(),
            visits: RwLock::new(()),
            config: TableConfig { max_mr, max_mw, ..*config },
            origin: Origin::here(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// An engine's part: with it the engine opens the turns in which it accesses memory.
    pub fn join(&self) -> Participant {
        Participant::new(self.clone())
    }

    /// Registers a whole region. The table keeps it alive until no engine can touch it any more.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(
        &self,
        region: Arc<Region>,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        let memory = RawBytes::of_region(&region);
        self.insert(memory, Some(region), options)
    }

    /// Registers memory of the caller.
    ///
    /// # Errors
    /// [`RegisterError`].
    ///
    /// # Safety
    /// Until the registration is dropped or [`Registration::deregister`] has returned, `ptr..ptr + len` stays
    /// mapped, readable and (if `options` allow any writing) writable, and the caller accesses it only in
    /// ways that allow other threads to read and change it at any time: through raw pointers or atomics,
    /// never through a reference to plain bytes.
    pub unsafe fn register_user(
        &self,
        ptr: *mut u8,
        len: usize,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        // SAFETY: the caller promises what `user_memory` asks for, for as long as the registration lives.
        let memory = unsafe { self.user_memory(ptr, len, options.access.allows_writing())? };
        self.insert(memory, None, options)
    }

    /// Memory of the caller.
    ///
    /// # Safety
    /// As [`MemoryTable::register_user`], while the value exists.
    pub(super) unsafe fn user_memory(
        &self,
        ptr: *mut u8,
        len: usize,
        writable: bool,
    ) -> Result<RawBytes, RegisterError> {
        if len == 0 {
            return Err(RegisterError::Empty);
        }
        if !self.shared.is_here() {
            return Err(RegisterError::Forked);
        }
        mapped::check(ptr, len, writable)?;
        let guarded = match self.shared.config.user_memory {
            UserMemory::Guarded => guard::install().map_err(|_| RegisterError::NoGuard)?,
            UserMemory::Trusted => false,
        };
        // SAFETY: the caller promises what `RawBytes::new` asks for.
        Ok(unsafe { RawBytes::new(ptr, len, writable, guarded) })
    }

    /// Whether a request of protection domain `pd` may use `len` bytes at `addr` of `lkey`: for posting,
    /// which wants the answer early. The engine checks again when it moves the bytes. No bytes need no right.
    /// Prepared memory passes while it is not registered: the request that registers it may be in front of
    /// this one.
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
            Err(fault) if !self.shared.is_here() => Err(fault),
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

    /// Copies registered bytes out for a thread that is in no turn, as posting inline data does.
    ///
    /// # Errors
    /// As [`MemoryTable::check_local`].
    pub fn fetch_local(&self, pd: PdId, lkey: u32, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        if out.is_empty() {
            return Ok(());
        }
        if !self.shared.is_here() {
            return Err(Fault::InvalidStag);
        }
        let _visit = self.shared.visits.read().unwrap_or_else(PoisonError::into_inner);
        let (_, record) = self.shared.lookup(Stag(lkey))?;
        record.admit_local(pd, Access::empty())?;
        let ptr = record.locate(addr, out.len() as u64)?;
        // SAFETY: the slot was valid while `_visit` was held, whoever revokes it waits for the visit to end
        // before the memory may go, and `locate` kept the range inside the registration.
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, record.traits.contains(Traits::GUARDED)) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }

    /// How full it is. A forked child has nothing of it, and reads zeros with the limits.
    pub fn usage(&self) -> Usage {
        let TableConfig { max_mr, max_mw, .. } = self.shared.config;
        let limits = Usage { limit: max_mr, max_mw, ..Usage::default() };
        if !self.shared.is_here() {
            return limits;
        }
        let control = self.shared.control();
        Usage {
            registered: control.registered,
            windows: control.windows,
            refused: control.refused,
            windows_refused: control.windows_refused,
            ..limits
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    fn insert(
        &self,
        memory: RawBytes,
        region: Option<Arc<Region>>,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        let mut record = record(&memory, options)?;
        let (slot, index) = self.shared.claim(None)?;
        let handle = Handle { table: self.clone(), slot, index };
        record.stag = Stag::new(index, options.key);
        self.shared.republish(slot, &record, Extent::from(&memory))?;
        Ok(Registration::new(handle, &record, memory, region))
    }
}

/// The slot contents for a request to register, if it makes sense.
fn record(memory: &RawBytes, options: &RegisterOptions) -> Result<Record, RegisterError> {
    let RegisterOptions { pd, stream, access, base, keep, key: _ } = *options;
    let (ptr, len) = (memory.as_ptr(), memory.len());
    if len == 0 {
        return Err(RegisterError::Empty);
    }
    check_rights(access, memory.is_writable())?;
    let base_to = base_to(base, ptr, len)?;
    let mut traits = Traits::empty();
    traits.set(Traits::KEPT, keep);
    traits.set(Traits::GUARDED, memory.is_guarded());
    Ok(Record { stag: Stag(0), access, traits, pd, stream, base_to, ptr, len, parent: None })
}

/// The tagged offset of the first of `len` (not 0) bytes at `ptr`.
pub(super) fn base_to(base: Base, ptr: *mut u8, len: usize) -> Result<u64, RegisterError> {
    let base_to = match base {
        Base::VirtualAddress => ptr.addr() as u64,
        Base::Iova(to) => to,
        Base::Zero => 0,
    };
    // Subtraction, as a range may end exactly at 2^64; its last byte cannot be reached then.
    if len as u64 - 1 > u64::MAX - base_to { Err(RegisterError::BaseWraps) } else { Ok(base_to) }
}

/// Whether these rights go together, and with the memory.
pub(super) fn check_rights(access: Access, writable: bool) -> Result<(), RegisterError> {
    if !Access::all().contains(access) {
        return Err(RegisterError::UnknownRights);
    }
    if access.allows_writing() && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::RemoteWithoutLocalWrite);
    }
    if access.allows_writing() && !writable {
        return Err(RegisterError::ReadOnly);
    }
    Ok(())
}

impl Shared {
    /// What `stag` names, if it is valid: for a window, also while the region behind it is.
    ///
    /// Inlined: each caller looks at a few of the fields, which need not go through memory.
    #[inline(always)]
    pub(super) fn lookup(&self, stag: Stag) -> Result<(Lease<'_>, Record), Fault> {
        if !self.is_here() {
            return Err(Fault::InvalidStag);
        }
        let slot = self.slot_of(stag.index()).and_then(|slot| self.slot(slot)).ok_or(Fault::InvalidStag)?;
        let (record, generation) = slot.read().ok_or(Fault::InvalidStag)?;
        let parent = match record.parent {
            Some((number, generation)) => Some((self.slot(number).ok_or(Fault::InvalidStag)?, generation)),
            None => None,
        };
        let lease = Lease { slot, generation, parent };
        // The slot itself was found valid by `read`.
        let parent_is_current = parent.is_none_or(|(slot, generation)| slot.is_current(generation));
        if record.stag == stag && parent_is_current { Ok((lease, record)) } else { Err(Fault::InvalidStag) }
    }

    /// Whether this is the process that made the table, not a child of it: there nothing is usable, nobody is
    /// waited for, and no lock is taken, as its holder may not exist.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    pub(super) fn slot_of(&self, index: u32) -> Option<SlotNumber> {
        self.index.slot(index).map(SlotNumber)
    }

    pub(super) fn slot(&self, slot: SlotNumber) -> Option<&Slot> {
        let chunk = self.slots.get(slot.0 as usize / CHUNK)?.get()?;
        chunk.get(slot.0 as usize % CHUNK)
    }

    /// Takes a slot and an index. It is invalid; `template` says what a send queue may make of it.
    pub(super) fn claim(&self, template: Option<Template>) -> Result<(SlotNumber, u32), RegisterError> {
        if !self.is_here() {
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

    /// Makes an invalid slot valid with the same index, as its owner wants it now.
    ///
    /// # Errors
    /// [`RegisterError::Overlap`].
    pub(super) fn republish(
        &self,
        number: SlotNumber,
        record: &Record,
        extent: Extent,
    ) -> Result<(), RegisterError> {
        let control = self.control();
        self.check_overlap(&control, record.pd, extent, record.access)?;
        if let Some(slot) = self.slot(number) {
            slot.publish(record);
        }
        Ok(())
    }

    /// Whether overlapping writers are refused.
    pub(super) fn is_strict(&self) -> bool {
        self.config.strict_overlap
    }

    /// Whether what a slot names may be used now.
    pub(super) fn is_valid(&self, number: SlotNumber) -> bool {
        let Some((record, _)) = self.slot(number).and_then(Slot::read) else { return false };
        self.lookup(record.stag).is_ok()
    }

    /// Makes a slot invalid, without waiting.
    pub(super) fn revoke_slot(&self, number: SlotNumber) {
        if let Some(slot) = self.slot(number) {
            slot.revoke_any();
        }
    }

    /// Makes a slot invalid and waits until nobody uses what it named.
    pub(super) fn revoke(&self, number: SlotNumber) {
        self.revoke_slot(number);
        self.synchronize();
    }

    /// Ends a name for good: revokes it, waits until nobody uses what it named, and gives slot and index
    /// back.
    pub(super) fn retire(&self, number: SlotNumber, index: u32) {
        if !self.is_here() {
            return;
        }
        let mut control = self.control();
        // First, under the lock: a send queue that is behind with its requests must not make it valid again.
        control.allocator.free(&self.index, index);
        let template = control.templates.remove(&number);
        drop(control);
        self.revoke(number);
        // Counted until now, as the slot is in use until now.
        let mut control = self.control();
        control.free.push(number);
        match template {
            Some(Template { form: Form::Window(_), .. }) => control.windows -= 1,
            _ => control.registered -= 1,
        }
    }

    /// Waits until all turns and visits that are under way are over. Not under the control lock: a turn that
    /// is waited for may itself wait for the lock.
    pub(super) fn synchronize(&self) {
        if !self.is_here() {
            return;
        }
        self.quiescence.synchronize();
        drop(self.visits.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        // Nothing that runs under the lock can panic half way but for lack of memory, which aborts.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// How many slots were ever used: those with lower numbers.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// What may be made of a slot, where a send queue may.
    pub(super) fn template_of(&self, number: SlotNumber) -> Option<Template> {
        self.templates.get(&number).copied()
    }

    /// The slot that `stag`'s index names and what may be made of it, whatever it is now.
    pub(super) fn template(&self, shared: &Shared, stag: Stag) -> Option<(SlotNumber, Template)> {
        let slot = shared.slot_of(stag.index())?;
        self.templates.get(&slot).map(|template| (slot, *template))
    }

    /// Whether a window is bound to the region in that slot as it is now.
    pub(super) fn is_bound(&self, shared: &Shared, region: SlotNumber) -> bool {
        let behind = |window: SlotNumber| shared.slot(window)?.read()?.0.parent;
        let is_behind = |(number, generation)| {
            number == region && shared.slot(region).is_some_and(|slot| slot.is_current(generation))
        };
        let windows = self.templates.iter().filter(|(_, template)| matches!(template.form, Form::Window(_)));
        windows.filter_map(|(window, _)| behind(*window)).any(is_behind)
    }
}
