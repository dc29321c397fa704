//! Sending: queue pairs whose doorbells were rung hand FPDUs to TCP in turn, and TCP's frames are passed to
//! the port.

use dp::profile::{self, Layer};
use tcp_lite::{Duration, Instant};

use super::super::connection::{Connection, TurnOutcome};
use super::super::state::EngineState;
use super::super::tx_scheduler::TxScheduler;
use super::{PREFETCH_DISTANCE, Poller};
use crate::memory::EpochGuard;
use crate::queues::DATAGRAM_SLOT;

/// Once queue pairs have handed this number of payload bytes to TCP in a poll, bulk senders get no further
/// turns before frames are received again. One poll can receive more bytes than this number, so a peer with
/// the same software keeps up, and the rings stay short.
const SEND_BYTES: usize = 128 << 10;

/// Maximum number of queue pairs per poll that have just begun to send and therefore send first. With a
/// higher limit, bulk senders would wait longer.
const MAX_FRESH: usize = 16;

/// About the maximum number of bytes that a queue pair that has just begun to send hands to TCP before it
/// joins the bulk senders. The limit is enough for a whole small message.
const FRESH_BYTES: usize = 16 << 10;

/// Maximum number of bursts sent in one poll, so that a poll ends even if TCP always has more to send.
const MAX_TX_BURSTS: usize = 64;

/// The progress of one pass over the queue pairs that have something to send.
struct Pass {
    /// Number of turns that are left for connections that have just begun to send.
    fresh: usize,
    /// Number of turns that are left for the other connections. `None` before the first of these turns.
    tries: Option<usize>,
    /// Number of DDP payload bytes that may still be handed to TCP. The headers of DDP and MPA do not count,
    /// since fetching the payload is the cost of sending.
    left: usize,
    /// Whether the turn of a connection has sent something, or has ended for another reason than the lack of
    /// a packet buffer.
    busy: bool,
    /// Whether the turn of a connection has ended because no packet buffer was free.
    starved: bool,
}

impl Poller {
    /// Sets the patience of [`Acks::set_patience`](crate::engine::acks::Acks). Returns whether an
    /// acknowledgement or a limit waits.
    pub(in crate::engine) fn await_answers(&mut self, patience: std::time::Duration) -> bool {
        let acks = &mut self.state.acks;
        acks.set_patience(Duration::from_micros(patience.as_micros() as u64));
        acks.owed() + acks.owed_limits() > 0
    }

    /// Does only a part of a poll: runs the commands of users, and sends posted requests. The clock of the
    /// engine shows `clock`.
    pub(in crate::engine) fn send_posted(&mut self, clock: Instant, guard: &EpochGuard<'_>) {
        let _engine = profile::scope(Layer::Engine);
        self.set_time(clock);
        self.serve_users(guard);
        self.fill_tcp(guard);
        if self.datagrams.is_waiting() {
            self.send_datagrams(guard);
        }
        self.step(guard, Self::send_frames);
    }

    /// Serves the requests that users have made since the last poll: runs their commands, then schedules the
    /// queue pairs whose doorbells they rang. Returns whether there were such requests.
    #[inline]
    pub(super) fn serve_users(&mut self, guard: &EpochGuard<'_>) -> bool {
        self.run_commands(guard) | self.schedule_rung()
    }

    /// Schedules the queue pairs whose doorbells were rung, or all queue pairs if a doorbell was lost.
    /// Returns whether there was a doorbell that was not lost.
    #[inline]
    fn schedule_rung(&mut self) -> bool {
        let Self { connections, datagrams, state: EngineState { handle, tx_scheduler, .. }, .. } = self;
        let doorbells = handle.doorbells();
        let mut schedule = |slot: usize, connection: Option<&Option<Box<Connection>>>| {
            // The slot is scheduled as by `Connection::schedule_tx`. The doorbell of a connection that has
            // ended has no effect, or schedules the next connection in its slot.
            match connection {
                Some(Some(_)) => tx_scheduler.schedule(slot as u32),
                Some(None) => {}
                // A slot beyond all connections is that of a queue pair of datagrams, if it is in use at all.
                None => datagrams.schedule(slot as u32 & !DATAGRAM_SLOT),
            }
        };
        let is_lost = doorbells.take_lost();
        if is_lost {
            (0..connections.len()).for_each(|slot| schedule(slot, connections.get(slot)));
        }
        let mut busy = false;
        while let Some(slot) = doorbells.next() {
            busy = true;
            schedule(slot as usize, connections.get(slot as usize));
        }
        if is_lost {
            datagrams.schedule_all();
        }
        busy
    }

    /// Lets queue pairs hand FPDUs to TCP. Each queue pair may hand over a limited number of bytes. Queue
    /// pairs that have just begun to send come first, then the others round robin.
    /// [`send_frames`](Self::send_frames) sends the FPDUs. Returns whether there was any work.
    pub(super) fn fill_tcp(&mut self, guard: &EpochGuard<'_>) -> bool {
        let (fresh, bulk) = self.state.tx_scheduler.waiting();
        if fresh + bulk == 0 {
            self.mbuf_backoff.succeeded();
            return false;
        }
        let fresh = fresh.min(MAX_FRESH);
        let mut pass = Pass { fresh, tries: None, left: SEND_BYTES, busy: false, starved: false };
        while let Some((slot, bytes)) = self.next_sender(&mut pass) {
            self.send_one(slot, bytes, guard, &mut pass);
        }
        if pass.starved && !pass.busy {
            self.mbuf_backoff.refused(self.state.now);
        } else {
            self.mbuf_backoff.succeeded();
        }
        pass.busy
    }

    /// Lets the queue pairs of datagrams hand datagrams to the stack. Returns whether there was any work.
    #[inline(never)]
    pub(super) fn send_datagrams(&mut self, guard: &EpochGuard<'_>) -> bool {
        let sends = |poller: &mut Self| {
            let Self { datagrams, state: EngineState { now, tcp, .. }, .. } = poller;
            datagrams.send(*now, tcp, guard)
        };
        let is_busy = self.step(guard, sends).0;
        // A queue pair that ends leaves its groups.
        self.tell_groups();
        is_busy
    }

    /// Tells the port which multicast groups it has to receive, if they have changed.
    pub(super) fn tell_groups(&mut self) {
        if let Some(groups) = self.datagrams.changed_groups() {
            self.port.set_groups(&groups);
        }
    }

    /// Returns the connection that sends next, and the number of bytes that it may send; `None` at the end of
    /// the pass.
    #[inline]
    fn next_sender(&mut self, pass: &mut Pass) -> Option<(u32, usize)> {
        let quantum_bytes = self.state.config.quantum_bytes;
        if pass.fresh > 0
            && let Some(slot) = self.state.tx_scheduler.next_fresh()
        {
            pass.fresh -= 1;
            if let Some(slot) = self.state.tx_scheduler.fresh_behind(PREFETCH_DISTANCE) {
                self.prefetch_senders(slot, TxScheduler::fresh_behind);
            }
            return Some((slot, quantum_bytes.min(FRESH_BYTES)));
        }
        // While `left` is not used up, each queue pair gets at least one turn. A blocked queue pair is
        // removed from the queue.
        let (_, bulk) = self.state.tx_scheduler.waiting();
        if bulk == 0 || pass.left == 0 {
            return None;
        }
        let tries = pass.tries.get_or_insert_with(|| bulk.max(SEND_BYTES / quantum_bytes.max(1)));
        *tries = tries.checked_sub(1)?;
        let slot = self.state.tx_scheduler.next_bulk()?;
        if let Some(slot) = self.state.tx_scheduler.bulk_behind(PREFETCH_DISTANCE) {
            self.prefetch_senders(slot, TxScheduler::bulk_behind);
        }
        Some((slot, quantum_bytes))
    }

    /// Prefetches the state of connections that send later: the connection in `slot`, and connections that
    /// come before it, which `behind` finds. Each part of the state refers to the next part, so a part is
    /// prefetched only when the previous part is in the cache.
    #[inline(never)]
    fn prefetch_senders(&self, slot: u32, behind: impl Fn(&TxScheduler, usize) -> Option<u32>) {
        self.prefetch(Some(slot as usize));
        let sender = |distance| self.connection(behind(&self.state.tx_scheduler, distance)? as usize);
        if let Some(connection) = sender(PREFETCH_DISTANCE / 2) {
            connection.prefetch_stream();
        }
        if let Some(connection) = sender(0) {
            connection.prefetch_queue_pair();
        }
    }

    /// Lets one connection hand at most about `bytes` bytes to TCP, and updates the pass.
    #[inline]
    fn send_one(&mut self, slot: u32, bytes: usize, guard: &EpochGuard<'_>, pass: &mut Pass) {
        let before = self.state.stream_counters.tx_fetched_bytes;
        let (outcome, _) = self.step(guard, |poller| {
            let Some(Some(connection)) = poller.connections.get_mut(slot as usize) else {
                return TurnOutcome::Done;
            };
            let outcome = connection.give_to_tcp(&mut poller.state, bytes, guard);
            if outcome != TurnOutcome::Done {
                poller.state.tx_scheduler.requeue(slot);
            }
            if !connection.is_recorded() {
                poller.record(slot as usize);
            }
            outcome
        });
        let sent = (self.state.stream_counters.tx_fetched_bytes - before) as usize;
        let no_mbuf = outcome == TurnOutcome::NoMbuf;
        pass.left = pass.left.saturating_sub(sent);
        pass.starved |= no_mbuf;
        pass.busy |= sent > 0 || !no_mbuf;
    }

    /// Moves frames from the stack to the port, until no frame is left, the port's ring is full, or
    /// [`MAX_TX_BURSTS`] bursts are sent. A full port gets no new frames until it has accepted at least one
    /// of the frames that it refused. Returns whether frames were sent.
    pub(super) fn send_frames(&mut self) -> bool {
        let clock_us = self.clock_us();
        let mut busy = false;
        for _ in 0..MAX_TX_BURSTS {
            let more = self.port_backoff.is_refused()
                || profile::within(Layer::TcpOut, || self.state.tcp.transmit(self.state.now, &mut self.tx));
            if self.tx.is_empty() {
                break;
            }
            let sent = profile::within(Layer::PortTx, || self.port.tx_burst(clock_us, &mut self.tx));
            busy |= sent > 0;
            if sent == 0 {
                self.port_backoff.refused(self.state.now);
                break;
            }
            self.port_backoff.succeeded();
            if !more && self.tx.is_empty() {
                break;
            }
        }
        busy
    }
}
