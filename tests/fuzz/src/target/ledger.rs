//! Requests that were posted and have not completed. Each request completes or is flushed exactly once,
//! except silent requests, which may also never complete. Nothing else completes.

use std::collections::BTreeMap;

use iwarp::verbs::{CompletionQueue, WcStatus, WorkCompletion};

/// The requests that have not completed.
#[derive(Default)]
pub(super) struct Ledger {
    last: u64,
    /// Requests by `wr_id`.
    open: BTreeMap<u64, Posted>,
}

#[derive(Clone, Copy)]
struct Posted {
    /// The queue pair of the request; `None` if the request is on a shared receive queue.
    qp_num: Option<u32>,
    /// Whether the request may stay without a completion, for example because it is unsignaled or its queue
    /// pair has been dropped.
    silent: bool,
}

impl Ledger {
    /// Returns the number of the next request.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records request `wr_id`. A `silent` request may stay without a completion.
    pub(super) fn post(&mut self, wr_id: u64, qp_num: Option<u32>, silent: bool) {
        let before = self.open.insert(wr_id, Posted { qp_num, silent });
        assert!(before.is_none(), "the target posts {wr_id} twice");
    }

    /// Records that the requests of a queue pair may stay without a completion: the user has dropped the
    /// queue pair, or completions were lost.
    pub(super) fn forget(&mut self, qp_num: u32) {
        self.open
            .values_mut()
            .filter(|posted| posted.qp_num == Some(qp_num))
            .for_each(|posted| posted.silent = true);
    }

    /// Polls all completions, and passes each to `seen`.
    pub(super) fn reap(&mut self, cq: &CompletionQueue, mut seen: impl FnMut(&WorkCompletion)) {
        while let Some(wc) = cq.poll_one() {
            let posted = self.open.remove(&wc.wr_id);
            let Some(Posted { qp_num, .. }) = posted else {
                panic!("not posted, or completed before: {wc:?}")
            };
            assert!(
                qp_num.is_none_or(|qp_num| qp_num == wc.qp_num),
                "completed by another queue pair: {wc:?}"
            );
            assert!(wc.status != WcStatus::Success || wc.cause.is_none(), "{wc:?}");
            seen(&wc);
        }
    }

    /// Checks that all requests on queue pairs have completed, except silent requests.
    pub(super) fn assert_settled(&self) {
        let left: Vec<_> =
            self.open.iter().filter(|(_, posted)| posted.qp_num.is_some() && !posted.silent).collect();
        assert!(
            left.is_empty(),
            "never completed: {:?}",
            left.iter().map(|(wr_id, _)| wr_id).collect::<Vec<_>>()
        );
    }
}
