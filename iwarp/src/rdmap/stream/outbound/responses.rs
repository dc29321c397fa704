//! Answers to the peer's Reads and atomics, in the order in which they were asked for.

use crate::memory::{Accessor, EpochGuard};
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, TerminateError};

use super::super::message::{Message, Source};
use super::super::peer_request::{Asked, PeerRequest};
use super::{Completes, Context, Current, Failure, Outbound};

impl Outbound {
    /// Starts the answer to the oldest request of the peer. An atomic is carried out here and not before: the
    /// one behind it waits until this one's response is on its way (RFC 7306 section 7).
    pub(super) fn start_response(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let Some(request) = self.responses.take(&mut cx.records.asked) else { return Ok(false) };
        let message = match request.asked {
            Asked::Read(read) => Message::tagged(
                Opcode::ReadResponse,
                read.sink_stag,
                read.sink_to,
                read.size,
                Source::Remote(read),
            ),
            Asked::Atomic(atomic) => {
                let response = carry_out(&request, &atomic, cx.guard, cx.common.by)?;
                let msn = self.atomic_response_msn;
                self.atomic_response_msn = msn.wrapping_add(1);
                Message::of_bytes(Opcode::AtomicResponse, msn, &response.to_bytes())
            }
        };
        self.current = Some(Current { message, completes: Completes::Response(request) });
        Ok(true)
    }
}

/// Changes the word; it is looked up again, as it may have been revoked since the request came.
fn carry_out(
    request: &PeerRequest,
    atomic: &AtomicRequest,
    guard: &EpochGuard,
    by: Accessor,
) -> Result<AtomicResponse, Failure> {
    let AtomicRequest { id, stag, to, op } = *atomic;
    let original = guard
        .check_atomic(stag, to, by)
        .and_then(|word| word.update(|value| op.apply(value)))
        .map_err(|fault| request.fail(TerminateError::of_read_fault(fault), 0))?;
    Ok(AtomicResponse { id, original })
}
