//! Places in the queues of a queue pair. A request takes one when it is posted and gives it back when its
//! completion is reaped, as with the rings of hardware: so a completion queue with an entry for each place
//! never overflows (RFC 5042 section 6.4.3.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One request in the upper half of `Places::send`, which counts those that are not completed.
const OPEN: u64 = 1 << 32;

/// Places of one queue pair.
pub(crate) struct Places {
    /// Send requests: below, those whose completion is not reaped; above, of these, those that are not
    /// completed.
    send: AtomicU64,
    max_send: usize,
    /// Receive requests whose completion is not reaped: posted, or (where the queue is shared) taken from it.
    recv: AtomicUsize,
    max_recv: usize,
    /// Places of the shared receive queue, which come back with ours.
    srq: Option<Arc<AtomicUsize>>,
}

/// A place that is given back when its completion is reaped.
pub(crate) enum Place {
    Send(Arc<Places>),
    Recv(Arc<Places>),
}

impl Place {
    pub(crate) fn give_back(self) {
        match self {
            Self::Send(places) => {
                places.send.fetch_sub(1, Ordering::AcqRel);
            }
            Self::Recv(places) => {
                places.recv.fetch_sub(1, Ordering::AcqRel);
                if let Some(srq) = &places.srq {
                    srq.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }
}

impl Places {
    pub(crate) fn new(max_send: usize, max_recv: usize, srq: Option<Arc<AtomicUsize>>) -> Arc<Self> {
        Arc::new(Self { send: AtomicU64::new(0), max_send, recv: AtomicUsize::new(0), max_recv, srq })
    }

    /// A send request takes a place, if there is one.
    pub(crate) fn take_send(&self) -> bool {
        let more = |count: u64| (((count % OPEN) as usize) < self.max_send).then_some(count + OPEN + 1);
        self.send.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// A send request is completed; without a completion its place is free at once. Whether it was the last
    /// open one.
    pub(crate) fn complete_send(&self, has_completion: bool) -> bool {
        let less = if has_completion { OPEN } else { OPEN + 1 };
        self.send.fetch_sub(less, Ordering::AcqRel) / OPEN == 1
    }

    /// A receive request takes a place, if there is one. How many are taken then.
    pub(crate) fn take_recv(&self) -> Option<usize> {
        let more = |count: usize| (count < self.max_recv).then_some(count + 1);
        self.recv.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|before| before + 1)
    }

    /// What was to take the place was not there.
    pub(crate) fn untake_recv(&self) {
        self.recv.fetch_sub(1, Ordering::AcqRel);
    }

    /// Send requests that are not completed.
    pub(crate) fn open_sends(&self) -> usize {
        (self.send.load(Ordering::Acquire) / OPEN) as usize
    }

    /// Send requests whose completion is not reaped.
    pub(crate) fn sends(&self) -> usize {
        (self.send.load(Ordering::Acquire) % OPEN) as usize
    }

    /// Receive requests whose completion is not reaped.
    pub(crate) fn recvs(&self) -> usize {
        self.recv.load(Ordering::Acquire)
    }
}
