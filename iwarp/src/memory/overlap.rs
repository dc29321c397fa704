//! Peers that do not trust one another, and one piece of memory: who else may write to it (RFC 5042 section
//! 6.3.6).

use crate::memory::access::{Access, PdId};
use crate::memory::handle::Extent;
use crate::memory::registration::RegisterError;
use crate::memory::slot::{Record, Slot, SlotNumber, Traits};
use crate::memory::table::{Control, Form, Shared};

const REMOTE_WRITES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

impl Shared {
    /// Refuses a name for peers to write by, where the table is strict and one of another domain is there.
    pub(super) fn check_overlap(
        &self,
        control: &Control,
        pd: PdId,
        extent: Extent,
        access: Access,
    ) -> Result<(), RegisterError> {
        if !self.is_strict() || !lets_write(access) {
            return Ok(());
        }
        match self.writers(control, pd, extent) {
            0 => Ok(()),
            writers => Err(RegisterError::Overlap { writers }),
        }
    }

    /// STags of domains other than `pd` by which peers may write to a byte of `extent`, now or when a send
    /// queue wants it.
    pub(super) fn writers(&self, control: &Control, pd: PdId, extent: Extent) -> usize {
        (0..control.used()).filter(|number| self.may_write(control, SlotNumber(*number), pd, extent)).count()
    }

    fn may_write(&self, control: &Control, number: SlotNumber, pd: PdId, extent: Extent) -> bool {
        // Prepared memory counts as a whole, registered or not; so do regions for windows instead of their
        // windows.
        if let Some(template) = control.template_of(number) {
            return match template.form {
                Form::Prepared { extent: prepared, .. } => {
                    template.pd != pd && prepared.writable && overlap(extent, prepared.ptr, prepared.len)
                }
                Form::Window(_) => false,
            };
        }
        let Some((Record { pd: other, access, traits, ptr, len, .. }, _)) =
            self.slot(number).and_then(Slot::read)
        else {
            return false;
        };
        other != pd && !traits.contains(Traits::WINDOW) && lets_write(access) && overlap(extent, ptr, len)
    }
}

/// Whether peers may write by it, or by a window on it.
fn lets_write(access: Access) -> bool {
    access.intersects(REMOTE_WRITES) || access.contains(Access::LOCAL_WRITE | Access::MW_BIND)
}

fn overlap(extent: Extent, ptr: *mut u8, len: usize) -> bool {
    let (a, b) = (extent.ptr.addr(), ptr.addr());
    a < b.saturating_add(len) && b < a.saturating_add(extent.len)
}
