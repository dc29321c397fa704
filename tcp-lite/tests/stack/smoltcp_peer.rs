//! Against an independent TCP: smoltcp's `tcp::Socket`, as server and as client.

use std::collections::VecDeque;

use dp::link::{LinkConfig, LinkPlan, pair};
use dp::{Burst, Port};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::wire::{IpAddress, IpListenEndpoint};
use tcp_lite::{CloseReason, Instant};

use crate::harness::{Host, MAC_A, MAC_B, config, octet, octets_of};

/// A smoltcp host with one socket that sends and checks a stream.
struct Peer {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    device: PortDevice,
    to_send: u64,
    sent: u64,
    received: u64,
}

struct PortDevice {
    port: Box<dyn Port>,
    rx: VecDeque<Vec<u8>>,
    tx: Burst,
    mtu: usize,
}

impl PortDevice {
    /// Moves frames both ways; returns whether any moved.
    fn turn(&mut self, now_us: u64) -> bool {
        let mut burst = Burst::new();
        let mut moved = false;
        while self.port.rx_burst(now_us, &mut burst) > 0 {
            moved = true;
            self.rx.extend(burst.drain(..).map(|f| octets_of(&f)));
        }
        moved | (self.port.tx_burst(now_us, &mut self.tx) > 0)
    }
}

struct Rx(Vec<u8>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Tx<'a>(&'a mut PortDevice);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut octets = vec![0; len];
        let result = f(&mut octets);
        if let Some(mut frame) = self.0.port.mempool().alloc()
            && frame.append_slice(&octets)
        {
            self.0.tx.push(frame);
        }
        result
    }
}

impl Device for PortDevice {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Rx, Tx<'_>)> {
        if self.tx.is_full() {
            return None;
        }
        let frame = self.rx.pop_front()?;
        Some((Rx(frame), Tx(self)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Tx<'_>> {
        (!self.tx.is_full()).then_some(Tx(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }
}

impl Peer {
    fn new(port: Box<dyn Port>, mtu: u16, to_send: u64) -> Self {
        let mut device = PortDevice { port, rx: VecDeque::new(), tx: Burst::new(), mtu: mtu.into() };
        let mut interface = Interface::new(Config::new(MAC_B.into()), &mut device, Instant::ZERO);
        interface.update_ip_addrs(|own| own.extend(config(MAC_B, 2).addresses));
        let ring = || tcp::SocketBuffer::new(vec![0; 256 * 1024]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(ring(), ring()));
        Self { interface, sockets, socket, device, to_send, sent: 0, received: 0 }
    }

    fn turn(&mut self, now_us: u64) -> bool {
        let now = Instant::from_micros(now_us as i64);
        let mut moved = self.device.turn(now_us);
        self.interface.poll(now, &mut self.device, &mut self.sockets);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        while socket.can_recv() {
            let at = self.received;
            let taken = socket.recv(|octets| {
                assert!(octets.iter().zip(at..).all(|(o, at)| *o == octet(at)), "wrong octet behind {at}");
                (octets.len(), octets.len())
            });
            self.received += taken.unwrap() as u64;
            moved = true;
        }
        while socket.can_send() && self.sent < self.to_send {
            let n = (self.to_send - self.sent).min(32_768);
            let octets: Vec<u8> = (self.sent..self.sent + n).map(octet).collect();
            self.sent += socket.send_slice(&octets).unwrap() as u64;
            moved = true;
        }
        if self.sent == self.to_send && socket.may_send() {
            socket.close();
            moved = true;
        }
        self.interface.poll(now, &mut self.device, &mut self.sockets);
        moved | self.device.turn(now_us)
    }
}

const TO_PEER: u64 = 3 << 20;
const FROM_PEER: u64 = (2 << 20) + 7;

/// A stream each way. `active`: whether we connect.
fn exchange(active: bool, ipv6: bool, mtu: u16, plan: LinkPlan) {
    let link = LinkConfig { mtu, a_to_b: plan.clone(), b_to_a: plan, ..LinkConfig::default() };
    let (ours, theirs) = pair(&link);
    let mut settings = config(MAC_A, 1);
    settings.mtu = mtu;
    let mut host = Host::new(settings, ours);
    let mut peer = Peer::new(theirs, mtu, FROM_PEER);
    let mut now_us = 1_000_000;
    let socket = peer.sockets.get_mut::<tcp::Socket<'_>>(peer.socket);
    if active {
        socket.listen(IpListenEndpoint::from(4000)).unwrap();
        let remote = if ipv6 { "[2001:db8::2]:4000" } else { "10.0.0.2:4000" };
        host.connect(Instant::from_micros(now_us as i64), remote.parse().unwrap(), TO_PEER);
    } else {
        host.stack.listen(4000).unwrap();
        host.serve = TO_PEER;
        let address: IpAddress = if ipv6 { "2001:db8::1" } else { "10.0.0.1" }.parse().unwrap();
        socket.connect(peer.interface.context(), (address, 4000), 5000).unwrap();
    }
    let end_us = now_us + 600_000_000;
    while now_us < end_us && host.streams.first().is_none_or(|s| s.closed.is_none()) {
        let moved = host.turn(now_us) | peer.turn(now_us);
        now_us += if moved { 1 } else { 100 };
    }
    assert_eq!(host.streams[0].closed, Some(CloseReason::Graceful), "{:#?}", host.stack.counters());
    assert_eq!((host.received(0), peer.received), (FROM_PEER, TO_PEER));
}

#[test]
fn we_connect() {
    exchange(true, false, 1500, LinkPlan::default());
    exchange(true, true, 9000, LinkPlan::default());
}

#[test]
fn smoltcp_connects() {
    exchange(false, false, 9000, LinkPlan::default());
    exchange(false, true, 1500, LinkPlan::default());
}

#[test]
fn over_a_wire_that_loses_and_reorders() {
    for active in [true, false] {
        let plan = LinkPlan {
            drop_ppm: 1000,
            reorder_ppm: 2000,
            reorder_us: 200,
            duplicate_ppm: 1000,
            delay_us: 20,
            ..LinkPlan::default()
        };
        exchange(active, false, 1500, plan);
    }
}
