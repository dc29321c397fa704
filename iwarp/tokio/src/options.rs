//! The options of a connection.

use std::time::Duration;

use iwarp::verbs::{ConnParam, MAX_PRIVATE_DATA};

use crate::error::{Error, Result};

/// The options of a connection, when connecting and when accepting.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Maximum number of requests in flight: Writes, Reads, atomics and Sends. Further requests wait.
    /// Default: 64.
    pub send_depth: usize,
    /// Maximum number of the peer's messages that wait for [`Connection::recv`](crate::Connection::recv); 0
    /// has the effect of 1. Default: 32.
    pub recv_depth: usize,
    /// Maximum number of bytes of a received message, and of a transfer without a region of the user. The
    /// connection has `recv_depth` buffers of this size from the start, and allocates more buffers for
    /// requests in flight when it needs them. At most 2^32 - 1. Default: 4096.
    pub message_bytes: usize,
    /// Maximum number of bytes in flight from the peer to this side of a stream
    /// ([`Connection::into_stream`](crate::Connection::into_stream)). Each of the two peers registers this
    /// much memory for this direction. Pages of this memory are touched only when they are used. The default
    /// is the bandwidth-delay product of 10 Gbit/s and 1.6 ms. Default: 2 MiB.
    pub stream_bytes: usize,
    /// Further parameters: private data, the depths of Reads, timeouts, markers. By default
    /// [`ib_semantics`](ConnParam::ib_semantics) is offered. If both peers offer it, a Send waits for a
    /// buffer of the peer, and completes when the message is in that buffer.
    pub param: ConnParam,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            send_depth: 64,
            recv_depth: 32,
            message_bytes: 4096,
            stream_bytes: 2 << 20,
            param: ConnParam { ib_semantics: true, ..ConnParam::default() },
        }
    }
}

impl ConnectionOptions {
    /// Returns these options with the private data `bytes`, which is sent to the peer with the request or the
    /// answer. With [`ib_semantics`](ConnParam::ib_semantics), a connection can carry at most 496 bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`] if there are more than 512 bytes.
    pub fn private_data(mut self, bytes: &[u8]) -> Result<Self> {
        let too_long = Error::TooLong { got: bytes.len(), max: MAX_PRIVATE_DATA };
        self.param = self.param.with_private_data(bytes).map_err(|_| too_long)?;
        Ok(self)
    }

    /// Returns these options with `timeout` as the time limit for the setup of the connection. The default is
    /// ten seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.param.timeout = timeout;
        self
    }
}
