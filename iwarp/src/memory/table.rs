//! The table of registrations: made under a lock, read without one.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use dp::Region;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use crate::memory::access::{Access, Accessor, Base, PdId, RegisterOptions};
use crate::memory::bytes::RawBytes;
use crate::memory::fault::Fault;
use crate::memory::index::{IndexAllocator, IndexMap, MAX_LIVE};
use crate::memory::quiescence::{Participant, Quiescence, Turn};
use crate::memory::registration::{RegisterError, Registration};
use crate::memory::slot::{Generation, Record, Slot};
use crate::memory::stag::Stag;
use crate::memory::transfer::{Source, Target};

/// Slots that come into being together.
const CHUNK: usize = 256;

/// All registrations of a context. Cheap to clone: clones are the same table.
#[derive(Clone)]
pub struct MemoryTable {
    shared: Arc<Shared>,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Registrations that exist.
    pub registered: usize,
    /// Registrations that may exist (`max_mr`).
    pub limit: usize,
    /// Registrations refused because of the limit.
    pub refused: u64,
}

/// What clones share.
pub(super) struct Shared {
    slots: Box<[OnceLock<Box<[Slot]>>]>,
    index: IndexMap,
    control: Mutex<Control>,
    pub(super) quiescence: Quiescence,
    /// Held for reading by threads that copy outside a turn.
    visits: RwLock<()>,
    limit: usize,
}

/// What only creation and destruction touch.
struct Control {
    allocator: IndexAllocator,
    free: Vec<u32>,
    /// Slots that were ever used; those above have not been.
    used: u32,
    registered: usize,
    refused: u64,
}

impl MemoryTable {
    /// Registrations that may exist by default.
    pub const DEFAULT_MAX_MR: usize = 65_536;

    /// A table for at most `max_mr` registrations (at least 1, at most 2^20), whose STags follow from `seed`.
    /// Outside tests the seed is entropy of the system.
    pub fn new(max_mr: usize, seed: [u8; 32]) -> Self {
        let limit = max_mr.clamp(1, MAX_LIVE);
        let shared = Shared {
            slots: (0..limit.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            index: IndexMap::new(),
            control: Mutex::new(Control {
                allocator: IndexAllocator::new(ChaCha20Rng::from_seed(seed)),
                free: Vec::new(),
                used: 0,
                registered: 0,
                refused: 0,
            }),
            quiescence: Quiescence::default(),
            visits: RwLock::new(()),
            limit,
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
    /// # Safety
    /// Until the registration is dropped or [`Registration::deregister`] has returned, `ptr..ptr + len` stays
    /// mapped, readable and (if `options` allow any writing) writable, and the caller accesses it only in
    /// ways that allow other threads to read and change it at any time: through raw pointers or atomics, never
    /// through a reference to plain octets.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub unsafe fn register_user(
        &self,
        ptr: *mut u8,
        len: usize,
        options: &RegisterOptions,
    ) -> Result<Registration, RegisterError> {
        // SAFETY: the caller promises what `RawBytes::new` asks for, for as long as the registration lives.
        let memory = unsafe { RawBytes::new(ptr, len, options.access.allows_writing()) };
        self.insert(memory, None, options)
    }

    /// Whether a request of protection domain `pd` may use `len` octets at `addr` of `lkey`: for posting, which
    /// wants the answer early. The engine checks again when it moves the octets. No octets need no right.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn check_local(&self, pd: PdId, lkey: u32, addr: u64, len: u32, access: Access) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        let (_, record, _) = self.shared.lookup(Stag(lkey))?;
        record.admit_local(pd, access)?;
        record.locate(addr, u64::from(len)).map(drop)
    }

    /// Copies registered octets out for a thread that is in no turn, as posting inline data does.
    ///
    /// # Errors
    /// As [`MemoryTable::check_local`].
    pub fn fetch_local(&self, pd: PdId, lkey: u32, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        if out.is_empty() {
            return Ok(());
        }
        let _visit = self.shared.visits.read().unwrap_or_else(PoisonError::into_inner);
        let (_, record, _) = self.shared.lookup(Stag(lkey))?;
        record.admit_local(pd, Access::empty())?;
        let ptr = record.locate(addr, out.len() as u64)?;
        // SAFETY: the slot was valid while `_visit` was held, whoever revokes it waits for the visit to end before
        // the memory may go, and `locate` kept the range inside the registration.
        unsafe { super::copy::fetch(ptr, out) };
        Ok(())
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        let control = self.shared.control();
        Usage { registered: control.registered, limit: self.shared.limit, refused: control.refused }
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
        let slot = self.shared.claim(&mut record, options.key)?;
        Ok(Registration::new(self.clone(), slot, &record, memory, region))
    }
}

/// The slot contents for a request to register, if it makes sense.
fn record(memory: &RawBytes, options: &RegisterOptions) -> Result<Record, RegisterError> {
    let RegisterOptions { pd, stream, access, base, key: _ } = *options;
    let (ptr, len) = (memory.as_ptr(), memory.len());
    if len == 0 {
        return Err(RegisterError::Empty);
    }
    check_rights(memory, access)?;
    let base_to = match base {
        Base::VirtualAddress => ptr.addr() as u64,
        Base::Iova(to) => to,
        Base::Zero => 0,
    };
    // Subtraction, as a range may end exactly at 2^64; its last octet cannot be reached then.
    if len as u64 - 1 > u64::MAX - base_to {
        return Err(RegisterError::BaseWraps);
    }
    Ok(Record { stag: Stag(0), access, pd, stream, base_to, ptr, len })
}

/// Whether these rights go together, and with the memory.
pub(super) fn check_rights(memory: &RawBytes, access: Access) -> Result<(), RegisterError> {
    if access.allows_writing() && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::RemoteWithoutLocalWrite);
    }
    if access.allows_writing() && !memory.is_writable() {
        return Err(RegisterError::ReadOnly);
    }
    Ok(())
}

impl Shared {
    /// The slot, its contents and generation, if `stag` names a valid one.
    pub(super) fn lookup(&self, stag: Stag) -> Result<(&Slot, Record, Generation), Fault> {
        let slot =
            self.index.slot(stag.index()).and_then(|slot| self.slot(slot)).ok_or(Fault::InvalidStag)?;
        let (record, generation) = slot.read().ok_or(Fault::InvalidStag)?;
        if record.stag == stag { Ok((slot, record, generation)) } else { Err(Fault::InvalidStag) }
    }

    pub(super) fn slot(&self, slot: u32) -> Option<&Slot> {
        let chunk = self.slots.get(slot as usize / CHUNK)?.get()?;
        chunk.get(slot as usize % CHUNK)
    }

    /// Takes a slot and an index, completes `record` with the STag and publishes it.
    fn claim(&self, record: &mut Record, key: u8) -> Result<u32, RegisterError> {
        let mut control = self.control();
        if control.registered == self.limit {
            control.refused += 1;
            return Err(RegisterError::Limit { max_mr: self.limit });
        }
        control.registered += 1;
        let number = control.free.pop().unwrap_or_else(|| {
            control.used += 1;
            control.used - 1
        });
        let chunk =
            self.slots[number as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        let index = control.allocator.allocate(&self.index, number);
        record.stag = Stag::new(index, key);
        chunk[number as usize % CHUNK].publish(record);
        Ok(number)
    }

    /// Makes an invalid slot valid again with the same index, as its owner wants it now.
    pub(super) fn republish(&self, number: u32, record: &Record) {
        let _control = self.control();
        if let Some(slot) = self.slot(number) {
            slot.publish(record);
        }
    }

    /// Makes a slot invalid and waits until nobody uses what it named.
    pub(super) fn revoke(&self, number: u32) {
        if let Some(slot) = self.slot(number) {
            slot.revoke_any();
        }
        self.synchronize();
    }

    /// Gives a revoked slot and its index back.
    pub(super) fn release(&self, number: u32, index: u32) {
        let mut control = self.control();
        control.allocator.free(&self.index, index);
        control.free.push(number);
        control.registered -= 1;
    }

    /// Waits until all turns and visits that are under way are over.
    fn synchronize(&self) {
        self.quiescence.synchronize();
        drop(self.visits.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // Nothing that runs under the lock can panic half way but for lack of memory, which aborts.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The checks of the data path. Each reads the table as it is now; what it returns checks again when used.
impl Turn {
    /// Where the payload of a tagged segment of an RDMA Write goes (RFC 5041 section 7.1). `len` is not 0: an
    /// empty segment is not checked.
    ///
    /// # Errors
    /// The first check that fails; [`DdpError`](crate::ddp::DdpError) has its codes.
    pub fn check_write(&self, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<Target<'_>, Fault> {
        let (slot, record, generation) = self.shared().lookup(stag)?;
        record.admit_remote(by, Access::REMOTE_WRITE)?;
        let ptr = record.locate(to, len)?;
        Ok(Target::new(self, slot, generation, ptr, len as usize))
    }

    /// Where the octets that a Read Request asks for come from (RFC 5040 section 7.2). `len` is not 0.
    ///
    /// # Errors
    /// The first check that fails; [`TerminateError::of_read_fault`](crate::rdmap::TerminateError::of_read_fault)
    /// has its codes.
    pub fn check_read(&self, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<Source<'_>, Fault> {
        let (slot, record, generation) = self.shared().lookup(stag)?;
        record.admit_remote(by, Access::REMOTE_READ)?;
        let ptr = record.locate(to, len)?;
        Ok(Source::new(self, slot, generation, ptr, len as usize))
    }

    /// Where a received Send or a Read Response goes: an element of the consumer's own request. A Read Response
    /// is checked against its [`ReadSink`](crate::rdmap::ReadSink) before.
    ///
    /// # Errors
    /// The first check that fails. For a Read Response it has DDP's codes.
    pub fn check_sink(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Result<Target<'_>, Fault> {
        let (slot, record, generation) = self.shared().lookup(lkey)?;
        record.admit_local(pd, Access::LOCAL_WRITE)?;
        let ptr = record.locate(addr, len)?;
        Ok(Target::new(self, slot, generation, ptr, len as usize))
    }

    /// Where the octets of a Send or Write come from: an element of the consumer's own request.
    ///
    /// # Errors
    /// The first check that fails. It is the consumer's mistake, not the peer's.
    pub fn check_source(&self, lkey: Stag, addr: u64, len: u64, pd: PdId) -> Result<Source<'_>, Fault> {
        let (slot, record, generation) = self.shared().lookup(lkey)?;
        record.admit_local(pd, Access::empty())?;
        let ptr = record.locate(addr, len)?;
        Ok(Source::new(self, slot, generation, ptr, len as usize))
    }

    /// Invalidates an STag as the consumer asked in its send queue. When this returns, nothing behind it changes
    /// or is read any more: it waits for the turns that other engines are in.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when unknown or invalid already, [`Fault::NotAssociated`] when it belongs to another
    /// protection domain.
    pub fn invalidate_local(&self, stag: Stag, pd: PdId) -> Result<(), Fault> {
        let (slot, record, generation) = self.shared().lookup(stag)?;
        if record.pd != pd {
            return Err(Fault::NotAssociated);
        }
        if !slot.revoke(generation) {
            return Err(Fault::InvalidStag);
        }
        self.shared().synchronize();
        Ok(())
    }

    /// Invalidates an STag as a peer asked on stream `by` (Send with Invalidate). Only an STag of that one stream
    /// is: what several streams may use, one of them must not take from the others (RFC 5042 section 6.4.5). As no
    /// other engine can be using it, there is nothing to wait for.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when unknown or invalid already, [`Fault::NotInvalidatable`] when it belongs to
    /// another stream or to a protection domain.
    pub fn invalidate_remote(&self, stag: Stag, by: Accessor) -> Result<(), Fault> {
        let (slot, record, generation) = self.shared().lookup(stag)?;
        if !record.access.intersects(Access::REMOTE) {
            return Err(Fault::InvalidStag);
        }
        if record.stream != Some(by.stream) {
            return Err(Fault::NotInvalidatable);
        }
        if slot.revoke(generation) { Ok(()) } else { Err(Fault::InvalidStag) }
    }
}
