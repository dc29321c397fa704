//! A port that holds the next frames with payload when the target asks for it. The target later drops these
//! frames, or releases them in their order or in reverse order. So the peer's TCP receives bytes beyond a
//! hole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dp::{Burst, Mbuf, Port};
use hosts::hooked::{Hooks, hooked};

use super::trace::trace;

/// Length of a frame with a bare acknowledgement: Ethernet, IPv4, and TCP with timestamps and without SACK
/// blocks. Frames of this length or less are never held.
const HEADERS: usize = 14 + 20 + 32;

#[derive(Default)]
struct Frames {
    /// Number of frames that will be held.
    to_hold: usize,
    held: Vec<Mbuf>,
    /// Released frames, which are sent with the next burst.
    released: Vec<Mbuf>,
}

/// Controls the gate, which is the hooks of a port.
#[derive(Clone, Default)]
pub(super) struct GateControl {
    frames: Arc<Mutex<Frames>>,
}

impl GateControl {
    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the port hold `count` of the next frames with payload. A frame behind a frame without payload in
    /// the same burst is not held.
    pub(super) fn hold(&self, count: usize) {
        self.frames().to_hold = count;
    }

    /// Releases all held frames, the latest first if `reversed`, and makes the port hold no further frames.
    pub(super) fn release(&self, reversed: bool) {
        let mut frames = self.frames();
        let mut held = std::mem::take(&mut frames.held);
        if reversed {
            held.reverse();
        }
        frames.released.append(&mut held);
        frames.to_hold = 0;
    }

    /// Drops all held frames and all released frames that are not sent yet, and makes the port hold no
    /// further frames.
    pub(super) fn lose(&self) {
        let lost = std::mem::take(&mut *self.frames());
        // The buffers return to their pool after the lock is released.
        drop(lost);
    }
}

/// Returns a gate in front of `port`, and its control.
pub(super) fn gated(port: Box<dyn Port>) -> (Box<dyn Port>, GateControl) {
    let hand = GateControl::default();
    (hooked(port, hand.clone()), hand)
}

impl Hooks for GateControl {
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let mut pass = Burst::new();
        let mut taken = 0;
        {
            let mut gate = self.frames();
            let count = gate.released.len().min(pass.capacity());
            pass.extend(gate.released.drain(..count));
            while gate.to_hold > 0 && frames.first().is_some_and(|frame| frame.len() > HEADERS) {
                gate.to_hold -= 1;
                trace(format_args!("{now_us} held back: {} bytes", frames[0].len()));
                gate.held.push(frames.remove(0));
                taken += 1;
            }
        }
        taken += port.tx_burst(now_us, &mut pass);
        assert!(pass.is_empty(), "the wire has room for all frames there are");
        taken + port.tx_burst(now_us, frames)
    }
}
