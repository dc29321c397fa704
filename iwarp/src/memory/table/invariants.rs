//! The invariants of the memory table.

use std::collections::HashSet;

use dp::invariant::{Check, ensure};

use super::{Form, MemoryTable, TableShared, Template};
use crate::memory::slot::{Record, SlotNumber, Traits};
use crate::memory::window::WindowKind;

impl MemoryTable {
    /// Checks the invariants of the table; for tests. During the check no other thread may use the table.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
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
            let last = slot.last_stag();
            let leads_here = self.slot_of(last.index()) == Some(number);
            ensure!(!leads_here || !free.contains(&number), "{last:?} leads to {number:?}, which is free");
            let Some((record, _)) = slot.read() else { continue };
            ensure!(!free.contains(&number), "{number:?} is free and valid");
            let named = self.slot_of(record.stag.index());
            ensure!(named == Some(number), "{:?} of {number:?} leads to {named:?}", record.stag);
            let form = control.templates.get(&number).map(|template| template.form);
            ensure!(fits(&record, form), "{number:?} is valid as {:?} and made as {form:?}", record.traits);
            let Some((parent, generation)) = record.parent else { continue };
            ensure!(parent.0 < control.used && parent != number, "{number:?} is bound to {parent:?}");
            // The region may have been destroyed. If so, the window is not usable.
            let region = self.slot(parent).ok_or_else(|| format!("{number:?} is bound to {parent:?}"))?;
            ensure!(region.has_reached(generation), "{number:?} is bound to a later {generation:?}");
        }
        Ok(())
    }
}

/// Whether the record of a valid slot fits the purpose for which the slot was allocated. For example, only a
/// window is bound to a region.
fn fits(record: &Record, form: Option<Form>) -> bool {
    let Record { traits, parent, .. } = record;
    let (is_window, is_rebound) = (traits.contains(Traits::WINDOW), traits.contains(Traits::REBOUND_ONLY));
    match form {
        Some(Form::Window(kind)) => {
            is_window && parent.is_some() && is_rebound == (kind == WindowKind::Type1)
        }
        Some(Form::Prepared { .. }) | None => !is_window && !is_rebound && parent.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dp::Region;
    use dp::invariant::assert_found;

    use super::*;
    use crate::memory::access::{Access, Accessor, Base, PdId, RegisterOptions, StreamId};
    use crate::memory::slot::Generation;
    use crate::memory::table::TableControl;
    use crate::memory::window::Bind;

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
    fn a_name_of_a_free_slot_is_found() {
        let table = MemoryTable::new(8, [1; 32]);
        let region = Arc::new(Region::new(4096).unwrap());
        let kept = table.register(region, &RegisterOptions::default()).unwrap();
        table.shared.revoke_slot(SlotNumber(0));
        table.check_invariants().unwrap();
        let mut control = table.shared.control();
        control.registered -= 1;
        control.free.push(SlotNumber(0));
        drop(control);
        assert_found(table.check_invariants(), "leads to SlotNumber(0), which is free");
        // Dropping the registration frees the slot.
        let mut control = table.shared.control();
        control.registered += 1;
        assert_eq!(control.free.pop(), Some(SlotNumber(0)));
        drop(control);
        drop(kept);
        table.check_invariants().unwrap();
    }

    #[test]
    fn a_window_that_does_not_fit_its_template_or_its_region_is_found() {
        type Break = fn(&TableShared);
        let broken: [(Break, &str); 3] = [
            (|shared| set_kind(shared, WindowKind::Type2), "and made as Some(Window(Type2))"),
            (|shared| change(shared, |record, _| record.parent = None), "and made as Some(Window(Type1))"),
            (
                |shared| change(shared, |record, later| record.parent = Some((SlotNumber(0), later))),
                "SlotNumber(1) is bound to a later Generation(5)",
            ),
        ];
        for (break_it, found) in broken {
            let table = MemoryTable::new(8, [1; 32]);
            let region = Arc::new(Region::new(4096).unwrap());
            let access = Access::LOCAL_WRITE | Access::MW_BIND;
            let options = RegisterOptions { pd: PdId(1), access, base: Base::Zero, ..Default::default() };
            let region = table.register(region, &options).unwrap();
            let window = table.alloc_window(PdId(1), WindowKind::Type1, false).unwrap();
            let participant = table.join();
            let (stag, region) = (window.stag(0), region);
            let access = Access::REMOTE_READ;
            let bind = Bind { stag, region: region.stag(), addr: 0, len: 8, access, zero_based: false };
            let by = Accessor { pd: PdId(1), stream: StreamId(1) };
            for _ in 0..3 {
                participant.enter().bind_window(&bind, by).unwrap();
            }
            table.check_invariants().unwrap();
            break_it(&table.shared);
            assert_found(table.check_invariants(), found);
        }
    }

    fn set_kind(shared: &TableShared, kind: WindowKind) {
        let mut control = shared.control();
        control.templates.values_mut().for_each(|template| template.form = Form::Window(kind));
    }

    /// Changes the record of the window, which is in slot 1. `change` receives the window's own generation,
    /// which is later than the generation of the window's region.
    fn change(shared: &TableShared, change: impl FnOnce(&mut Record, Generation)) {
        let slot = shared.slot(SlotNumber(1)).unwrap();
        let (mut record, generation) = slot.read().unwrap();
        change(&mut record, generation);
        slot.revoke_any();
        slot.publish(&record);
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
        slot.publish(&Record { stag: crate::memory::stag::Stag(!record.stag.0), ..record });
        assert!(table.check_invariants().is_err());
        drop(kept);
    }
}
