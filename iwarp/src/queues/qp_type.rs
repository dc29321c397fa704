//! The types of queue pairs.

/// The type of a queue pair (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection: an RDMA stream.
    #[default]
    Rc,
    /// Unreliable connection: an RDMA stream on which a message may be lost. A message of the peer that finds
    /// no receive request, is too long for its receive request, or may not access its memory, is dropped and
    /// counted ([`EngineCounters`](crate::engine::EngineCounters), `rx_uc_*`). A send completes when the
    /// peer's TCP has acknowledged it. When the peer is gone, sends still complete successfully, and are
    /// dropped. Both ends of the connection must have this type, and
    /// [`ConnParam::ib_semantics`](crate::verbs::ConnParam). Reads, atomics and Sends with Invalidate are
    /// refused.
    Uc,
    /// Unreliable datagram: every message is one RoCEv2 frame, which may be lost. The queue pair has no
    /// connection: [`Context::open_datagrams`](crate::verbs::Context::open_datagrams) begins its use.
    Ud {
        /// Maximum number of bytes of a message that may be sent: the path MTU of InfiniBand, 256 to 4096.
        max_message: u16,
    },
}

impl QpType {
    /// Whether queue pairs of this type have connections.
    pub(crate) fn has_connections(self) -> bool {
        matches!(self, Self::Rc | Self::Uc)
    }

    /// Returns the name of the type, as libibverbs names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud { .. } => "UD",
        }
    }
}
