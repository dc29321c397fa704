//! One end of a link as a [`Port`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::config::{LinkConfig, LinkTso};
use super::faults::{Fate, FaultGenerator};
use super::wire::{self, InFlight, Receiver, Sender, Wire};
use crate::{
    Burst, Checksum, LinkState, Mbuf, Mempool, Offloads, Port, PortCounters, PortInfo, Queue, TxOffload,
    checksum, tso,
};

/// Ethernet header and a VLAN tag: the most a frame has beside the IP packet.
const FRAME_OVERHEAD_BYTES: usize = 18;

/// Size of a large buffer.
const BULK_BYTES: usize = 32 << 10;

/// Smallest buffer of a link's pool, as is usual for devices.
const DATA_BYTES_MIN: usize = 2048;

/// Names of the ends and of their pools.
pub(super) const NAMES: [&str; 2] = ["link-a", "link-b"];

/// Size of a buffer of a link's pool, bytes.
pub(super) fn data_bytes(config: &LinkConfig) -> usize {
    (usize::from(config.mtu) + FRAME_OVERHEAD_BYTES).next_multiple_of(64).max(DATA_BYTES_MIN)
}

/// State shared by both ends.
pub(super) struct Shared {
    /// Whether the cable is connected.
    plugged: AtomicBool,
    /// Whether each end still exists: its port, and the device of it.
    present: [AtomicBool; 2],
    /// The wire from each end to the other.
    wires: [Wire; 2],
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            plugged: AtomicBool::new(true),
            present: [AtomicBool::new(true), AtomicBool::new(true)],
            wires: [Wire::new(), Wire::new()],
        }
    }

    pub(super) fn set_plugged(&self, up: bool) {
        self.plugged.store(up, Ordering::Release);
    }

    /// The device of this end is gone for good.
    pub(super) fn take_away(&self, end: usize) {
        self.present[end].store(false, Ordering::Release);
    }

    /// The wire for frames of end `from`.
    pub(super) fn wire(&self, from: usize) -> &Wire {
        // There are two.
        &self.wires[from & 1]
    }

    /// The link as this end finds it.
    fn state(&self, end: usize) -> LinkState {
        let present = |end: usize| self.present[end & 1].load(Ordering::Acquire);
        match (present(end), present(end ^ 1) && self.plugged.load(Ordering::Acquire)) {
            (false, _) => LinkState::Gone,
            (true, false) => LinkState::Down,
            (true, true) => LinkState::Up,
        }
    }
}

/// One end of a link.
pub(super) struct LinkPort {
    end: usize,
    shared: Arc<Shared>,
    info: PortInfo,
    pool: Mempool,
    bulk: Option<Mempool>,
    /// For copies of duplicated or corrupted frames: the pool of the end that receives them.
    peer_pool: Mempool,
    /// The faults of our direction; `None` if the plan has none.
    generator: Option<FaultGenerator>,
    delay_us: u64,
    reorder_us: u64,
    ring_frames: u64,
    checksum_offload: bool,
    tso: LinkTso,
    point_to_point: bool,
    /// Frames put on the wire, including copies and excluding lost ones.
    sent: u64,
    sender: Sender,
    receiver: Receiver,
    state: LinkState,
    counters: PortCounters,
}

impl LinkPort {
    pub(super) fn both(config: &LinkConfig, shared: &Arc<Shared>, pools: &[Mempool; 2]) -> [Self; 2] {
        let data_bytes = data_bytes(config);
        let plans = [&config.a_to_b, &config.b_to_a];
        let [(a_sender, b_receiver), (b_sender, a_receiver)] =
            plans.map(|plan| wire::ends(plan, config.ring_frames));
        [(0, a_sender, a_receiver), (1, b_sender, b_receiver)].map(|(end, sender, receiver)| {
            let ours = plans[end];
            Self {
                end,
                shared: Arc::clone(shared),
                info: PortInfo {
                    name: NAMES[end].to_owned(),
                    mac: [0x02, 0, 0, 0, 0, 0x0a + end as u8],
                    mtu: config.mtu,
                    offloads: config.offloads(),
                    tso: config.tso_limits,
                    queue: Queue::default(),
                },
                pool: pools[end].clone(),
                bulk: (config.bulk_mbufs > 0)
                    .then(|| Mempool::heap(NAMES[end], config.bulk_mbufs, BULK_BYTES.max(data_bytes))),
                peer_pool: pools[1 - end].clone(),
                generator: FaultGenerator::new(ours, config.seed, end as u64),
                delay_us: u64::from(ours.delay_us),
                reorder_us: u64::from(ours.reorder_us),
                ring_frames: config.ring_frames as u64,
                checksum_offload: config.checksum_offload,
                tso: config.tso,
                point_to_point: config.point_to_point,
                sent: 0,
                sender,
                receiver,
                state: LinkState::Up,
                counters: PortCounters::default(),
            }
        })
    }

    /// Updates the link state.
    fn update_link(&mut self) -> LinkState {
        let state = self.shared.state(self.end);
        if state != self.state {
            self.state = state;
            self.counters.link_changes += 1;
        }
        state
    }

    /// Number of frames that the port makes of this one: 1 if it is not cut.
    fn pieces(&self, frame: &Mbuf) -> u64 {
        if self.tso == LinkTso::Cut { tso::pieces(frame) as u64 } else { 1 }
    }

    /// Sends one frame, cut if the port does that; the caller has checked that it fits the ring.
    #[inline]
    fn send(&mut self, now_us: u64, frame: Mbuf) {
        if frame.tx_offload().tso_segment_bytes > 0 {
            return self.send_large(now_us, frame);
        }
        self.send_one(now_us, frame);
    }

    /// Sends one frame that asks to be cut.
    fn send_large(&mut self, now_us: u64, frame: Mbuf) {
        if !self.info.tso.allow(&frame) {
            self.counters.tx_dropped += 1;
            return;
        }
        if self.pieces(&frame) == 1 {
            return self.send_one(now_us, frame);
        }
        let pool = self.peer_pool.clone();
        tso::cut(&frame, &pool, |piece| match piece {
            Some(piece) => self.send_one(now_us, piece),
            None => self.shared.wire(self.end).faults.no_mbuf.increment(),
        });
    }

    #[inline(always)]
    fn send_one(&mut self, now_us: u64, frame: Mbuf) {
        let bytes = frame.len();
        if bytes > usize::from(self.info.mtu) + FRAME_OVERHEAD_BYTES && !self.passes_whole(&frame) {
            self.counters.tx_dropped += 1;
            return;
        }
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += bytes as u64;
        match &mut self.generator {
            None => self.put(now_us, self.delay_us, frame),
            Some(generator) => {
                let fate = generator.next();
                self.put_with(fate, now_us, frame);
            }
        }
    }

    /// Whether a frame longer than the MTU may pass.
    fn passes_whole(&self, frame: &Mbuf) -> bool {
        self.info.offloads.contains(Offloads::TX_TSO) && frame.tx_offload().tso_segment_bytes > 0
    }

    /// Puts a frame on the wire, which takes it `wait_us`.
    #[inline(always)]
    fn put(&mut self, now_us: u64, wait_us: u64, mut frame: Mbuf) {
        let wire = self.shared.wire(self.end);
        if frame.has_external() {
            // A frame on the wire has its own bytes, as behind a device.
            let Some(copy) = frame.deep_copy(&self.peer_pool) else {
                return wire.faults.no_mbuf.increment();
            };
            frame = copy;
        }
        let partial = self.checksum_offload && frame.tx_offload().tcp_checksum;
        frame.set_rx_checksum(if partial { Checksum::Partial } else { Checksum::Unknown });
        frame.set_tx_offload(TxOffload::default());
        self.sender.push(wire, InFlight { due_us: now_us + wait_us, at_once: wait_us == 0, frame });
        self.sent += 1;
    }

    /// Puts a frame on the wire with its faults.
    fn put_with(&mut self, fate: Fate, now_us: u64, mut frame: Mbuf) {
        let Fate { lost, duplicated, held, corrupted } = fate;
        let faults = &self.shared.wire(self.end).faults;
        if lost {
            return faults.lost.increment();
        }
        if let Some(which) = corrupted {
            let Some(copy) = corrupt(&frame, which, &self.peer_pool) else {
                return faults.no_mbuf.increment();
            };
            frame = copy;
            faults.corrupted.increment();
        }
        if held {
            faults.reordered.increment();
        }
        let copy = duplicated.then(|| frame.deep_copy(&self.peer_pool));
        let wait_us = self.delay_us + if held { self.reorder_us } else { 0 };
        self.put(now_us, wait_us, frame);
        match copy {
            Some(Some(copy)) => {
                self.put(now_us, wait_us, copy);
                self.shared.wire(self.end).faults.duplicated.increment();
            }
            Some(None) => self.shared.wire(self.end).faults.no_mbuf.increment(),
            None => {}
        }
    }
}

/// A copy of `frame` with one bit flipped, selected by `which`. Its checksum is completed first: the
/// receiver takes a partial one as good, and would miss the corruption.
fn corrupt(frame: &Mbuf, which: u32, pool: &Mempool) -> Option<Mbuf> {
    let mut copy = frame.deep_copy(pool)?;
    let partial = copy.tx_offload().tcp_checksum;
    if let Some(bytes) = copy.head_mut()
        && !bytes.is_empty()
    {
        if partial {
            checksum::complete(bytes);
        }
        let bit = which as usize % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    copy.set_tx_offload(TxOffload::default());
    Some(copy)
}

impl Port for LinkPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn mempool(&self) -> &Mempool {
        &self.pool
    }

    fn bulk_mempool(&self) -> Option<&Mempool> {
        self.bulk.as_ref()
    }

    fn is_point_to_point(&self) -> bool {
        self.point_to_point
    }

    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        if self.shared.state(self.end) == LinkState::Gone {
            return 0;
        }
        let Self { shared, end, receiver, counters, .. } = self;
        let wire = shared.wire(*end ^ 1);
        let taken = receiver.receive(wire, now_us, frames.remaining_capacity(), |frame| {
            counters.rx_bytes += frame.len() as u64;
            frames.push(frame);
        });
        counters.rx_frames += taken as u64;
        taken
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        if self.update_link() != LinkState::Up {
            let taken = frames.len();
            self.counters.tx_link_down += taken as u64;
            frames.clear();
            return taken;
        }
        let in_flight = self.sent - self.shared.wire(self.end).delivered();
        let mut room = self.ring_frames.saturating_sub(in_flight);
        let fits = |frame: &&Mbuf| {
            let left = room.checked_sub(self.pieces(frame));
            room = left.unwrap_or(room);
            left.is_some()
        };
        let taken = if self.tso == LinkTso::Cut {
            frames.iter().take_while(fits).count()
        } else {
            // A place for each.
            frames.len().min(usize::try_from(room).unwrap_or(usize::MAX))
        };
        self.counters.tx_ring_full += (frames.len() - taken) as u64;
        for frame in frames.drain(..taken) {
            self.send(now_us, frame);
        }
        taken
    }

    fn link_state(&mut self) -> LinkState {
        self.update_link()
    }

    fn counters(&self) -> PortCounters {
        let no_mbuf = self.shared.wire(1 - self.end).faults.snapshot().no_mbuf;
        PortCounters { rx_no_mbuf: no_mbuf, ..self.counters }
    }

    fn next_due_us(&self) -> Option<u64> {
        self.receiver.next_due_us(self.shared.wire(1 - self.end))
    }
}

impl Drop for LinkPort {
    fn drop(&mut self) {
        self.shared.take_away(self.end);
    }
}
