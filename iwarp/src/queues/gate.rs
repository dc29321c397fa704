//! A gate that is closed once, as in Seastar: threads that enter pay for a counter and a load, and the thread
//! that closes it waits until no thread is inside.
//!
//! A thread that enters increments the counter, *then* checks whether the gate is closed. The closing thread
//! marks it as closed, *then* checks the counter. Each side has a sequentially consistent fence between its
//! two steps, and the fences have a total order. If the fence of the closing thread comes first, the other
//! thread finds the gate closed. Otherwise the closing thread sees it inside, and waits. All work done inside
//! happens before [`Gate::close`] returns.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// A gate that is closed once: see the module.
pub(crate) struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { closed: AtomicBool::new(false), inside: AtomicUsize::new(0) }
    }

    /// Calls `work` inside the gate. If the gate is closed, returns the input instead.
    pub(crate) fn pass<I, O>(&self, input: I, work: impl FnOnce(I) -> O) -> Result<O, I> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = if self.closed.load(Ordering::Relaxed) { Err(input) } else { Ok(work(input)) };
        self.inside.fetch_sub(1, Ordering::Release);
        result
    }

    /// Whether it is closed. A thread that sees `true` sees all that was done before the close.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes it for good. When this returns, no thread is inside and none will be. It calls `wait` while one
    /// is.
    pub(crate) fn close(&self, wait: impl Fn()) {
        self.closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        while self.inside.load(Ordering::Acquire) != 0 {
            wait();
        }
    }
}
