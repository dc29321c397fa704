//! Receiving between queue pairs of type UC: a message that cannot be accepted is dropped, and the stream
//! continues.
//!
//! All segments of a dropped message are dropped, even if a receive request is posted in the meantime. A Send
//! with Immediate is one message for the user but two messages of the stream, and so is a Write with
//! Immediate. If the first of the two messages is dropped, the second is dropped as well. The messages of one
//! direction follow each other, and no other message is between the segments of a message. A Terminate is the
//! only exception.
//!
//! | a message | is dropped if |
//! |---|---|
//! | Send | no receive request is posted, or the Send is longer than its receive request, which stays posted |
//! | Write | the peer may not write to the memory |
//! | Immediate Data of a Write | no receive request is posted, or the Write was dropped |

use crate::ddp::{Header, TaggedHeader, UntaggedHeader};
use crate::rdmap::{IMMEDIATE_LEN, Opcode, Queue, joined_immediate};

use super::{Delivery, NextSend, ReceivedUlpdu};

/// What is being dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// The segments of the next message of queue 0, up to its last segment.
    Message,
    /// The segments of a Write, up to its last segment.
    Write,
    /// The Immediate Data of a dropped Write, if the next message is Immediate Data.
    ImmediateOfWrite,
}

impl Delivery<'_> {
    /// Drops the next message of queue 0, of which this segment cannot be accepted.
    #[cold]
    pub(super) fn drop_message(&mut self, piece: &ReceivedUlpdu<'_, '_>, header: &UntaggedHeader) {
        // This also drops the Immediate Data of a Send that is too long.
        self.inbound.next_send = NextSend::Dropped(Dropped::Message);
        self.drop_segment(header, is_joined(piece, header));
    }

    /// Drops a Write, one of whose segments has failed a check, if the stream drops such messages. Returns
    /// `false` if the error ends the stream.
    #[cold]
    pub(super) fn drop_write(&mut self, header: &TaggedHeader) -> bool {
        let drops = self.state.rules.drop_messages() && is_write(header);
        if drops {
            self.counters.rx_uc_refused += 1;
            self.drop_write_segment(header.last);
        }
        drops
    }

    /// Called for a segment that arrives while `dropped` is being dropped. Returns whether the segment
    /// belongs to the dropped message, and is dropped as well.
    pub(super) fn is_dropped(
        &mut self,
        dropped: Dropped,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &Header,
    ) -> bool {
        match (dropped, header) {
            (Dropped::Message, Header::Untagged(header)) if self.is_next_message(header) => {
                self.drop_segment(header, false);
                true
            }
            (Dropped::Write, Header::Tagged(header)) if is_write(header) => {
                self.drop_write_segment(header.last);
                true
            }
            (Dropped::ImmediateOfWrite, Header::Untagged(header)) if self.is_next_message(header) => {
                let opcode = Opcode::of_byte(header.rsvd_ulp[0]);
                let drops = opcode.is_some_and(Opcode::is_immediate) && !is_joined(piece, header);
                self.inbound.next_send = NextSend::UserMessage;
                if drops {
                    self.inbound.next_send = NextSend::Dropped(Dropped::Message);
                    self.drop_segment(header, false);
                }
                drops
            }
            (Dropped::ImmediateOfWrite, _) => {
                self.inbound.next_send = NextSend::UserMessage;
                false
            }
            (Dropped::Message | Dropped::Write, _) => false,
        }
    }

    fn is_next_message(&self, header: &UntaggedHeader) -> bool {
        header.qn == Queue::Send.number() && header.msn == self.inbound.queue_0.first_msn()
    }

    /// Drops a segment of the next message of queue 0. `is_joined` says whether the message is Immediate Data
    /// of the Send that follows, which is then dropped as well.
    fn drop_segment(&mut self, header: &UntaggedHeader, is_joined: bool) {
        if !header.last {
            return;
        }
        self.inbound.queue_0.skip_to(header.msn.wrapping_add(1));
        self.inbound.immediate.take();
        if !is_joined {
            self.inbound.next_send = NextSend::UserMessage;
        }
    }

    fn drop_write_segment(&mut self, is_last: bool) {
        let rest = if is_last { Dropped::ImmediateOfWrite } else { Dropped::Write };
        self.inbound.next_send = NextSend::Dropped(rest);
    }
}

fn is_write(header: &TaggedHeader) -> bool {
    Opcode::of_byte(header.rsvd_ulp) == Some(Opcode::Write)
}

/// Whether a message is Immediate Data that belongs to the Send that follows. Such a message has one segment.
fn is_joined(piece: &ReceivedUlpdu<'_, '_>, header: &UntaggedHeader) -> bool {
    let mut data = [0; IMMEDIATE_LEN];
    let len = piece.ulpdu.map_or(0, |ulpdu| ulpdu.copy_to(UntaggedHeader::LEN, &mut data));
    Opcode::of_byte(header.rsvd_ulp[0]).is_some_and(Opcode::is_immediate)
        && len == IMMEDIATE_LEN
        && joined_immediate(&data).is_some()
}
