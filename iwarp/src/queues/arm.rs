//! The handshake between a user that arms a completion queue and the threads that add completions to it. It
//! takes no lock.
//!
//! A thread adds a completion, *then* calls [`Arm::fires`]. A user arms, *then* polls once more. Each side
//! has a sequentially consistent fence between its two steps, and the fences have a total order. If the fence
//! of the completion comes first, the poll sees the completion. Otherwise the completion sees the arming. So
//! no completion goes unnoticed. One arming makes one event.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU8, Ordering, fence};

/// Not armed; armed for solicited and failed completions; armed for every completion.
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

    /// Asks for one event. The caller polls once more after this call. A weaker request never replaces a
    /// stronger one: an event that was requested for any completion stays requested for any.
    pub(crate) fn arm(&self, solicited_only: bool) {
        // The maximum keeps the stronger request: `SOLICITED` is less than `ANY`.
        self.state.fetch_max(if solicited_only { SOLICITED } else { ANY }, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Whether a completion that was added before this call generates an event. Of several such calls for one
    /// arming, exactly one returns `true`.
    pub(crate) fn fires(&self, solicited: bool) -> bool {
        fence(Ordering::SeqCst);
        let due = |state: u8| state == ANY || (state == SOLICITED && solicited);
        // If the queue is not armed, the only cost is this load. The exchange takes the request that was
        // loaded, or a stronger request that replaced it meanwhile. So an unsolicited completion never takes
        // a request for solicited completions.
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
