//! The states of a queue pair.

/// The states of a queue pair (RFC 5040 section 6 and the iWARP verbs).
///
/// | state | `post_send` | `post_recv` | entered by |
/// |---|---|---|---|
/// | `Idle` | is refused, or waits with [`QpInit::early_sends`](super::QpInit::early_sends) | waits | creation |
/// | `Rts` | is sent | waits | `connect`, `accept` |
/// | `Closing` | is refused | waits | `disconnect`, the peer's FIN, `modify` |
/// | `Terminate` | is flushed | is flushed | an error, `modify` |
/// | `Error` | is flushed | is flushed | the end of the connection, a failed connection setup, `modify` |
/// | `Orphaned` | the first request fails, and all others are flushed | waits | the peer's end of the connection, or a failed connection setup, both with [`ConnParam::outlives_peer`] |
///
/// After a call of `disconnect`, or of `modify` to `Closing`, `post_send` is refused in every state (RFC 5041
/// section 6.2.1). The exception is a queue pair that [takes late
/// sends](crate::verbs::QueuePair::take_late_sends). Receive requests may be posted in `Closing`, for
/// messages of the peer that arrive before the end of the connection.
///
/// [`ConnParam::outlives_peer`]: crate::verbs::ConnParam::outlives_peer
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Not connected. Receives may be posted. Sends may be posted if the queue pair accepts early sends.
    Idle,
    /// Connected: sends and receives may be posted.
    Rts,
    /// A graceful close is in progress: the requests that were posted before the close are sent, and then the
    /// FIN is sent.
    Closing,
    /// The stream has failed. In most cases a Terminate was sent or received. Requests are flushed.
    Terminate,
    /// The connection has ended, or no connection can be made. Every request is flushed.
    Error,
    /// The queue pair outlives its peer, and the peer has ended the connection, or no connection could be
    /// made. Receive requests stay posted. The first send completes with
    /// [`RetryExceeded`](super::WcStatus::RetryExceeded), at once or after its [retry
    /// time](crate::verbs::QueuePair::set_retry_time). Then the queue pair enters `Error`. A queue pair of
    /// type [`Uc`](super::QpType::Uc) always outlives its peer, and its sends succeed and are dropped.
    Orphaned,
}

impl QpState {
    /// Returns the bit of this state in a set of states.
    #[inline]
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Returns the set of states in which a send queue accepts requests. If `early` is set, the set includes
    /// the state before the connection.
    pub(crate) const fn taking_sends(early: bool) -> u8 {
        let always = Self::Rts.bit() | Self::Terminate.bit() | Self::Error.bit() | Self::Orphaned.bit();
        if early { always | Self::Idle.bit() } else { always }
    }
}
