//! When the timers of connections are set: once after all calls of a turn, where nothing else depends on it.

use super::Stack;
use crate::tcp::State;

impl Stack {
    /// As [`settle`](Self::settle), without the ready queue. Most calls leave a connection in ESTABLISHED,
    /// where nothing follows but its timer. That is set once after all calls of a turn, by
    /// [`arm_timers`](Self::arm_timers).
    pub(super) fn settle_timer(&mut self, slot: u32) {
        if !self.connections.arm_later(slot) {
            self.arm(slot);
        }
    }

    /// Sets the timers that calls have left as they were. All that looks at timers calls it first.
    pub(super) fn arm_timers(&mut self) {
        while let Some(slot) = self.connections.next_unarmed() {
            self.arm(slot);
        }
    }

    /// Sets the timer of a connection, and ends what its state ends.
    pub(super) fn arm(&mut self, slot: u32) {
        let Some((id, conn)) = self.connections.get_mut(slot) else { return };
        conn.tcb.arm(self.now, &self.config.tcp, &self.segments);
        if conn.may_arm_later() {
            let deadline = conn.tcb.deadline();
            return self.connections.wheel.set(slot, deadline);
        }
        let droppable = conn.tcb.is_droppable();
        let enters_time_wait =
            conn.tcb.state() == State::TimeWait && !std::mem::replace(&mut conn.in_time_wait, true);
        let deadline = conn.tcb.deadline();
        if conn.half_open && (droppable || conn.tcb.state() != State::SynReceived) {
            conn.half_open = false;
            if let Some(listener) = conn.listener {
                self.listeners.settle_half_open(listener, &conn.tuple.remote);
            }
        }
        if droppable {
            return self.forget(self.now, slot);
        }
        self.connections.wheel.set(slot, deadline);
        if enters_time_wait {
            self.connections.enter_time_wait(id);
        }
    }
}
