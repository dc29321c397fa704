//! A wire within one process: two ports that are connected by rings in memory. The wire has faults according
//! to a plan and a seed. (The trait [`Link`](crate::Link) is something else: the state of any port's link.)
//!
//! Most frames are moved, not copied: the sender's own buffer arrives at the receiver. If the sender still
//! has a view of the buffer, the bytes are read-only for sender and receiver. Frames that are duplicated,
//! corrupted or cut, and frames with external memory, are copied. The same seed, frames and times give the
//! same result. The faults of a frame depend only on the plan, the seed, the sending port, and the frame's
//! ordinal number at this port.
//!
//! If a plan has delays or reordering, the two ends must use the same clock.

mod config;
mod faults;
mod port;
mod steering;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

pub use config::{LinkConfig, LinkPlan, LinkTso};
pub use steering::{LinkSteering, MAX_QUEUES};
pub use wire::LinkFaults;

pub(crate) use faults::FaultGenerator;

use crate::{Mempool, Port, Queue, Rss};
use port::{LinkPort, Shared};
use steering::{Inbox, Mesh, Single, Wires};
use wire::{Receiver, Sender, Wire};

impl LinkConfig {
    /// Makes the pools of the two ends, as [`pair`] does.
    pub fn pools(&self) -> [Mempool; 2] {
        port::NAMES.map(|name| Mempool::heap(name, self.mbufs, port::data_bytes(self)))
    }
}

/// Makes two ports that are connected by a wire in memory. Each end may be used in another thread. When one
/// end is dropped, the link of the other end goes down, but frames in flight still arrive.
pub fn pair(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>) {
    let (a, b, _control) = pair_with_control(config);
    (a, b)
}

/// Makes two ports like [`pair`], with existing pools: the first pool is for the first port. With this
/// function, callers can make many links of one configuration, one after another. Buffers that an earlier
/// link has not freed are missing from the pools.
pub fn pair_over(config: &LinkConfig, pools: &[Mempool; 2]) -> (Box<dyn Port>, Box<dyn Port>) {
    let (a, b, _control) = controlled(config, pools);
    (a, b)
}

/// Makes two ports like [`pair`], and a handle that can take the link down and report how many faults
/// happened.
pub fn pair_with_control(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>, LinkControl) {
    controlled(config, &config.pools())
}

/// The ports of the queues of one end of a link, in the order of the queues.
pub type QueuePorts = Vec<Box<dyn Port>>;

/// Makes a link with several queues at each end. All queues of an end share one Ethernet address. Returns the
/// ports of the first end and the ports of the second end. `config` applies to each queue. Each queue has its
/// own pools and its own faults. The ports may be on different threads. The link goes down when all queues of
/// an end are dropped.
///
/// The link has a ring of [`LinkConfig::ring_frames`] frames for each pair of queues between which frames can
/// be sent. A queue that is not polled stalls its senders, as in a network with pause frames.
///
/// # Panics
/// If `queues` is 0 or more than [`MAX_QUEUES`].
pub fn queues(config: &LinkConfig, queues: usize, steering: LinkSteering) -> (QueuePorts, QueuePorts) {
    assert!((1..=MAX_QUEUES).contains(&queues), "a link has 1 to {MAX_QUEUES} queues");
    let shared = Arc::new(Shared::new(queues));
    let pools: Vec<_> = (0..queues).map(|_| config.pools()).collect();
    match steering.announced(queues) {
        None => {
            let each = pools.iter().map(|pools| singles(config, pools));
            each.enumerate().map(|(index, wires)| both(config, &shared, &pools, (index, None), wires)).unzip()
        }
        Some(rss) => {
            let each = meshes(config, &pools, &rss).into_iter();
            let queue = |index| (index, Some(&rss));
            each.enumerate().map(|(index, wires)| both(config, &shared, &pools, queue(index), wires)).unzip()
        }
    }
}

/// Makes the two ports of a queue, one for each end.
fn both<W: Wires + 'static>(
    config: &LinkConfig,
    shared: &Arc<Shared>,
    pools: &[[Mempool; 2]],
    (index, rss): (usize, Option<&Rss>),
    [a, b]: [W; 2],
) -> (Box<dyn Port>, Box<dyn Port>) {
    let queue = || Queue { index: index as u16, rss: rss.cloned() };
    let port = |end: usize, wires| LinkPort::new(config, shared, (end, queue()), &pools[index][end], wires);
    (Box::new(port(0, a)), Box::new(port(1, b)))
}

fn controlled(config: &LinkConfig, pools: &[Mempool; 2]) -> (Box<dyn Port>, Box<dyn Port>, LinkControl) {
    let shared = Arc::new(Shared::new(1));
    let wires = singles(config, pools);
    let control = LinkControl {
        shared: Arc::clone(&shared),
        wires: [0, 1].map(|end| Arc::clone(&wires[end].sender.wire)),
    };
    let (a, b) = both(config, &shared, std::slice::from_ref(pools), (0, None), wires);
    (a, b, control)
}

/// Makes a wire from a queue of end `from` to the queue of the other end that has this pool.
fn ends(config: &LinkConfig, from: usize, pool: &Mempool) -> (Sender, Receiver) {
    wire::ends(if from == 0 { &config.a_to_b } else { &config.b_to_a }, config.ring_frames, pool)
}

/// Makes the wires of a link with one queue at each end. `pools` are the pools of the two queues.
fn singles(config: &LinkConfig, pools: &[Mempool; 2]) -> [Single; 2] {
    let [(a_out, b_in), (b_out, a_in)] = [0, 1].map(|end| ends(config, end, &pools[1 - end]));
    [Single { sender: a_out, receiver: a_in }, Single { sender: b_out, receiver: b_in }]
}

/// Makes the wires from each queue of each end to each queue of the other end. `pools` has the pools of the
/// two ends for each queue.
fn meshes(config: &LinkConfig, pools: &[[Mempool; 2]], rss: &Rss) -> Vec<[Mesh; 2]> {
    let [inboxes_a, inboxes_b]: [Arc<[Inbox]>; 2] =
        [0, 1].map(|_end| pools.iter().map(|_| Inbox::default()).collect());
    // Collects for each end and queue the wires on which the queue sends, and the wires on which it receives.
    let mut sending = [0, 1].map(|_end| pools.iter().map(|_| Vec::new()).collect::<Vec<_>>());
    let mut receiving = [0, 1].map(|_end| pools.iter().map(|_| Vec::new()).collect::<Vec<_>>());
    for end in [0, 1] {
        for sender in &mut sending[end] {
            for (to, pools) in pools.iter().enumerate() {
                let (sending_end, receiving_end) = ends(config, end, &pools[1 - end]);
                sender.push(sending_end);
                receiving[1 - end][to].push(receiving_end);
            }
        }
    }
    let [sending_a, sending_b] = sending;
    let [receiving_a, receiving_b] = receiving;
    let a = sending_a.into_iter().zip(receiving_a);
    let b = sending_b.into_iter().zip(receiving_b);
    let mesh = |index, (senders, receivers), ours: &Arc<[Inbox]>, theirs: &Arc<[Inbox]>| {
        Mesh::new(senders, receivers, rss.clone(), index, [Arc::clone(ours), Arc::clone(theirs)])
    };
    a.zip(b)
        .enumerate()
        .map(|(index, (a, b))| {
            [mesh(index, a, &inboxes_a, &inboxes_b), mesh(index, b, &inboxes_b, &inboxes_a)]
        })
        .collect()
}

/// A handle to a link. Any thread may use the handle.
#[derive(Clone)]
pub struct LinkControl {
    shared: Arc<Shared>,
    /// The wires from the first end to the second, and from the second end to the first.
    wires: [Arc<Wire>; 2],
}

impl LinkControl {
    /// Connects or disconnects the cable for both ends. If one end was dropped, the link stays down for ever.
    pub fn set_up(&self, up: bool) {
        self.shared.set_plugged(up);
    }

    /// Removes the device of the first port, as if a NIC were unplugged. From then on the link of the second
    /// port is down.
    pub fn take_away_a(&self) {
        self.shared.take_away(0);
    }

    /// The faults so far of frames from the first port to the second.
    pub fn faults_a_to_b(&self) -> LinkFaults {
        self.wires[0].faults.snapshot()
    }

    /// The faults so far of frames from the second port to the first.
    pub fn faults_b_to_a(&self) -> LinkFaults {
        self.wires[1].faults.snapshot()
    }
}

impl std::fmt::Debug for LinkControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkControl")
            .field("a_to_b", &self.faults_a_to_b())
            .field("b_to_a", &self.faults_b_to_a())
            .finish()
    }
}
