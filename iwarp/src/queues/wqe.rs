//! The count of used work queue entries (WQEs) of a work queue. A request uses an entry from its post on. The
//! entry becomes free when the completion of the request is polled, as in the rings of hardware. If the
//! request generates no completion, the entry becomes free when the request completes. So a completion queue
//! with an entry for each WQE cannot overflow (RFC 5042 section 6.4.3.2).
//!
//! Each counter has only one writer at a time, so it needs no locked instruction. A thread that posts holds
//! the lock of the work queue. The holder of the queue pair's consumer completes requests. A thread that
//! polls holds the lock of the completion queue. Only the count of a shared receive queue has several
//! writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A counter that only one thread at a time changes: the holder of a lock or of a value. Any thread may read
/// the counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds `more` to the counter. No other thread may change the counter at the same time.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }
}

/// A [`Counter`] modulo 2^32, for counters of which only the differences are needed. A difference is at most
/// the depth of a queue.
#[derive(Default)]
struct WrappingCounter(AtomicU32);

impl WrappingCounter {
    #[inline]
    fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Does what [`Counter::add`] does.
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
    /// The count of used entries of the shared receive queue, if the requests are taken from such a queue.
    /// When an entry of this work queue becomes free, an entry of the shared receive queue also becomes free.
    srq: Option<Arc<AtomicUsize>>,
    /// Whether requests no longer generate completions. The flag is changed under the completion queue's lock
    /// for adding completions.
    silent: AtomicBool,
}

impl WqeCount {
    pub(crate) fn new(max: usize, srq: Option<Arc<AtomicUsize>>) -> Arc<Self> {
        let [taken, completed, unseen, polled] = std::array::from_fn(|_| WrappingCounter::default());
        let max = max.try_into().unwrap_or(u32::MAX);
        Arc::new(Self { max, taken, completed, unseen, polled, srq, silent: AtomicBool::new(false) })
    }

    /// The total number of entries, used and free.
    pub(super) fn max(&self) -> usize {
        self.max as usize
    }

    /// Reserves an entry. Returns `false` if no entry is free. Only one thread at a time may call this
    /// function.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let is_free = self.is_free();
        if is_free {
            self.taken.add(1);
        }
        is_free
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.used() < u64::from(self.max)
    }

    /// Counts a completed request. Only the holder of the consumer calls this function and
    /// [`free`](Self::free).
    #[inline]
    pub(crate) fn complete(&self) {
        self.count_completed(1);
    }

    /// Counts several completed requests, like [`complete`](Self::complete).
    #[inline]
    pub(crate) fn count_completed(&self, count: usize) {
        self.completed.add(count as u32);
    }

    /// Frees the entries of `count` completed requests that generate no completions.
    #[inline]
    pub(crate) fn free(&self, count: usize) {
        self.unseen.add(count as u32);
        self.free_shared(count);
    }

    /// Counts a polled completion, whose entry is then free. Called under the completion queue's lock for
    /// removing completions.
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

    /// Makes requests generate no completions from now on. Called under the completion queue's lock for
    /// adding completions.
    pub(super) fn silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Whether requests no longer generate completions. The answer stays the same while the caller holds the
    /// lock of [`silence`](Self::silence).
    #[inline]
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Number of requests that are not completed.
    pub(crate) fn open(&self) -> u64 {
        // `completed` is read first. Otherwise a request could be counted as completed but not as taken.
        let completed = self.completed.get();
        self.taken.get().wrapping_sub(completed).into()
    }

    /// Number of used entries: of requests that are not completed, and of requests whose completion has not
    /// been polled.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        // `polled` and `unseen` are read first, for the same reason as in `open`.
        let free = self.polled.get().wrapping_add(self.unseen.get());
        self.taken.get().wrapping_sub(free).into()
    }
}
