//! The bytes that this end sends before its first FPDU (RFC 5044 sections 7.1 and 7.1.5).
//!
//! Bytes that the user has sent in streaming mode go first, then those of startup frames.

use std::collections::VecDeque;
use std::sync::Arc;

use tcp_lite::{ConnId, SendError};

use crate::verbs::StreamShared;

use super::super::core::Io;

/// The bytes to send before the first FPDU.
#[derive(Default)]
pub(super) struct PreFpdu {
    /// The bytes from and to the user, if the connection began in streaming mode.
    stream: Option<Arc<StreamShared>>,
    /// Bytes of startup frames that TCP has not taken. They go after those of `stream`.
    startup: VecDeque<u8>,
    /// There may be bytes to send.
    pending: bool,
}

/// The result of sending.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// TCP has taken everything.
    All,
    /// TCP's send buffer is full. TCP says when there is space.
    Blocked,
    /// No packet buffer is free: try again in the next poll.
    NoMbuf,
}

impl PreFpdu {
    /// For a connection that begins in streaming mode.
    pub(super) fn streaming(stream: Arc<StreamShared>) -> Self {
        Self { stream: Some(stream), ..Self::default() }
    }

    /// The bytes from and to the user, if the connection began in streaming mode.
    pub(super) fn stream(&self) -> Option<&Arc<StreamShared>> {
        self.stream.as_ref()
    }

    /// Whether the connection began in streaming mode.
    pub(super) fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether there may be bytes to send.
    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Adds bytes of a startup frame, after those of the user.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.startup.extend(bytes);
        self.pending = true;
    }

    /// Hands the bytes to TCP. `in_streaming_mode` says that the user may send more. Returns the result, and
    /// whether the user has to be told that there is space for its bytes.
    pub(super) fn send(&mut self, io: &mut Io, conn: ConnId, in_streaming_mode: bool) -> (Sent, bool) {
        let mut result = Sent::All;
        let now = io.now;
        let tcp = &mut io.tcp;
        let mut send = |bytes: &[u8]| match tcp.send(now, conn, bytes) {
            Ok(sent) => {
                if sent < bytes.len() {
                    result = Sent::Blocked;
                }
                sent
            }
            Err(SendError::NoMbuf) => {
                result = Sent::NoMbuf;
                0
            }
            Err(SendError::BufferFull | SendError::Closed) => {
                result = Sent::Blocked;
                0
            }
        };
        let mut writable = self.stream.as_ref().is_some_and(|stream| stream.drain(&mut send));
        if self.stream.as_ref().is_none_or(|stream| stream.is_sent()) {
            while !self.startup.is_empty() {
                let sent = send(self.startup.as_slices().0);
                self.startup.drain(..sent);
                if sent == 0 {
                    break;
                }
            }
        }
        if let Some(stream) = &self.stream
            && in_streaming_mode
            && self.startup.is_empty()
        {
            stream.reopen();
            writable |= stream.drain(&mut send);
        }
        if result == Sent::Blocked {
            // A short write can mean that the send buffer is full or that the packet pool is empty. TCP
            // reports only when the send buffer has space again.
            let blocked = matches!(
                io.tcp.sender(io.now, conn).and_then(|mut sender| sender.segment().map(drop)),
                Err(SendError::BufferFull | SendError::Closed)
            );
            result = if blocked { Sent::Blocked } else { Sent::NoMbuf };
        }
        self.pending = result != Sent::All;
        (result, writable && in_streaming_mode)
    }
}
