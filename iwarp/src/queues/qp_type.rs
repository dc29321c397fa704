//! The types of queue pairs.

/// The type of a queue pair (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection: an RDMA stream.
    #[default]
    Rc,
    /// Unreliable datagram: every message is one RoCEv2 frame, which may be lost. The queue pair has no
    /// connection: [`Context::open_datagrams`](crate::verbs::Context::open_datagrams) begins its use.
    Ud {
        /// Maximum number of bytes of a message that may be sent: the path MTU of InfiniBand, 256 to 4096.
        max_message: u16,
    },
}
