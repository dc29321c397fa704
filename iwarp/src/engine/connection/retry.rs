//! The second attempt to connect, with revision 1 (RFC 6581 section 10).

use std::net::SocketAddr;
use std::sync::Arc;

use tcp_lite::Instant;

use crate::queues::QpShared;
use crate::verbs::{CmShared, ConnParam};

use super::Connection;
use super::base::Base;
use super::startup::{Initiating, Role, Startup};

/// Which attempt of an initiator this is.
pub(in crate::engine) enum Attempt {
    First,
    /// The peer closed without a Reply: the first attempt fails unannounced, and the second one follows.
    Failed(Box<Retry>),
    /// The second one, with revision 1. It has the deadline of the first.
    Second {
        deadline: Instant,
    },
}

/// A connection to try again with revision 1.
pub(in crate::engine) struct Retry {
    pub(in crate::engine) id: Arc<CmShared>,
    pub(in crate::engine) qp: Arc<QpShared>,
    pub(in crate::engine) remote: SocketAddr,
    pub(in crate::engine) param: Box<ConnParam>,
    pub(in crate::engine) deadline: Instant,
}

impl Startup {
    /// The peer has closed without a Reply. Perhaps it does not know revision 2 (RFC 6581 section 10).
    pub(super) fn consider_fallback(&self, base: &mut Base) {
        let Role::Initiator(Initiating { initiator, qp, param }) = &self.role else { return };
        let may = matches!(base.attempt, Attempt::First) && base.plain.is_none();
        if may
            && initiator.may_fall_back()
            && let (Some(id), Some(deadline)) = (base.user.id(), base.timers.deadline())
            && let Some((_, remote)) = id.addresses()
        {
            let mut param = param.clone();
            (param.mpa_revision, param.peer_to_peer, param.fallback) = (1, false, false);
            let (id, qp) = (Arc::clone(id), Arc::clone(qp));
            base.attempt = Attempt::Failed(Box::new(Retry { id, qp, remote, param, deadline }));
        }
    }
}

impl Connection {
    /// The second attempt, if there is one after this connection, which is over.
    pub(in crate::engine) fn take_retry(self) -> Option<Box<Retry>> {
        match self.base.attempt {
            Attempt::Failed(retry) => Some(retry),
            Attempt::First | Attempt::Second { .. } => None,
        }
    }
}
