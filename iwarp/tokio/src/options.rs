//! The options of a connection.

use std::time::Duration;

use iwarp::verbs::{ConnParam, MAX_PRIVATE_DATA};

use crate::error::{Error, Result};

/// The options of a connection, when connecting and when accepting.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Requests under way: Writes, Reads, atomics and Sends. A further one waits. 64 by default.
    pub send_depth: usize,
    /// Messages of the peer that wait to be taken ([`Connection::recv`](crate::Connection::recv)). 32 by
    /// default.
    pub recv_depth: usize,
    /// The longest message, and the longest transfer without a region of the user. There are `recv_depth`
    /// buffers of this size from the start, and one for each request under way that needed one. 4096 bytes by
    /// default.
    pub message_bytes: usize,
    /// The bytes that a stream ([`Connection::into_stream`](crate::Connection::into_stream)) has under way in
    /// each direction: registered memory of both ends, which is touched as it is used. 2 MiB by default, as a
    /// connection of 10 Gb/s has in 1.6 ms.
    pub stream_bytes: usize,
    /// All else: private data, the depths of Reads, timeouts, markers. By default
    /// [`ib_semantics`](ConnParam::ib_semantics) are offered: between two ends of this crate a Send waits for
    /// a buffer of the peer, and completes when it is there.
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
    /// The same options with private data: up to 500 bytes that the peer gets with the request or the answer.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn private_data(mut self, bytes: &[u8]) -> Result<Self> {
        let too_long = Error::TooLong { got: bytes.len(), max: MAX_PRIVATE_DATA };
        self.param = self.param.with_private_data(bytes).map_err(|_| too_long)?;
        Ok(self)
    }

    /// The same options with another time limit for making the connection; ten seconds by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.param.timeout = timeout;
        self
    }
}
