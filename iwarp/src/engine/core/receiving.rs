//! From the wire: the port's frames go to TCP, and what comes of each to its connection.

use dp::profile::{self, Layer};
use tcp_lite::Ahead;

use super::{AHEAD, Core};
use crate::memory::EpochGuard;

/// Bursts received in one turn at most: what a doorbell or timer may have to wait.
const MAX_BURSTS: usize = 4;

/// Behind a burst of fewer frames an answer need not wait for another look: it was all there is, or
/// superframes, which are work enough. Devices may return less than they have, but not so much less of
/// others.
const FEW: usize = dp::BURST / 4;

/// From so many connections on, what a frame needs is fetched ahead: the state of fewer stays in the cache.
const MANY: usize = 128;

impl Core {
    /// Hands received frames to TCP, a bounded number of bursts, and runs what comes of them.
    pub(super) fn receive(&mut self, guard: &EpochGuard) -> bool {
        let now_us = self.io.now_us();
        let mut busy = false;
        for _ in 0..MAX_BURSTS {
            let count = profile::within(Layer::PortRx, || self.port.rx_burst(now_us, &mut self.rx));
            if count == 0 {
                break;
            }
            busy = true;
            let mut burst = std::mem::take(&mut self.rx);
            let ahead = (self.connection_count >= MANY)
                .then(|| profile::within(Layer::TcpIn, || self.io.tcp.look_ahead(&burst)));
            let (frames_there, mut fetched) = (burst.len(), 0);
            let mut frames = burst.drain(..).peekable();
            while frames.peek().is_some() {
                if let Some(ahead) = &ahead {
                    let next = frames_there - frames.len();
                    fetched = profile::within(Layer::TcpIn, || self.fetch_ahead(ahead, next, fetched));
                }
                profile::within(Layer::TcpIn, || self.io.tcp.input_next(self.io.now, &mut frames));
                self.run_events(guard);
            }
            drop(frames);
            self.rx = burst;
            if count < FEW {
                break;
            }
        }
        busy
    }

    /// Frame `next` of a burst is next: has fetched what it and some behind it will need, without the first
    /// `fetched`. Returns for how many it has.
    fn fetch_ahead(&mut self, ahead: &Ahead, next: usize, fetched: usize) -> usize {
        for n in fetched.max(next)..=next + AHEAD {
            self.prefetch(self.io.tcp.slot_ahead(ahead, n));
        }
        if let Some(slot) = self.io.tcp.slot_ahead(ahead, next) {
            self.io.tcp.expect_next(slot);
        }
        next + AHEAD + 1
    }
}
