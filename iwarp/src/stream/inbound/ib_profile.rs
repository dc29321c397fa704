//! Receiving with InfiniBand's semantics: the messages of queue 4, and requests that are dropped
//! ([`ib_profile`](super::super::ib_profile)).

use crate::ddp::{Header, UntaggedHeader};
use crate::rdmap::{Opcode, Queue, TerminateError};

use super::super::ib_profile::{Change, Impossible, PAYLOAD_BYTES, ProfileMessage, QUEUE};
use super::{Delivery, Failure, NextSend, ReceivedUlpdu};

impl Delivery<'_> {
    /// Takes a segment that is for the profile: a message of queue 4, or a request that is dropped. Takes what
    /// a Send tells in its header. Returns whether nothing is left to do with the segment.
    #[inline(never)]
    pub(super) fn is_of_profile(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &Header,
    ) -> Result<bool, Failure> {
        let drops = self.inbound.next_send == NextSend::Refused;
        match header {
            Header::Untagged(header) if header.qn == QUEUE => {
                self.profile_message(piece, header)?;
                return Ok(true);
            }
            Header::Untagged(header) if header.qn == Queue::Send.number() => {
                if let Some(Opcode::Send | Opcode::SendSolicited) = Opcode::of_byte(header.rsvd_ulp[0]) {
                    let [_, half @ ..] = header.rsvd_ulp;
                    self.taken_half(u32::from_be_bytes(half)).map_err(|error| piece.fail(error))?;
                }
                self.state.owes_taken = true;
                Ok(drops)
            }
            Header::Untagged(header) => Ok(drops && header.qn == Queue::ReadRequest.number()),
            Header::Tagged(header) => {
                let is_write = Opcode::of_byte(header.rsvd_ulp) != Some(Opcode::ReadResponse);
                self.state.owes_taken |= is_write;
                Ok(drops && is_write)
            }
        }
    }

    /// The lower half of the stream offset up to which the peer has taken everything.
    #[inline]
    pub(super) fn taken_half(&mut self, half: u32) -> Result<(), TerminateError> {
        if let Some(ib) = &mut self.state.ib
            && ib.on_taken_half(half).map_err(|Impossible| TerminateError::OperationUnspecified)?
        {
            self.state.complete_acknowledged();
        }
        Ok(())
    }

    fn profile_message(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let mut payload = [0; PAYLOAD_BYTES + 1];
        let len = piece.ulpdu.map_or(0, |ulpdu| ulpdu.copy_to(UntaggedHeader::LEN, &mut payload));
        let Some(ib) = &mut self.state.ib else { return Ok(()) };
        let message = ProfileMessage::of_segment(header, &payload[..len], ib.next_msn());
        let change = ib.on_message(message);
        match change.map_err(|Impossible| piece.fail(TerminateError::OperationUnspecified))? {
            Change::None => {}
            Change::Taken => self.state.complete_acknowledged(),
            Change::GoBack => {
                self.state.complete_acknowledged();
                self.outbound.go_back(self.state, self.pool);
                self.state.complete_acknowledged();
            }
            Change::PeerResumes { send_msn, request_msn } => {
                self.inbound.sends.skip_to(send_msn);
                self.inbound.requests.skip_to(request_msn);
                self.inbound.partial.clear();
                self.inbound.next_send = NextSend::Usual;
            }
        }
        Ok(())
    }
}
