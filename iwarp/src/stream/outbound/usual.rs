//! Requests whose payload is ready ([`PreparedPayload`]) and that fit one FPDU. Such requests are written
//! directly from the send queue, as long as nothing else waits to be sent.
//!
//! This file has the fast path of `Outbound::prepare` and `Outbound::write_fpdu`; `usual/tests.rs` compares
//! the two paths.
//!
//! A request that does not fit, or whose memory is no longer registered, stays in its queue and becomes a
//! message. Only the code for messages generates several segments, and reports errors.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use dp::profile::{self, Layer};

use crate::memory::Stag;
use crate::mpa::{FpduPlan, Framer, UlpduHead};
use crate::queues::{Payload, Pending, PreparedPayload, SendEntry, SendFlags, SendOp, Signaled, send_opcode};
use crate::rdmap::Opcode;

use super::super::message::{head_of, untagged_header};
use super::super::outstanding::{TOGETHER, acknowledged_of};
use super::super::state::StreamState;
use super::{Outbound, Phase, SendContext};

/// The reason why no further request was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillOutcome {
    /// Nothing is left to send.
    Empty,
    /// The next request does not fit the rest of the segment.
    Full,
    /// The next request has to become a message, or something else has to be sent first.
    Other,
    /// The maximum number of requests that complete together was written.
    Enough,
}

impl Outbound {
    /// Whether [`allows_usual`](Self::allows_usual) returns `true` and the payload of the oldest posted
    /// request is ready. If the request also fits one FPDU, it may be written directly from its queue.
    #[inline]
    pub(super) fn is_usual_next(&self, state: &StreamState) -> bool {
        self.allows_usual(state)
            && state.consumer.next_send().is_some_and(|request| request.prepared.is_ready())
    }

    /// Whether nothing has to be sent before the oldest posted request, and nothing has to complete before
    /// it. If the request itself waits for an acknowledgement, only requests that wait for their responses
    /// have to complete before it.
    #[inline]
    pub(super) fn allows_usual(&self, state: &StreamState) -> bool {
        let StreamState { rules, pending, unsent, outstanding, .. } = state;
        // RFC 6581 sections 5 and 9.2 (MPA2-017, MPA2-086): the RTR is sent before every other FPDU.
        self.current.is_none()
            && self.responses.is_empty()
            && matches!(self.phase, Phase::Open)
            && rules.let_send_posted(!pending.is_empty(), *unsent != 0, !outstanding.is_empty())
    }

    /// The fast path of [`prepare`](Self::prepare) and [`write_fpdu`](Self::write_fpdu) for requests that are
    /// ready and fit one FPDU. This path writes the same FPDUs and generates the same completions, but
    /// creates no message for a request. Writes the requests after the first `used` bytes of a segment, each
    /// with a ULPDU of at most `limit` bytes. Call this only while [`allows_usual`](Self::allows_usual)
    /// returns `true`.
    ///
    /// RFC 5040 sections 5.1, 5.3 and 5.5 (RDMAP-202, RDMAP-244, RDMAP-285): messages go to DDP in the order
    /// in which the user posted them.
    #[inline]
    pub(super) fn write_usual(
        &mut self,
        cx: &mut SendContext<'_>,
        room: &mut [u8],
        used: &mut usize,
        limit: u32,
    ) -> FillOutcome {
        debug_assert!(self.allows_usual(cx.state), "others go first");
        let StreamState { qp, consumer, by, progress, pending, rules, .. } = &mut *cx.state;
        // With markers the limit differs for each FPDU.
        let together = if cx.framer.markers() { 1 } else { TOGETHER };
        let requests = consumer.next_sends(together);
        // As in `start_request`, the hold is checked after the requests are read.
        if qp.sends.is_held() {
            return FillOutcome::Other;
        }
        let mut signaled = ArrayVec::<Signaled, TOGETHER>::new();
        let (mut sent, mut fetched) = (0, 0);
        let mut stop = if requests.is_all() { FillOutcome::Empty } else { FillOutcome::Enough };
        for request in requests.iter() {
            if !request.prepared.is_ready() {
                stop = FillOutcome::Other;
                break;
            }
            let solicited = request.flags.contains(SendFlags::SOLICITED);
            let msn = self.send_msn;
            // RFC 5040 section 4.2 (RDMAP-110, RDMAP-113): a Write and a Send have no RDMAP header.
            let (head, next_msn) = match request.op {
                SendOp::Write { remote } => {
                    let header = Opcode::Write.tagged_header(Stag(remote.rkey), remote.addr, true);
                    (head_of(header.to_words()), msn)
                }
                SendOp::Send => {
                    let opcode = Opcode::send(solicited, false);
                    // The limit is recorded as sent once the Send is written.
                    let field = rules.limit();
                    (head_of(untagged_header(opcode, field, msn, true).to_words()), msn.wrapping_add(1))
                }
                SendOp::SendInvalidate { rkey } => {
                    let opcode = Opcode::send(solicited, true);
                    (head_of(untagged_header(opcode, rkey, msn, true).to_words()), msn.wrapping_add(1))
                }
                _ => {
                    stop = FillOutcome::Other;
                    break;
                }
            };
            // RFC 5041 section 5.2 (DDP-105, DDP-106): header and payload together fit MULPDU.
            let ulpdu_bytes = head.len() as u64 + u64::from(request.length);
            if ulpdu_bytes > u64::from(limit) {
                stop = FillOutcome::Other;
                break;
            }
            let plan = cx.framer.plan(ulpdu_bytes as usize);
            let end = *used + plan.wire_len();
            let Some(out) = room.get_mut(*used..end) else {
                stop = FillOutcome::Full;
                break;
            };
            let written = profile::within(Layer::Fetch, || match (request.prepared, &*request.payload) {
                (PreparedPayload::Registered(found), Payload::Gather(sg_list)) => {
                    let bytes = u64::from(request.length);
                    sg_list
                        .first()
                        .and_then(|sge| cx.guard.source_again(found, sge.addr, bytes, by.pd))
                        .is_some_and(|source| cx.framer.frame_source(plan, out, &head, &source, 0).is_ok())
                }
                (PreparedPayload::Inline, Payload::Inline(bytes)) => {
                    write_inline(cx.framer, plan, out, &head, bytes);
                    true
                }
                _ => false,
            });
            if !written {
                stop = FillOutcome::Other;
                break;
            }
            *used = end;
            self.send_msn = next_msn;
            fetched += u64::from(request.length);
            sent += 1;
            if rules.complete_by_acknowledgement() {
                if matches!(request.op, SendOp::Send) {
                    rules.take_limit();
                }
                await_acknowledgement(pending, request, cx.offset + end as u64, msn);
            } else if request.flags.contains(SendFlags::SIGNALED) || qp.sends.signals_all() {
                signaled.push(Signaled { wr_id: request.wr_id, opcode: send_opcode(&request.op) });
            }
        }
        // If no request is left, the general path sends the waiting messages of queue 4.
        let behind = |stop| match stop {
            FillOutcome::Empty if rules.have_messages() => FillOutcome::Other,
            stop => stop,
        };
        if sent == 0 {
            return behind(stop);
        }
        self.response_next = true;
        cx.counters.tx_fpdus += sent as u64;
        *progress += sent as u64;
        cx.counters.tx_fetched_bytes += fetched;
        if rules.complete_by_acknowledgement() {
            requests.keep(sent);
            return behind(stop);
        }
        // The requests are removed from the queue before their completions are visible, so that their entries
        // are free then.
        requests.remove(sent);
        // RFC 5040 section 5.5 (RDMAP-286): a Send or Write completes when its last segment is written.
        consumer.complete_sends(&qp.sends, &qp.signals, sent, &signaled);
        stop
    }
}

/// Records a request that was sent. Never inlined, so that it does not slow down requests that complete at
/// once.
#[inline(never)]
fn await_acknowledgement(pending: &mut VecDeque<Pending>, request: &SendEntry, end: u64, msn: u32) {
    pending.push_back(acknowledged_of(request, end, msn));
}

/// Writes the FPDU of a request with inline payload. Never inlined, since the inlined code would leave fewer
/// registers for requests whose payload is in registered memory.
#[inline(never)]
fn write_inline(framer: &mut Framer, plan: FpduPlan, out: &mut [u8], head: &UlpduHead, bytes: &[u8]) {
    let mut fpdu = framer.begin_with(plan, out, head);
    fpdu.put(bytes);
    fpdu.finish();
}

#[cfg(test)]
mod tests;
