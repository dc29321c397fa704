//! The port of a simulated host. The simulator takes the frames that the host sends, and provides the frames
//! that the host receives.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dp::{
    Below, Burst, Link, LinkState, Mbuf, Mempool, Offloads, Port, PortBase, PortCounters, PortInfo,
    PortLayer, Queue, Sleep, Statistics,
};

use super::steering::{Steering, SteeringPlan};

/// Minimum space of one buffer in bytes, as in ordinary devices. If the MTU needs more space, a buffer is
/// larger.
const DATA_BYTES_MIN: usize = 2048;

/// A frame that the host passed to the port.
#[derive(Debug)]
pub enum Sent {
    /// The port accepted the frame at once.
    Whole(Vec<u8>),
    /// The port did not accept the frame, but TCP counts it as sent.
    Offered(Vec<u8>),
    /// The port now accepts a frame that it had refused.
    Taken(Vec<u8>),
}

#[derive(Debug, Default)]
struct Shared {
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Sent>,
    down: bool,
    /// Whether the port accepts no frames.
    stuck: bool,
    /// Number of frames at the front of a burst that the port refused before.
    offered: usize,
    counters: PortCounters,
}

/// The simulator's access to the ports of a host. A host has a port for each queue of its device.
#[derive(Clone)]
pub struct Socket {
    queues: Vec<Arc<Mutex<Shared>>>,
    steering: Arc<Mutex<Steering>>,
    pool: Mempool,
}

impl Socket {
    fn locked(&self) -> impl Iterator<Item = MutexGuard<'_, Shared>> {
        self.queues.iter().map(lock)
    }

    /// Delivers a frame to the queue that the device chooses.
    pub fn deliver(&self, frame: Vec<u8>) {
        let queue = lock(&self.steering).queue(&frame);
        lock(&self.queues[queue]).rx.push_back(frame);
    }

    /// Returns the frames that the host passed to the ports, or that the ports accepted, since the last call.
    pub fn take_sendings(&self) -> Vec<Sent> {
        self.locked().flat_map(|mut queue| std::mem::take(&mut queue.tx)).collect()
    }

    /// Returns the frames that the ports accepted since the last call.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        let taken = |sent| match sent {
            Sent::Whole(bytes) | Sent::Taken(bytes) => Some(bytes),
            Sent::Offered(_) => None,
        };
        self.take_sendings().into_iter().filter_map(taken).collect()
    }

    /// Sets whether the link is up.
    pub fn set_up(&self, up: bool) {
        for mut queue in self.locked() {
            queue.counters.link_changes += u64::from(queue.down == up);
            queue.down = !up;
        }
    }

    /// Sets whether the ports accept frames.
    pub fn set_stuck(&self, stuck: bool) {
        self.locked().for_each(|mut queue| queue.stuck = stuck);
    }

    /// Whether the pool has buffers for this frame and for all frames that wait.
    pub fn has_buffers_for(&self, frame: &[u8]) -> bool {
        let buffers = |bytes: &[u8]| bytes.len().div_ceil(self.pool.data_bytes());
        let waiting: usize =
            self.locked().flat_map(|queue| queue.rx.iter().map(|rx| buffers(rx)).collect::<Vec<_>>()).sum();
        waiting + buffers(frame) <= self.pool.available()
    }

    /// Whether no frame waits to be received.
    pub fn is_idle(&self) -> bool {
        self.locked().all(|queue| queue.rx.is_empty())
    }

    /// Returns the pool of the ports.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }
}

fn lock<T>(mutex: &Arc<Mutex<T>>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SimPort {
    base: PortBase,
    shared: Arc<Mutex<Shared>>,
}

/// Returns the port of host `side`, with `mbufs` buffers, and its socket.
pub fn port(side: usize, mtu: u16, mbufs: usize) -> (Box<dyn Port>, Socket) {
    let (mut ports, socket) = queues(side, mtu, mbufs, &SteeringPlan::default());
    (ports.swap_remove(0), socket)
}

/// Returns the ports of host `side`, one for each queue of the plan, and their socket. The ports share
/// `mbufs` buffers.
pub fn queues(side: usize, mtu: u16, mbufs: usize, plan: &SteeringPlan) -> (Vec<Box<dyn Port>>, Socket) {
    let name = ["sim-a", "sim-b"][side];
    let pool = Mempool::heap(name, mbufs, (usize::from(mtu) + 18).next_multiple_of(64).max(DATA_BYTES_MIN));
    let steering = Steering::new(plan);
    let mut socket =
        Socket { queues: Vec::new(), steering: Arc::new(Mutex::new(steering.clone())), pool: pool.clone() };
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for index in 0..plan.queues {
        let offloads = Offloads::TX_MULTI_SEGMENT | Offloads::RX_SCATTER;
        let queue = Queue { index: index as u16, rss: steering.announced() };
        let info = PortInfo { queue, ..PortInfo::new(name, mac(side), mtu, offloads) };
        let shared = Arc::new(Mutex::new(Shared::default()));
        socket.queues.push(Arc::clone(&shared));
        ports.push(Box::new(SimPort { base: PortBase::new(info, pool.clone()), shared }));
    }
    (ports, socket)
}

/// Returns the Ethernet address of host `side`.
pub fn mac(side: usize) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, 0x0a + side as u8]
}

impl SimPort {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

/// Returns `bytes` in as many buffers of `pool` as needed, or `None` if the pool has too few free buffers.
fn fill(pool: &Mempool, bytes: &[u8]) -> Option<Mbuf> {
    let mut chain: Option<Mbuf> = None;
    for piece in bytes.chunks(pool.data_bytes()) {
        let mut buf = pool.alloc()?;
        buf.append_slice(piece).then_some(())?;
        match &mut chain {
            Some(chain) => chain.chain(buf).ok()?,
            None => chain = Some(buf),
        }
    }
    chain
}

impl PortLayer for SimPort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for SimPort {
    fn rx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let mut shared = self.lock();
        let before = frames.len();
        while !frames.is_full()
            && let Some(bytes) = shared.rx.pop_front()
        {
            match fill(&self.base.mempool, &bytes) {
                Some(frame) => {
                    shared.counters.rx_frames += 1;
                    shared.counters.rx_bytes += bytes.len() as u64;
                    frames.push(frame);
                }
                None => shared.counters.rx_no_mbuf += 1,
            }
        }
        frames.len() - before
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let mut shared = self.lock();
        let bytes = |frame: &Mbuf| frame.segments().flatten().copied().collect::<Vec<u8>>();
        let known = shared.offered;
        if shared.stuck {
            shared.counters.tx_ring_full += frames.len() as u64;
            shared.tx.extend(frames.iter().skip(known).map(|frame| Sent::Offered(bytes(frame))));
            shared.offered = frames.len();
            return 0;
        }
        let taken = frames.len();
        for (number, frame) in frames.drain(..).enumerate() {
            // While the link is down, the simulator drops the frame. The port counts the frame both as sent
            // and as dropped because of the link.
            shared.counters.tx_link_down += u64::from(shared.down);
            let bytes = bytes(&frame);
            shared.counters.tx_frames += 1;
            shared.counters.tx_bytes += bytes.len() as u64;
            shared.tx.push(if number < known { Sent::Taken(bytes) } else { Sent::Whole(bytes) });
        }
        shared.offered = 0;
        taken
    }
}

impl Sleep for SimPort {}

impl Link for SimPort {
    fn link_state(&mut self) -> LinkState {
        if self.lock().down { LinkState::Down } else { LinkState::Up }
    }
}

impl Statistics for SimPort {
    fn counters(&self) -> PortCounters {
        self.lock().counters
    }
}
