//! One RDMA stream: RDMAP on DDP on MPA for one queue pair (RFC 5040 sections 5 to 7).
//!
//! | file | what |
//! |---|---|
//! | `local.rs` | requests that send nothing |
//! | `message.rs` | a message on its way out: header, source of its payload, what is left to cut |
//! | `outstanding.rs` | requests of ours between their start and their completion |
//! | `peer_request.rs` | what the peer asks for, until it is answered |
//! | `records.rs` | where both of these wait |
//! | `transmit/` | which message is next, FPDUs into TCP segments, send completions |
//! | `receive/` | FPDUs into memory, receive completions, what a message asks for |
//!
//! A stream is driven by its connection, which owns startup and teardown. What ends it is a [`Failure`]: found
//! here, or told by the peer's Terminate.

use std::ops::Range;
use std::sync::Arc;

use dp::Mbuf;
use dp::profile::{self, Layer};

use crate::memory::{Accessor, Turn};
use crate::mpa::{Deframer, Framer, HeldSlab, MpaError, Negotiated, Received};
use crate::rdmap::{Terminate, TerminateError};
use crate::verbs::{Origin, QpShared, StreamError, WcOpcode, WcStatus};

use super::counters::EngineCounters;

mod local;
mod message;
mod outstanding;
mod peer_request;
mod receive;
mod records;
mod transmit;

pub(super) use records::Records;
pub(super) use transmit::Outcome;

use outstanding::Common;
use receive::{Delivery, Receive};
use transmit::Transmit;

/// What ends a stream.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Found here: the peer is to be told.
    Local(Terminate),
    /// Found here in what the peer has sent, which could have been taken but for our own user.
    User(Terminate),
    /// The peer's Terminate.
    Peer(Terminate),
    /// TCP's receive direction ended where it may not, or MPA cannot go on: there is nobody to tell.
    Lost(MpaError),
}

impl Failure {
    fn local(error: TerminateError) -> Self {
        Self::Local(Terminate::local(error))
    }

    /// Who found it.
    pub(super) fn origin(&self) -> Origin {
        match self {
            Self::Local(_) => Origin::Here,
            Self::User(_) => Origin::User,
            Self::Peer(_) => Origin::Peer,
            Self::Lost(_) => Origin::Lost,
        }
    }

    /// Whether the peer has brought it about, as far as it can be told: by what it has sent, or by giving up. A local
    /// catastrophic error is our own (RFC 5040 section 4.8), and a TCP connection may be lost for any reason.
    pub(super) fn is_peers(&self) -> bool {
        const OURS: [TerminateError; 2] =
            [TerminateError::LocalCatastrophic, TerminateError::DdpLocalCatastrophic];
        match self {
            Self::Local(Terminate { layer, etype, code, .. }) => {
                !OURS.iter().any(|ours| ours.codes() == (*layer, *etype, *code))
            }
            Self::Peer(_) => true,
            Self::User(_) | Self::Lost(_) => false,
        }
    }

    /// The Terminate that goes out or came in.
    pub(super) fn terminate(&self) -> Option<&Terminate> {
        match self {
            Self::Local(terminate) | Self::User(terminate) | Self::Peer(terminate) => Some(terminate),
            Self::Lost(_) => None,
        }
    }

    /// As the application reads it.
    pub(super) fn stream_error(&self) -> StreamError {
        match self {
            Self::Local(terminate) | Self::User(terminate) => stream_error(terminate, false),
            Self::Peer(terminate) => stream_error(terminate, true),
            Self::Lost(error) => {
                let code = error.terminate_code();
                StreamError { layer: code.layer, etype: code.etype, code: code.code, from_peer: false }
            }
        }
    }
}

fn stream_error(terminate: &Terminate, from_peer: bool) -> StreamError {
    let Terminate { layer, etype, code, .. } = *terminate;
    StreamError { layer, etype, code, from_peer }
}

/// What a stream works with that is not its own.
pub(super) struct Means<'a> {
    pub(super) turn: &'a Turn,
    pub(super) counters: &'a mut EngineCounters,
    pub(super) records: &'a mut Records,
}

/// One RDMA stream. To be [`end`](Self::end)ed before it is dropped.
pub(super) struct Stream {
    common: Common,
    framer: Framer,
    deframer: Deframer,
    transmit: Transmit,
    receive: Receive,
    /// A responder sends nothing before the initiator's first FPDU (RFC 5044 section 7.1.2).
    may_send: bool,
    /// Requests that may wait, until it ends: of the peer's, and of ours.
    promised: Option<(usize, usize)>,
}

impl Stream {
    /// A stream whose depths are promised in `records`.
    pub(super) fn new(
        qp: Arc<QpShared>,
        by: Accessor,
        negotiated: &Negotiated,
        may_send: bool,
        records: &mut Records,
    ) -> Self {
        let Negotiated { tx_markers, rx_markers, crc, ird, ord, rx_start, .. } = *negotiated;
        let rtr = negotiated.rtr;
        // What lies ahead of a hole is found by markers.
        let knows_ahead = rx_markers && qp.srq.is_none();
        let common = Common::new(qp, by, ord);
        // The RTR's Read waits even where ORD is 0.
        let (asked, outstanding) = (common.extensions.request_buffers(ird) as usize, usize::from(ord.max(1)));
        records.asked.promise(asked);
        records.outstanding.promise(outstanding);
        records.held_back.promise(1);
        Self {
            framer: Framer::new(tx_markers, crc),
            deframer: Deframer::new(rx_start, rx_markers, crc),
            transmit: Transmit::new(rtr),
            receive: Receive::new(ird, common.extensions, rtr, knows_ahead),
            common,
            may_send,
            promised: Some((asked, outstanding)),
        }
    }

    /// Whether the peer's first FPDU (for a responder) has come, so that we may send.
    pub(super) fn may_send(&self) -> bool {
        self.may_send
    }

    /// Octets of the peer's stream: places, delivers and completes. Returns the octets that were handed up ahead
    /// of the frontier and are no longer held.
    pub(super) fn receive(
        &mut self,
        octets: (u64, Mbuf, u64),
        held: &mut HeldSlab,
        means: Means<'_>,
    ) -> Result<usize, Failure> {
        let Means { turn, counters, records } = means;
        let (offset, buf, frontier) = octets;
        let Self { common, deframer, receive, transmit, may_send, .. } = self;
        let mut delivery = Delivery { common, receive, transmit, turn, counters, records };
        let _deframe = profile::scope(Layer::Deframe);
        let mut ulpdus = deframer.receive(offset, buf, frontier, held);
        while let Some(received) = ulpdus.next().map_err(mpa_failure)? {
            let _receive = profile::scope(Layer::Receive);
            *may_send |= !matches!(received, Received::Ahead(_));
            match received {
                Received::InOrder(ulpdu) => delivery.deliver(&ulpdu)?,
                Received::Placed { header, ulpdu_len } => delivery.deliver_placed(header, ulpdu_len)?,
                Received::Ahead(ulpdu) => {
                    if delivery.place_early(&ulpdu) {
                        ulpdus.mark_placed();
                    }
                }
            }
        }
        Ok(ulpdus.finish())
    }

    /// Drops what reassembly holds; returns the octets to release to TCP's budget.
    pub(super) fn drop_held(&mut self, held: &mut HeldSlab) -> usize {
        self.deframer.clear(held)
    }

    /// Gives up what came ahead of the frontier and was not placed. See [`Deframer::give_up`].
    pub(super) fn give_up(
        &mut self,
        octets: usize,
        held: &mut HeldSlab,
        may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        self.deframer.give_up(octets, held, may);
    }

    /// Octets of packet buffers held for what came ahead of the frontier.
    pub(super) fn pinned_octets(&self) -> usize {
        self.deframer.pinned_octets()
    }

    /// Whether the peer's FIN here cuts nothing: no FPDU is incomplete and no Read or atomic of ours waits for its
    /// answer.
    pub(super) fn may_end_here(&self) -> bool {
        self.deframer.at_boundary() && !self.awaits_answers()
    }

    /// Hands FPDUs to TCP. See [`Outcome`].
    pub(super) fn transmit(
        &mut self,
        tcp: &mut tcp_lite::Stack,
        conn: tcp_lite::ConnId,
        now: tcp_lite::Instant,
        budget: usize,
        means: Means<'_>,
    ) -> Result<Outcome, Failure> {
        let Means { turn, counters, records } = means;
        let Self { common, framer, transmit, receive, may_send, .. } = self;
        if !*may_send {
            return Ok(Outcome::Idle);
        }
        let context = transmit::Context { common, framer, turn, counters, records };
        let outcome = transmit.run(tcp, conn, now, context, budget);
        // Before the peer can have seen the end of its responses: nothing has left TCP yet.
        receive.repost_requests(transmit.take_answered());
        outcome
    }

    /// Whether there is something that a turn of sending might move.
    pub(super) fn wants_to_send(&self) -> bool {
        self.may_send && !(self.transmit.is_idle() && self.common.qp.sq.is_empty())
    }

    /// Whether nothing is left to send or to wait for: time for FIN.
    pub(super) fn is_drained(&self) -> bool {
        !self.awaits_answers() && self.transmit.is_idle() && self.common.qp.sq.is_empty()
    }

    /// Whether Reads or atomics of ours wait for their answers.
    pub(super) fn awaits_answers(&self) -> bool {
        !self.common.outstanding.is_empty()
    }

    /// Changes with every FPDU sent and every piece of an answer to a Read or atomic of ours.
    pub(super) fn progress(&self) -> u64 {
        self.common.progress
    }

    /// Makes `terminate` the next and last message.
    pub(super) fn terminate(&mut self, terminate: &Terminate) {
        self.transmit.terminate(terminate);
    }

    /// Completes everything started in error, oldest first; what is still queued is flushed by the queue pair.
    /// One request at most is blamed: the one that is known to be the cause, or the oldest by `first`. (Where one is known
    /// the failure is ours, and [`Outcome`](crate::verbs::Outcome) blames no other.)
    pub(super) fn flush(&mut self, records: &mut Records, first: WcStatus, error: Option<StreamError>) {
        let Self { common, transmit, receive, .. } = self;
        common.outstanding.clear(&mut records.outstanding);
        let unstarted = transmit.abandon(records);
        let mut status = first;
        for pending in common.pending.drain(..).chain(unstarted) {
            if pending.done {
                common.qp.complete_send(
                    pending.signaled,
                    common.qp.succeeded(pending.wr_id, pending.opcode, pending.byte_len),
                );
                continue;
            }
            let mut completion = common.qp.flushed(pending.wr_id, pending.opcode, error);
            completion.status =
                pending.fault.unwrap_or_else(|| std::mem::replace(&mut status, WcStatus::WrFlushError));
            common.qp.complete_send(true, completion);
        }
        for request in receive.abandon() {
            common.qp.complete_recv(common.qp.flushed(request.wr_id, WcOpcode::Recv, error));
        }
    }

    /// Flushes what is left and takes its promises back.
    pub(super) fn end(&mut self, records: &mut Records) {
        self.flush(records, WcStatus::WrFlushError, None);
        if let Some((asked, outstanding)) = self.promised.take() {
            records.asked.end_promise(asked);
            records.outstanding.end_promise(outstanding);
            records.held_back.end_promise(1);
        }
    }
}

fn mpa_failure(error: MpaError) -> Failure {
    use crate::mpa::Action;
    match error.action() {
        Action::Terminate => {
            let code = error.terminate_code();
            let known = TerminateError::from_codes(code.layer, code.etype, code.code);
            Failure::local(known.unwrap_or(TerminateError::MpaMarker))
        }
        Action::Close | Action::Report => Failure::Lost(error),
    }
}
