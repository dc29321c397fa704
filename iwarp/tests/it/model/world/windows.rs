//! Memory windows of both hosts, and requests that make STags valid.

use iwarp::memory::WindowKind;
use iwarp::verbs::{BindWindow, MwOptions, QueuePair, SendOp, SendRequest, VerbsError};

use super::super::memory::Span;
use super::super::names::{BindingId, Name, Validity, Window, WindowId};
use super::super::streams::{NewName, Semantics};
use super::{Done, Registered, World};
use testkit::dice::Dice;

impl World {
    pub(super) fn allocate_window(&mut self, dice: &mut Dice, side: usize) -> Done {
        let live = |window: &&Window| window.host == side && !window.freed;
        if self.model.memory.windows.iter().filter(live).count() >= 4 {
            return Ok(());
        }
        let kind = dice.pick(&[WindowKind::Type1, WindowKind::Type2]);
        let options = MwOptions { kind, keep: false };
        let window = self.host(side).pd.alloc_mw_with(options).map_err(|error| error.to_string())?;
        let number = self.windows.len();
        self.note(|| format!("host {side} allocates window {number}: {kind:?}"));
        let key = window.rkey();
        self.model.memory.windows.push(Window { host: side, kind, key, bound: None, freed: false });
        self.windows.push(Some(window));
        Ok(())
    }

    /// Frees a window that no outstanding request uses.
    pub(super) fn free_window(&mut self, dice: &mut Dice, side: usize) -> Done {
        let steady = |bound: BindingId| {
            matches!(self.model.memory.bindings[bound].life, Validity::Valid | Validity::Gone)
        };
        let fits = |n: &WindowId| {
            let window = &self.model.memory.windows[*n];
            window.host == side && !window.freed && window.bound.is_none_or(steady)
        };
        let fitting: Vec<WindowId> = (0..self.windows.len()).filter(fits).collect();
        if fitting.is_empty() {
            return Ok(());
        }
        let number = dice.pick(&fitting);
        self.note(|| format!("host {side} frees window {number}"));
        let window = &mut self.model.memory.windows[number];
        window.freed = true;
        let bound = window.bound;
        if let Some(bound) = bound {
            self.model.ending(Name::Binding(bound), None);
        }
        self.windows[number] = None;
        bound.map_or(Ok(()), |bound| self.unbound(bound))
    }

    /// Posts a request. A window of type 1 is bound by a verb of its own, which chooses the key.
    pub(super) fn hand_over(
        &mut self,
        qp: &QueuePair,
        request: &SendRequest,
        meaning: &mut Semantics,
    ) -> Result<(), VerbsError> {
        let SendOp::BindWindow(BindWindow { rkey, lkey, addr, length, access, .. }) = request.op else {
            return qp.post_send(request);
        };
        if !meaning.plain {
            return qp.post_send(request);
        }
        let memory = &mut self.model.memory;
        let named = |window: &Option<_>| {
            window.as_ref().is_some_and(|w: &iwarp::verbs::MemoryWindow| w.rkey() >> 8 == rkey >> 8)
        };
        let number = self.windows.iter().position(named).expect("drawn among those that are there");
        let window = self.windows[number].as_ref().expect("just found");
        let region = self.memory.iter().flatten().find_map(|held| match held {
            Registered::Region(region) if region.lkey() == lkey => Some(region),
            Registered::Region(_) | Registered::Fast(_) => None,
        });
        let region = region.expect("drawn among those that are there");
        let offset = addr.wrapping_sub(region.addr());
        let result = qp.bind_mw(request.wr_id, window, (region, offset, length), access);
        memory.windows[number].key = window.rkey();
        if let Some(NewName::Binding(binding)) = &mut meaning.gives {
            binding.key = window.rkey();
        }
        result.map(drop)
    }

    /// Records that a posted request makes an STag valid.
    pub(super) fn given(&mut self, new_name: &NewName) -> Done {
        let (told, key) = match new_name {
            NewName::Binding(binding) if binding.kind == WindowKind::Type1 => return Ok(()),
            NewName::Binding(binding) => {
                let window = self.windows[binding.window].as_ref().ok_or("a window that is there")?;
                (window.next_rkey(), binding.key)
            }
            &NewName::Region { old, key, .. } => {
                let held = self.memory[old].take();
                let Some(Registered::Fast(region)) = &held else {
                    return Err("memory that is prepared".into());
                };
                let told = region.next_rkey();
                self.memory.push(held);
                (told, key)
            }
        };
        if told == key { Ok(()) } else { Err(format!("the next key makes {told:#x}, not {key:#x}")) }
    }

    /// Records that `binding` is invalid. Checks that the bytes placed through `binding` have allowed values.
    /// After that, no bytes are placed through `binding`.
    pub(super) fn unbound(&mut self, binding: BindingId) -> Done {
        let number = self.model.memory.bindings[binding].window;
        let is_last = self.model.memory.windows[number].bound == Some(binding);
        if is_last && self.windows[number].as_ref().is_some_and(|window| window.is_bound()) {
            return Err(format!("window {number} was unbound, and is bound"));
        }
        let mut seen = Vec::new();
        for span in self.model.memory.through(binding) {
            let bytes = self.seen(&span);
            self.model.memory.check(&span, &bytes)?;
            seen.push((span, bytes));
        }
        let seen: Vec<(Span, Vec<u8>)> = seen;
        self.model.memory.close(binding, &seen);
        Ok(())
    }

    /// Checks that no window is still bound to a region that has ended.
    pub(super) fn windows_of_gone(&self) -> Done {
        self.each_window(|number, life, is_bound| {
            if life == Validity::Gone && is_bound {
                return Err(format!("window {number} is bound to memory that is gone"));
            }
            Ok(())
        })
    }

    /// Checks that windows are bound as the model says. Nothing is under way at this time.
    pub(super) fn windows_at_rest(&mut self) -> Done {
        self.each_window(|number, life, is_bound| match life {
            Validity::Coming => Err(format!("the binding of window {number} has not come")),
            Validity::Valid if !is_bound => Err(format!("nobody has unbound window {number}")),
            Validity::Gone if is_bound => Err(format!("window {number} is bound again")),
            Validity::Valid | Validity::Ending | Validity::Gone => Ok(()),
        })?;
        for (window, held) in self.model.memory.windows.iter().zip(&self.windows) {
            // If the window has another STag by now, the window's state says nothing about this binding. How
            // the binding ended stays unknown.
            if let (Some(bound), Some(held)) = (window.bound, held)
                && self.model.memory.bindings[bound].life == Validity::Ending
                && self.model.memory.bindings[bound].key == window.key
                && !window.freed
            {
                let binding = &mut self.model.memory.bindings[bound];
                binding.life = if held.is_bound() { Validity::Valid } else { Validity::Gone };
                binding.taker = None;
            }
        }
        Ok(())
    }

    /// Calls `look` for each window whose current key is the key of the model's last binding. `look` receives
    /// the validity of this binding, and whether the window reports itself as bound.
    fn each_window(&self, look: impl Fn(WindowId, Validity, bool) -> Done) -> Done {
        let memory = &self.model.memory;
        memory.windows.iter().zip(&self.windows).enumerate().try_for_each(|(number, (window, held))| {
            let (Some(bound), Some(held)) = (window.bound, held) else { return Ok(()) };
            if window.key != memory.bindings[bound].key {
                // The window has a newer key: a later request that binds the window was refused or flushed.
                // `is_bound` then says nothing about the model's last binding.
                return Ok(());
            }
            look(number, memory.grant(Name::Binding(bound)).life, held.is_bound())
        })
    }
}
