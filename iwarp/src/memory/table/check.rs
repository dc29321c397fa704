//! The invariants of the table.

use std::collections::HashSet;

use dp::invariant::{Check, ensure};

use super::{Form, MemoryTable, TableShared, Template};
use crate::memory::slot::SlotNumber;

impl MemoryTable {
    /// Whether it is as it must be between any two calls; for tests. No other thread is to use it meanwhile.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Check {
        if self.shared.is_owner_process() { self.shared.check() } else { Ok(()) }
    }
}

impl TableShared {
    fn check(&self) -> Check {
        let control = self.control();
        let free: HashSet<SlotNumber> = control.free.iter().copied().collect();
        ensure!(free.len() == control.free.len(), "a slot is free twice");
        let live = control.used as usize - free.len();
        let (registered, windows) = (control.registered, control.windows);
        ensure!(
            registered + windows == live,
            "{registered} registrations and {windows} windows in {live} slots"
        );
        let is_window = |template: &&Template| matches!(template.form, Form::Window(_));
        let named = control.templates.values().filter(is_window).count();
        ensure!(windows == named, "{windows} windows counted of {named}");
        for number in control.templates.keys() {
            ensure!(number.0 < control.used && !free.contains(number), "a template of the unused {number:?}");
        }
        for number in (0..control.used).map(SlotNumber) {
            let slot = self.slot(number).ok_or_else(|| format!("{number:?} was used and is not there"))?;
            let Some((record, _)) = slot.read() else { continue };
            ensure!(!free.contains(&number), "{number:?} is free and valid");
            let named = self.slot_of(record.stag.index());
            ensure!(named == Some(number), "{:?} of {number:?} leads to {named:?}", record.stag);
            let Some((parent, _)) = record.parent else { continue };
            ensure!(parent.0 < control.used && parent != number, "{number:?} is bound to {parent:?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dp::Region;

    use super::*;
    use crate::memory::access::{Access, PdId, RegisterOptions};
    use crate::memory::table::TableControl;

    #[test]
    fn a_table_whose_parts_disagree_is_found() {
        type Break = fn(&mut TableControl);
        let broken: [Break; 6] = [
            |control| control.registered += 1,
            |control| control.windows += 1,
            |control| control.used += 1,
            |control| control.used -= 1,
            |control| control.free.push(SlotNumber(1)),
            |control| control.free.push(SlotNumber(0)),
        ];
        for (number, break_it) in broken.into_iter().enumerate() {
            let table = MemoryTable::new(8, [1; 32]);
            let region = Arc::new(Region::new(4096).unwrap());
            let options =
                RegisterOptions { pd: PdId(1), access: Access::LOCAL_WRITE, ..RegisterOptions::default() };
            let kept = table.register(Arc::clone(&region), &options).unwrap();
            drop(table.register(region, &options).unwrap());
            table.check_invariants().unwrap();
            break_it(&mut table.shared.control());
            assert!(table.check_invariants().is_err(), "{number}");
            drop(kept);
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_found() {
        let table = MemoryTable::new(8, [1; 32]);
        let region = Arc::new(Region::new(4096).unwrap());
        let options =
            RegisterOptions { pd: PdId(1), access: Access::LOCAL_WRITE, ..RegisterOptions::default() };
        let kept = table.register(region, &options).unwrap();
        let slot = table.shared.slot(SlotNumber(0)).unwrap();
        let (record, _) = slot.read().unwrap();
        slot.revoke_any();
        slot.publish(&crate::memory::slot::Record {
            stag: crate::memory::stag::Stag(!record.stag.0),
            ..record
        });
        assert!(table.check_invariants().is_err());
        drop(kept);
    }
}
