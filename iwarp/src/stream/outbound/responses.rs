//! Responses to the peer's Reads and atomics, in the order of the requests.

use crate::memory::EpochGuard;
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, TerminateError};

use super::super::message::{Message, PayloadSource};
use super::super::peer_request::{PeerOp, PeerRequest};
use super::super::state::StreamState;
use super::{Completes, Current, Failure, Outbound, SendContext};

impl Outbound {
    /// Starts the response to the oldest request of the peer. Returns `false` if there is no such request. An
    /// atomic is executed here, and the next request is executed only after the response of this atomic was
    /// written to TCP (RFC 7306 section 7).
    ///
    /// RFC 5040 sections 5.2.2 and 5.5 (RDMAP-230, RDMAP-292): responses go to DDP in the order of the
    /// requests.
    pub(super) fn start_response(&mut self, cx: &mut SendContext<'_>) -> Result<bool, Failure> {
        // RFC 7306 sections 5.2.1, 5.2.2 and 5.4 (EXT-089, EXT-090, EXT-102, EXT-112, EXT-113): each request
        // is executed and answered once. The order is that in which DDP delivered the requests.
        let Some(request) = self.responses.front(&cx.pool.peer_requests) else { return Ok(false) };
        let message = match request.op {
            // RFC 5040 sections 4.2, 4.4 and 5.2.1 (RDMAP-112, RDMAP-120, RDMAP-218, RDMAP-222): the response
            // has no RDMAP header. The response has the requested size, which may be 0, and the sink fields
            // of the request, which are not checked.
            PeerOp::Read(read) => Message::tagged(
                Opcode::ReadResponse,
                read.sink_stag,
                read.sink_to,
                read.size,
                PayloadSource::Remote,
            ),
            PeerOp::Atomic(atomic) => {
                let response = carry_out(request, &atomic, cx.guard, cx.state)?;
                let msn = self.atomic_response_msn;
                self.atomic_response_msn = msn.wrapping_add(1);
                // RFC 7306 sections 4.2 and 5.2.2 (EXT-025, EXT-026, EXT-091): the DDP payload is only the
                // Atomic Response header.
                self.own_message(Opcode::AtomicResponse, msn, &response.to_bytes())
            }
        };
        self.answering = true;
        self.current = Some(Current { message, completes: Completes::Response });
        Ok(true)
    }
}

/// Executes an atomic. The word is looked up again, since it may have been revoked after the request arrived.
fn carry_out(
    request: &PeerRequest,
    atomic: &AtomicRequest,
    guard: &EpochGuard<'_>,
    state: &StreamState,
) -> Result<AtomicResponse, Failure> {
    let AtomicRequest { id, stag, to, op } = *atomic;
    let fails = |fault| Failure::User(Box::new(request.terminate(TerminateError::of_read_fault(fault), 0)));
    let original = state
        .rules
        .check_atomic(guard, (stag, to), state.by)
        .and_then(|word| word.update(|value| op.apply(value)))
        .map_err(fails)?;
    // RFC 7306 section 5.2.2 (EXT-093): the response has the identifier of its request.
    Ok(AtomicResponse { id, original })
}
