//! A [`Port`] that uses a packet socket.
//!
//! The port counts each error and continues. If the socket is full, frames are left in the caller's burst.
//! While the interface is down or removed, frames to send are dropped. When the interface is up again, the
//! port uses it again. If the interface was removed, the port uses a new interface with the same name, unless
//! its options say that it ends with its interface.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use libc::c_int;
use rustix::io::Errno;

use super::config::PacketConfig;
use super::error::PacketError;
use super::interface::{self, Interface};
use super::rx_ring::{Filled, Geometry, RxRing};
use super::sizes::Sizes;
use super::tx_batch::TxBatch;
use super::vnet::VNET_BYTES;
use super::{filter, hints, socket, sys};
use crate::mbuf::MAX_SEGMENTS;
use crate::{
    Below, Burst, Checksum, Link, LinkState, Mbuf, Mempool, Offloads, Port, PortBase, PortCounters, PortInfo,
    PortLayer, Sleep, Statistics,
};

/// Maximum number of bytes of a burst. The last frame of a burst may exceed this limit. With the limit, the
/// bytes are usually still in the core's L2 cache when they are placed.
const RX_BYTES_AT_ONCE: usize = 512 << 10;

/// The offloads that the kernel performs if virtio's header requests them.
const VNET_OFFLOADS: Offloads = Offloads::TX_TCP_CHECKSUM.union(Offloads::TX_TSO);

/// Maximum time to wait for a link. After the carrier is up, the kernel passes frames within one second (its
/// link watch). The other second is for a busy machine.
const LINK_SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// The pause between two checks of the link.
const LINK_PAUSE: Duration = Duration::from_millis(2);

/// The number of bytes of a VLAN tag, and its offset in a frame.
const TAG_BYTES: usize = 4;
const TAG_AT: usize = 12;

/// A port on an interface. [`open`](super::open) makes the port.
pub struct PacketPort {
    /// This field is dropped before the socket, so that the mapping is removed first.
    ring: RxRing,
    socket: OwnedFd,
    base: PortBase,
    interface: String,
    /// The port's IP addresses.
    addresses: Vec<IpAddr>,
    /// The Ethernet addresses of the multicast groups that the interface receives for the port.
    groups: Vec<[u8; 6]>,
    batch: TxBatch,
    /// Number of bytes of virtio's header in front of a frame that is read from the socket. 0 if the socket
    /// has no such headers.
    header_bytes: usize,
    state: LinkState,
    /// Whether the port ends with its interface.
    ends_with_interface: bool,
    /// Number of frames that the kernel had dropped at the last query.
    kernel_drops: Cell<u64>,
    hints: Vec<String>,
}

impl PacketPort {
    pub(super) fn open(config: &PacketConfig) -> Result<Self, PacketError> {
        check_sizes(config)?;
        let found = Interface::find(config)?;
        let socket = socket::open(&found.name)?;
        let fd = socket.as_fd();
        let failed = |step| {
            let interface = found.name.clone();
            move |cause| PacketError::Setup { interface, step, cause }
        };
        let flag = |option, value: c_int| sys::set_option(fd, libc::SOL_PACKET, option, &value.to_ne_bytes());
        // The order of these steps matters. The ring's version and the virtio header can be set only while
        // the socket has no ring. The filter is attached before the socket is bound, so that no unwanted
        // frame is received.
        let mac = config.mac.unwrap_or(found.mac);
        sys::attach_filter(fd, &mut filter::program(mac, &config.addresses, &[]))
            .map_err(failed("attaching the filter"))?;
        if !config.sees_host {
            flag(libc::PACKET_IGNORE_OUTGOING, 1)
                .map_err(failed("ignoring frames of this host (Linux 4.20)"))?;
        }
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        flag(libc::PACKET_VERSION, version).map_err(failed("choosing TPACKET_V2"))?;
        let offloads = offloads(config);
        let has_headers = offloads.intersects(VNET_OFFLOADS);
        if has_headers {
            flag(libc::PACKET_VNET_HDR, 1).map_err(failed("choosing virtio's headers"))?;
        }
        // If a frame does not fit in a slot, the socket queues the whole frame.
        flag(libc::PACKET_COPY_THRESH, 1).map_err(failed("keeping superframes"))?;
        let rx_bytes = socket::buffer_size(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.rx_bytes)
            .map_err(failed("sizing its receive buffer"))?;
        socket::buffer_size(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.tx_bytes)
            .map_err(failed("sizing its send buffer"))?;
        let sizes = Sizes::of(found.mtu);
        let geometry = Geometry::new(config.rx_slots, sizes.slot, rustix::param::page_size());
        let ring = RxRing::map(fd, geometry)
            .map_err(|cause| PacketError::RingMemory { kib: geometry.bytes() / 1024, cause })?;
        let name = &found.name;
        let info = PortInfo::new(format!("packet:{name}"), mac, found.mtu, offloads);
        let bulk = || Mempool::heap(name, config.bulk_mbufs, sizes.bulk);
        let mut port = Self {
            ring,
            base: PortBase {
                bulk_mempool: (config.bulk_mbufs > 0).then(bulk),
                ..PortBase::new(info, Mempool::heap(name, config.mbufs, sizes.mbuf))
            },
            addresses: config.addresses.clone(),
            groups: filter::groups(&config.addresses, &[]),
            batch: TxBatch::new(has_headers),
            header_bytes: if has_headers { VNET_BYTES } else { 0 },
            state: LinkState::Down,
            ends_with_interface: config.ends_with_interface,
            kernel_drops: Cell::new(0),
            hints: hints::hints(config, &found, rx_bytes),
            interface: found.name.clone(),
            socket,
        };
        port.join(found.index).map_err(failed("receiving from it"))?;
        port.state = port.first_link();
        Ok(port)
    }

    /// Hints for a log, one line each. The hints name settings of this host that cause losses or needless
    /// traffic, and say how to change these settings.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Binds the socket to an interface, and makes the interface receive frames for the port's address and
    /// groups.
    fn join(&self, index: u32) -> Result<(), Errno> {
        let fd = self.socket.as_fd();
        if interface::ethernet_address(fd, &self.interface) != Some(self.base.info.mac) {
            socket::join(fd, index, libc::PACKET_MR_UNICAST, self.base.info.mac)?;
        }
        for group in &self.groups {
            socket::join(fd, index, libc::PACKET_MR_MULTICAST, *group)?;
        }
        sys::bind(fd, index)
    }

    /// Replaces the groups that the interface receives for the port by `groups`. If the interface is removed,
    /// the port joins the groups when it uses a new interface.
    fn replace_groups(&mut self, groups: Vec<[u8; 6]>) -> Result<(), Errno> {
        let fd = self.socket.as_fd();
        if let Some(index) = sys::bound_index(fd) {
            let is_new = |group: &&[u8; 6]| !self.groups.contains(*group);
            let mut joined = groups.iter().filter(is_new);
            let kind = libc::PACKET_MR_MULTICAST;
            if let Err(cause) = joined.try_for_each(|group| socket::join(fd, index, kind, *group)) {
                // Some of these groups are not joined, so errors are ignored.
                for group in groups.iter().filter(is_new) {
                    let _ = socket::leave(fd, index, kind, *group);
                }
                return Err(cause);
            }
            for group in self.groups.iter().filter(|group| !groups.contains(*group)) {
                // A group that is not left only costs the filter's time.
                let _ = socket::leave(fd, index, kind, *group);
            }
        }
        self.groups = groups;
        Ok(())
    }

    /// Reads the state of the interface from the kernel. If a new interface has the same name, binds the
    /// socket to the new interface, unless the port ends with its interface.
    fn ask_link(&mut self) -> LinkState {
        if self.state == LinkState::Gone {
            return LinkState::Gone;
        }
        // When an interface goes down, the socket has a pending error. The socket is readable until the error
        // is read.
        let mut error = [0; size_of::<c_int>()];
        let _ = sys::get_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        match self.find_interface() {
            // The kernel sets `IFF_RUNNING` if the interface is up and has a link (`dev_get_flags`).
            Ok(flags) if flags & libc::IFF_RUNNING != 0 => LinkState::Up,
            Err(Errno::NODEV) if self.ends_with_interface => LinkState::Gone,
            // The interface is down or was removed. A new interface may have been removed again before the
            // port could use it.
            Ok(_) | Err(_) => LinkState::Down,
        }
    }

    /// Finds the interface, and binds the socket to the interface if necessary. Returns the flags of the
    /// interface.
    fn find_interface(&mut self) -> Result<c_int, Errno> {
        let fd = self.socket.as_fd();
        match sys::bound_index(fd) {
            Some(bound) if interface::index(fd, &self.interface) != Ok(bound) => {
                // The interface was renamed.
                self.interface = sys::name_of(fd, bound)?;
            }
            Some(_) => {}
            None if self.ends_with_interface => return Err(Errno::NODEV),
            None => self.join(interface::index(fd, &self.interface)?)?,
        }
        interface::flags(self.socket.as_fd(), &self.interface)
    }

    /// Returns the state of an interface that may just have been set up. The kernel passes frames only some
    /// time after the carrier is up. This call waits for this time, but at most for [`LINK_SETTLES_WITHIN`].
    /// Otherwise a program that checks the link only once would find that the link is down.
    fn first_link(&mut self) -> LinkState {
        let end = Instant::now() + LINK_SETTLES_WITHIN;
        loop {
            let state = self.ask_link();
            let settles = || sys::has_carrier(self.socket.as_fd(), &self.interface) == Some(true);
            if state == LinkState::Up || Instant::now() >= end || !settles() {
                return state;
            }
            std::thread::sleep(LINK_PAUSE);
        }
    }

    fn check_link(&mut self) -> LinkState {
        let state = self.ask_link();
        if state != self.state {
            self.state = state;
            self.base.counters.link_changes += 1;
        }
        state
    }

    /// Copies the frame in the next slot to packet buffers. If the slot has only a part of the frame, reads
    /// the whole frame from the socket's queue instead.
    fn take(&mut self, filled: &Filled) -> SlotOutcome {
        let Some(mut parts) = self.buffers(filled.bytes) else { return SlotOutcome::NoMbuf };
        if filled.kept == filled.bytes {
            let mut offset = 0;
            for part in &mut parts {
                let Some(room) = part.head_mut() else { return SlotOutcome::Unusable };
                self.ring.copy(filled, offset, room);
                offset += room.len();
            }
        } else if filled.status & libc::TP_STATUS_COPY == 0 || !self.read_whole(filled.bytes, &mut parts) {
            // The socket had no memory for the whole frame.
            return SlotOutcome::Unusable;
        }
        // The buffers are chained from the last to the first, so that each step accesses only one buffer.
        let mut frame: Option<Mbuf> = None;
        while let Some(mut part) = parts.pop() {
            if let Some(rest) = frame.take()
                && part.chain(rest).is_err()
            {
                return SlotOutcome::Unusable;
            }
            frame = Some(part);
        }
        let Some(mut frame) = frame else { return SlotOutcome::Unusable };
        if let Some(tag) = filled.tag
            && !put_tag(&mut frame, tag)
        {
            return SlotOutcome::Unusable;
        }
        frame.set_rx_checksum(checksum_state(filled.status));
        SlotOutcome::Frame(frame)
    }

    /// Allocates buffers with `bytes` bytes of data in total. Returns `None` if too few buffers are free.
    /// Returns no buffers if the frame does not fit in one chain.
    fn buffers(&self, bytes: usize) -> Option<ArrayVec<Mbuf, MAX_SEGMENTS>> {
        let mut parts = ArrayVec::new();
        let most = self.base.mempool.data_bytes();
        if bytes > MAX_SEGMENTS * most {
            return Some(parts);
        }
        let mut left = bytes;
        while left > 0 {
            let part = left.min(most);
            parts.push(self.base.mempool.alloc_filled(0, part)?);
            left -= part;
        }
        Some(parts)
    }

    /// Reads the first frame in the socket's queue, which has `bytes` bytes, into `parts`. Returns whether
    /// the whole frame was read.
    fn read_whole(&self, bytes: usize, parts: &mut ArrayVec<Mbuf, MAX_SEGMENTS>) -> bool {
        let mut header = [0; VNET_BYTES];
        let mut rooms: ArrayVec<IoSliceMut<'_>, { MAX_SEGMENTS + 1 }> = ArrayVec::new();
        rooms.push(IoSliceMut::new(&mut header[..self.header_bytes]));
        rooms.extend(parts.iter_mut().filter_map(Mbuf::head_mut).map(IoSliceMut::new));
        let fits = rooms.len() > 1;
        // If the interface has a pending error, the first call returns the error, and the second call reads
        // the frame.
        let read = rustix::io::readv(&self.socket, &mut rooms);
        let read = read.or_else(|_| rustix::io::readv(&self.socket, &mut rooms));
        fits && read == Ok(self.header_bytes + bytes)
    }
}

enum SlotOutcome {
    Frame(Mbuf),
    /// The frame cannot be passed on, for example because it is incomplete or too long.
    Unusable,
    NoMbuf,
}

fn check_sizes(config: &PacketConfig) -> Result<(), PacketError> {
    const MIB: usize = 1 << 20;
    for (what, value, least, most) in [
        ("mbufs", config.mbufs, 64, MIB),
        ("bulk_mbufs", config.bulk_mbufs, 0, MIB),
        ("rx_slots", config.rx_slots, 1, 64 << 10),
        ("rx_bytes", config.rx_bytes, 0, 512 * MIB),
        ("tx_bytes", config.tx_bytes, 0, 512 * MIB),
    ] {
        if !(least..=most).contains(&value) {
            return Err(PacketError::Size { what, value, least, most });
        }
    }
    Ok(())
}

/// Returns the port's offloads: the offloads that the configuration allows, and that the kernel or this port
/// performs. If the interface lacks an offload, the kernel performs the offload. For instance, the kernel
/// cuts a superframe at the end of its own stack, so the stack runs once per superframe.
fn offloads(config: &PacketConfig) -> Offloads {
    let always = Offloads::TX_MULTI_SEGMENT | Offloads::TX_EXTERNAL | Offloads::RX_SCATTER;
    let state = Offloads::RX_TCP_CHECKSUM | Offloads::RX_LRO;
    let mut offloads = config.offloads & (always | state | VNET_OFFLOADS);
    // TSO needs the TCP checksum of each piece, and frames of several buffers: the payload is not in the
    // buffer of the headers.
    if !offloads.contains(Offloads::TX_TCP_CHECKSUM | Offloads::TX_MULTI_SEGMENT) {
        offloads.remove(Offloads::TX_TSO);
    }
    offloads
}

/// Inserts the VLAN tag that the kernel has removed from a frame. Returns `false` if there is no room, or if
/// the Ethernet addresses are incomplete.
fn put_tag(frame: &mut Mbuf, tag: [u16; 2]) -> bool {
    if frame.head().len() < TAG_AT || frame.prepend(TAG_BYTES).is_none() {
        return false;
    }
    let Some(head) = frame.head_mut() else { return false };
    head.copy_within(TAG_BYTES..TAG_BYTES + TAG_AT, 0);
    head[TAG_AT..TAG_AT + TAG_BYTES].copy_from_slice(tag.map(u16::to_be_bytes).as_flattened());
    true
}

/// The state of a received frame's checksum, as the kernel reports it.
fn checksum_state(status: u32) -> Checksum {
    if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
        Checksum::Partial
    } else if status & libc::TP_STATUS_CSUM_VALID != 0 {
        Checksum::Good
    } else {
        Checksum::Unknown
    }
}

impl PortLayer for PacketPort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for PacketPort {
    fn rx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let (before, mut bytes) = (frames.len(), 0);
        while !frames.is_full() && bytes < RX_BYTES_AT_ONCE {
            let Some(filled) = self.ring.peek() else { break };
            match self.take(&filled) {
                SlotOutcome::Frame(frame) => {
                    bytes += frame.len();
                    frames.push(frame);
                }
                SlotOutcome::Unusable => self.base.counters.rx_dropped += 1,
                SlotOutcome::NoMbuf => {
                    // No buffer is free, so the frame is left in its slot.
                    self.base.counters.rx_no_mbuf += 1;
                    break;
                }
            }
            self.ring.release();
        }
        let count = frames.len() - before;
        self.base.counters.rx_frames += count as u64;
        self.base.counters.rx_bytes += bytes as u64;
        count
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let given = frames.len();
        if given == 0 {
            return 0;
        }
        if self.state != LinkState::Up && self.check_link() != LinkState::Up {
            self.base.counters.tx_link_down += given as u64;
            frames.clear();
            return given;
        }
        while !frames.is_empty() {
            match self.batch.send(self.socket.as_fd(), frames) {
                Ok(sent) => {
                    self.base.counters.tx_frames += sent as u64;
                    self.base.counters.tx_bytes +=
                        frames.drain(..sent).map(|frame| frame.len() as u64).sum::<u64>();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.base.counters.tx_ring_full += frames.len() as u64;
                    break;
                }
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) if self.check_link() != LinkState::Up => {
                    self.base.counters.tx_link_down += frames.len() as u64;
                    frames.clear();
                }
                // The kernel has refused the first frame, or the queue of the interface has dropped the
                // frame.
                Err(_) => {
                    drop(frames.remove(0));
                    self.base.counters.tx_dropped += 1;
                }
            }
        }
        given - frames.len()
    }

    fn set_groups(&mut self, groups: &[IpAddr]) -> io::Result<()> {
        if groups.len() > filter::MAX_GROUPS || !groups.iter().all(IpAddr::is_multicast) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.replace_groups(filter::groups(&self.addresses, groups))?;
        let mut program = filter::program(self.base.info.mac, &self.addresses, groups);
        Ok(sys::attach_filter(self.socket.as_fd(), &mut program)?)
    }
}

impl Link for PacketPort {
    fn link_state(&mut self) -> LinkState {
        self.check_link()
    }
}

impl Statistics for PacketPort {
    fn counters(&self) -> PortCounters {
        // The bytes of a `struct tpacket_stats`: the number of frames and the number of drops since the last
        // query.
        let mut since = [0_u8; 8];
        let asked =
            sys::get_option(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut since);
        if asked.is_ok() {
            let drops = u32::from_ne_bytes([4, 5, 6, 7].map(|at| since[at]));
            self.kernel_drops.set(self.kernel_drops.get() + u64::from(drops));
        }
        PortCounters {
            rx_dropped: self.base.counters.rx_dropped + self.kernel_drops.get(),
            // Each received frame is copied from the ring into packet buffers.
            copied_bytes: self.base.counters.rx_bytes,
            ..self.base.counters
        }
    }
}

impl Sleep for PacketPort {
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

impl std::fmt::Debug for PacketPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketPort")
            .field("info", &self.base.info)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
