//! The port of the victim, or of its honest client. Received frames wait in buffers of the host's own pool,
//! as with a device. The host uses no processor time for these frames until it reads them. A frame is lost if
//! no buffer is free or the ring is full.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dp::{
    Below, Burst, Link, LinkState, Mbuf, Mempool, Offloads, Port, PortBase, PortCounters, PortInfo,
    PortLayer, Sleep, Statistics,
};

/// Maximum number of frames that wait to be received.
const RING: usize = 1024;
/// Number of packet buffers.
pub const BUFFERS: usize = 8192;
/// Length in bytes of a buffer.
pub const BUFFER_BYTES: usize = 2048;
/// MTU of the port in bytes.
const MTU: u16 = 1500;

#[derive(Default)]
struct Rings {
    rx: VecDeque<Mbuf>,
    tx: VecDeque<Mbuf>,
    counters: PortCounters,
}

/// Delivers frames to a port, and receives the frames that the port sends.
pub struct FarEnd {
    rings: Arc<Mutex<Rings>>,
    pool: Mempool,
    /// The Ethernet address of the port.
    pub mac: [u8; 6],
}

struct AttackPort {
    rings: Arc<Mutex<Rings>>,
    base: PortBase,
}

fn lock(rings: &Mutex<Rings>) -> MutexGuard<'_, Rings> {
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a port with this Ethernet address, and its far end.
pub fn port_with_far_end(name: &str, mac: [u8; 6]) -> (Box<dyn Port>, FarEnd) {
    let pool = Mempool::heap(name, BUFFERS, BUFFER_BYTES);
    let offloads = Offloads::TX_MULTI_SEGMENT | Offloads::RX_SCATTER;
    let base = PortBase::new(PortInfo::new(name, mac, MTU, offloads), pool.clone());
    let rings = Arc::new(Mutex::new(Rings {
        rx: VecDeque::with_capacity(RING),
        tx: VecDeque::with_capacity(2 * RING),
        ..Rings::default()
    }));
    let far_end = FarEnd { rings: Arc::clone(&rings), pool, mac };
    (Box::new(AttackPort { rings, base }), far_end)
}

impl FarEnd {
    /// Delivers a frame to the port. If there is no space for the frame, the frame is dropped and counted.
    pub fn deliver(&self, bytes: &[u8]) {
        let mut rings = lock(&self.rings);
        if rings.rx.len() >= RING {
            rings.counters.rx_dropped += 1;
            return;
        }
        let Some(mut frame) = self.pool.alloc() else {
            rings.counters.rx_no_mbuf += 1;
            return;
        };
        if frame.append_slice(bytes) {
            rings.rx.push_back(frame);
        } else {
            rings.counters.rx_dropped += 1;
        }
    }

    /// Returns the frames that the host has sent since the last call.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        // `drain` keeps the memory of the ring: a device does not allocate its ring again while the host
        // sends.
        lock(&self.rings).tx.drain(..).map(|frame| bytes_of(&frame)).collect()
    }

    /// Returns the number of frames that the host has received and sent so far.
    pub fn frames(&self) -> u64 {
        let counters = lock(&self.rings).counters;
        counters.rx_frames + counters.tx_frames
    }

    /// Returns the number of packet buffers that the host holds, without the buffers in the rings.
    pub fn held(&self) -> usize {
        let rings = lock(&self.rings);
        self.pool.capacity() - self.pool.available() - rings.rx.len() - rings.tx.len()
    }
}

/// Returns the bytes of a frame.
fn bytes_of(frame: &Mbuf) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len());
    for run in frame.segments() {
        bytes.extend_from_slice(run);
    }
    bytes
}

impl PortLayer for AttackPort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for AttackPort {
    fn rx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let mut rings = lock(&self.rings);
        let Rings { rx, counters, .. } = &mut *rings;
        let count = rx.len().min(frames.remaining_capacity());
        for frame in rx.drain(..count) {
            counters.rx_frames += 1;
            counters.rx_bytes += frame.len() as u64;
            frames.push(frame);
        }
        count
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let mut rings = lock(&self.rings);
        let count = frames.len();
        for frame in frames.drain(..) {
            rings.counters.tx_frames += 1;
            rings.counters.tx_bytes += frame.len() as u64;
            rings.tx.push_back(frame);
        }
        count
    }
}

impl Sleep for AttackPort {}

impl Link for AttackPort {
    fn link_state(&mut self) -> LinkState {
        LinkState::Up
    }
}

impl Statistics for AttackPort {
    fn counters(&self) -> PortCounters {
        lock(&self.rings).counters
    }
}
