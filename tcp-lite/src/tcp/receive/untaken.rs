//! Bytes that have arrived and that the user has not taken: a message of its own protocol waits for a buffer.
//!
//! TCP acknowledges them, so that the peer does not send them again, and says from where on they are not
//! taken: a segment without payload has an option for it (an experiment, RFC 6994). Other segments have no
//! room for an option, as their payload may be as long as the path allows. They acknowledge only what is
//! taken. So each segment by itself says what is taken, and it does not matter which of them
//! arrive.

use super::ReceiveHalf;
use crate::facade::TcpSeqNumber;

/// Behind every position: the user takes all bytes.
pub(super) const ALL_TAKEN: u64 = u64::MAX;

impl ReceiveHalf {
    /// The user has not taken the bytes from this position on; `None`: it takes all. The peer is told at
    /// once.
    pub(in crate::tcp) fn set_untaken(&mut self, from: Option<u64>) {
        let from = from.unwrap_or(ALL_TAKEN);
        if from != self.untaken {
            self.untaken = from;
            self.send_ack();
        }
    }

    /// The position from which on the bytes that have arrived are not taken, if any are not.
    #[inline]
    pub(in crate::tcp) fn untaken(&self) -> Option<u64> {
        (self.untaken < self.nxt).then_some(self.untaken)
    }

    /// The acknowledgement number and the window of a segment that acknowledges only what is taken, if that
    /// is less than what has arrived. The window reaches the announced edge.
    #[inline]
    pub(in crate::tcp) fn taken_fields(&self) -> Option<(TcpSeqNumber, u16)> {
        self.untaken().map(|from| (self.seq(from), self.window_from(from)))
    }
}
