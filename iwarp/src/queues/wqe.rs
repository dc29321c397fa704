//! The count of used work queue entries (WQEs) of a queue pair. A request takes an entry when it is posted.
//! The entry becomes free when the completion is polled, as in the rings of hardware. So a completion queue
//! with an entry for each WQE cannot overflow (RFC 5042 section 6.4.3.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One request in the upper half of `WqeCounts::send`, the count of open requests.
const ONE_OPEN: u64 = 1 << 32;

/// The used work queue entries of one queue pair.
pub(crate) struct WqeCounts {
    /// Send requests. Lower half: those whose completion is not polled. Upper half: those of them that are
    /// open, that is not completed.
    send: AtomicU64,
    max_send: usize,
    /// Receive requests whose completion is not polled: posted here or, with a shared receive queue, taken
    /// from it.
    recv: AtomicUsize,
    max_recv: usize,
    /// The used entries of the shared receive queue; they become free together with ours.
    srq: Option<Arc<AtomicUsize>>,
}

/// A used work queue entry, which becomes free when the completion is polled.
pub(crate) enum Wqe {
    Send(Arc<WqeCounts>),
    Recv(Arc<WqeCounts>),
}

impl Wqe {
    pub(crate) fn free(self) {
        match self {
            Self::Send(counts) => {
                counts.send.fetch_sub(1, Ordering::AcqRel);
            }
            Self::Recv(counts) => {
                counts.recv.fetch_sub(1, Ordering::AcqRel);
                if let Some(srq) = &counts.srq {
                    srq.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }
}

impl WqeCounts {
    pub(crate) fn new(max_send: usize, max_recv: usize, srq: Option<Arc<AtomicUsize>>) -> Arc<Self> {
        Arc::new(Self { send: AtomicU64::new(0), max_send, recv: AtomicUsize::new(0), max_recv, srq })
    }

    /// Takes an entry for a send request; `false` if none is free.
    pub(crate) fn reserve_send(&self) -> bool {
        let more =
            |count: u64| (((count % ONE_OPEN) as usize) < self.max_send).then_some(count + ONE_OPEN + 1);
        self.send.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// A send request is completed. Without a completion its entry is free at once. Returns whether it was
    /// the last open request.
    pub(crate) fn complete_send(&self, has_completion: bool) -> bool {
        let less = if has_completion { ONE_OPEN } else { ONE_OPEN + 1 };
        self.send.fetch_sub(less, Ordering::AcqRel) / ONE_OPEN == 1
    }

    /// Takes an entry for a receive request; `None` if none is free. Returns how many are used now.
    pub(crate) fn reserve_recv(&self) -> Option<usize> {
        let more = |count: usize| (count < self.max_recv).then_some(count + 1);
        self.recv.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|before| before + 1)
    }

    /// Undoes [`reserve_recv`](Self::reserve_recv) when there was no request for the entry.
    pub(crate) fn cancel_recv(&self) {
        self.recv.fetch_sub(1, Ordering::AcqRel);
    }

    /// Send requests that are open.
    pub(crate) fn open_sends(&self) -> usize {
        (self.send.load(Ordering::Acquire) / ONE_OPEN) as usize
    }

    /// Send requests whose completion is not polled.
    pub(crate) fn sends(&self) -> usize {
        (self.send.load(Ordering::Acquire) % ONE_OPEN) as usize
    }

    /// Receive requests whose completion is not polled.
    pub(crate) fn recvs(&self) -> usize {
        self.recv.load(Ordering::Acquire)
    }
}
