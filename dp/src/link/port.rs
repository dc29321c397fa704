//! A [`Port`] that is one queue of one end of a link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::config::{LinkConfig, LinkTso};
use super::faults::{FaultGenerator, FrameFaults};
use super::steering::Wires;
use super::wire::{InFlight, Sender};
use crate::{
    Below, Burst, Checksum, Link, LinkState, Mbuf, Mempool, Offloads, Port, PortBase, PortCounters, PortInfo,
    PortLayer, Queue, Sleep, Statistics, TxOffload, checksum, tso,
};

/// Number of bytes of an Ethernet header with a VLAN tag: a frame is at most this much longer than its IP
/// packet.
const FRAME_OVERHEAD_BYTES: usize = 18;

/// Minimum number of bytes of a large buffer.
const BULK_BYTES: usize = 32 << 10;

/// Minimum number of bytes of a buffer in a link's pool. Devices usually have the same minimum.
const DATA_BYTES_MIN: usize = 2048;

/// The names of the ends and of their pools.
pub(super) const NAMES: [&str; 2] = ["link-a", "link-b"];

/// Number of bytes of a buffer in a link's pool.
pub(super) fn data_bytes(config: &LinkConfig) -> usize {
    (usize::from(config.mtu) + FRAME_OVERHEAD_BYTES).next_multiple_of(64).max(DATA_BYTES_MIN)
}

/// The state that the two ends of a link share.
pub(super) struct Shared {
    /// `true` if the cable is connected.
    plugged: AtomicBool,
    /// Number of queues of each end that are not dropped. 0 if the device of the end was removed.
    present: [AtomicUsize; 2],
}

impl Shared {
    /// Makes the state of a link whose ends have this number of queues.
    pub(super) fn new(queues: usize) -> Self {
        Self { plugged: AtomicBool::new(true), present: [AtomicUsize::new(queues), AtomicUsize::new(queues)] }
    }

    pub(super) fn set_plugged(&self, up: bool) {
        self.plugged.store(up, Ordering::Release);
    }

    pub(super) fn take_away(&self, end: usize) {
        self.present[end].store(0, Ordering::Release);
    }

    /// Removes one port of this end, since the port is being dropped.
    fn leave(&self, end: usize) {
        let one_less = |queues: usize| queues.checked_sub(1);
        // The count may already be 0, if the device was removed before.
        let _left = self.present[end].fetch_update(Ordering::Release, Ordering::Relaxed, one_less);
    }

    /// Whether this end has ports and its device was not removed.
    #[inline]
    fn is_present(&self, end: usize) -> bool {
        // `end` is 0 or 1, so `& 1` does not change it. With `& 1` the index is always in bounds.
        self.present[end & 1].load(Ordering::Acquire) > 0
    }

    /// The link state that this end sees.
    #[inline]
    fn state(&self, end: usize) -> LinkState {
        if self.is_present(end) && self.is_present(end ^ 1) && self.plugged.load(Ordering::Acquire) {
            LinkState::Up
        } else if self.is_present(end) {
            LinkState::Down
        } else {
            LinkState::Gone
        }
    }
}

/// One queue of one end of a link.
pub(super) struct LinkPort<W: Wires> {
    end: usize,
    shared: Arc<Shared>,
    base: PortBase,
    /// Decides the faults of the frames that this port sends. `None` if the plan has no faults.
    generator: Option<FaultGenerator>,
    delay_us: u64,
    reorder_us: u64,
    checksum_offload: bool,
    tso: LinkTso,
    wires: W,
    state: LinkState,
}

impl<W: Wires> LinkPort<W> {
    /// Makes the port of `queue` of end `end` (0 or 1), with its pool and its wires.
    pub(super) fn new(
        config: &LinkConfig,
        shared: &Arc<Shared>,
        (end, queue): (usize, Queue),
        pool: &Mempool,
        wires: W,
    ) -> Self {
        let plan = if end == 0 { &config.a_to_b } else { &config.b_to_a };
        // Each queue of each end has its own stream of random numbers.
        let stream = (2 * usize::from(queue.index) + end) as u64;
        let mut offloads = config.offloads();
        offloads.set(Offloads::RX_RSS, queue.rss.is_some());
        let info = PortInfo {
            tso: config.tso_limits,
            queue,
            point_to_point: config.point_to_point,
            ..PortInfo::new(NAMES[end], [0x02, 0, 0, 0, 0, 0x0a + end as u8], config.mtu, offloads)
        };
        let bulk = || Mempool::heap(NAMES[end], config.bulk_mbufs, BULK_BYTES.max(data_bytes(config)));
        let bulk_mempool = (config.bulk_mbufs > 0).then(bulk);
        Self {
            end,
            shared: Arc::clone(shared),
            base: PortBase { bulk_mempool, ..PortBase::new(info, pool.clone()) },
            generator: FaultGenerator::new(plan, config.seed, stream),
            delay_us: u64::from(plan.delay_us),
            reorder_us: u64::from(plan.reorder_us),
            checksum_offload: config.checksum_offload,
            tso: config.tso,
            wires,
            state: LinkState::Up,
        }
    }

    #[inline]
    fn update_link(&mut self) -> LinkState {
        let state = self.shared.state(self.end);
        if state != self.state {
            self.link_changed(state);
        }
        state
    }

    #[cold]
    fn link_changed(&mut self, state: LinkState) {
        self.state = state;
        self.base.counters.link_changes += 1;
    }

    /// Number of pieces into which the port cuts this frame. 1 if the frame is not cut.
    fn pieces(&self, frame: &Mbuf) -> u64 {
        if self.tso == LinkTso::Cut { tso::pieces(frame) as u64 } else { 1 }
    }

    /// Returns the number of frames, from the first of `frames` on, for which the wire has room. The result
    /// is at most `run`.
    #[inline]
    fn fitting(&self, wire: usize, frames: &Burst, run: usize) -> usize {
        let mut room = self.wires.sender(wire).room();
        if self.tso != LinkTso::Cut {
            // Each frame needs one place in the ring.
            return run.min(usize::try_from(room).unwrap_or(usize::MAX));
        }
        let fits = |frame: &&Mbuf| {
            let left = room.checked_sub(self.pieces(frame));
            room = left.unwrap_or(room);
            left.is_some()
        };
        frames[..run].iter().take_while(fits).count()
    }

    /// Sends one frame. If the frame requests to be cut and the port cuts frames, sends the pieces. Drops the
    /// frame if it exceeds the limits of the port. The caller has checked that the wire has room.
    #[inline]
    fn send(&mut self, wire: usize, now_us: u64, frame: Mbuf) {
        if frame.tx_offload().tso_segment_bytes > 0 {
            return self.send_large(wire, now_us, frame);
        }
        self.send_one(wire, now_us, frame);
    }

    /// Sends one frame that requests to be cut. Drops the frame if it exceeds the limits of the port.
    fn send_large(&mut self, wire: usize, now_us: u64, frame: Mbuf) {
        if !self.base.info.tso.allow(&frame) {
            self.base.counters.tx_dropped += 1;
            return;
        }
        if self.pieces(&frame) == 1 {
            return self.send_one(wire, now_us, frame);
        }
        let pool = self.wires.sender(wire).pool.clone();
        tso::cut(&frame, &pool, |piece| match piece {
            Some(piece) => self.send_one(wire, now_us, piece),
            None => self.wires.sender(wire).no_mbuf(),
        });
    }

    #[inline(always)]
    fn send_one(&mut self, wire: usize, now_us: u64, frame: Mbuf) {
        let bytes = frame.len();
        if bytes > usize::from(self.base.info.mtu) + FRAME_OVERHEAD_BYTES && !self.passes_whole(&frame) {
            self.base.counters.tx_dropped += 1;
            return;
        }
        self.base.counters.tx_frames += 1;
        self.base.counters.tx_bytes += bytes as u64;
        match &mut self.generator {
            None => self.put(wire, now_us, self.delay_us, frame),
            Some(generator) => {
                let faults = generator.next();
                self.put_with(faults, wire, now_us, frame);
            }
        }
    }

    /// Whether this frame may be longer than the MTU.
    fn passes_whole(&self, frame: &Mbuf) -> bool {
        self.base.info.offloads.contains(Offloads::TX_TSO) && frame.tx_offload().tso_segment_bytes > 0
    }

    /// Puts a frame on the wire. The frame arrives after `wait_us` microseconds. A frame with external memory
    /// is copied, and is lost if no buffer is free for the copy.
    #[inline(always)]
    fn put(&mut self, wire: usize, now_us: u64, wait_us: u64, mut frame: Mbuf) {
        let wire = self.wires.sender_mut(wire);
        if frame.has_external() {
            // The frame may refer to memory that later changes. A frame that a device has sent cannot change,
            // so a copy of the frame is put on the wire.
            let Some(copy) = frame.deep_copy(&wire.pool) else { return wire.no_mbuf() };
            frame = copy;
        }
        let partial = self.checksum_offload && frame.tx_offload().tcp_checksum;
        frame.set_rx_checksum(if partial { Checksum::Partial } else { Checksum::Unknown });
        frame.set_tx_offload(TxOffload::default());
        wire.push(InFlight { due_us: now_us + wait_us, at_once: wait_us == 0, frame });
    }

    /// Applies the faults of a frame, and puts the frame on the wire unless the frame is lost.
    fn put_with(&mut self, faults: FrameFaults, wire: usize, now_us: u64, mut frame: Mbuf) {
        let FrameFaults { lost, duplicated, held, corrupted } = faults;
        let Sender { wire: shared, pool, .. } = self.wires.sender(wire);
        let faults = &shared.faults;
        if lost {
            return faults.lost.increment();
        }
        if let Some(which) = corrupted {
            let Some(copy) = corrupt(&frame, which, pool) else {
                return faults.no_mbuf.increment();
            };
            frame = copy;
            faults.corrupted.increment();
        }
        if held {
            faults.reordered.increment();
        }
        let copy = duplicated.then(|| frame.deep_copy(pool));
        let wait_us = self.delay_us + if held { self.reorder_us } else { 0 };
        self.put(wire, now_us, wait_us, frame);
        match copy {
            Some(Some(copy)) => {
                self.put(wire, now_us, wait_us, copy);
                self.wires.sender(wire).wire.faults.duplicated.increment();
            }
            Some(None) => self.wires.sender(wire).no_mbuf(),
            None => {}
        }
    }
}

/// Makes a copy of `frame`, and flips the bit that `which` selects in the copy's first buffer. A partial
/// checksum is filled in first: otherwise the receiver would trust the partial checksum, and would not notice
/// the corruption. Returns `None` if `pool` has too few buffers.
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

impl<W: Wires> PortLayer for LinkPort<W> {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl<W: Wires> Port for LinkPort<W> {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        if !self.shared.is_present(self.end) {
            return 0;
        }
        let Self { wires, base: PortBase { counters, .. }, .. } = self;
        let taken = wires.receive(now_us, frames.remaining_capacity(), |frame| {
            counters.rx_bytes += frame.len() as u64;
            frames.push(frame);
        });
        counters.rx_frames += taken as u64;
        taken
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let count = frames.len();
        if self.update_link() != LinkState::Up {
            self.base.counters.tx_link_down += count as u64;
            frames.clear();
            return count;
        }
        while !frames.is_empty() {
            let (wire, run) = self.wires.choose(frames);
            let taken = self.fitting(wire, frames, run);
            for frame in frames.drain(..taken) {
                self.send(wire, now_us, frame);
            }
            if taken == run {
                continue;
            }
            if !self.wires.sender(wire).is_abandoned() {
                self.base.counters.tx_ring_full += frames.len() as u64;
                break;
            }
            // The receiving queue of this wire was dropped.
            self.base.counters.tx_dropped += frames.drain(..run - taken).count() as u64;
        }
        self.wires.flush();
        count - frames.len()
    }
}

impl<W: Wires> Link for LinkPort<W> {
    fn link_state(&mut self) -> LinkState {
        self.update_link()
    }
}

impl<W: Wires> Statistics for LinkPort<W> {
    fn counters(&self) -> PortCounters {
        let no_mbuf = self.wires.receivers().iter().map(|from| from.wire.faults.snapshot().no_mbuf).sum();
        PortCounters { rx_no_mbuf: no_mbuf, ..self.base.counters }
    }
}

impl<W: Wires> Sleep for LinkPort<W> {
    fn next_due_us(&self) -> Option<u64> {
        self.wires.next_due_us()
    }
}

impl<W: Wires> Drop for LinkPort<W> {
    fn drop(&mut self) {
        self.shared.leave(self.end);
    }
}
