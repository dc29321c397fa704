//! Future events, ordered by time. Events of the same microsecond keep the order in which they were added.

use std::collections::BTreeMap;

/// Events that wait for their time.
#[derive(Debug)]
pub struct Queue<T> {
    events: BTreeMap<(u64, u64), T>,
    entered: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), entered: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds an event.
    pub fn push(&mut self, at_us: u64, event: T) {
        self.events.insert((at_us, self.entered), event);
        self.entered += 1;
    }

    /// Returns the time at which the next event is due.
    pub fn next_us(&self) -> Option<u64> {
        self.events.first_key_value().map(|((at_us, _), _)| *at_us)
    }

    /// Removes and returns the next event, if it is due at `now_us`.
    pub fn pop(&mut self, now_us: u64) -> Option<T> {
        if self.next_us()? > now_us {
            return None;
        }
        self.events.pop_first().map(|(_, event)| event)
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn events_come_by_time_then_by_entry() {
        let mut queue = Queue::default();
        for (at_us, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.push(at_us, name);
        }
        assert_eq!(queue.pop(0), None);
        let order: String = std::iter::from_fn(|| queue.pop(5)).collect();
        assert_eq!(order, "abcd");
    }
}
