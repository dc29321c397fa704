//! Frames of a port to itself.
//!
//! Usually a device does not deliver a frame to the port that has sent the frame. [`Loopback`] wraps a port
//! and delivers such frames. A frame to the port's own Ethernet address is not passed to the device: the port
//! receives this frame in one of the next bursts. So both endpoints of a connection may be on one port. With
//! [`Loopback::of_address`], only packets to one IP address are treated in this way.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::{
    Below, Burst, Checksum, Link, Mbuf, Offloads, Port, PortBase, PortCounters, PortInfo, PortLayer, Sleep,
    Statistics, TxOffload,
};

/// Maximum number of queued frames from the port to itself. If the queue is full, the sender keeps further
/// frames, as with a full ring.
const QUEUE_FRAMES: usize = 1024;

/// Maximum number of bytes of returned frames in one burst. The last returned frame may exceed this limit.
/// With the limit, the bytes are usually still in the core's cache when they are placed.
const RX_BYTES: usize = 256 << 10;

/// A port that receives the frames that it sends to itself.
pub struct Loopback {
    port: Box<dyn Port>,
    /// If set, only packets to this address are returned: see [`Loopback::of_address`].
    address: Option<IpAddr>,
    /// The description of `port`, without the offload of IPv4 header checksums: no device could fill in the
    /// checksum of a returned frame.
    info: PortInfo,
    queue: VecDeque<Mbuf>,
    now_us: u64,
    /// Counts the returned frames.
    counters: PortCounters,
}

impl Loopback {
    /// Wraps `port`, whose Ethernet address no other port of the host has.
    pub fn new(port: Box<dyn Port>) -> Self {
        let mut info = port.info().clone();
        info.offloads.remove(Offloads::TX_IPV4_CHECKSUM);
        let queue = VecDeque::with_capacity(QUEUE_FRAMES);
        Self { port, address: None, info, queue, now_us: 0, counters: PortCounters::default() }
    }

    /// Wraps `port`, which shares its Ethernet address with other ports of the host. Only packets to
    /// `address` are returned. All other frames are passed to `port`.
    pub fn of_address(port: Box<dyn Port>, address: IpAddr) -> Self {
        Self { address: Some(address), ..Self::new(port) }
    }

    #[inline]
    fn is_to_us(&self, frame: &Mbuf) -> bool {
        let mut destination = [0; 6];
        let is_to_mac =
            frame.copy_to(0, &mut destination) == destination.len() && destination == self.info.mac;
        is_to_mac && self.address.is_none_or(|address| is_packet_to(frame, address))
    }

    /// Sends a burst that has frames to this port. Returns the number of accepted frames.
    #[cold]
    fn send_mixed(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let count = frames.len();
        let mut to_others = Burst::new();
        let mut left = Burst::new();
        for frame in frames.drain(..) {
            if !left.is_empty() {
                left.push(frame);
            } else if !self.is_to_us(&frame) {
                to_others.push(frame);
            } else if let Some(refused) = self.return_frame(frame) {
                self.counters.tx_ring_full += 1;
                left.push(refused);
            }
        }
        self.port.tx_burst(now_us, &mut to_others);
        // The order between returned frames and frames to other hosts does not matter.
        frames.extend(to_others);
        frames.extend(left);
        count - frames.len()
    }

    /// Queues a frame that this port will receive. Returns the frame if the queue is full, or if no buffer is
    /// free for a copy.
    fn return_frame(&mut self, mut frame: Mbuf) -> Option<Mbuf> {
        if self.queue.len() == QUEUE_FRAMES {
            return Some(frame);
        }
        if frame.has_external() {
            // A user may change external memory, but the bytes of a received frame must not change.
            let Some(copy) = frame.deep_copy(self.port.mempool()) else { return Some(frame) };
            frame = copy;
        }
        let is_partial = frame.tx_offload().tcp_checksum;
        frame.set_rx_checksum(if is_partial { Checksum::Partial } else { Checksum::Unknown });
        frame.set_tx_offload(TxOffload::default());
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += frame.len() as u64;
        self.queue.push_back(frame);
        None
    }
}

/// Whether a frame contains an IP packet to `address` and has no VLAN tag.
fn is_packet_to(frame: &Mbuf, address: IpAddr) -> bool {
    let mut start = [0; 54];
    let copied = frame.copy_to(0, &mut start);
    let start = &start[..copied];
    let has = |at: usize, bytes: &[u8]| start.get(at..at + bytes.len()) == Some(bytes);
    match address {
        IpAddr::V4(address) => has(12, &[0x08, 0x00]) && has(30, &address.octets()),
        IpAddr::V6(address) => has(12, &[0x86, 0xdd]) && has(38, &address.octets()),
    }
}

impl PortLayer for Loopback {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for Loopback {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.now_us = now_us;
        let before = frames.len();
        let mut left = RX_BYTES;
        while left > 0
            && !frames.is_full()
            && let Some(frame) = self.queue.pop_front()
        {
            left = left.saturating_sub(frame.len());
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.len() as u64;
            frames.push(frame);
        }
        let returned = frames.len() - before;
        let received = if frames.is_full() { 0 } else { self.port.rx_burst(now_us, frames) };
        returned + received
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.now_us = now_us;
        if frames.iter().any(|frame| self.is_to_us(frame)) {
            return self.send_mixed(now_us, frames);
        }
        self.port.tx_burst(now_us, frames)
    }
}

impl Link for Loopback {}

impl Statistics for Loopback {
    fn counters(&self) -> PortCounters {
        let (device, returned) = (self.port.counters(), self.counters);
        PortCounters {
            rx_frames: device.rx_frames + returned.rx_frames,
            rx_bytes: device.rx_bytes + returned.rx_bytes,
            tx_frames: device.tx_frames + returned.tx_frames,
            tx_bytes: device.tx_bytes + returned.tx_bytes,
            tx_ring_full: device.tx_ring_full + returned.tx_ring_full,
            ..device
        }
    }
}

impl Sleep for Loopback {
    fn arm_wakeup(&mut self) -> bool {
        self.queue.is_empty() && self.port.arm_wakeup()
    }

    fn next_due_us(&self) -> Option<u64> {
        if self.queue.is_empty() { self.port.next_due_us() } else { Some(self.now_us) }
    }
}

impl std::fmt::Debug for Loopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loopback")
            .field("port", &self.info.name)
            .field("queued", &self.queue.len())
            .finish_non_exhaustive()
    }
}
