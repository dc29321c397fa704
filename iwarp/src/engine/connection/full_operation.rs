//! Full Operation: a connection receives and sends FPDUs.

use std::sync::Arc;
use std::time::Duration;

use dp::Mbuf;
use tcp_lite::Received;

use crate::memory::{Accessor, EpochGuard, StreamId};
use crate::mpa::Negotiated;
use crate::queues::QpShared;
use crate::rdmap::stream::{Failure, SendOutcome, Stream, StreamContext};

use super::super::io::Io;
use super::{Connection, Phase, Transmitted};

/// A connection in Full Operation.
pub(super) struct FullOperation {
    pub(super) stream: Box<Stream>,
    /// The event for the user when the peer's first FPDU, its RTR, has come.
    on_rtr: Option<Box<Announcement>>,
    /// FIN follows when everything is sent.
    pub(super) draining: bool,
    /// The stream's progress when the deadline for answers to Reads was set.
    pub(super) progress: u64,
    /// The stream has failed: received bytes are acknowledged and dropped, and only a Terminate is still
    /// sent.
    pub(super) failed: bool,
}

impl FullOperation {
    /// Whether the connection is established only when the peer's RTR has come.
    pub(super) fn awaits_rtr(&self) -> bool {
        self.on_rtr.is_some()
    }
}

/// The contents of the event that the connection is established.
pub(super) struct Announcement {
    pub(super) negotiated: Negotiated,
    pub(super) idle_timeout: Option<Duration>,
    /// The user may send at once.
    pub(super) ready: bool,
}

impl Connection {
    /// Begins Full Operation. `may_send` says that this end need not wait for the peer's first FPDU.
    /// `on_rtr` is announced when that has come.
    pub(super) fn enter_full_operation(
        &mut self,
        io: &mut Io,
        qp: Arc<QpShared>,
        negotiated: &Negotiated,
        may_send: bool,
        on_rtr: Option<Box<Announcement>>,
    ) {
        let by = Accessor { pd: qp.pd.id(), stream: StreamId(u64::from(qp.num)) };
        // RFC 5044 section 7.1 (MPA-141): Full Operation begins with a queue pair, and its stream is bound to
        // this connection.
        qp.connected(negotiated.ord, negotiated.ird);
        let stream = Box::new(Stream::new(qp, by, negotiated, may_send, &mut io.request_pool));
        self.phase = Phase::FullOperation(FullOperation {
            stream,
            on_rtr,
            draining: false,
            progress: 0,
            failed: false,
        });
    }

    pub(super) fn receive(&mut self, io: &mut Io, guard: &EpochGuard, offset: u64, buf: Mbuf, frontier: u64) {
        let Phase::FullOperation(full) = &mut self.phase else {
            return self.discard(io, offset, &buf, frontier);
        };
        // RFC 5041 section 7.1 (DDP-192): after an error all that still arrives is dropped.
        if full.failed {
            return self.discard(io, offset, &buf, frontier);
        }
        let (first, before) = (!full.stream.may_send(), io.streams.rx_fpdus);
        let placed = io.streams.rx_placed_bytes;
        let context = StreamContext { guard, counters: &mut io.streams, pool: &mut io.request_pool };
        let result = full.stream.receive(Received { offset, buf, frontier }, &mut io.held, context);
        let fpdus = io.streams.rx_fpdus - before;
        // The peer's first FPDU is a Terminate in place of its RTR: startup has failed.
        let ended_startup = first && fpdus == 1 && matches!(result, Err(Failure::Peer(_)));
        let has_begun = first && full.stream.may_send() && !ended_startup;
        let on_rtr = if has_begun { full.on_rtr.take() } else { None };
        if let Some(announcement) = on_rtr {
            self.timers.clear_deadline();
            self.announce_established(io, *announcement);
        }
        if let Some(id) = self.user.id() {
            id.count_segment(fpdus, io.streams.rx_placed_bytes - placed);
        }
        if fpdus > 0 {
            self.note_progress(io);
        }
        match result {
            Ok(released) => {
                io.tcp.release(self.conn, released);
                if self.wants_to_send() {
                    self.activate(io);
                }
            }
            Err(Failure::Peer(terminate)) if ended_startup => {
                self.fail(io, Failure::Peer(terminate.in_startup()));
            }
            Err(failure) => self.fail(io, failure),
        }
    }

    fn wants_to_send(&self) -> bool {
        matches!(&self.phase, Phase::FullOperation(full) if full.draining || full.stream.wants_to_send())
    }

    /// Hands about `bytes` bytes of FPDUs to TCP.
    #[inline]
    pub(super) fn transmit_fpdus(&mut self, io: &mut Io, bytes: usize, guard: &EpochGuard) -> Transmitted {
        let Phase::FullOperation(full) = &mut self.phase else { return Transmitted::Done };
        let failed = full.failed;
        let Io { tcp, streams, request_pool, now, .. } = io;
        let before = streams.tx_fpdus;
        let context = StreamContext { guard, counters: streams, pool: request_pool };
        let result = full.stream.transmit(tcp, self.conn, *now, bytes, context);
        if io.streams.tx_fpdus > before {
            self.note_progress(io);
        }
        if failed {
            // The Terminate is sent, or waits for space.
            self.flush_late();
        }
        match result {
            Ok(SendOutcome::Idle) => {
                if matches!(&self.phase, Phase::FullOperation(full) if full.draining) {
                    self.close_or_await(io);
                }
                Transmitted::Done
            }
            Ok(SendOutcome::Full) => Transmitted::Done,
            Ok(SendOutcome::More) => Transmitted::More,
            Ok(SendOutcome::NoMbuf) => Transmitted::NoMbuf,
            Ok(SendOutcome::Terminated) => {
                io.counters.tx_terminates += 1;
                self.close(io);
                Transmitted::Done
            }
            Err(failure) => {
                self.fail(io, failure);
                if self.wants_to_send() { Transmitted::More } else { Transmitted::Done }
            }
        }
    }
}
