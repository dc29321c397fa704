//! The slow path: smoltcp's `Interface` for ARP and neighbour replies and ICMP echo.
//!
//! It sees contiguous copies of the frames that the stack gives it, no fragments, and no TCP segment that the
//! stack can read. A raw socket takes TCP behind extensions that only smoltcp judges, which hands it back to
//! the stack and keeps smoltcp from answering it with RST; as a second guard no TCP that smoltcp wants to
//! send leaves. Frames it sends are written into packet buffers directly.

use std::collections::VecDeque;

use dp::{Mbuf, Mempool};

use crate::StackConfig;
use crate::ethernet;
use crate::facade::{
    Instant, Interface, InterfaceConfig, IpAddress, IpProtocol, SocketHandle, SocketSet, phy, raw,
};
use crate::ip::PROTOCOL_TCP;
use crate::route::Routes;

/// Frames waiting to be sent; more are dropped.
const TX_FRAMES: usize = 64;
/// Bytes of the largest frame taken in: a packet of 64 KiB behind an untagged header.
const MAX_FRAME_BYTES: usize = 65_535 + ethernet::HEADER_BYTES;
/// Packets that the raw socket holds. It is emptied after every frame.
const RAW_PACKETS: usize = 4;
/// Bytes of the longest packet that the raw socket holds at first: the MTU of Ethernet. Longer ones come from
/// devices of a larger MTU, or in fragments.
const RAW_BYTES: usize = 1500;

/// smoltcp with what it needs around it.
pub(crate) struct SlowPath {
    interface: Interface,
    sockets: SocketSet<'static>,
    tcp: SocketHandle,
    /// Bytes of the longest packet that `tcp` holds.
    tcp_bytes: usize,
    device: SlowDevice,
    /// Something came in since the last [`poll`](Self::poll), or more wants out.
    dirty: bool,
}

impl SlowPath {
    /// An interface with the stack's addresses and gateways.
    ///
    /// # Panics
    /// When the Ethernet address or an IP address is no unicast address.
    pub(crate) fn new(config: &StackConfig, routes: &Routes, pool: Mempool, random_seed: u64) -> Self {
        let mut device = SlowDevice {
            rx: Vec::with_capacity(MAX_FRAME_BYTES),
            rx_full: false,
            tx: Egress {
                frames: VecDeque::with_capacity(TX_FRAMES),
                scratch: Vec::with_capacity(MAX_FRAME_BYTES),
                pool,
                vlan: config.vlan,
            },
            mtu: usize::from(config.mtu),
        };
        let mut interface_config = InterfaceConfig::new(config.mac.into());
        interface_config.random_seed = random_seed;
        let mut interface = Interface::new(interface_config, &mut device, Instant::ZERO);
        // Both hold eight.
        interface.update_ip_addrs(|own| own.extend(routes.addresses().iter().copied()));
        for gateway in routes.gateways() {
            let added = match gateway {
                IpAddress::Ipv4(gateway) => interface.routes_mut().add_default_ipv4_route(*gateway),
                IpAddress::Ipv6(gateway) => interface.routes_mut().add_default_ipv6_route(*gateway),
            };
            // One of each family fits, and a second one replaces the first.
            added.expect("room for two default routes");
        }
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let tcp = sockets.add(raw_socket(RAW_BYTES));
        Self { interface, sockets, tcp, tcp_bytes: RAW_BYTES, device, dirty: false }
    }

    /// The place for the next frame's contiguous, untagged copy, emptied. [`input`](Self::input) reads it.
    pub(crate) fn frame(&mut self) -> &mut Vec<u8> {
        self.device.rx.clear();
        &mut self.device.rx
    }

    /// What [`frame`](Self::frame) was filled with.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.device.rx
    }

    /// Makes room in the raw socket for the longest packet there is. It is empty, as it is after every frame.
    #[cold]
    fn grow(&mut self) {
        self.sockets.remove(self.tcp);
        self.tcp = self.sockets.add(raw_socket(MAX_FRAME_BYTES));
        self.tcp_bytes = MAX_FRAME_BYTES;
    }

    /// Lets smoltcp work on the frame that [`frame`](Self::frame) was filled with.
    pub(crate) fn input(&mut self, now: Instant) {
        if self.device.rx.len() > ethernet::HEADER_BYTES + self.tcp_bytes {
            self.grow();
        }
        self.device.rx_full = true;
        let Self { interface, sockets, device, .. } = self;
        let _: smoltcp::iface::PollIngressSingleResult = interface.poll_ingress_single(now, device, sockets);
        // Taken, or refused because nothing can be sent: gone in either case.
        self.device.rx_full = false;
        self.dirty = true;
    }

    /// Sends what waits inside smoltcp: further fragments.
    pub(crate) fn poll(&mut self, now: Instant) {
        if !self.dirty {
            return;
        }
        let Self { interface, sockets, device, .. } = self;
        interface.poll_maintenance(now);
        let _: smoltcp::iface::PollResult = interface.poll_egress(now, device, sockets);
        self.dirty = interface.poll_at(now, sockets).is_some_and(|at| at <= now);
    }

    /// Whether [`poll`](Self::poll) can do something: what waits for the frames in front of it to leave does
    /// not ask for a turn. smoltcp has no timers of its own here.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty && self.device.tx.frames.len() < TX_FRAMES
    }

    /// Hands a TCP packet that smoltcp has read, IP header included, to `take`; `false` when there is none.
    pub(crate) fn reassembled(&mut self, take: impl FnOnce(&[u8])) -> bool {
        let socket = self.sockets.get_mut::<raw::Socket<'_>>(self.tcp);
        let Ok(packet) = socket.recv() else { return false };
        take(packet);
        true
    }

    /// The next frame to send.
    pub(crate) fn next_frame(&mut self) -> Option<Mbuf> {
        self.device.tx.frames.pop_front()
    }

    /// Whether frames wait.
    pub(crate) fn has_frames(&self) -> bool {
        !self.device.tx.frames.is_empty()
    }
}

/// A socket for TCP packets of up to `bytes` bytes. A packet lies in one piece: with twice the room one
/// always fits.
fn raw_socket(bytes: usize) -> raw::Socket<'static> {
    let rx = raw::PacketBuffer::new(vec![raw::PacketMetadata::EMPTY; RAW_PACKETS], vec![0; 2 * bytes]);
    let tx = raw::PacketBuffer::new(Vec::new(), Vec::new());
    raw::Socket::new(None, Some(IpProtocol::Tcp), rx, tx)
}

/// The device smoltcp sees: one frame to receive at most, a bounded queue to send.
struct SlowDevice {
    rx: Vec<u8>,
    rx_full: bool,
    tx: Egress,
    mtu: usize,
}

/// Frames on their way out.
struct Egress {
    frames: VecDeque<Mbuf>,
    /// Where a frame is written that cannot be sent.
    scratch: Vec<u8>,
    pool: Mempool,
    vlan: Option<u16>,
}

impl Egress {
    /// Queues a frame that `fill` writes, unless there is no room or it is TCP.
    fn send<R>(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let buf = if self.frames.len() < TX_FRAMES { self.pool.alloc() } else { None };
        if let Some(mut buf) = buf
            && let Some(room) = buf.append(bytes)
        {
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

    /// Inserts the VLAN tag; `false` when there is no headroom for it.
    fn tag(&self, buf: &mut Mbuf) -> bool {
        let Some(vlan) = self.vlan else { return true };
        let Some(header) = ethernet::Header::parse(buf.head()) else { return false };
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
    let Some(header) = ethernet::Header::parse(frame) else { return false };
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
        let config = StackConfig {
            mac: MAC,
            vlan: None,
            addresses: ["10.0.0.1/24".parse().unwrap()].into_iter().collect(),
            gateways: Default::default(),
            address_probing: AddressProbing::Off,
            mtu: 1500,
            offloads: dp::Offloads::empty(),
            limits: Limits::default(),
            tcp: TcpConfig::default(),
            seed: [1; 32],
        };
        let routes = Routes::new(config.mac, config.addresses.clone(), config.gateways.clone());
        SlowPath::new(&config, &routes, Mempool::heap("slow", 8, 2048), 1)
    }

    /// A TCP packet to us with this much behind the IP header.
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
    fn tcp_of_any_length_is_handed_back_whole() {
        let mut slow = slow_path();
        // Short, at the bound of what there is room for at first, beyond it, as long as can be, and short
        // again.
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
