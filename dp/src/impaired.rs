//! A wire that is worse on purpose: loss and delay of the frames that a port sends.
//!
//! [`Impaired`] wraps any port, so that a test over a real device meets lost and late frames. Frames that the
//! port receives are not changed: usually both ends of a wire have such a port. The same seed loses the same
//! frames of the same sequence of sent frames.
//!
//! ```
//! use dp::{Burst, Impaired, Impairment, Port, link};
//!
//! let (a, mut b) = link::pair(&link::LinkConfig::default());
//! let mut a = Impaired::new(a, Impairment { delay_us: 1000, ..Impairment::default() });
//! let mut frame = a.mempool().alloc().expect("a fresh pool has buffers");
//! assert!(frame.append_slice(&[0xff; 60]));
//!
//! let mut burst = Burst::new();
//! burst.push(frame);
//! assert_eq!(a.tx_burst(0, &mut burst), 1);
//! for (now_us, arrived) in [(999, 0), (1000, 1)] {
//!     // The port sends the frames that are due whenever it is polled.
//!     a.rx_burst(now_us, &mut Burst::new());
//!     assert_eq!(b.rx_burst(now_us, &mut burst), arrived);
//! }
//! ```

mod held;
#[cfg(test)]
mod tests;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::link::{FaultGenerator, LinkPlan};
use crate::{
    Below, Burst, Link, Mbuf, Offloads, Port, PortBase, PortCounters, PortInfo, PortLayer, Sleep, Statistics,
    trace,
};
use held::Held;

/// Maximum number of frames that wait for their time. If so many frames wait, the sender keeps further
/// frames, as with a full ring.
const HELD_FRAMES: usize = 1000;

/// Time between two attempts to send frames that are due, while the wrapped port accepts none.
const RETRY_US: u64 = 50;

/// What a port does to the frames that it sends. The default does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Probability that a frame is lost, in parts per million. A large frame that the device cuts counts as
    /// one frame. Default: 0.
    pub loss_ppm: u32,
    /// Number of microseconds for which each frame waits in the port. Default: 0.
    pub delay_us: u32,
    /// Maximum number of microseconds by which the delay of a frame is longer at random, so that frames
    /// overtake each other. Default: 0.
    pub jitter_us: u32,
    /// Seed of the random losses and delays. Default: 0.
    pub seed: u64,
}

/// A port that loses and delays the frames that it sends.
///
/// A delayed frame is passed to the wrapped port when it is due and this port is polled. When this port is
/// dropped, frames that still wait are passed to the wrapped port at once: on a wire, the end of a sender
/// does not stop its frames.
pub struct Impaired {
    port: Box<dyn Port>,
    /// The description of `port`, without the offload of external memory: a frame may wait here until the
    /// memory has changed.
    info: PortInfo,
    /// Decides which frames are lost. `None` if no frame is.
    losses: Option<FaultGenerator>,
    delay_us: u64,
    jitter_us: u64,
    rng: ChaCha8Rng,
    held: Held,
    /// Frames that are due, oldest first, and that the wrapped port has not accepted yet.
    due: Burst,
    /// The latest time of the caller's clock.
    now_us: u64,
    /// Counts what this port does. The other counters are those of `port`.
    counters: PortCounters,
}

impl Impaired {
    /// Wraps `port`.
    pub fn new(port: Box<dyn Port>, impairment: Impairment) -> Self {
        let Impairment { loss_ppm, delay_us, jitter_us, seed } = impairment;
        let mut info = port.info().clone();
        trace::port_impaired(&info.name, &impairment);
        info.offloads.remove(Offloads::TX_EXTERNAL);
        let plan = LinkPlan { drop_ppm: loss_ppm, ..LinkPlan::default() };
        // The losses have stream 0, so that the jitter does not change which frames are lost.
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(1);
        // The other half of the pool is for received frames, and for frames that TCP prepares.
        let buffers = port.mempool().capacity() / 2;
        Self {
            port,
            info,
            losses: FaultGenerator::new(&plan, seed, 0),
            delay_us: delay_us.into(),
            jitter_us: jitter_us.into(),
            rng,
            held: Held::new(HELD_FRAMES, buffers),
            due: Burst::new(),
            now_us: 0,
            counters: PortCounters::default(),
        }
    }

    /// Whether this port changes nothing.
    fn is_transparent(&self) -> bool {
        self.losses.is_none() && self.delay_us + self.jitter_us == 0
    }

    /// Sets the time. The time does not go back, since frames with the same delay would overtake each other.
    fn advance(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
    }

    /// Loses a frame, or holds it until it is due. Returns the frame if there is no room for it: then nothing
    /// was decided yet, and the caller passes the frame again later.
    fn take(&mut self, mut frame: Mbuf) -> Result<(), Mbuf> {
        if !self.held.has_room_for(&frame) {
            return Err(frame);
        }
        if frame.has_external() {
            // The memory may change before the frame is due. A frame on a wire does not change.
            let Some(copy) = frame.deep_copy(self.port.mempool()) else { return Err(frame) };
            frame = copy;
        }
        let is_lost = self.losses.as_mut().is_some_and(|losses| losses.next().lost);
        let delay_us = self.delay_us + self.draw_jitter();
        if is_lost {
            self.counters.tx_lost += 1;
        } else {
            self.held.push(self.now_us + delay_us, frame);
        }
        Ok(())
    }

    fn draw_jitter(&mut self) -> u64 {
        if self.jitter_us == 0 {
            return 0;
        }
        // The result is at most `jitter_us`: it is the upper half of a 64-bit product.
        (u64::from(self.rng.next_u32()) * (self.jitter_us + 1)) >> 32
    }

    /// Passes the frames that are due until `until_us` to the wrapped port, as many as it accepts.
    fn release(&mut self, until_us: u64) {
        loop {
            while !self.due.is_full()
                && let Some(frame) = self.held.pop(until_us)
            {
                self.due.push(frame);
            }
            if self.due.is_empty() {
                return;
            }
            self.port.tx_burst(self.now_us, &mut self.due);
            if !self.due.is_empty() {
                return;
            }
        }
    }
}

impl PortLayer for Impaired {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for Impaired {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.advance(now_us);
        self.release(self.now_us);
        self.port.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        if self.is_transparent() {
            return self.port.tx_burst(now_us, frames);
        }
        self.advance(now_us);
        self.release(self.now_us);
        let count = frames.len();
        let mut left = Burst::new();
        for frame in frames.drain(..) {
            if !left.is_empty() {
                left.push(frame);
            } else if let Err(refused) = self.take(frame) {
                left.push(refused);
            }
        }
        *frames = left;
        self.counters.tx_ring_full += frames.len() as u64;
        self.release(self.now_us);
        count - frames.len()
    }
}

impl Link for Impaired {
    fn has_unsent(&self) -> bool {
        !self.due.is_empty() || !self.held.is_empty() || self.port.has_unsent()
    }
}

impl Statistics for Impaired {
    fn counters(&self) -> PortCounters {
        let mut counters = self.port.counters();
        counters += self.counters;
        counters
    }
}

impl Sleep for Impaired {
    fn next_due_us(&self) -> Option<u64> {
        let own = match self.due.is_empty() {
            true => self.held.next_due_us(),
            false => Some(self.now_us + RETRY_US),
        };
        [own, self.port.next_due_us()].into_iter().flatten().min()
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        // The wrapped port may be what has panicked.
        if !std::thread::panicking() {
            self.release(u64::MAX);
        }
    }
}

impl std::fmt::Debug for Impaired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Impaired")
            .field("port", &self.info.name)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}
