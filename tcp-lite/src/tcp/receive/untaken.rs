//! Bytes that have arrived but that the user has not taken, because a message of the user's protocol waits
//! for a buffer.
//!
//! TCP acknowledges these bytes, so that the peer does not retransmit them, and reports the first untaken
//! byte in an option of segments without payload (an experiment, RFC 6994). Segments with payload have no
//! room for the option, since the payload may be as long as the path allows: they acknowledge only the taken
//! bytes. So each segment by itself tells which bytes are taken, and it does not matter which of them
//! arrive.

use super::ReceiveHalf;
use crate::facade::TcpSeqNumber;

/// Behind every position: the user takes all bytes.
pub(super) const ALL_TAKEN: u64 = u64::MAX;

impl ReceiveHalf {
    /// Declares that the user has not taken the bytes from this position on; `None`: the user takes all
    /// bytes. The peer is informed at once.
    pub(in crate::tcp) fn set_untaken(&mut self, from: Option<u64>) {
        let from = from.unwrap_or(ALL_TAKEN);
        if from != self.untaken {
            self.untaken = from;
            self.send_ack();
        }
    }

    /// The position of the first untaken byte, if any received byte is untaken.
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
