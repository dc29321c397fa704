//! The options of a connection.

use std::time::Duration;

use iwarp::verbs::{ConnParam, MAX_PRIVATE_DATA};

use crate::error::{Error, Result};

/// The options of a connection, when connecting and when accepting.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Maximum requests in flight: Writes, Reads, atomics and Sends. Further requests wait. Default: 64.
    pub send_depth: usize,
    /// Maximum messages of the peer that wait to be taken ([`Connection::recv`](crate::Connection::recv)).
    /// Default: 32.
    pub recv_depth: usize,
    /// Maximum bytes of a message, and of a transfer without a region of the user. The connection has
    /// `recv_depth` buffers of this size from the start, and makes more for requests in flight as needed.
    /// Default: 4096.
    pub message_bytes: usize,
    /// Maximum bytes that a stream ([`Connection::into_stream`](crate::Connection::into_stream)) has in
    /// flight in each direction: registered memory of both ends, whose pages are touched only when used.
    /// Default: 2 MiB, the bandwidth-delay product of 10 Gbit/s and 1.6 ms.
    pub stream_bytes: usize,
    /// Further parameters: private data, the depths of Reads, timeouts, markers. By default
    /// [`ib_semantics`](ConnParam::ib_semantics) is offered: between two ends with this crate, a Send waits
    /// for a buffer of the peer, and completes when the message is in it.
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
    /// These options with private data: up to 500 bytes, sent to the peer with the request or the answer.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn private_data(mut self, bytes: &[u8]) -> Result<Self> {
        let too_long = Error::TooLong { got: bytes.len(), max: MAX_PRIVATE_DATA };
        self.param = self.param.with_private_data(bytes).map_err(|_| too_long)?;
        Ok(self)
    }

    /// These options with another timeout for connection setup. Default: ten seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.param.timeout = timeout;
        self
    }
}
