//! A stream of `Side::A`, and what happens to its segments on their way.

use super::wire::*;
use crate::Duration;

impl Pair {
    /// `a` queues this many full segments more. Returns the end of its stream.
    pub(super) fn push(&mut self, segments: usize) -> u64 {
        self.push_of(segments, EMSS)
    }

    /// The same, of segments of `len` bytes.
    pub(super) fn push_of(&mut self, segments: usize, len: usize) -> u64 {
        let from = self.a.tcb().sending().positions().end() as usize - 1;
        for nr in 0..segments {
            self.a.push(self.now, &pattern(from + nr * len, len)).unwrap();
        }
        (from + segments * len) as u64
    }
}

/// A wire that asks `fate` about the n-th data segment of `Side::A` from now on (from 0): after how long it
/// arrives, as for a [`Plan`].
pub(super) fn each(mut fate: impl FnMut(usize) -> Vec<Duration> + 'static) -> Plan {
    let mut sent = 0;
    Box::new(move |side, packet| {
        if side == Side::A && !packet.payload.is_empty() {
            sent += 1;
            return fate(sent - 1);
        }
        vec![DELAY]
    })
}

/// A wire that loses the data segments of `Side::A` with these numbers, from now on (from 0).
pub(super) fn lose(numbers: &'static [usize]) -> Plan {
    each(|nr| if numbers.contains(&nr) { vec![] } else { vec![DELAY] })
}
