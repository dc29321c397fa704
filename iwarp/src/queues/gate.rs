//! A gate that is closed once: those who pass it pay a counter and a look, who closes it waits until nobody
//! is inside.
//!
//! Who enters counts itself in, *then* looks whether the gate is closed. Who closes it says so, *then* looks
//! whether somebody is inside. Each of the two has a sequentially consistent fence between. The fences have
//! an order: if the one that closes is first, who enters finds it closed; else the closer finds it inside,
//! and waits. What was done inside happened before [`Gate::close`] returns.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

pub(crate) struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { closed: AtomicBool::new(false), inside: AtomicUsize::new(0) }
    }

    /// Does `work` inside, or nothing where the gate is closed: then gives it back.
    pub(crate) fn pass<I, O>(&self, input: I, work: impl FnOnce(I) -> O) -> Result<O, I> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = if self.closed.load(Ordering::Relaxed) { Err(input) } else { Ok(work(input)) };
        self.inside.fetch_sub(1, Ordering::Release);
        result
    }

    /// Whether it is closed. Who finds it so sees what was done before it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes it for good. When this returns nobody is inside, nor will be. `wait` is called while somebody
    /// is.
    pub(crate) fn close(&self, wait: impl Fn()) {
        self.closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        while self.inside.load(Ordering::Acquire) != 0 {
            wait();
        }
    }
}
