//! The bytes that this side sends before its first FPDU (RFC 5044 sections 7.1 and 7.1.5).
//!
//! These bytes are the startup frames, and the bytes that the user sends in streaming mode. All of these
//! bytes are sent in the order of the user's calls. User bytes may follow a startup frame, since the
//! connection may return to streaming mode after a reject, and MPA may then start again.

use std::collections::VecDeque;
use std::sync::Arc;

use tcp_lite::{ConnId, SendError};

use crate::verbs::PlainBytes;

use super::super::state::EngineState;

#[derive(Default)]
pub(super) struct PreFpdu {
    /// The pieces that TCP has not accepted, in order. The bytes that the user sends in streaming mode after
    /// the last piece are not in this list: [`send`](Self::send) receives them as `plain`.
    pieces: VecDeque<Piece>,
    /// The result of the last attempt to send; `Blocked` if bytes were added since that attempt.
    sent: Sent,
}

enum Piece {
    /// Bytes of the user, up to position `end` of the user's stream.
    User { plain: Arc<PlainBytes>, end: u64 },
    /// The part of a startup frame that TCP has not accepted.
    Frame(VecDeque<u8>),
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sent {
    /// TCP has accepted all bytes.
    #[default]
    All,
    /// TCP accepts no more bytes now: its send buffer is full, or the connection is closed. TCP reports when
    /// the send buffer has space again.
    Blocked,
    /// No packet buffer is free, so the caller tries again in the next poll.
    NoMbuf,
}

pub(super) struct Progress {
    pub(super) result: Sent,
    /// Whether TCP has accepted at least one byte.
    pub(super) some: bool,
    /// Whether to report to the user that there is space for more of the user's bytes.
    pub(super) writable: bool,
}

impl PreFpdu {
    /// Whether there may be bytes to send.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.sent != Sent::All
    }

    /// Whether the last attempt to send has found no free packet buffer.
    pub(super) fn lacks_mbuf(&self) -> bool {
        self.sent == Sent::NoMbuf
    }

    /// Called when MPA starts: the user's bytes up to position `end` of the user's stream are sent before the
    /// frames that follow.
    pub(super) fn push_user_bytes(&mut self, plain: Arc<PlainBytes>, end: u64) {
        self.pieces.push_back(Piece::User { plain, end });
        self.sent = Sent::Blocked;
    }

    pub(super) fn push_frame(&mut self, bytes: &[u8]) {
        self.pieces.push_back(Piece::Frame(bytes.iter().copied().collect()));
        self.sent = Sent::Blocked;
    }

    /// Hands the bytes to TCP. In streaming mode the user may add bytes in `plain`, which are sent as well.
    pub(super) fn send(
        &mut self,
        state: &mut EngineState,
        conn: ConnId,
        plain: Option<&PlainBytes>,
    ) -> Progress {
        let (mut result, mut some) = (Sent::All, false);
        let now = state.now;
        let tcp = &mut state.tcp;
        let mut send = |bytes: &[u8]| match tcp.send(now, conn, bytes) {
            Ok(sent) => {
                if sent < bytes.len() {
                    result = Sent::Blocked;
                }
                some |= sent > 0;
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
        while let Some(piece) = self.pieces.front_mut() {
            let all = match piece {
                Piece::User { plain, end } => plain.take_for_tcp(*end, &mut send),
                Piece::Frame(bytes) => loop {
                    let sent = send(bytes.as_slices().0);
                    bytes.drain(..sent);
                    if bytes.is_empty() || sent == 0 {
                        break bytes.is_empty();
                    }
                },
            };
            if !all {
                break;
            }
            self.pieces.pop_front();
        }
        let mut writable = false;
        if let Some(plain) = plain {
            if self.pieces.is_empty() {
                plain.take_for_tcp(u64::MAX, &mut send);
            }
            writable = plain.take_writable();
        }
        if result == Sent::Blocked {
            // A short write means that the send buffer is full or that the packet pool is empty. TCP reports
            // when the send buffer has space again, but not when a packet buffer becomes free.
            let blocked = matches!(
                state.tcp.sender(state.now, conn).and_then(|mut sender| sender.segment(0).map(drop)),
                Err(SendError::BufferFull | SendError::Closed)
            );
            result = if blocked { Sent::Blocked } else { Sent::NoMbuf };
        }
        self.sent = result;
        if self.pieces.is_empty() {
            // An idle connection holds no memory for the frames of its startup.
            self.pieces = VecDeque::new();
        }
        Progress { result, some, writable }
    }
}
