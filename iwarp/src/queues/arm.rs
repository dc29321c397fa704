//! Arming against completing: who asks for an event and who makes completions meet here, without a lock.
//!
//! A completion is entered, *then* [`Arm::fires`] is asked. An owner arms, *then* polls once more. Each of
//! the two has a sequentially consistent fence between its step and its look at the other's. The fences have
//! an order: if the one of the completion is first, the owner's poll sees the completion; else the completion
//! sees the arming. So none is slept through. One arming fires once.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU8, Ordering, fence};

/// Not armed; armed for solicited and failed completions; armed for every completion.
const UNARMED: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

/// Whether the next completion is to make an event.
pub(crate) struct Arm {
    state: AtomicU8,
}

impl Arm {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(UNARMED) }
    }

    /// Asks for one event. Whoever arms looks for completions after that. What was asked for before is never
    /// weakened: an event for any completion stays asked for.
    pub(crate) fn arm(&self, solicited_only: bool) {
        // `SOLICITED` is less than `ANY`.
        self.state.fetch_max(if solicited_only { SOLICITED } else { ANY }, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Whether a completion that was entered before this call makes an event. Of several, one does.
    pub(crate) fn fires(&self, solicited: bool) -> bool {
        fence(Ordering::SeqCst);
        let due = |state: u8| state == ANY || (state == SOLICITED && solicited);
        // The look alone is what an unarmed queue pays. What is taken is what was seen, or more: never an
        // arming for solicited ones by one that is not.
        let mut seen = self.state.load(Ordering::Relaxed);
        while due(seen) {
            match self.state.compare_exchange(seen, UNARMED, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
}
