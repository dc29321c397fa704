//! To the wire: queue pairs whose doorbells were rung hand FPDUs to TCP in turn, and TCP's frames go to the
//! port.

use dp::profile::{self, Layer};
use tcp_lite::{Duration, Instant};

use super::super::connection::{Connection, TurnOutcome};
use super::super::state::EngineState;
use super::super::tx_scheduler::TxScheduler;
use super::{PREFETCH_DISTANCE, Poller};
use crate::memory::EpochGuard;

/// Maximum number of bytes that queue pairs hand to TCP before frames are received again. This is less than
/// one poll receives, so that a peer of the same kind keeps up and rings stay short.
const SEND_BYTES: usize = 128 << 10;

/// Maximum number of queue pairs that have just begun to send and send before all others in one poll. With
/// more, bulk senders would wait longer.
const MAX_FRESH: usize = 16;

/// Maximum number of bytes that each of these hands to TCP before it joins the others: enough for a whole
/// small message.
const FRESH_BYTES: usize = 16 << 10;

/// Maximum number of bursts sent in one poll, so that a poll ends even if TCP always has more to send.
const MAX_TX_BURSTS: usize = 64;

/// The progress of one pass over the queue pairs that have something to send.
struct Pass {
    /// How many of the connections that have just begun to send still have to send.
    fresh: usize,
    /// How often the other connections may still send. `None` before the first of them.
    tries: Option<usize>,
    /// Bytes that may still be handed to TCP. Only payload that is fetched from memory counts, since that is
    /// the cost of sending: headers, Read Requests and the like do not count.
    left: usize,
    /// A connection sent something, or had nothing to send.
    busy: bool,
    /// A connection found no free packet buffer.
    starved: bool,
}

impl Poller {
    /// See [`Acks::set_patience`](crate::engine::acks::Acks). Returns whether an acknowledgement waits.
    pub(in crate::engine) fn await_answers(&mut self, patience: std::time::Duration) -> bool {
        let acks = &mut self.state.acks;
        acks.set_patience(Duration::from_micros(patience.as_micros() as u64));
        acks.owed() + acks.owed_limits() > 0
    }

    /// The part of a poll that sends posted requests. `clock` is the time of the clock.
    pub(in crate::engine) fn send_posted(&mut self, clock: Instant, guard: &EpochGuard<'_>) {
        let _engine = profile::scope(Layer::Engine);
        self.set_time(clock);
        self.serve_users(guard);
        self.fill_tcp(guard);
        self.step(guard, Self::send_frames);
    }

    /// Does what users have asked for since the last poll: runs their commands, then answers their doorbells.
    /// Returns whether there were any.
    #[inline]
    pub(super) fn serve_users(&mut self, guard: &EpochGuard<'_>) -> bool {
        self.run_commands(guard) | self.answer_doorbells()
    }

    /// Schedules the queue pairs whose doorbells were rung. Returns whether there were any.
    #[inline]
    fn answer_doorbells(&mut self) -> bool {
        let EngineState { handle, tx_scheduler, .. } = &mut self.state;
        let doorbells = handle.doorbells();
        let mut schedule = |slot: usize, connection: Option<&Option<Box<Connection>>>| {
            // As `Connection::schedule_tx`. The doorbell of a connection that has ended has no effect, or
            // rings for the next connection in its slot.
            if let Some(Some(_)) = connection {
                tx_scheduler.schedule(slot as u32);
            }
        };
        if doorbells.take_lost() {
            (0..self.connections.len()).for_each(|slot| schedule(slot, self.connections.get(slot)));
        }
        let mut busy = false;
        while let Some(slot) = doorbells.next() {
            busy = true;
            schedule(slot as usize, self.connections.get(slot as usize));
        }
        busy
    }

    /// Lets queue pairs hand FPDUs to TCP, a limited number of bytes each: first the queue pairs that have
    /// just begun to send, then the others round robin. [`send_frames`](Self::send_frames) sends them.
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

    /// The connection that sends next, and its number of bytes.
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
        // Each queue pair sends at least once, unless the bytes are used up first. A blocked queue pair
        // leaves the queue.
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

    /// Prefetches the state of connections that send later: the connection in `slot`, and earlier
    /// connections, which `behind` finds. Each part of the state refers to the next part, so a part is
    /// prefetched when the previous part is in the cache.
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

    /// Lets one connection send about `bytes` bytes, and adds that to the pass.
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

    /// Moves frames from the stack to the port, until no frame is left or the port's ring is full. A full
    /// port gets no new frames until it has taken the refused frames.
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
