//! Sends a stream from `Side::A`, and decides what happens to its segments on the path.

use super::wire::*;
use crate::Duration;

impl Pair {
    /// Queues `segments` full segments at `a`. Returns the stream offset after the last of these segments.
    pub(super) fn push(&mut self, segments: usize) -> u64 {
        self.push_of(segments, EMSS)
    }

    /// Pushes bytes as [`push`](Self::push) does, but in segments of `len` bytes.
    pub(super) fn push_of(&mut self, segments: usize, len: usize) -> u64 {
        let from = self.a.tcb().sending().positions().end() as usize - 1;
        for nr in 0..segments {
            self.a.push(self.now, &pattern(from + nr * len, len)).unwrap();
        }
        (from + segments * len) as u64
    }
}

/// Returns a wire that calls `fate` with the number of each data segment of `Side::A`. The next segment has
/// the number 0. `fate` returns the delays of the segment's arrivals, as a [`Plan`] does.
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

/// Returns a wire that loses the data segments of `Side::A` with these numbers. The next segment has the
/// number 0.
pub(super) fn lose(numbers: &'static [usize]) -> Plan {
    each(|nr| if numbers.contains(&nr) { vec![] } else { vec![DELAY] })
}
