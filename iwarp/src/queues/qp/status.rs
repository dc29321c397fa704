//! Operations on a queue pair that was found by its number.

use super::{Ask, QpShared};
use crate::queues::{Listed, Origin, QpState, QpStatus, StreamError};
use crate::rdmap::TerminateError;

impl Listed for QpShared {
    fn status(&self) -> QpStatus {
        QpStatus {
            qp_num: self.datagram_number().unwrap_or(self.config.num),
            qp_type: self.config.qp_type,
            state: self.state.get(),
            pd: self.config.pd.id().0,
            has_srq: self.receives.are_shared(),
            open_sends: self.sends.open(),
            open_receives: self.receives.open(),
        }
    }

    fn fail_for_cq(&self) {
        if self.engine.is_there() {
            return self.ask(Ask::Terminate);
        }
        if self.state.get() == QpState::Idle {
            let (layer, etype, code) = TerminateError::LocalCatastrophic.codes();
            let error = StreamError { layer, etype, code, from_peer: false };
            self.state.fail(&self.signals, Origin::Here, error, None);
            self.ask(Ask::Terminate);
        }
    }
}
