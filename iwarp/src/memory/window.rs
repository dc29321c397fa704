//! Memory windows: names for a part of a region, given and taken in a send queue.
//!
//! A window is bound to a region ([`EpochGuard::bind_window`]): a range inside it, rights that the
//! region can bear. It is a name for peers only. It ends by being invalidated or bound again, and
//! with the region: it is usable only while the region is in the generation to which it was bound,
//! which is looked at again before every copy.

use crate::memory::access::{Access, Accessor, PdId};
use crate::memory::fault::Fault;
use crate::memory::handle::Handle;
use crate::memory::quiescence::EpochGuard;
use crate::memory::registration::RegisterError;
use crate::memory::slot::{Record, SlotNumber, Traits};
use crate::memory::stag::Stag;
use crate::memory::table::{Control, Form, MemoryTable, Shared, Template};

/// The two types of windows of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// For every stream of the protection domain. Bound again, or to nothing, at any time; no peer
    /// invalidates it.
    Type1,
    /// For the one stream whose queue pair bound it. Invalidated by that queue pair or its peer, then bound
    /// again.
    Type2,
}

/// What a window is to be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's name from now on: its index, with any key.
    pub stag: Stag,
    /// The region, registered with [`Access::MW_BIND`].
    pub region: Stag,
    /// First byte, as a tagged offset of the region.
    pub addr: u64,
    /// Bytes; 0 leaves a window of type 1 unbound.
    pub len: u64,
    /// Rights of the peer; those to write need the region's [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Tagged offsets start at 0, not at `addr`.
    pub zero_based: bool,
}

/// Why a window could not be bound, or memory not be registered, in a send queue. What was valid before still
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The STag's index is none that was allocated for this.
    #[error("the STag was not allocated for it")]
    UnknownStag,
    /// The STag belongs to another protection domain.
    #[error("the STag belongs to another protection domain")]
    NotAssociated,
    /// It has to be invalidated first.
    #[error("the STag is still valid: invalidate it first")]
    StillValid,
    /// No bytes.
    #[error("no bytes")]
    Empty,
    /// The region's name, its association, or the range inside it.
    #[error("the region: {0}")]
    Region(Fault),
    /// The region was registered without [`Access::MW_BIND`].
    #[error("the region does not allow windows")]
    NotBindable,
    /// Rights that the memory cannot bear, or that are no rights of a peer.
    #[error("the memory cannot bear these rights")]
    Rights,
    /// Tagged offsets would pass 2^64.
    #[error("the tagged offsets of the range would wrap")]
    BaseWraps,
}

/// A window, as its owner holds it. Dropping it frees it: when that is done, nobody reaches the region
/// through it.
pub struct Window {
    handle: Handle,
    kind: WindowKind,
}

impl MemoryTable {
    /// A window that is bound to nothing. `keep`: no peer may invalidate it.
    ///
    /// # Errors
    /// [`RegisterError::WindowLimit`].
    pub fn alloc_window(&self, pd: PdId, kind: WindowKind, keep: bool) -> Result<Window, RegisterError> {
        let template = Template { pd, keep, form: Form::Window(kind) };
        let (slot, index) = self.shared().claim(Some(template))?;
        Ok(Window { handle: Handle { table: self.clone(), slot, index }, kind })
    }

    /// What kind of window the index of `stag` names, bound or not; `None` when it names none.
    pub fn window_kind(&self, stag: Stag) -> Option<WindowKind> {
        if !self.shared().is_here() {
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
    /// Its kind.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Its name with that key.
    pub fn stag(&self, key: u8) -> Stag {
        Stag::new(self.handle.index, key)
    }

    /// Whether it is bound under that name, and the region behind it is valid.
    pub fn is_valid(&self, stag: Stag) -> bool {
        stag.index() == self.handle.index && self.handle.is_valid(stag)
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("index", &self.handle.index).field("kind", &self.kind).finish()
    }
}

impl EpochGuard {
    /// Binds a window as the consumer asked in the send queue of `by`. What a window of type 1 was bound to
    /// before is out of reach when this returns; for that it waits for the turns that other engines are in.
    ///
    /// # Errors
    /// [`BindError`]; the window is as it was.
    pub fn bind_window(&self, bind: &Bind, by: Accessor) -> Result<(), BindError> {
        let shared = self.shared();
        if !shared.is_here() {
            return Err(BindError::UnknownStag);
        }
        let mut control = shared.control();
        let (number, template) = control.template(shared, bind.stag).ok_or(BindError::UnknownStag)?;
        let Form::Window(kind) = template.form else { return Err(BindError::UnknownStag) };
        if template.pd != by.pd {
            return Err(BindError::NotAssociated);
        }
        // All is checked before the window is taken from what it was bound to.
        let checked = window_record(shared, bind, &template, by)?;
        match kind {
            WindowKind::Type2 if shared.is_valid(number) => return Err(BindError::StillValid),
            WindowKind::Type2 if checked.is_none() => return Err(BindError::Empty),
            // Bound to a region that is gone, at most: that was waited for.
            WindowKind::Type2 => shared.revoke_slot(number),
            WindowKind::Type1 => loop {
                shared.revoke_slot(number);
                drop(control);
                shared.synchronize();
                control = shared.control();
                // The window may have been freed meanwhile. Its index is not used again that soon.
                control.template(shared, bind.stag).ok_or(BindError::UnknownStag)?;
                // Or bound by another queue pair: of two that bind, the later has it.
                if shared.slot(number).is_none_or(|slot| !slot.is_valid()) {
                    break;
                }
            },
        }
        // Looked at again, as the lock was given up.
        let Some(record) = window_record(shared, bind, &template, by)? else { return Ok(()) };
        publish(shared, &control, number, &record)
    }
}

/// Makes an invalid slot valid, unless somebody else has meanwhile.
pub(super) fn publish(
    shared: &Shared,
    _locked: &Control,
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

/// What a bound window's slot says; `None`: it is bound to nothing.
fn window_record(
    shared: &Shared,
    bind: &Bind,
    template: &Template,
    by: Accessor,
) -> Result<Option<Record>, BindError> {
    let Bind { stag, region, addr, len, access, zero_based } = *bind;
    if len == 0 {
        return Ok(None);
    }
    let (lease, parent) = shared.lookup(region).map_err(BindError::Region)?;
    // A window is no region: nothing is bound to it.
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
    let is_type_1 = matches!(template.form, Form::Window(WindowKind::Type1));
    let mut traits = Traits::WINDOW | (parent.traits & Traits::GUARDED);
    traits.set(Traits::REBOUND_ONLY, is_type_1);
    traits.set(Traits::KEPT, template.keep);
    let number = shared.slot_of(region.index()).ok_or(BindError::Region(Fault::InvalidStag))?;
    Ok(Some(Record {
        stag,
        access,
        traits,
        pd: template.pd,
        // Never wider than the region.
        stream: if is_type_1 { parent.stream } else { Some(by.stream) },
        base_to: if zero_based { 0 } else { addr },
        ptr,
        len: len as usize,
        parent: Some((number, lease.generation)),
    }))
}
