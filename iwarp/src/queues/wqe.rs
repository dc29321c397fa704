//! The count of used work queue entries (WQEs) of a work queue. A request takes an entry when it is posted.
//! The entry becomes free when the completion is polled, as in the rings of hardware. So a completion queue
//! with an entry for each WQE cannot overflow (RFC 5042 section 6.4.3.2).
//!
//! Each counter has one writer at a time, so that it needs no locked instruction. A post holds the lock of
//! the queue that it adds to. Requests are completed by the holder of the queue pair's consumer. A poll holds
//! the lock of the completion queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A counter that one thread at a time changes: the holder of a lock or of a value. Any thread may read it.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds `more`. No other thread may change it meanwhile.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }
}

/// As [`Counter`], modulo 2^32: for counters of which only differences matter, which are at most the depth
/// of a queue.
#[derive(Default)]
struct WrappingCounter(AtomicU32);

impl WrappingCounter {
    #[inline]
    fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// As [`Counter::add`].
    #[inline]
    fn add(&self, more: u32) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }
}

/// The used entries of one work queue.
pub(crate) struct WqeCount {
    max: u32,
    /// Number of entries that requests have taken.
    taken: WrappingCounter,
    /// Number of completed requests.
    completed: WrappingCounter,
    /// Number of completed requests whose entry became free at once, because they generated no completion or
    /// the completion was lost.
    unseen: WrappingCounter,
    /// Number of polled completions.
    polled: WrappingCounter,
    /// The used entries of the shared receive queue that the requests come from. They become free together
    /// with ours.
    srq: Option<Arc<AtomicUsize>>,
    /// True if requests no longer generate completions. Changed under the lock of the end of the completion
    /// queue where completions are added.
    silent: AtomicBool,
}

impl WqeCount {
    pub(crate) fn new(max: usize, srq: Option<Arc<AtomicUsize>>) -> Arc<Self> {
        let [taken, completed, unseen, polled] = std::array::from_fn(|_| WrappingCounter::default());
        let max = max.try_into().unwrap_or(u32::MAX);
        Arc::new(Self { max, taken, completed, unseen, polled, srq, silent: AtomicBool::new(false) })
    }

    /// The number of all entries, used or free.
    pub(super) fn max(&self) -> usize {
        self.max as usize
    }

    /// Takes an entry; `false` if none is free. Called by the thread that may add requests.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let is_free = self.is_free();
        if is_free {
            self.taken.add(1);
        }
        is_free
    }

    /// Whether an entry is free.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.used() < u64::from(self.max)
    }

    /// Counts a completed request. Called by the holder of the consumer, as is [`free`](Self::free).
    #[inline]
    pub(crate) fn complete(&self) {
        self.count_completed(1);
    }

    /// As [`complete`](Self::complete), for several requests.
    #[inline]
    pub(crate) fn count_completed(&self, count: usize) {
        self.completed.add(count as u32);
    }

    /// Frees the entries of `count` completed requests at once.
    #[inline]
    pub(crate) fn free(&self, count: usize) {
        self.unseen.add(count as u32);
        self.free_shared(count);
    }

    /// Counts a polled completion: its entry is free. Called under the lock of the completion queue.
    #[inline]
    pub(crate) fn poll(&self) {
        self.polled.add(1);
        self.free_shared(1);
    }

    #[inline]
    fn free_shared(&self, count: usize) {
        if let Some(srq) = &self.srq {
            srq.fetch_sub(count, Ordering::AcqRel);
        }
    }

    /// From now on requests generate no completions. Called under the lock of the end of the completion queue
    /// where completions are added.
    pub(super) fn silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Whether requests no longer generate completions. The answer stays the same while the caller holds the
    /// lock of [`silence`](Self::silence).
    #[inline]
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Requests that are not completed.
    pub(crate) fn open(&self) -> u64 {
        // `completed` is read first: otherwise a request could be counted as completed but not as taken.
        let completed = self.completed.get();
        self.taken.get().wrapping_sub(completed).into()
    }

    /// Used entries: requests whose completion has not been polled.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        // `polled` and `unseen` are read first, as in `open`.
        let free = self.polled.get().wrapping_add(self.unseen.get());
        self.taken.get().wrapping_sub(free).into()
    }
}
