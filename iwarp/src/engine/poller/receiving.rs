//! Receiving: passes the port's frames to TCP, and TCP's events to the connections.

use dp::profile::{self, Layer};
use dp::{Burst, Mbuf};
use tcp_lite::{Ahead, ConnId, Received};

use super::super::state::EngineState;
use super::{PREFETCH_DISTANCE, Poller};
use crate::memory::EpochGuard;

/// Maximum number of bursts received in one poll. More bursts give more throughput; with fewer bursts,
/// doorbells and timers wait for a shorter time.
const MAX_BURSTS: usize = 4;

/// A burst with fewer frames than this is the last burst of the poll: the port has no more frames, or has
/// returned superframes, which are enough work for one poll. A device may return fewer frames than it has,
/// but returns at least a quarter of a burst.
const SHORT_BURST: usize = dp::BURST / 4;

/// Minimum number of connections for prefetching the state that a frame needs. The state of fewer connections
/// stays in the cache.
const PREFETCH_MIN_CONNECTIONS: usize = 128;

/// The frames of a burst in reverse order, since removing the last frame costs less than draining a vector.
struct Frames<'a>(&'a mut Burst);

impl Iterator for Frames<'_> {
    type Item = Mbuf;

    #[inline]
    fn next(&mut self) -> Option<Mbuf> {
        self.0.pop()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for Frames<'_> {}

impl Poller {
    /// Passes received frames to TCP, and handles the events of each frame. Receives at most `MAX_BURSTS`
    /// bursts from the engine's own queue, and then the frames of
    /// [`receive_for_queues`](Self::receive_for_queues) if there are any. Returns whether there were frames.
    pub(super) fn receive_bursts(&mut self, guard: &EpochGuard<'_>) -> bool {
        let clock_us = self.clock_us();
        let mut busy = false;
        // Only the box is moved, since the burst itself has half a kilobyte. The box is present at the start
        // of each poll.
        let mut burst = self.rx.take().unwrap_or_default();
        for _ in 0..MAX_BURSTS {
            let count = profile::within(Layer::PortRx, || self.port.rx_burst(clock_us, &mut burst));
            if count == 0 {
                break;
            }
            busy = true;
            self.take_in(guard, &mut burst);
            if count < SHORT_BURST {
                break;
            }
        }
        if self.siblings.exist() && (self.state.tcp.has_to_hand() || self.siblings.have_left()) {
            busy |= self.receive_for_queues(guard, &mut burst);
        }
        self.rx = Some(burst);
        busy
    }

    /// Receives the frames that engines of other queues have handed over, and the frames on the queues of
    /// engines that are gone. Publishes the frames that this engine has handed to other engines. Returns
    /// whether there were frames.
    #[inline(never)]
    fn receive_for_queues(&mut self, guard: &EpochGuard<'_>, burst: &mut Burst) -> bool {
        let mut busy = false;
        for _ in 0..MAX_BURSTS {
            if !self.state.tcp.has_handed() {
                break;
            }
            busy = true;
            self.state.tcp.take_handed(self.state.now, burst);
            self.take_in(guard, burst);
        }
        let clock_us = self.clock_us();
        for queue in 0..self.siblings.adopted.len() {
            busy |= self.siblings.adopted[queue].rx_burst(clock_us, burst) > 0;
            self.take_in(guard, burst);
        }
        let handed_to = self.state.tcp.flush_handed();
        if handed_to != 0 {
            self.siblings.wake(handed_to);
        }
        busy
    }

    /// Passes the frames of a burst to TCP, and handles the events of each frame.
    #[inline]
    fn take_in(&mut self, guard: &EpochGuard<'_>, burst: &mut Burst) {
        let ahead = (self.connection_count >= PREFETCH_MIN_CONNECTIONS)
            .then(|| profile::within(Layer::TcpIn, || self.state.tcp.look_ahead(burst)));
        let (frames_there, mut fetched) = (burst.len(), 0);
        burst.reverse();
        let mut frames = Frames(burst).peekable();
        while frames.peek().is_some() {
            if let Some(ahead) = &ahead {
                let next = frames_there - frames.len();
                fetched = profile::within(Layer::TcpIn, || self.fetch_ahead(ahead, next, fetched));
            }
            self.step(guard, |poller| {
                profile::within(Layer::TcpIn, || poller.state.tcp.input_next(poller.state.now, &mut frames));
                if let Some((conn, received)) = poller.state.tcp.received() {
                    poller.on_received(guard, conn, received);
                }
            });
        }
    }

    /// Passes the datagram that an event has announced to its queue pairs.
    #[inline(never)]
    pub(super) fn receive_datagram(&mut self, guard: &EpochGuard<'_>) {
        let Self { datagrams, state: EngineState { now, tcp, .. }, .. } = self;
        if let Some(datagram) = tcp.next_datagram() {
            datagrams.receive(*now, tcp, guard, &datagram);
        }
    }

    /// Handles the event for received bytes, which is the usual event.
    #[inline]
    fn on_received(&mut self, guard: &EpochGuard<'_>, conn: ConnId, received: Received) {
        let slot = conn.slot();
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        if connection.conn() != conn {
            return;
        }
        connection.on_received(&mut self.state, guard, received);
        if !connection.is_recorded() {
            self.record(slot);
        }
    }

    /// Prefetches the state for frame `next` of a burst and for some frames after it. The first `fetched`
    /// frames of the burst are prefetched already. Returns the number of frames that are prefetched now.
    ///
    /// Never inlined, since the usual case of few connections does not call this.
    #[inline(never)]
    fn fetch_ahead(&mut self, ahead: &Ahead, next: usize, fetched: usize) -> usize {
        for n in fetched.max(next)..=next + PREFETCH_DISTANCE {
            self.prefetch(self.state.tcp.slot_ahead(ahead, n));
        }
        // The connection, which has the reference to the stream, was prefetched some frames before.
        if let Some(slot) = self.state.tcp.slot_ahead(ahead, next + PREFETCH_DISTANCE / 2)
            && let Some(connection) = self.connection(slot)
        {
            connection.prefetch_stream();
        }
        if let Some(slot) = self.state.tcp.slot_ahead(ahead, next) {
            self.state.tcp.expect_next(slot);
        }
        next + PREFETCH_DISTANCE + 1
    }
}
