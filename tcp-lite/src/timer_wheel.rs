//! One timer for each connection slot, in a hierarchical timer wheel with a tick of one microsecond.
//!
//! Slots are linked by index inside arrays that grow with the number of connections: setting, moving and
//! cancelling a timer are O(1) and never allocate. Most deadlines are moved to a later time before they are
//! reached, because the peer acknowledges in time. Therefore a timer stays in its list when it is cancelled
//! or moved to a later time. When the wheel reaches the list, it links the timer again by its new deadline,
//! or unlinks a cancelled timer.
//!
//! Level `l` has 64 lists of `64^l` microseconds each. A timer is at the level of the highest digit (base 64)
//! in which its deadline differs from the current time. When the wheel reaches that digit, the timer moves to
//! a lower level.

use crate::facade::Instant;
use crate::invariant::{Check, ensure};

/// Number of bits of a deadline that one level uses: the 64 lists of a level fit the 64 bits of
/// [`Level::occupied`].
const BITS: u32 = 6;
const LISTS: usize = 1 << BITS;
/// Number of levels: six levels of six bits cover 2^36 microseconds, 19 hours.
const LEVELS: usize = 6;
/// If a deadline is further away than this time (nearly 19 hours), the timer is linked at this time. When the
/// wheel reaches the timer, it links the timer again by its deadline, so the timer does not fire early. The
/// horizon is one list less than a whole revolution, so that the top level never overlaps itself.
const HORIZON_US: u64 = (LISTS as u64 - 1) << (BITS * (LEVELS as u32 - 1));
const NONE: u32 = u32::MAX;

/// Where a timer is linked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TimerPlace {
    Idle,
    /// The deadline has passed: the timer is in the list of timers to fire.
    Due,
    List {
        level: u8,
        list: u8,
    },
}

/// The deadline of a timer that is not set.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Timer {
    /// The deadline; [`NEVER`] if the timer is not set. A timer that is not set may still be linked.
    deadline_us: u64,
    /// The time by which the timer is linked, which is not later than the deadline. This is the deadline at
    /// which the timer was put into its list (at most the horizon), 0 if the timer is due, and [`NEVER`] if
    /// the timer is idle.
    linked_us: u64,
    previous: u32,
    next: u32,
    place: TimerPlace,
}

struct Level {
    /// Bit `n` is set if list `n` is not empty.
    occupied: u64,
    heads: [u32; LISTS],
}

pub(crate) struct TimerWheel {
    now_us: u64,
    /// No list with timers begins before this time.
    next_us: u64,
    levels: [Level; LEVELS],
    due: u32,
    timers: Vec<Timer>,
}

impl TimerWheel {
    /// An empty wheel, at time 0.
    pub(crate) fn new() -> Self {
        Self {
            now_us: 0,
            next_us: NEVER,
            levels: std::array::from_fn(|_| Level { occupied: 0, heads: [NONE; LISTS] }),
            due: NONE,
            timers: Vec::new(),
        }
    }

    /// Allocates memory for `count` timers.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.timers.reserve_exact(count.saturating_sub(self.timers.len()));
    }

    /// Adds timers up to `count`. Allocates memory unless enough memory was [reserved](Self::reserve).
    pub(crate) fn grow(&mut self, count: usize) {
        if self.timers.len() < count {
            let idle = Timer {
                deadline_us: NEVER,
                linked_us: NEVER,
                previous: NONE,
                next: NONE,
                place: TimerPlace::Idle,
            };
            self.timers.resize(count, idle);
        }
    }

    /// Sets the timer of `slot` to `deadline`; `None` cancels the timer.
    #[inline]
    pub(crate) fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        let deadline_us = deadline.map_or(NEVER, |at| at.total_micros().max(0) as u64);
        let timer = &mut self.timers[slot as usize];
        timer.deadline_us = deadline_us;
        if deadline_us < timer.linked_us {
            self.move_up(slot);
        }
    }

    /// Called when the deadline of `slot` is earlier than the time by which the timer is linked: links the
    /// timer again.
    fn move_up(&mut self, slot: u32) {
        self.unlink(slot);
        self.link(slot);
    }

    /// Returns one slot whose timer is due at `now`, and makes the timer idle; `None` if no timer is due.
    /// Time never goes back: an earlier `now` counts as the latest time that was passed.
    pub(crate) fn expired(&mut self, now: Instant) -> Option<u32> {
        let target_us = u64::try_from(now.total_micros()).unwrap_or(0).max(self.now_us);
        loop {
            while self.due != NONE {
                let slot = self.due;
                self.unlink(slot);
                let deadline_us = self.timers[slot as usize].deadline_us;
                if deadline_us <= self.now_us {
                    self.timers[slot as usize].deadline_us = NEVER;
                    return Some(slot);
                }
                // The timer was already due when it was moved to a later time or cancelled.
                if deadline_us != NEVER {
                    self.link(slot);
                }
            }
            if target_us < self.next_us {
                break;
            }
            match self.next_list() {
                Some((level, list, start_us)) if start_us <= target_us => {
                    self.now_us = start_us.max(self.now_us);
                    self.relink_all(level, list);
                }
                next => self.next_us = next.map_or(NEVER, |(.., start_us)| start_us),
            }
        }
        self.now_us = target_us;
        None
    }

    /// The earliest time at which [`expired`](Self::expired) may have something to do; `None` if no timer is
    /// linked. The result is never later than the first deadline. The result is earlier if the first timer
    /// still has to move down a level, or was moved to a later time or cancelled.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let us = if self.due != NONE { self.now_us } else { self.next_list()?.2 };
        Some(Instant::from_micros(us as i64))
    }

    /// The first occupied list, as level, list number and start time; `None` if no list is occupied. Lower
    /// levels have earlier lists than higher levels.
    fn next_list(&self) -> Option<(usize, usize, u64)> {
        for (number, level) in self.levels.iter().enumerate() {
            if level.occupied == 0 {
                continue;
            }
            let shift = BITS * number as u32;
            let digit = (self.now_us >> shift) as u32 & (LISTS as u32 - 1);
            // Lists before the current digit belong to the next revolution of this level (top level
            // only).
            let ahead = level.occupied.rotate_right(digit).trailing_zeros();
            let start = (self.now_us >> shift) + u64::from(ahead);
            let list = (digit + ahead) as usize % LISTS;
            return Some((number, list, start << shift));
        }
        None
    }

    /// Deadline of the timer of `slot` in microseconds; `None` if the timer is not set.
    pub(crate) fn deadline_us(&self, slot: u32) -> Option<u64> {
        let timer = self.timers[slot as usize];
        (timer.deadline_us != NEVER).then_some(timer.deadline_us)
    }

    /// Checks that each running timer is in the list where it belongs and in no other list, and that no timer
    /// was missed.
    pub(crate) fn check(&self) -> Check {
        let mut linked = self.check_list(self.due, TimerPlace::Due)?;
        for (number, level) in self.levels.iter().enumerate() {
            // Few lists have timers, and this check runs after every step of a simulation. Therefore empty
            // lists are counted but not checked one by one.
            let mut occupied = level.occupied;
            let (linked_lists, says) =
                (level.heads.iter().filter(|&&head| head != NONE).count(), occupied.count_ones());
            ensure!(
                linked_lists == says as usize,
                "level {number}: {linked_lists} lists have timers, {says} are occupied"
            );
            while occupied != 0 {
                let list = occupied.trailing_zeros() as u8;
                let head = level.heads[usize::from(list)];
                ensure!(head != NONE, "level {number}, list {list} is occupied and empty");
                linked += self.check_list(head, TimerPlace::List { level: number as u8, list })?;
                occupied &= occupied - 1;
            }
        }
        let placed = self.timers.iter().filter(|timer| timer.place != TimerPlace::Idle);
        ensure!(linked == placed.clone().count(), "{linked} timers linked of {}", placed.count());
        let lost = self
            .timers
            .iter()
            .position(|timer| timer.place == TimerPlace::Idle && timer.deadline_us != NEVER);
        ensure!(lost.is_none(), "timer {} is set and not linked", lost.unwrap_or_default());
        let next = self.next_list().map(|(.., start_us)| start_us);
        ensure!(next.is_none_or(|us| self.next_us <= us), "{} us is behind {next:?} us", self.next_us);
        Ok(())
    }

    fn check_list(&self, head: u32, place: TimerPlace) -> Check<usize> {
        let (mut slot, mut previous, mut count) = (head, NONE, 0);
        while slot != NONE {
            let timer = self.timers.get(slot as usize).ok_or_else(|| format!("no timer {slot}"))?;
            let fits = timer.place == place && timer.previous == previous;
            ensure!(fits && count < self.timers.len(), "timer {slot} is not where it says");
            ensure!(
                timer.linked_us <= timer.deadline_us,
                "timer {slot} for {} us is linked at {} us",
                timer.deadline_us,
                timer.linked_us
            );
            let passed = timer.deadline_us < self.now_us && place != TimerPlace::Due;
            ensure!(!passed, "timer {slot} was due at {} us, it is {} us", timer.deadline_us, self.now_us);
            (previous, slot, count) = (slot, timer.next, count + 1);
        }
        Ok(count)
    }

    fn relink_all(&mut self, level: usize, list: usize) {
        let mut slot = std::mem::replace(&mut self.levels[level].heads[list], NONE);
        self.levels[level].occupied &= !(1 << list);
        while slot != NONE {
            let timer = &mut self.timers[slot as usize];
            let next = timer.next;
            if timer.deadline_us == NEVER {
                (timer.previous, timer.next, timer.place) = (NONE, NONE, TimerPlace::Idle);
                timer.linked_us = NEVER;
            } else {
                self.link(slot);
            }
            slot = next;
        }
    }

    fn link(&mut self, slot: u32) {
        let deadline_us = self.timers[slot as usize].deadline_us.min(self.now_us + HORIZON_US);
        let mut linked_us = deadline_us;
        let (place, head) = if deadline_us <= self.now_us {
            linked_us = 0;
            (TimerPlace::Due, &mut self.due)
        } else {
            let highest = (u64::BITS - 1 - (deadline_us ^ self.now_us).leading_zeros()) / BITS;
            // A carry into the digit above the top level is still within one revolution of the top
            // level.
            let level = (highest as usize).min(LEVELS - 1);
            let start = deadline_us >> (BITS * level as u32);
            self.next_us = self.next_us.min(start << (BITS * level as u32));
            let list = start as usize % LISTS;
            self.levels[level].occupied |= 1 << list;
            (TimerPlace::List { level: level as u8, list: list as u8 }, &mut self.levels[level].heads[list])
        };
        let next = std::mem::replace(head, slot);
        if next != NONE {
            self.timers[next as usize].previous = slot;
        }
        let timer = &mut self.timers[slot as usize];
        (timer.previous, timer.next, timer.place, timer.linked_us) = (NONE, next, place, linked_us);
    }

    fn unlink(&mut self, slot: u32) {
        let Timer { previous, next, place, .. } = self.timers[slot as usize];
        if next != NONE {
            self.timers[next as usize].previous = previous;
        }
        if previous != NONE {
            self.timers[previous as usize].next = next;
        } else {
            match place {
                TimerPlace::Idle => return,
                TimerPlace::Due => self.due = next,
                TimerPlace::List { level, list } => {
                    let level = &mut self.levels[usize::from(level)];
                    level.heads[usize::from(list)] = next;
                    if next == NONE {
                        level.occupied &= !(1 << list);
                    }
                }
            }
        }
        let timer = &mut self.timers[slot as usize];
        (timer.previous, timer.next, timer.place, timer.linked_us) = (NONE, NONE, TimerPlace::Idle, NEVER);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::invariant::assert_found;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u32, u64),
        Cancel(u32),
        Advance(u64),
        AdvanceToDeadline,
    }

    fn distance() -> impl Strategy<Value = u64> {
        (0u32..38, any::<u64>()).prop_map(|(bits, n)| n & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..16, distance()).prop_map(|(slot, us)| Step::Set(slot, us)),
            (0u32..16).prop_map(Step::Cancel),
            distance().prop_map(Step::Advance),
            Just(Step::AdvanceToDeadline),
        ]
    }

    proptest! {
        #[test]
        fn fires_like_a_sorted_map_and_never_announces_late(steps in prop::collection::vec(step(), 1..200)) {
            let mut wheel = TimerWheel::new();
            wheel.grow(16);
            let mut model = BTreeMap::new();
            let mut now = 0u64;
            for step in steps {
                match step {
                    Step::Set(slot, us) => {
                        wheel.set(slot, Some(Instant::from_micros((now + us) as i64)));
                        model.insert(slot, now + us);
                    }
                    Step::Cancel(slot) => {
                        wheel.set(slot, None);
                        model.remove(&slot);
                    }
                    Step::Advance(us) => now += us,
                    Step::AdvanceToDeadline => {
                        if let Some(deadline) = wheel.next_deadline() {
                            now = now.max(deadline.total_micros() as u64);
                        }
                    }
                }
                let first = model.values().min().copied();
                match (wheel.next_deadline(), first) {
                    (Some(announced), Some(first)) => {
                        prop_assert!(announced.total_micros() as u64 <= first.max(now));
                    }
                    // The wheel may still announce the time of a cancelled timer.
                    (announced, first) => prop_assert!(announced.is_some() || first.is_none()),
                }
                while let Some(slot) = wheel.expired(Instant::from_micros(now as i64)) {
                    let deadline = model.remove(&slot);
                    // No timer fires early, not even beyond the horizon.
                    prop_assert!(deadline.is_some_and(|d| d <= now));
                }
                prop_assert!(model.values().all(|d| *d > now));
                wheel.check().map_err(TestCaseError::fail)?;
            }
            // At each announced time, the wheel fires a timer, links a timer at a lower level, or unlinks a
            // timer.
            let mut idle = 0;
            while let Some(deadline) = wheel.next_deadline() {
                match wheel.expired(deadline) {
                    Some(slot) => prop_assert!(model.remove(&slot).is_some()),
                    None => idle += 1,
                }
                prop_assert!(idle < 16 * LEVELS, "it announces times at which it does nothing");
            }
            prop_assert!(model.is_empty());
        }
    }

    /// A wheel at 100 us. Timers 0 and 1 wait for 105 us in list 41 of level 0, timer 2 is due, and timer 3
    /// is idle.
    fn wheel() -> TimerWheel {
        let mut wheel = TimerWheel::new();
        wheel.grow(4);
        assert_eq!(wheel.expired(Instant::from_micros(100)), None);
        for (slot, us) in [(0, 105), (1, 105), (2, 99)] {
            wheel.set(slot, Some(Instant::from_micros(us)));
        }
        wheel
    }

    #[test]
    fn a_wheel_whose_parts_disagree_is_found() {
        type Break = fn(&mut TimerWheel);
        let broken: [(Break, &str); 17] = [
            (|wheel| wheel.next_us = 106, "106 us is behind Some(105) us"),
            (|wheel| wheel.levels[0].occupied = 0, "level 0: 1 lists have timers, 0 are occupied"),
            (|wheel| wheel.levels[3].occupied = 1, "level 3: 0 lists have timers, 1 are occupied"),
            (|wheel| wheel.levels[0].heads[41] = NONE, "level 0: 0 lists have timers, 1 are occupied"),
            (|wheel| wheel.levels[0].heads.swap(41, 40), "level 0, list 41 is occupied and empty"),
            (|wheel| wheel.levels[0].heads[41] = 4, "no timer 4"),
            (|wheel| wheel.due = 4, "no timer 4"),
            (|wheel| wheel.due = 3, "timer 3 is not where it says"),
            (|wheel| wheel.due = NONE, "2 timers linked of 3"),
            (|wheel| wheel.timers[1].next = NONE, "2 timers linked of 3"),
            (|wheel| wheel.timers[0].place = TimerPlace::Idle, "timer 0 is not where it says"),
            (|wheel| wheel.timers[3].place = TimerPlace::Due, "3 timers linked of 4"),
            (|wheel| wheel.timers[0].previous = NONE, "timer 0 is not where it says"),
            (|wheel| wheel.timers[0].next = 1, "timer 1 is not where it says"),
            (|wheel| wheel.timers[1].linked_us = 106, "timer 1 for 105 us is linked at 106 us"),
            (|wheel| wheel.timers[3].deadline_us = 105, "timer 3 is set and not linked"),
            (|wheel| wheel.now_us = 106, "timer 1 was due at 105 us, it is 106 us"),
        ];
        for (break_it, what) in broken {
            let mut wheel = wheel();
            wheel.check().unwrap();
            break_it(&mut wheel);
            assert_found(wheel.check(), what);
        }
    }
}
