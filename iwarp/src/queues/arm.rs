//! The lock-free handshake between a user who arms a completion queue and the threads that add completions to
//! the queue.
//!
//! A thread adds a completion, *then* calls [`Arm::fires`]. A user arms the queue, *then* polls once more.
//! Each side executes a sequentially consistent fence between its two steps, and these fences have a total
//! order. If the fence of the adding thread comes first, the user's poll sees the completion. Otherwise the
//! adding thread sees that the queue is armed. So every completion is noticed. Arming a queue once generates
//! at most one event.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU8, Ordering, fence};

/// The three states of the queue: not armed, armed for solicited and failed completions, and armed for every
/// completion.
const UNARMED: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

/// Whether the next completion generates an event.
pub(crate) struct Arm {
    state: AtomicU8,
}

impl Arm {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(UNARMED) }
    }

    /// Requests one event. The caller must poll once more after this call. A request for solicited
    /// completions does not replace an earlier request for any completion.
    pub(crate) fn arm(&self, solicited_only: bool) {
        // `fetch_max` keeps the stronger request, since `SOLICITED` is less than `ANY`.
        self.state.fetch_max(if solicited_only { SOLICITED } else { ANY }, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Whether a completion that was added before this call generates an event. `solicited` says whether the
    /// completion is solicited or failed. After one arming, at most one call returns `true`, even if several
    /// threads make this call.
    pub(crate) fn fires(&self, solicited: bool) -> bool {
        fence(Ordering::SeqCst);
        let due = |state: u8| state == ANY || (state == SOLICITED && solicited);
        // If the queue is not armed, the only cost is this load. The exchange removes the request that was
        // loaded, or a stronger request that has replaced it since then. So an unsolicited completion never
        // removes a request for solicited completions.
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
