//! Sets the timers of connections. After several calls on a connection, its timer is set only once, unless
//! the timer is needed earlier.
//!
//! A message and its acknowledgement move the timer of their connection several times, nearly always to a
//! later time. Therefore a call on an established connection only marks the connection. The timers of marked
//! connections are set before an engine sleeps. An engine that polls without a pause sets the timers at the
//! latest after `TIMER_SLACK`, so a timer may be late by up to this time. A *turn* is one poll of the engine,
//! which ends with [`Stack::transmit`].

use super::Stack;
use crate::facade::{Duration, Instant};
use crate::tcp::State;

/// The maximum delay of a timer. This delay is short compared with the times of retransmissions and delayed
/// acknowledgements. [Short timers](crate::tcp::Tcb::has_short_timer), of a few microseconds, are not
/// delayed: they are set at the end of the turn.
const TIMER_SLACK: Duration = Duration::from_micros(100);

/// Maximum number of marked connections whose timers wait. If more connections are marked, all their timers
/// are set at the end of the turn, while their state is in the cache.
const MAX_WAITING: usize = 8;

/// Slots whose timers have to be set.
#[derive(Default)]
pub(super) struct Unarmed {
    slots: Vec<u32>,
    /// True if the connection of one of these slots has a short timer.
    is_urgent: bool,
    /// The latest time at which the timers have to be set. `None` until the end of the turn in which the
    /// first slot was added.
    by: Option<Instant>,
}

impl Unarmed {
    /// Reserves memory for `count` slots.
    pub(super) fn reserve(&mut self, count: usize) {
        self.slots.reserve_exact(count - self.slots.len());
    }

    /// Adds a slot, unless `is_there` says that the slot was added before. Called after each call of the
    /// slot's control block, because this call may have started a [short
    /// timer](crate::tcp::Tcb::has_short_timer).
    #[inline]
    pub(super) fn add(&mut self, slot: u32, is_there: &mut bool, has_short_timer: bool) {
        if !std::mem::replace(is_there, true) {
            self.slots.push(slot);
        }
        self.is_urgent |= has_short_timer;
    }

    /// Removes and returns a slot; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = self.slots.pop();
        if self.slots.is_empty() {
            (self.is_urgent, self.by) = (false, None);
        }
        slot
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.slots.iter().copied()
    }

    /// Called when a turn ends at `now`: decides when the timers have to be set. Returns whether they have to
    /// be set at once.
    #[inline]
    fn end_turn(&mut self, now: Instant) -> bool {
        !self.slots.is_empty()
            && (self.is_urgent
                || self.slots.len() > MAX_WAITING
                || now >= *self.by.get_or_insert(now + TIMER_SLACK))
    }

    /// Whether the timers have to be set before the time advances to `now`.
    #[inline]
    fn is_due_before(&self, now: Instant) -> bool {
        !self.slots.is_empty() && (self.is_urgent || self.by.is_none_or(|by| now >= by))
    }
}

impl Stack {
    /// Like [`settle`](Self::settle), but does not queue the connection for transmission. After most calls,
    /// the connection is in ESTABLISHED, where only the timer has to be set. In this state,
    /// [`arm_timers`](Self::arm_timers) will set the timer.
    #[inline(always)]
    pub(super) fn settle_timer(&mut self, slot: u32) {
        if !self.connections.arm_later(slot) {
            self.arm(slot);
        }
    }

    /// Called before the time advances to `now`: sets the timers that cannot wait. This is done at the old
    /// time, because the deadline of some timers is computed from the time at which the timer is set.
    #[inline]
    pub(super) fn arm_before(&mut self, now: Instant) {
        if self.connections.unarmed.is_due_before(now) {
            self.arm_timers();
        }
    }

    /// Called at the end of a turn: sets the timers that cannot wait.
    #[inline]
    pub(super) fn arm_after_turn(&mut self) {
        if self.connections.unarmed.end_turn(self.now) {
            self.arm_timers();
        }
    }

    /// Sets the timers of all marked connections. [`Stack::next_timer`] calls this function before it reads
    /// the timers.
    pub(super) fn arm_timers(&mut self) {
        while let Some(slot) = self.connections.next_unarmed() {
            self.arm(slot);
        }
    }

    /// Sets the timer of a connection. If the connection has left SYN-RECEIVED or entered TIME-WAIT, updates
    /// the listener or the queue of TIME-WAIT. Removes the connection if it has ended.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An `Unarmed` to which the slots `0..slots` were added.
    fn marked(slots: u32) -> Unarmed {
        let mut unarmed = Unarmed::default();
        (0..slots).for_each(|slot| unarmed.add(slot, &mut false, false));
        unarmed
    }

    fn us(us: i64) -> Instant {
        Instant::from_micros(us)
    }

    #[test]
    fn few_timers_wait_for_the_slack_from_the_end_of_their_turn() {
        let mut unarmed = marked(MAX_WAITING as u32);
        assert!(unarmed.is_due_before(us(1)), "no turn has ended, so nothing was decided");
        assert!(!unarmed.end_turn(us(10)) && !unarmed.end_turn(us(109)) && !unarmed.is_due_before(us(109)));
        assert!(unarmed.is_due_before(us(110)) && unarmed.end_turn(us(110)));
        while unarmed.take().is_some() {}
        assert!(!unarmed.end_turn(us(200)) && !unarmed.is_due_before(us(200)), "none is left");
        unarmed.add(3, &mut false, false);
        assert!(!unarmed.end_turn(us(200)) && unarmed.end_turn(us(300)), "the slack begins anew");
    }

    #[test]
    fn short_timers_and_many_do_not_wait() {
        assert!(marked(MAX_WAITING as u32 + 1).end_turn(us(10)));
        let (mut unarmed, mut is_there) = (marked(1), true);
        assert!(!unarmed.end_turn(us(10)));
        unarmed.add(0, &mut is_there, true);
        assert!(unarmed.end_turn(us(10)) && unarmed.is_due_before(us(10)));
        assert_eq!((unarmed.take(), unarmed.take()), (Some(0), None), "it is there once");
        unarmed.add(0, &mut false, false);
        assert!(!unarmed.end_turn(us(10)), "the next one has no short timer");
    }
}
