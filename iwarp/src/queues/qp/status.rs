//! The status of a queue pair.

use super::QpShared;
use crate::queues::QpStatus;

impl QpShared {
    /// Its status now.
    pub(crate) fn status(&self) -> QpStatus {
        QpStatus {
            qp_num: self.num,
            state: self.state(),
            pd: self.pd.id().0,
            has_srq: self.srq.is_some(),
            open_sends: self.send.wqes.open(),
            open_receives: self.recv.wqes.open(),
        }
    }
}
