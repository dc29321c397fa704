//! The invariants of a stack: the invariants of its parts hold, and the slabs and counters agree with the sum
//! of what all connections hold.

use super::connections::Conn;
use super::{SPARE_EVENTS, Stack};
use crate::invariant::{Check, ensure};
use crate::tcp::{EVENTS_PER_CONNECTION, Holdings};

impl Stack {
    /// Checks all invariants that hold between any two calls. This function is for tests, because it visits
    /// every connection and entry.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.connections.check()?;
        let mut all = Vec::new();
        for (slot, conn) in self.connections.occupied() {
            let id = self.connections.id(slot);
            let slabs = (&self.segments, &self.out_of_order, &self.searches);
            all.push(conn.tcb.check(id, slabs).map_err(|what| format!("slot {slot}: {what}"))?);
            if !self.connections.is_unarmed(slot) {
                conn.tcb.check_timer().map_err(|what| format!("slot {slot}: {what}"))?;
            }
            let claimed = self.member.as_ref().is_none_or(|member| member.has(&conn.tuple));
            ensure!(claimed, "the host does not know that slot {slot} has {:?}", conn.tuple);
        }
        self.check_slabs(&all)?;
        self.listeners.check(|listener| {
            let half_open = |conn: &Conn| conn.half_open && conn.listener == Some(listener);
            self.connections.occupied().filter(|(_, conn)| half_open(conn)).count()
        })?;
        let slots = self.connections.slots() as usize;
        let most = self.config.limits.events + slots * EVENTS_PER_CONNECTION + SPARE_EVENTS;
        ensure!(self.events.len() <= most, "{} events wait, {most} may", self.events.len());
        Ok(())
    }

    fn check_slabs(&self, all: &[Holdings]) -> Check {
        let open: Vec<_> = all.iter().filter_map(|holdings| holdings.open_page).collect();
        self.segments.check(all.iter().map(|holdings| holdings.segments).sum(), &open)?;
        let asked = self.events.evictions();
        self.out_of_order.check(all.iter().filter(|holdings| holdings.has_hole).count(), asked)?;
        self.searches.check(all.iter().filter(|holdings| holdings.searches).count())?;
        let held: u64 = all.iter().map(|holdings| holdings.out_of_order.held_bytes).sum();
        let pinned: u64 = all.iter().map(|holdings| holdings.out_of_order.pinned_bytes).sum();
        let counted = (self.counters.out_of_order.held_bytes, self.counters.out_of_order.pinned_bytes);
        ensure!(counted == (held, pinned), "{counted:?} bytes held and pinned of {:?}", (held, pinned));
        Ok(())
    }
}
