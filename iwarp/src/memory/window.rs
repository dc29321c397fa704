//! Memory windows: STags for a part of a region. Requests of a send queue bind windows. A window of type 2
//! can also be invalidated, by such a request or by the peer.
//!
//! A window is bound to a range of a region, with rights that the region allows
//! ([`EpochGuard::bind_window`]). Only peers may use a window. A binding ends when the window is invalidated,
//! bound again or freed, or when its region is invalidated or deregistered. So a window is usable only while
//! the region is in the generation to which the window was bound. Every copy checks the generation first.

pub use crate::memory::access::WindowKind;
use crate::memory::access::{Access, Accessor, PdId, RegisterError};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::handle::Handle;
use crate::memory::slot::{Record, SlotNumber, Traits};
use crate::memory::stag::Stag;
use crate::memory::table::{Form, MemoryTable, TableControl, TableShared, Template};

/// A window to bind, the range of the region, and the rights ([`EpochGuard::bind_window`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The new STag: the index of the window, with any key.
    pub stag: Stag,
    /// The STag of the region, which was registered with [`Access::MW_BIND`].
    pub region: Stag,
    /// Tagged offset, in the region, of the window's first byte.
    pub addr: u64,
    /// Number of bytes. For a window of type 1, 0 unbinds the window.
    pub len: u64,
    /// Rights of the peer. Rights to write or to perform atomics require that the region has
    /// [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Whether the window's tagged offsets start at 0 instead of `addr`.
    pub zero_based: bool,
}

/// Why a request in a send queue could not bind a window or register memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The index of the STag was not allocated for a window (if the request binds a window) or for prepared
    /// memory (if the request registers memory). This is also the error in a child of the process that made
    /// the table.
    #[error("the STag was not allocated for it")]
    UnknownStag,
    /// The STag belongs to another protection domain.
    #[error("the STag belongs to another protection domain")]
    NotAssociated,
    /// The STag has to be invalidated first.
    #[error("the STag is still valid: invalidate it first")]
    StillValid,
    /// The range has no bytes.
    #[error("no bytes")]
    Empty,
    /// The STag of the region is invalid or not associated with the queue pair, or the range is not inside
    /// the region or the prepared memory.
    #[error("the region: {0}")]
    Region(Fault),
    /// The region was registered without [`Access::MW_BIND`].
    #[error("the region does not allow windows")]
    NotBindable,
    /// The memory does not allow the rights, or the rights are unknown or contradict each other. Also the
    /// error if a window was to have a right that no peer can have.
    #[error("the region does not allow these rights")]
    Rights,
    /// The tagged offsets would exceed 2^64 - 1.
    #[error("the tagged offsets of the range would wrap")]
    BaseWraps,
}

/// The owner's handle of a window. Dropping the handle frees the window. After that no peer accesses the
/// region through the window.
pub struct Window {
    handle: Handle,
    kind: WindowKind,
}

impl MemoryTable {
    /// Allocates an unbound window. If `keep` is set, no peer may invalidate the window.
    ///
    /// # Errors
    /// [`RegisterError::WindowLimit`] if the table already has its maximum number of windows, and
    /// [`RegisterError::Forked`] in a child of the process that made the table.
    pub fn alloc_window(&self, pd: PdId, kind: WindowKind, keep: bool) -> Result<Window, RegisterError> {
        let template = Template { pd, keep, form: Form::Window(kind) };
        let (slot, index) = self.shared().allocate(Some(template))?;
        Ok(Window { handle: Handle { table: self.clone(), slot, index }, kind })
    }

    /// Returns the kind of the window that the index of `stag` names, even if the window is not bound.
    /// Returns `None` if the index names no window.
    pub fn window_kind(&self, stag: Stag) -> Option<WindowKind> {
        if !self.shared().is_owner_process() {
            return None;
        }
        let (_, template) = self.shared().control().template(self.shared(), stag)?;
        match template.form {
            Form::Window(kind) => Some(kind),
            Form::Prepared { .. } => None,
        }
    }
}

impl Window {
    /// The kind with which the window was allocated.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// The window's STag with the key `key`. The window need not be bound with this STag.
    pub fn stag(&self, key: u8) -> Stag {
        Stag::new(self.handle.index, key)
    }

    /// Whether the window is bound with the STag `stag`, and its region is valid.
    pub fn is_valid(&self, stag: Stag) -> bool {
        stag.index() == self.handle.index && self.handle.is_valid(stag)
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("index", &self.handle.index).field("kind", &self.kind).finish()
    }
}

impl EpochGuard<'_> {
    /// Binds a window for a request in the send queue of `by`. For a window of type 1 the function waits for
    /// the epochs that are open on other threads: when it returns, no peer accesses the previous range
    /// through the window.
    ///
    /// # Errors
    /// [`BindError`] says why the window could not be bound. After an error a window of type 2 is unchanged.
    /// A window of type 1 may be unbound if, during the call, another thread has freed the window, or has
    /// ended or changed the registration of its region.
    pub fn bind_window(&self, bind: &Bind, by: Accessor) -> Result<(), BindError> {
        let shared = self.shared();
        if !shared.is_owner_process() {
            return Err(BindError::UnknownStag);
        }
        let mut control = shared.control();
        let (number, template) = control.template(shared, bind.stag).ok_or(BindError::UnknownStag)?;
        let Form::Window(kind) = template.form else { return Err(BindError::UnknownStag) };
        if template.pd != by.pd {
            return Err(BindError::NotAssociated);
        }
        // All checks are made before the window loses its previous binding.
        let checked = window_record(shared, bind, &template, by)?;
        match kind {
            WindowKind::Type2 if shared.is_valid(number) => return Err(BindError::StillValid),
            WindowKind::Type2 if checked.is_none() => return Err(BindError::Empty),
            // The window is invalid, or its region is no longer valid. So this function does not wait: the
            // code that made the window or the region invalid waits for engines where that is necessary.
            WindowKind::Type2 => shared.revoke_slot(number),
            WindowKind::Type1 => loop {
                shared.revoke_slot(number);
                drop(control);
                shared.synchronize();
                control = shared.control();
                // Another thread may have freed the window while the lock was released. If so, the index is
                // in quarantine and does not name another window.
                control.template(shared, bind.stag).ok_or(BindError::UnknownStag)?;
                // Another queue pair may have bound the window while the lock was released. If so, the loop
                // also ends that binding.
                if shared.slot(number).is_none_or(|slot| !slot.is_valid()) {
                    break;
                }
            },
        }
        // The request is checked again, since the lock was released in between.
        let Some(record) = window_record(shared, bind, &template, by)? else { return Ok(()) };
        publish(shared, &control, number, &record)
    }
}

/// Makes an invalid slot valid. Fails if the slot is valid: the STag was not invalidated, or another thread
/// has made the slot valid at the same time.
pub(super) fn publish(
    shared: &TableShared,
    _locked: &TableControl,
    number: SlotNumber,
    record: &Record,
) -> Result<(), BindError> {
    let slot = shared.slot(number).ok_or(BindError::UnknownStag)?;
    if slot.is_valid() {
        return Err(BindError::StillValid);
    }
    slot.publish(record);
    Ok(())
}

/// Returns the fields of the slot of the bound window. Returns `None` if the request unbinds the window.
/// Fails if the request is not allowed.
///
/// RFC 5041 section 8.3.2 (DDP-237), RFC 5040 section 8.1.2 (RDMAP-367): the region belongs to the protection
/// domain of the queue pair that binds the window.
fn window_record(
    shared: &TableShared,
    bind: &Bind,
    template: &Template,
    by: Accessor,
) -> Result<Option<Record>, BindError> {
    let Bind { stag, region, addr, len, access, zero_based } = *bind;
    if len == 0 {
        return Ok(None);
    }
    let (lease, parent) = shared.lookup(region).map_err(BindError::Region)?;
    // A window cannot be bound to a window.
    if parent.traits.contains(Traits::WINDOW) {
        return Err(BindError::Region(Fault::InvalidStag));
    }
    if parent.pd != by.pd || parent.stream.is_some_and(|stream| stream != by.stream) {
        return Err(BindError::Region(Fault::NotAssociated));
    }
    if !parent.access.contains(Access::MW_BIND) {
        return Err(BindError::NotBindable);
    }
    if !Access::REMOTE.contains(access)
        || (access.allows_writing() && !parent.access.contains(Access::LOCAL_WRITE))
    {
        return Err(BindError::Rights);
    }
    let ptr = parent.locate(addr, len).map_err(BindError::Region)?;
    // RFC 5042 sections 6.1.1 and 6.4.5 (SEC-089, SEC-157): a window of type 2 is limited to one stream.
    let is_type_1 = matches!(template.form, Form::Window(WindowKind::Type1));
    let mut traits = Traits::WINDOW | (parent.traits & Traits::GUARDED);
    traits.set(Traits::REBOUND_ONLY, is_type_1);
    traits.set(Traits::NO_REMOTE_INVALIDATE, template.keep);
    let number = shared.slot_of(region.index()).ok_or(BindError::Region(Fault::InvalidStag))?;
    Ok(Some(Record {
        stag,
        access,
        traits,
        pd: template.pd,
        // A window cannot be for more streams than its region.
        stream: if is_type_1 { parent.stream } else { Some(by.stream) },
        base_to: if zero_based { 0 } else { addr },
        ptr,
        len: len as usize,
        parent: Some((number, lease.generation)),
    }))
}
