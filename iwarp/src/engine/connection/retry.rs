//! The second attempt to connect, with revision 1 (RFC 6581 section 10).

use std::net::SocketAddr;
use std::sync::Arc;

use tcp_lite::Instant;

use crate::queues::QpShared;
use crate::verbs::{CmShared, ConnParam};

/// The attempt of an initiator.
pub(in crate::engine) enum Attempt {
    First,
    /// The peer has closed or reset the connection without a Reply. The first attempt fails without an event,
    /// and the second attempt follows.
    Failed(Box<Retry>),
    /// The second attempt, with revision 1 and the deadline of the first attempt.
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
