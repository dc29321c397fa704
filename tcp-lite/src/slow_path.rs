//! The slow path: smoltcp's `Interface`, which answers, for example, ARP requests, neighbour solicitations
//! and echo requests.
//!
//! The stack passes to smoltcp contiguous copies of the frames that the stack does not handle itself. The
//! stack handles, for example, fragments, TCP segments that it can parse, and ICMP errors about TCP. If only
//! smoltcp can parse the IPv6 extension headers before a TCP segment, the segment goes to a raw socket of
//! smoltcp. The raw socket returns such segments to the stack, so smoltcp does not answer with RST. In
//! addition, the stack drops all TCP segments that smoltcp sends. smoltcp writes its frames directly into
//! packet buffers.

use std::collections::VecDeque;

use dp::{Mbuf, Mempool};

use crate::StackConfig;
use crate::ethernet::{self, EthernetHeader};
use crate::facade::{
    Instant, Interface, InterfaceConfig, IpAddress, IpProtocol, SocketHandle, SocketSet, phy, raw,
};
use crate::ip::PROTOCOL_TCP;
use crate::route::Routes;

/// Maximum number of frames that wait to be sent: enough for bursts of requests. Further frames are dropped.
const TX_FRAMES: usize = 64;
/// Number of bytes of the largest accepted frame: an untagged header and a packet of 64 KiB.
const MAX_FRAME_BYTES: usize = 65_535 + ethernet::HEADER_BYTES;
/// Number of packets that the raw socket can hold. The socket is emptied after every frame, so a few packets
/// are enough.
const RAW_PACKETS: usize = 4;
/// Number of bytes of the longest packet that the raw socket can hold at first: the MTU of Ethernet. Longer
/// packets occur on devices with a larger MTU, or after reassembly.
const RAW_BYTES: usize = 1500;

/// smoltcp, with its device and sockets.
pub(crate) struct SlowPath {
    interface: Interface,
    sockets: SocketSet<'static>,
    tcp: SocketHandle,
    /// Number of bytes of the longest packet that fits into `tcp`.
    tcp_bytes: usize,
    device: SlowDevice,
    /// True if a frame was passed to smoltcp since the last [`poll`](Self::poll), or if smoltcp has more to
    /// send.
    dirty: bool,
}

impl SlowPath {
    /// An interface with the stack's addresses and gateways.
    ///
    /// # Panics
    /// If the Ethernet address or an IP address is not a unicast address.
    pub(crate) fn new(config: &StackConfig, routes: &Routes, pool: Mempool, random_seed: u64) -> Self {
        let longest = pool.data_bytes().saturating_sub(ethernet::HEADER_BYTES + ethernet::TAG_BYTES);
        let mut device = SlowDevice {
            rx: Vec::with_capacity(MAX_FRAME_BYTES),
            rx_full: false,
            tx: Egress {
                frames: VecDeque::with_capacity(TX_FRAMES),
                scratch: Vec::with_capacity(MAX_FRAME_BYTES),
                pool,
                vlan: config.vlan,
            },
            mtu: usize::from(config.mtu).min(longest),
        };
        let mut interface_config = InterfaceConfig::new(config.mac.into());
        interface_config.random_seed = random_seed;
        let mut interface = Interface::new(interface_config, &mut device, Instant::ZERO);
        // The lists of the stack and of smoltcp have room for eight addresses each, so all addresses fit.
        interface.update_ip_addrs(|own| own.extend(routes.addresses().iter().copied()));
        for gateway in routes.gateways() {
            let added = match gateway {
                IpAddress::Ipv4(gateway) => interface.routes_mut().add_default_ipv4_route(*gateway),
                IpAddress::Ipv6(gateway) => interface.routes_mut().add_default_ipv6_route(*gateway),
            };
            // smoltcp has room for two routes. If there are two gateways of a family, the second gateway
            // replaces the first, so the gateways of both families fit.
            added.expect("room for two default routes");
        }
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let tcp = sockets.add(raw_socket(RAW_BYTES));
        Self { interface, sockets, tcp, tcp_bytes: RAW_BYTES, device, dirty: false }
    }

    /// Empties and returns the buffer for the contiguous and untagged copy of the next frame, which
    /// [`input`](Self::input) reads.
    pub(crate) fn frame(&mut self) -> &mut Vec<u8> {
        self.device.rx.clear();
        &mut self.device.rx
    }

    /// The frame in the [`frame`](Self::frame) buffer.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.device.rx
    }

    /// Enlarges the raw socket so that the longest possible packet fits. No packet is lost, because the
    /// socket is empty after each frame.
    #[cold]
    fn grow(&mut self) {
        self.sockets.remove(self.tcp);
        self.tcp = self.sockets.add(raw_socket(MAX_FRAME_BYTES));
        self.tcp_bytes = MAX_FRAME_BYTES;
    }

    /// Passes the frame in the [`frame`](Self::frame) buffer to smoltcp.
    pub(crate) fn input(&mut self, now: Instant) {
        if self.device.rx.len() > ethernet::HEADER_BYTES + self.tcp_bytes {
            self.grow();
        }
        self.device.rx_full = true;
        let Self { interface, sockets, device, .. } = self;
        let _: smoltcp::iface::PollIngressSingleResult = interface.poll_ingress_single(now, device, sockets);
        // smoltcp consumed the frame, or dropped the frame because smoltcp cannot send now.
        self.device.rx_full = false;
        self.dirty = true;
    }

    /// Sends frames that wait inside smoltcp, such as further fragments.
    pub(crate) fn poll(&mut self, now: Instant) {
        if !self.dirty {
            return;
        }
        let Self { interface, sockets, device, .. } = self;
        interface.poll_maintenance(now);
        let _: smoltcp::iface::PollResult = interface.poll_egress(now, device, sockets);
        self.dirty = interface.poll_at(now, sockets).is_some_and(|at| at <= now);
    }

    /// Whether [`poll`](Self::poll) has something to do. While the queue of frames to send is full, the
    /// result is `false`. smoltcp answers frames at once, so no timer is needed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty && self.device.tx.frames.len() < TX_FRAMES
    }

    /// Passes a TCP packet that smoltcp has received, with its IP header, to `take`. Returns `false` if there
    /// is no such packet.
    pub(crate) fn reassembled(&mut self, take: impl FnOnce(&[u8])) -> bool {
        let socket = self.sockets.get_mut::<raw::Socket<'_>>(self.tcp);
        let Ok(packet) = socket.recv() else { return false };
        take(packet);
        true
    }

    /// Queues a frame to send, or drops it if too many frames wait.
    pub(crate) fn queue(&mut self, frame: Mbuf) {
        if self.device.tx.frames.len() < TX_FRAMES {
            self.device.tx.frames.push_back(frame);
        }
    }

    /// Removes and returns the next frame to send; `None` if no frame waits.
    pub(crate) fn next_frame(&mut self) -> Option<Mbuf> {
        self.device.tx.frames.pop_front()
    }

    /// Whether frames wait to be sent.
    pub(crate) fn has_frames(&self) -> bool {
        !self.device.tx.frames.is_empty()
    }
}

/// A socket for TCP packets of up to `bytes` bytes. The socket's ring has twice this size, because the ring
/// stores each packet contiguously.
fn raw_socket(bytes: usize) -> raw::Socket<'static> {
    let rx = raw::PacketBuffer::new(vec![raw::PacketMetadata::EMPTY; RAW_PACKETS], vec![0; 2 * bytes]);
    let tx = raw::PacketBuffer::new(Vec::new(), Vec::new());
    raw::Socket::new(None, Some(IpProtocol::Tcp), rx, tx)
}

/// The device that smoltcp uses, which holds at most one received frame, and a bounded queue of frames to
/// send.
struct SlowDevice {
    rx: Vec<u8>,
    rx_full: bool,
    tx: Egress,
    /// Maximum number of bytes of an IP packet of smoltcp: the MTU, but no more than a buffer can hold.
    mtu: usize,
}

/// Frames to be sent.
struct Egress {
    frames: VecDeque<Mbuf>,
    /// smoltcp writes frames into this buffer if the queue is full or the pool is empty. These frames are
    /// dropped.
    scratch: Vec<u8>,
    pool: Mempool,
    vlan: Option<u16>,
}

impl Egress {
    /// Queues a frame that `fill` writes. Drops the frame if it contains TCP, if the queue is full, if the
    /// pool is empty, or if the frame and its tag do not fit into a buffer.
    fn send<R>(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let buf = if self.frames.len() < TX_FRAMES { self.pool.alloc() } else { None };
        if let Some(mut buf) = buf
            && let Some(room) = buf.append(bytes)
        {
            // smoltcp does not write unused fields, and the buffer has bytes of an earlier frame.
            room.fill(0);
            let result = fill(room);
            if !is_tcp(room) && self.tag(&mut buf) {
                self.frames.push_back(buf);
            }
            return result;
        }
        self.scratch.clear();
        self.scratch.resize(bytes, 0);
        fill(&mut self.scratch)
    }

    /// Inserts the VLAN tag, if the stack has a VLAN. Returns `false` if the headroom is too small.
    fn tag(&self, buf: &mut Mbuf) -> bool {
        let Some(vlan) = self.vlan else { return true };
        let Some(header) = EthernetHeader::parse(buf.head()) else { return false };
        if buf.prepend(ethernet::TAG_BYTES).is_none() {
            return false;
        }
        let Some(head) = buf.head_mut() else { return false };
        ethernet::emit(head, header.dst, header.src, Some(vlan), header.ethertype);
        true
    }
}

/// Whether an untagged frame carries TCP.
fn is_tcp(frame: &[u8]) -> bool {
    let Some(header) = EthernetHeader::parse(frame) else { return false };
    let protocol = match header.ethertype {
        ethernet::ETHERTYPE_IPV4 => frame.get(header.bytes + 9),
        ethernet::ETHERTYPE_IPV6 => frame.get(header.bytes + 6),
        _ => None,
    };
    protocol == Some(&PROTOCOL_TCP)
}

impl phy::Device for SlowDevice {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let Self { rx, rx_full, tx, .. } = self;
        std::mem::take(rx_full).then_some((RxToken(rx), TxToken(tx)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        (self.tx.frames.len() < TX_FRAMES).then_some(TxToken(&mut self.tx))
    }

    fn capabilities(&self) -> phy::DeviceCapabilities {
        let mut capabilities = phy::DeviceCapabilities::default();
        capabilities.medium = phy::Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + ethernet::HEADER_BYTES;
        capabilities
    }
}

struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

struct TxToken<'a>(&'a mut Egress);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.send(len, f)
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{EthernetFrame, EthernetProtocol, EthernetRepr, Ipv4Address, Ipv4Repr};

    use super::*;
    use crate::facade::EthernetAddress;
    use crate::{AddressProbing, Limits, TcpConfig};

    const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

    fn slow_path() -> SlowPath {
        slow_path_of(1500)
    }

    fn slow_path_of(mtu: u16) -> SlowPath {
        let config = StackConfig {
            mac: MAC,
            vlan: None,
            addresses: ["10.0.0.1/24".parse().unwrap()].into_iter().collect(),
            gateways: Default::default(),
            address_probing: AddressProbing::Off,
            derived_neighbors: None,
            loopback: false,
            mtu,
            offloads: dp::Offloads::empty(),
            limits: Limits::default(),
            tcp: TcpConfig::default(),
            seed: [1; 32],
        };
        let routes = Routes::new(config.mac, config.addresses.clone(), config.gateways.clone());
        SlowPath::new(&config, &routes, Mempool::heap("slow", 8, 2048), 1)
    }

    /// Writes a TCP packet to us with `bytes` bytes after the IP header.
    fn fill(frame: &mut Vec<u8>, bytes: usize) {
        let (src_addr, dst_addr) = (Ipv4Address::new(10, 0, 0, 2), Ipv4Address::new(10, 0, 0, 1));
        let ip =
            Ipv4Repr { src_addr, dst_addr, next_header: IpProtocol::Tcp, payload_len: bytes, hop_limit: 64 };
        let src_mac = EthernetAddress([2, 0, 0, 0, 0, 2]);
        let ethernet = EthernetRepr { src_addr: src_mac, dst_addr: MAC, ethertype: EthernetProtocol::Ipv4 };
        frame.resize(ethernet::HEADER_BYTES + 20, 0);
        ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
        let packet = smoltcp::wire::Ipv4Packet::new_unchecked(&mut frame[ethernet::HEADER_BYTES..]);
        ip.emit(&mut { packet }, &ChecksumCapabilities::default());
        frame.extend((0..bytes).map(|at| at as u8));
    }

    #[test]
    fn frames_of_smoltcp_show_nothing_that_a_buffer_held_before() {
        let mut slow = slow_path();
        // All buffers of the pool contain old bytes.
        let pool = &slow.device.tx.pool;
        let mut used: Vec<Mbuf> = (0..pool.capacity()).filter_map(|_| pool.alloc()).collect();
        used.iter_mut().for_each(|buf| buf.append(2048).unwrap().fill(0xee));
        drop(used);
        slow.device.tx.send(60, |room| room[..20].fill(1));
        let frame = slow.next_frame().unwrap();
        assert_eq!(frame.head(), [[1; 20], [0; 20], [0; 20]].as_flattened());
    }

    /// The stack's MTU may be larger than its buffers, which smoltcp does not know.
    #[test]
    fn packets_of_smoltcp_fit_the_buffers() {
        for (mtu, bytes) in [(1500, 1500), (2030, 2030), (2031, 2030), (65_000, 2030)] {
            let longest = phy::Device::capabilities(&slow_path_of(mtu).device).max_transmission_unit;
            assert_eq!(longest, bytes + ethernet::HEADER_BYTES);
            assert!(longest + ethernet::TAG_BYTES <= 2048);
        }
    }

    #[test]
    fn tcp_of_any_length_is_handed_back_whole() {
        let mut slow = slow_path();
        // The packets are, in this order: a short packet, the longest packet that the first socket can hold,
        // a packet with one byte more, the longest possible packet, a short packet, and the longest possible
        // packet again.
        for bytes in [40, RAW_BYTES - 20, RAW_BYTES - 19, 65_515, 40, 65_515] {
            fill(slow.frame(), bytes);
            let sent = slow.filled()[ethernet::HEADER_BYTES..].to_vec();
            slow.input(Instant::ZERO);
            let mut got = Vec::new();
            assert!(slow.reassembled(|packet| got.extend_from_slice(packet)), "{bytes} bytes are lost");
            assert!(got == sent, "{bytes} bytes are others");
            assert!(!slow.reassembled(|_| ()), "handed back once");
        }
    }
}
