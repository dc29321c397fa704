//! The states of a queue pair.

/// States of RFC 5040 section 6 (and of the iWARP verbs).
///
/// | state | `post_send` | `post_recv` | entered by |
/// |---|---|---|---|
/// | `Idle` | refused; waits with [`QpInit::early_sends`](super::QpInit::early_sends) | waits | creation |
/// | `Rts` | is sent | waits | `connect`, `accept` |
/// | `Closing` | refused | waits | `disconnect`, the peer's FIN, `modify` |
/// | `Terminate` | is flushed | is flushed | an error, `modify` |
/// | `Error` | is flushed | is flushed | the end of the connection, `modify` |
/// | `Orphaned` | fails, and all others are flushed | waits | the peer's end, with [`ConnParam::outlives_peer`] |
///
/// After a call of `disconnect`, or of `modify` to `Closing`, `post_send` is refused in every state: also
/// before the engine has entered `Closing`, and after it has left it (RFC 5041 section 6.2.1), unless the
/// queue pair [takes late sends](crate::verbs::QueuePair::take_late_sends). A receive
/// transfers nothing, so it may be posted until the end, for messages of the peer that arrive before our FIN;
/// it is flushed then.
///
/// [`ConnParam::outlives_peer`]: crate::verbs::ConnParam::outlives_peer
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Not connected. Receives may be posted, and sends if the queue pair takes them early.
    Idle,
    /// Connected: all requests may be posted.
    Rts,
    /// A graceful close is in progress: the requests posted before are sent, then FIN.
    Closing,
    /// A Terminate was sent or received, or the connection failed: requests are flushed.
    Terminate,
    /// The connection has ended. Every request is flushed.
    Error,
    /// The peer has ended the connection, and the queue pair outlives its end: receives stay. The first send
    /// completes with [`RetryExceeded`](super::WcStatus::RetryExceeded), at once or after the
    /// [time of its retries](crate::verbs::QueuePair::set_retry_time), and `Error` follows.
    Orphaned,
}

impl QpState {
    /// The bit of the state in a set of states.
    #[inline]
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The states in which a send queue accepts requests; `early`: before the connection too.
    pub(crate) const fn taking_sends(early: bool) -> u8 {
        let always = Self::Rts.bit() | Self::Terminate.bit() | Self::Error.bit() | Self::Orphaned.bit();
        if early { always | Self::Idle.bit() } else { always }
    }
}
