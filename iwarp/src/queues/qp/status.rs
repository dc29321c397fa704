//! Calls on a queue pair that was found by its number.

use super::{Ask, QpShared};
use crate::queues::{Listed, Origin, QpState, QpStatus, StreamError};
use crate::rdmap::TerminateError;

impl Listed for QpShared {
    fn status(&self) -> QpStatus {
        QpStatus {
            qp_num: self.num,
            state: self.state(),
            pd: self.pd.id().0,
            has_srq: self.srq.is_some(),
            open_sends: self.send.wqes.open(),
            open_receives: self.recv.wqes.open(),
        }
    }

    fn fail_for_cq(&self) {
        if self.doorbells.get().is_some() {
            return self.ask(Ask::Terminate);
        }
        if self.state() == QpState::Idle {
            let (layer, etype, code) = TerminateError::LocalCatastrophic.codes();
            self.fail(Origin::Here, StreamError { layer, etype, code, from_peer: false }, None);
            self.ask(Ask::Terminate);
        }
    }
}
