//! A [`Port`] that uses one pair of queues of a device.
//!
//! The port counts each error and continues. If a ring is full, frames are left in the caller's burst. While
//! the link is down or a vhost peer has ended, frames to send are dropped. If the pool is empty, the port
//! receives nothing until buffers are returned.

use std::cell::Cell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use dpdk_sys as sys;

use super::device::{Device, QueuePools};
use super::fit::Fit;
use super::interrupt::RxInterrupt;
use super::rx_limit::RxLimit;
use super::stats::{self, Basic};
use crate::eal::{is_forked, register_thread};
use crate::mbuf::Raw;
use crate::mbuf::dpdk::DpdkChain;
use crate::mempool::Backend;
use crate::port::DeviceStats;
use crate::{
    BURST, Below, Burst, Link, LinkState, Mbuf, Mempool, Offloads, Port, PortBase, PortCounters, PortInfo,
    PortLayer, Queue, Sleep, Statistics, tso,
};

/// Number of attempts to send on a full ring between two checks of the link state. A check may need a system
/// call.
const FULL_TRIES_PER_LINK_CHECK: u32 = 64;

/// Number of buffers that a vhost device allocates at once for reception (`VHOST_MAX_PKT_BURST` of its
/// driver).
const VHOST_BURST: usize = 32;

pub(super) struct QueuePort {
    /// This field is dropped before the device: an interrupt can be used only while its device is started.
    interrupt: Option<RxInterrupt>,
    /// Frames that the last poll before a sleep has found. The next receive call returns these frames first.
    ahead: Burst,
    /// The time of the last poll, by the clock of the port's user.
    polled_us: u64,
    device: Arc<Device>,
    queue: u16,
    base: PortBase,
    /// The device's counts at the last query.
    device_counts: Cell<Basic>,
    link: LinkState,
    passes_large_frames: bool,
    rx_limit: RxLimit,
    /// Number of consecutive attempts to send on a full ring.
    full_tries: u32,
}

impl QueuePort {
    pub(super) fn new(device: Arc<Device>, queue: u16, info: PortInfo) -> Self {
        let QueuePools { pool, bulk } = device.pools[usize::from(queue)].clone();
        let mempool = Mempool { backend: Backend::Dpdk(pool) };
        let bulk_mempool = bulk.map(|pool| Mempool { backend: Backend::Dpdk(pool) });
        let info = PortInfo { queue: Queue { index: queue, ..info.queue.clone() }, ..info };
        let mut port = Self {
            interrupt: device.interrupt(queue),
            ahead: Burst::new(),
            polled_us: 0,
            device,
            queue,
            base: PortBase { bulk_mempool, ..PortBase::new(info, mempool) },
            device_counts: Cell::default(),
            link: LinkState::Down,
            passes_large_frames: false,
            rx_limit: RxLimit::new(),
            full_tries: 0,
        };
        port.link = port.ask_link();
        port.passes_large_frames = port.device.passes_large_frames();
        port
    }

    fn ask_link(&self) -> LinkState {
        if self.device.is_gone() {
            return LinkState::Gone;
        }
        // SAFETY: all-zero bytes are valid for this C struct of numbers.
        let mut link: sys::rte_eth_link = unsafe { mem::zeroed() };
        // SAFETY: `device` keeps the port open, and `link` is a writable local variable.
        let done = unsafe { sys::rte_eth_link_get_nowait(self.device.port_id, &mut link) };
        let says_up = done == 0 && u32::from(link.link_status()) == sys::RTE_ETH_LINK_UP;
        if says_up && self.device.is_connected() { LinkState::Up } else { LinkState::Down }
    }

    fn check_link(&mut self) -> LinkState {
        let link = self.ask_link();
        if link != self.link {
            self.link = link;
            self.base.counters.link_changes += 1;
        }
        if link == LinkState::Gone {
            self.passes_large_frames = false;
            return link;
        }
        // The peer may have changed since the last call, so this value is read each time.
        self.passes_large_frames = self.device.passes_large_frames();
        link
    }

    fn fit(&self, frame: &Mbuf) -> Fit {
        let Some(chain) = frame.as_dpdk() else {
            return match self.device.limits.fit(frame.len(), 1, 0, || 0) {
                Fit::Never => Fit::Never,
                Fit::AsIs | Fit::Copy => Fit::Copy,
            };
        };
        let wants_offload = chain.wants_offload();
        let cut_at = if wants_offload { chain.tx_offload().tso_segment_bytes } else { 0 };
        let longest = || chain.longest_segment();
        match self.device.limits.fit(chain.len(), chain.segment_count(), cut_at, longest) {
            // Drivers write to the headers of frames with offloads, so shared headers are copied first.
            Fit::AsIs if wants_offload && chain.is_head_shared() => Fit::Copy,
            Fit::AsIs if !self.base.info.offloads.contains(Offloads::TX_EXTERNAL) && frame.has_external() => {
                Fit::Copy
            }
            fit => fit,
        }
    }

    fn receive(&mut self, frames: &mut Burst) -> usize {
        register_thread();
        let room = frames.remaining_capacity().min(self.rx_limit.frames());
        let mut raw = [const { MaybeUninit::<NonNull<sys::rte_mbuf>>::uninit() }; BURST];
        // SAFETY: `device` keeps the port started, and `&mut self` is the only user of the port's queue.
        // `raw` has room for `room` pointers: `raw` is as long as a `Burst`, and `room` is at most the number
        // of free elements of a `Burst`.
        let count = unsafe {
            sys::rte_eth_rx_burst(self.device.port_id, self.queue, raw.as_mut_ptr().cast(), room as u16)
                as usize
        };
        if count == 0 {
            if self.device.lacks_rx_no_mbuf_count
                && room > 0
                && self.device.pools[usize::from(self.queue)].pool.is_low(room.min(VHOST_BURST))
            {
                self.base.counters.rx_no_mbuf += 1;
            }
            return 0;
        }
        let mut bytes = 0;
        for raw in &raw[..count] {
            // SAFETY: rx_burst has written the first `count` pointers, and none is null.
            let raw = unsafe { raw.assume_init() };
            // SAFETY: rx_burst returns `count` well-formed chains, which this function now owns. The chains
            // are from the pool with which the queue was set up, and `DpdkPool::new` has made this pool.
            let chain = unsafe { DpdkChain::from_raw(raw) };
            bytes += chain.len();
            frames.push(Mbuf::from_raw(Raw::Dpdk(chain)));
        }
        self.rx_limit.received(count, bytes);
        self.base.counters.rx_frames += count as u64;
        self.base.counters.rx_bytes += bytes as u64;
        count
    }

    /// Copies the frame into buffers that the device can send. Returns `None` if too few buffers are free, or
    /// if the copy would have more buffers than the device can send.
    fn copy(&self, frame: &Mbuf) -> Option<Mbuf> {
        self.device.limits.copy(frame, &self.base.mempool, self.base.bulk_mempool.as_ref())
    }

    /// Copies frames that the device cannot send unchanged, and drops frames that cannot be copied or that
    /// the device cannot send at all. After the call, all frames are in DPDK buffers. Returns whether any
    /// frame requests an offload.
    fn make_sendable(&mut self, frames: &mut Burst) -> bool {
        let mut wants_offload = false;
        let mut at = 0;
        while at < frames.len() {
            let ready = match self.fit(&frames[at]) {
                Fit::AsIs => true,
                Fit::Never => false,
                Fit::Copy => match self.copy(&frames[at]) {
                    Some(copy) => {
                        frames[at] = copy;
                        true
                    }
                    None => false,
                },
            };
            if ready {
                wants_offload |= frames[at].as_dpdk().is_some_and(DpdkChain::wants_offload);
                at += 1;
            } else {
                frames.remove(at);
                self.base.counters.tx_dropped += 1;
            }
        }
        wants_offload
    }

    /// Sends the frames that the device accepts. If the ring is full, the other frames are left in `frames`.
    /// A frame whose offloads the driver refuses is sent without offloads ([`send_plain`](Self::send_plain)).
    fn send(&mut self, frames: &mut Burst, wants_offload: bool) {
        let (port, queue) = (self.device.port_id, self.queue);
        while !frames.is_empty() {
            let mut raw = [ptr::null_mut(); BURST];
            let mut bytes = [0; BURST];
            for ((raw, bytes), frame) in raw.iter_mut().zip(&mut bytes).zip(frames.iter()) {
                // `make_sendable` has left only frames in DPDK buffers.
                *raw = frame.as_dpdk().map_or(ptr::null_mut(), DpdkChain::as_raw);
                *bytes = frame.len();
            }
            let given = frames.len() as u16;
            let ready = if wants_offload {
                // SAFETY: `device` keeps the port started, and `&mut self` is the only user of the port's
                // queue. The array starts with `given` chains that `frames` owns and no other code accesses.
                // The call may write to the headers of these chains, since `make_sendable` has copied frames
                // with shared headers.
                unsafe { sys::rte_eth_tx_prepare(port, queue, raw.as_mut_ptr(), given) }
            } else {
                given
            };
            // SAFETY: `device` keeps the port started, and `&mut self` is the only user of the port's queue.
            // The array starts with at least `ready` chains that `frames` owns. The call takes over only the
            // first `sent` chains, which are forgotten below.
            let sent = unsafe { sys::rte_eth_tx_burst(port, queue, raw.as_mut_ptr(), ready) };
            frames.drain(..usize::from(sent)).for_each(mem::forget);
            self.base.counters.tx_frames += u64::from(sent);
            self.base.counters.tx_bytes += bytes[..usize::from(sent)].iter().sum::<usize>() as u64;
            if sent < ready {
                return;
            }
            if ready < given {
                // The driver does not support the offloads of this frame.
                let refused = frames.remove(0);
                self.send_plain(&refused);
            }
        }
    }

    /// Sends a TCP frame without offloads: cuts the frame into pieces in one buffer each, and computes the
    /// checksums of the pieces. If there is no free buffer or descriptor for a piece, the piece is dropped. A
    /// frame that requests no TCP checksum, or does not state the length of its TCP header, is dropped.
    #[cold]
    fn send_plain(&mut self, frame: &Mbuf) {
        let offload = frame.tx_offload();
        if !offload.tcp_checksum || offload.l4_bytes == 0 {
            self.base.counters.tx_dropped += 1;
            return;
        }
        let (port, queue) = (self.device.port_id, self.queue);
        let pool = self.base.mempool.clone();
        tso::cut(frame, &pool, |piece| {
            let Some(Raw::Dpdk(piece)) = piece.map(Mbuf::into_raw) else {
                self.base.counters.tx_dropped += 1;
                return;
            };
            let bytes = piece.len();
            let mut raw = piece.as_raw();
            // SAFETY: `device` keeps the port started, and `&mut self` is the only user of the port's queue.
            // `piece` owns the chain. If the call returns 1, the driver has taken over the chain, and `piece`
            // is forgotten.
            if unsafe { sys::rte_eth_tx_burst(port, queue, &raw mut raw, 1) } == 1 {
                mem::forget(piece);
                self.base.counters.tx_frames += 1;
                self.base.counters.tx_bytes += bytes as u64;
            } else {
                self.base.counters.tx_dropped += 1;
            }
        });
    }
}

impl PortLayer for QueuePort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for QueuePort {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.polled_us = now_us;
        if is_forked() || self.device.is_gone() {
            return 0;
        }
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(frames.remaining_capacity());
            frames.extend(self.ahead.drain(..count));
            return count;
        }
        self.receive(frames)
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let given = frames.len();
        if given == 0 {
            return 0;
        }
        if is_forked() {
            self.base.counters.tx_dropped += given as u64;
            frames.clear();
            return given;
        }
        register_thread();
        if self.device.is_gone() {
            self.check_link();
        }
        if self.link == LinkState::Up || self.check_link() == LinkState::Up {
            let wants_offload = self.make_sendable(frames);
            self.send(frames, wants_offload);
            if frames.is_empty() {
                self.full_tries = 0;
                return given;
            }
            // Perhaps the peer has ended and will never empty the ring.
            if self.full_tries.is_multiple_of(FULL_TRIES_PER_LINK_CHECK) {
                self.check_link();
            }
            self.full_tries = self.full_tries.wrapping_add(1);
        }
        match self.link {
            LinkState::Up => self.base.counters.tx_ring_full += frames.len() as u64,
            LinkState::Down | LinkState::Gone => {
                self.base.counters.tx_link_down += frames.len() as u64;
                frames.clear();
            }
        }
        given - frames.len()
    }

    fn set_groups(&mut self, groups: &[IpAddr]) -> io::Result<()> {
        match &self.device.group_list {
            Some(list) if !is_forked() && !self.device.is_gone() => {
                list.set_joined(self.device.port_id, self.queue, groups).map_err(io::Error::from_raw_os_error)
            }
            _ => Ok(()),
        }
    }
}

impl Link for QueuePort {
    fn link_state(&mut self) -> LinkState {
        if is_forked() { LinkState::Down } else { self.check_link() }
    }

    fn passes_large_frames(&self) -> bool {
        self.passes_large_frames
    }
}

impl Statistics for QueuePort {
    fn counters(&self) -> PortCounters {
        // The counts are of the whole device, so only the device's first queue reports them.
        if self.queue == 0
            && let Some(stats) = self.device.basic_stats()
        {
            self.device_counts.set(stats);
        }
        let Basic { missed, errors, no_mbuf } = self.device_counts.get();
        let mut counters = self.base.counters;
        counters.rx_dropped += missed + errors;
        counters.rx_missed += missed;
        counters.rx_errors += errors;
        counters.rx_no_mbuf += no_mbuf;
        counters
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        Some(stats::of(&self.device))
    }
}

impl Sleep for QueuePort {
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        if is_forked() { None } else { self.interrupt.as_ref().map(RxInterrupt::epoll) }
    }

    fn arm_wakeup(&mut self) -> bool {
        if is_forked() {
            return true;
        }
        let Some(interrupt) = &mut self.interrupt else { return true };
        if !interrupt.arm(self.base.counters.rx_frames)
            || self.device.pools[usize::from(self.queue)].pool.is_low(VHOST_BURST)
        {
            // Without free buffers the following poll would find no frames, and no further event would report
            // the waiting frames.
            return false;
        }
        if self.ahead.is_empty() {
            let mut ahead = Burst::new();
            self.receive(&mut ahead);
            self.ahead = ahead;
        }
        self.ahead.is_empty()
    }

    fn disarm_wakeup(&mut self) {
        if let Some(interrupt) = &mut self.interrupt
            && !is_forked()
        {
            interrupt.disarm();
        }
    }

    fn next_due_us(&self) -> Option<u64> {
        self.interrupt.as_ref().and_then(|interrupt| interrupt.next_look_us(self.polled_us))
    }
}
