//! Answers to the peer's Reads.

use crate::rdmap::Opcode;

use super::super::message::{Message, Source};
use super::{Completes, Current, Transmit};

impl Transmit {
    pub(super) fn start_response(&mut self) -> bool {
        let Some(read) = self.responses.pop_front() else { return false };
        let request = read.request;
        let message = Message::tagged(
            Opcode::ReadResponse,
            request.sink_stag,
            request.sink_to,
            request.size,
            Source::Remote(request),
        );
        self.current = Some(Current { message, completes: Completes::Response(read) });
        true
    }
}
