//! Detects memory that peers of several protection domains may write to. Peers of different domains need not
//! trust each other (RFC 5042 section 6.3.6).

use crate::memory::access::RegisterError;
use crate::memory::access::{Access, PdId};
use crate::memory::slot::AddressRange;
use crate::memory::slot::{Record, Slot, SlotNumber, Traits};
use crate::memory::table::{Form, TableControl, TableShared};

const REMOTE_WRITES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

impl TableShared {
    /// In a strict table, refuses remote write access to memory that peers of another protection domain may
    /// write to.
    pub(super) fn check_overlap(
        &self,
        control: &TableControl,
        pd: PdId,
        extent: AddressRange,
        access: Access,
    ) -> Result<(), RegisterError> {
        // RFC 5042 section 6.3.6 (SEC-117): a strict table refuses a second domain whose peers could write to
        // the same memory.
        if !self.is_strict() || !lets_write(access) {
            return Ok(());
        }
        match self.writers(control, pd, extent) {
            0 => Ok(()),
            writers => Err(RegisterError::Overlap { writers }),
        }
    }

    /// The number of STags of domains other than `pd` through which peers may write to a byte of `extent`,
    /// now or after a request in a send queue has allowed the write.
    pub(super) fn writers(&self, control: &TableControl, pd: PdId, extent: AddressRange) -> usize {
        (0..control.used()).filter(|number| self.may_write(control, SlotNumber(*number), pd, extent)).count()
    }

    fn may_write(&self, control: &TableControl, number: SlotNumber, pd: PdId, extent: AddressRange) -> bool {
        // Prepared memory that is writable counts as a whole, whichever part of it is registered. Windows do
        // not count, since their regions count.
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

/// Whether these rights allow peers to write, directly or through a window.
fn lets_write(access: Access) -> bool {
    access.intersects(REMOTE_WRITES) || access.contains(Access::LOCAL_WRITE | Access::MW_BIND)
}

fn overlap(extent: AddressRange, ptr: *mut u8, len: usize) -> bool {
    let (a, b) = (extent.ptr.addr(), ptr.addr());
    len > 0 && extent.len > 0 && a < b.saturating_add(len) && b < a.saturating_add(extent.len)
}
