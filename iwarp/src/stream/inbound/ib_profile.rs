//! Receiving with InfiniBand's semantics: the messages of queue 4, and requests that are dropped
//! ([`ib_profile`](super::super::ib_profile)).

use crate::ddp::{Header, UntaggedHeader};
use crate::rdmap::{Opcode, Queue, TerminateError};

use super::super::ib_profile::{Change, Impossible, PAYLOAD_BYTES, QUEUE};
use super::{Delivery, Failure, NextSend, ReceivedUlpdu};

impl Delivery<'_> {
    /// Handles what the profile adds to a segment: a message of queue 4, the limit in a Send, and a request
    /// that is dropped. Returns whether the segment needs no further processing.
    pub(super) fn take_profile_segment(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &Header,
    ) -> Result<bool, Failure> {
        if let Header::Untagged(header) = header {
            if header.qn == QUEUE {
                self.profile_message(piece, header)?;
                return Ok(true);
            }
            let opcode = Opcode::of_byte(header.rsvd_ulp[0]);
            if header.qn == Queue::Send.number()
                && matches!(opcode, Some(Opcode::Send | Opcode::SendSolicited))
            {
                let [_, limit @ ..] = header.rsvd_ulp;
                self.on_limit(u32::from_be_bytes(limit));
            }
        }
        let is_request = match header {
            Header::Untagged(header) => {
                [Queue::Send, Queue::ReadRequest].map(Queue::number).contains(&header.qn)
            }
            Header::Tagged(header) => Opcode::of_byte(header.rsvd_ulp) != Some(Opcode::ReadResponse),
        };
        Ok(is_request && self.inbound.next_send == NextSend::Refused)
    }

    /// Handles a limit that the peer has sent.
    #[inline]
    pub(super) fn on_limit(&mut self, limit: u32) {
        if self.state.rules.on_limit(limit) {
            self.state.complete_acknowledged();
        }
    }

    #[inline]
    pub(super) fn on_taken(&mut self, msn: u32) {
        self.state.rules.on_taken(msn);
    }

    #[inline(never)]
    fn profile_message(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let mut payload = [0; PAYLOAD_BYTES + 1];
        let len = piece.ulpdu.map_or(0, |ulpdu| ulpdu.copy_to(UntaggedHeader::LEN, &mut payload));
        let change = self.state.rules.on_message(header, &payload[..len]);
        match change.map_err(|Impossible| piece.fail(TerminateError::OperationUnspecified))? {
            Change::None => {}
            Change::Limit => self.state.complete_acknowledged(),
            Change::GoBack(msn) => {
                self.state.complete_acknowledged();
                self.outbound.go_back(self.state, self.pool, msn);
                // The oldest requests may need no repetition, since they send nothing. These requests
                // complete now.
                self.state.complete_acknowledged();
            }
            Change::AcceptedUntil(offset) => {
                self.state.set_acknowledged(offset);
                self.state.complete_acknowledged();
            }
            Change::PeerResumes { send_msn, request_msn } => {
                self.inbound.queue_0.skip_to(send_msn);
                self.inbound.requests.skip_to(request_msn);
                self.inbound.partial.clear();
                self.inbound.next_send = NextSend::UserMessage;
            }
        }
        Ok(())
    }
}
