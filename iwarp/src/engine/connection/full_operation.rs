//! Full Operation: a connection receives and sends FPDUs.

use std::sync::Arc;
use std::time::Duration;

use dp::Mbuf;
use dp::invariant::Check;
use dp::profile::{self, Layer};
use tcp_lite::{ConnId, Instant};

use crate::memory::{Accessor, EpochGuard};
use crate::mpa::{Deframed, Deframer, HeldSlab, Negotiated, Ulpdus};
use crate::queues::QpShared;
use crate::stream::ib_profile::agreement::{Agreement, PeerRnrConfig};
use crate::stream::{Delivery, Failure, RequestPool, SendOutcome, Stream, StreamContext, Waiting};

use super::super::state::EngineState;
use super::super::trace;
use super::{Connection, Phase, Transmitted};

/// A connection in Full Operation.
pub(super) struct FullOperation {
    pub(super) deframer: Deframer,
    pub(super) stream: Stream,
    pub(super) state: FullState,
    /// It is among the connections that owe an acknowledgement.
    owes_ack: bool,
    /// It is among those that owe a limit.
    owes_limit: bool,
    /// The peer's settings for messages that find no receive request, with InfiniBand's semantics.
    pub(super) peer_rnr: PeerRnrConfig,
    /// Since when the peer has no receive request for a message of this end.
    pub(super) peer_not_ready_since: Option<Instant>,
}

/// What a connection in Full Operation does.
pub(super) enum FullState {
    /// It awaits the peer's first FPDU, its RTR. Then this is announced.
    AwaitingRtr(Box<Announcement>),
    /// It sends and receives.
    Open,
    /// It sends what is posted and awaits the answers to Reads; FIN follows. `progress` is the stream's when
    /// the deadline for these answers was set.
    Draining { progress: u64 },
    /// The stream has failed: received bytes are acknowledged and dropped, and only a Terminate is still
    /// sent.
    Terminating,
}

impl FullOperation {
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.state, FullState::Draining { .. })
    }

    pub(super) fn is_terminating(&self) -> bool {
        matches!(self.state, FullState::Terminating)
    }

    /// Gives the ULPDUs in a received buffer to the stream. Returns how many bytes that were handed up ahead
    /// of the frontier are no longer held.
    #[inline]
    fn receive(
        &mut self,
        (offset, mut buf, frontier): (u64, Mbuf, u64),
        held: &mut HeldSlab,
        context: StreamContext<'_>,
    ) -> Result<usize, Failure> {
        let _deframe = profile::scope(Layer::Deframe);
        let mut delivery = self.stream.delivery(context);
        let taken = self.deframer.receive_whole(offset, &buf, frontier, held, |position, ulpdu| {
            let _receive = profile::scope(Layer::Receive);
            delivery.deliver_whole(position, ulpdu)
        })?;
        if taken > 0 && taken == buf.len() {
            // Nothing is held, so nothing is released.
            return Ok(0);
        }
        buf.advance(taken);
        Self::receive_any(&mut self.deframer, (offset + taken as u64, buf, frontier), held, delivery)
    }

    /// As [`receive`](Self::receive), for any buffer: out of order, with markers, with FPDUs that continue in
    /// the next buffer, or wrong.
    #[inline(never)]
    fn receive_any(
        deframer: &mut Deframer,
        (offset, buf, frontier): (u64, Mbuf, u64),
        held: &mut HeldSlab,
        mut delivery: Delivery<'_>,
    ) -> Result<usize, Failure> {
        Self::take(deframer.receive(offset, buf, frontier, held), &mut delivery)
    }

    /// Gives ULPDUs to the stream.
    fn take(mut ulpdus: Ulpdus<'_>, delivery: &mut Delivery<'_>) -> Result<usize, Failure> {
        while let Some(deframed) = ulpdus.next()? {
            let _receive = profile::scope(Layer::Receive);
            match deframed {
                Deframed::InOrder(ulpdu) => delivery.deliver(&ulpdu)?,
                Deframed::Placed { head, ulpdu_len } => delivery.deliver_placed(head, ulpdu_len)?,
                Deframed::Ahead(ulpdu) => {
                    if delivery.place_early(&ulpdu) {
                        ulpdus.mark_placed();
                    }
                }
            }
        }
        Ok(ulpdus.finish())
    }

    /// FPDUs were received, and requests of the peer wait for their acknowledgement.
    fn owe_ack(&mut self, state: &mut EngineState, conn: ConnId) {
        if !std::mem::replace(&mut self.owes_ack, true) {
            state.acks.owe(state.now, conn);
        }
    }

    fn wants_to_send(&self) -> bool {
        self.is_draining() || self.stream.wants_to_send()
    }

    /// Whether a FIN of the peer here is graceful: no FPDU is incomplete, and no Read or atomic of ours waits
    /// for its response.
    pub(super) fn may_end_here(&self) -> bool {
        self.deframer.at_boundary() && !self.stream.awaits_answers()
    }

    /// Checks the invariants; for tests. Returns the slots of `held` that it uses (buffers, and early FPDUs),
    /// and the waiting requests of its stream.
    pub(super) fn check(&self, held: &HeldSlab, pool: &RequestPool) -> Check<((usize, usize), Waiting)> {
        Ok((self.deframer.check(held)?, self.stream.check(pool)?))
    }

    /// The peer's first FPDU has come. Returns what to announce, if it was the RTR.
    fn on_first_fpdu(&mut self) -> Option<Box<Announcement>> {
        match std::mem::replace(&mut self.state, FullState::Open) {
            FullState::AwaitingRtr(announcement) => Some(announcement),
            other => {
                self.state = other;
                None
            }
        }
    }
}

/// The state before FPDUs are received.
pub(super) struct ReceiveSnapshot {
    /// No FPDU has come yet.
    first: bool,
    fpdus: u64,
    placed: u64,
}

impl ReceiveSnapshot {
    #[inline]
    pub(super) fn of(full: &FullOperation, state: &EngineState) -> Self {
        let (fpdus, placed) = (state.streams.rx_fpdus, state.streams.rx_placed_bytes);
        Self { first: !full.stream.may_send(), fpdus, placed }
    }
}

/// The contents of the event that the connection is established.
pub(super) struct Announcement {
    pub(super) negotiated: Negotiated,
    pub(super) agreement: Agreement,
    pub(super) idle_timeout: Option<Duration>,
    /// The user may send at once.
    pub(super) ready: bool,
}

impl Connection {
    /// Begins Full Operation. `may_send` says that this end need not wait for the peer's first FPDU.
    /// `on_rtr` is announced when that has come.
    pub(super) fn enter_full_operation(
        &mut self,
        state: &mut EngineState,
        qp: Arc<QpShared>,
        (negotiated, agreement): (&Negotiated, Agreement),
        may_send: bool,
        on_rtr: Option<Box<Announcement>>,
    ) {
        let by = Accessor { pd: qp.config.pd.id(), stream: qp.config.stream };
        // RFC 5044 section 7.1 (MPA-141): Full Operation begins with a queue pair, and its stream is bound to
        // this connection.
        let Agreement { peer_rnr, rnr_timeout, outlives_peer } = agreement;
        let ib_semantics = agreement.ib_semantics();
        self.timers.set_rnr_timeout(rnr_timeout);
        qp.connected((negotiated.ord, negotiated.ird), ib_semantics, outlives_peer);
        state.tcp.report_acknowledgements(self.conn, ib_semantics);
        let Negotiated { rx_markers, crc, rx_start, .. } = *negotiated;
        self.phase = Phase::FullOperation(Box::new(FullOperation {
            deframer: Deframer::new(rx_start, rx_markers, crc),
            stream: Stream::new(qp, by, negotiated, (may_send, ib_semantics), &mut state.request_pool),
            state: on_rtr.map_or(FullState::Open, FullState::AwaitingRtr),
            owes_ack: false,
            owes_limit: false,
            peer_rnr: peer_rnr.unwrap_or_default(),
            peer_not_ready_since: None,
        }));
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        offset: u64,
        buf: Mbuf,
        frontier: u64,
    ) {
        let Phase::FullOperation(full) = &mut self.phase else {
            return self.discard(state, offset, &buf, frontier);
        };
        // RFC 5041 section 7.1 (DDP-192): after an error all that still arrives is dropped.
        if full.is_terminating() {
            return self.discard(state, offset, &buf, frontier);
        }
        let before = ReceiveSnapshot::of(full, state);
        let context = StreamContext { guard, counters: &mut state.streams, pool: &mut state.request_pool };
        let result = full.receive((offset, buf, frontier), &mut state.held, context);
        self.after_receiving(state, before, result);
    }

    /// FPDUs were received, or the first of them was not.
    #[inline(always)]
    pub(super) fn after_receiving(
        &mut self,
        state: &mut EngineState,
        before: ReceiveSnapshot,
        result: Result<usize, Failure>,
    ) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        let ReceiveSnapshot { first, fpdus, placed } = before;
        let fpdus = state.streams.rx_fpdus - fpdus;
        if fpdus > 0 && full.stream.has_ib_semantics() {
            full.owe_ack(state, self.conn);
            if full.stream.owes_limit() && !std::mem::replace(&mut full.owes_limit, true) {
                state.acks.owe_limit(state.now, self.conn);
            }
        }
        let (wants_to_send, news) = (full.wants_to_send(), full.stream.take_news());
        // The peer's first FPDU is a Terminate in place of its RTR: startup has failed.
        let ended_startup = first && fpdus == 1 && matches!(result, Err(Failure::Peer(_)));
        if first && full.stream.may_send() && !ended_startup {
            self.on_first_fpdu(state);
        }
        if let Some(id) = self.user.id() {
            id.count_segment(fpdus, state.streams.rx_placed_bytes - placed);
            if fpdus > 0 {
                id.set_progress(state.now_us());
            }
        }
        match result {
            Ok(released) => {
                if let Some(news) = news {
                    self.on_news(state, news);
                }
                state.tcp.release(self.conn, released);
                if wants_to_send {
                    self.activate(state);
                }
            }
            Err(Failure::Peer(terminate)) if ended_startup => {
                self.fail(state, Failure::Peer(Box::new(terminate.in_startup())));
            }
            Err(failure) => self.fail(state, failure),
        }
    }

    /// The peer's first FPDU has come, so this end may send.
    #[cold]
    fn on_first_fpdu(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if let Some(announcement) = full.on_first_fpdu() {
            self.timers.clear_deadline();
            self.announce_established(state, *announcement);
        }
    }

    /// TCP takes segments again.
    pub(in crate::engine) fn on_writable(&mut self, state: &mut EngineState) {
        self.activate(state);
    }

    /// The peer has acknowledged bytes that requests may wait for.
    pub(in crate::engine) fn on_acknowledged(&mut self, state: &mut EngineState) {
        if let Phase::FullOperation(full) = &mut self.phase
            && let Some(offset) = state.tcp.acknowledged(self.conn)
        {
            full.stream.on_acknowledged(offset);
            state.acks.arrive(self.conn);
            if full.stream.knows_end(offset) {
                state.tcp.withhold(self.conn, None);
            }
        } else {
            self.on_acknowledged_in_close(state);
        }
    }

    /// Completes the requests that wait for the acknowledgement.
    pub(in crate::engine) fn complete_acknowledged(&mut self, state: &mut EngineState) {
        if let Phase::FullOperation(full) = &mut self.phase {
            full.stream.complete_acknowledged();
            if full.is_draining() {
                self.activate(state);
            }
        }
    }

    /// The peer is told the limit, unless an answer has told it by now.
    pub(in crate::engine) fn tell_limit(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        full.owes_limit = false;
        if !full.is_terminating() && full.stream.owes_limit() {
            full.stream.tell_limit();
            self.activate(state);
        }
    }

    /// The acknowledgement that it owes leaves.
    pub(in crate::engine) fn on_acknowledging(&mut self) {
        if let Phase::FullOperation(full) = &mut self.phase {
            full.owes_ack = false;
        }
    }

    fn wants_to_send(&self) -> bool {
        matches!(&self.phase, Phase::FullOperation(full) if full.wants_to_send())
    }

    /// Hands about `bytes` bytes of FPDUs to TCP.
    #[inline]
    pub(super) fn transmit_fpdus(
        &mut self,
        state: &mut EngineState,
        bytes: usize,
        guard: &EpochGuard<'_>,
    ) -> Transmitted {
        let Phase::FullOperation(full) = &mut self.phase else { return Transmitted::Done };
        let is_terminating = full.is_terminating();
        let EngineState { tcp, streams, request_pool, now, .. } = state;
        let before = streams.tx_fpdus;
        let context = StreamContext { guard, counters: streams, pool: request_pool };
        let result = full.stream.transmit(tcp, self.conn, *now, bytes, context);
        if state.streams.tx_fpdus > before {
            self.note_progress(state);
        }
        if is_terminating {
            // The Terminate is sent, or waits for space.
            self.flush_late();
        }
        match result {
            Ok(SendOutcome::Idle) => {
                self.close_or_await(state);
                Transmitted::Done
            }
            Ok(SendOutcome::Full) => {
                self.await_space(state);
                Transmitted::Done
            }
            Ok(SendOutcome::More) => Transmitted::More,
            Ok(SendOutcome::NoMbuf) => Transmitted::NoMbuf,
            Ok(SendOutcome::Terminated) => {
                state.counters.tx_terminates += 1;
                trace::terminate_sent(state, self.conn, self.phase.qp(), self.report.error());
                self.close(state);
                Transmitted::Done
            }
            Ok(SendOutcome::Ended) => {
                self.close(state);
                Transmitted::Done
            }
            Err(failure) => {
                self.fail(state, failure);
                if self.wants_to_send() { Transmitted::More } else { Transmitted::Done }
            }
        }
    }
}
