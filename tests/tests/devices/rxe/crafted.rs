//! Crafted frames to a program on our side: a damaged ICRC, queries of routers, and frames at which the
//! kernel of the same interface must stay silent. `ud_peer.c` prints each message that it receives.
//!
//! The crafted frames come from a port of `dp` at the other side of a veth pair.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use dp::packet::{PacketConfig, PacketPort};
use dp::{Burst, Mbuf, Port, checksum};
use iwarp::roce::{self, Qpn, UdSend};
use tests::iwperf::START_TIMEOUT;
use tests::lab::{Namespace, Process, Result, Suite, Wire, veth};
use tests::{ensure, lab_error};

use super::programs::ours;
use super::ud_peer::{Counters, Program};

const OURS: [&str; 2] = ["10.77.0.1", "fd77::1"];
/// The addresses of the crafted frames' sender.
const SENDERS: [&str; 2] = ["10.77.0.4", "fd77::4"];
/// The kernel's address on the interface of our program.
const KERNELS: &str = "10.77.0.3";
const GROUPS: [&str; 2] = ["239.193.2.3", "ff15::1:7"];
const QKEY: u32 = 0x1ee7_a330;
/// Maximum time until an expected frame arrives.
const LIMIT: Duration = Duration::from_secs(20);

const UDP: u8 = 17;
const ICMP: [u8; 2] = [1, 58];
const IGMP: u8 = 2;
const HOP_BY_HOP: u8 = 0;
/// The port of RoCEv2, and a port that is not open.
const PORT: u16 = 4791;
const CLOSED: u16 = 4790;

pub(super) fn add(suite: &mut Suite) {
    suite.add("crafted_icrc", || icrc(0).and_then(|()| icrc(1)));
    suite.add("crafted_queries", || queries(0).and_then(|()| queries(1)));
    suite.add("crafted_frames_leave_the_kernel_silent", silent_kernel);
    suite.add("crafted_frames_to_the_address_of_a_process", address_of_process);
}

/// A program that prints its messages, and the port that sends crafted frames to it.
struct Lab {
    port: PacketPort,
    /// The program's Ethernet address, which is that of the interface.
    mac: [u8; 6],
    sink: Process,
    /// The number of the program's queue pair.
    number: u32,
    /// The program's IP address.
    address: IpAddr,
    namespace: Namespace,
}

impl Lab {
    /// Starts the program on the interface `v1` with these network options and this index of the GID, and
    /// attaches it to `group`.
    fn new(net: &str, senders: &[&str], (gid, group): (&str, Option<&str>)) -> Result<Self> {
        let namespace = Namespace::new()?;
        veth(Wire { namespace: &namespace, dev: "v1" }, Wire { namespace: &namespace, dev: "v2" }, 1500)?;
        namespace.address("v1", &format!("{KERNELS}/24"))?;
        let senders = senders.iter().copied().map(parsed).collect::<Result<Vec<_>>>()?;
        let config = PacketConfig::new("v2", senders);
        let mut port =
            namespace.enter(|| dp::packet::open(&config))?.map_err(|error| lab_error!("{error}"))?;
        let group = group.map(parsed).transpose()?;
        port.set_groups(group.as_slice())?;
        let mac = namespace.run("cat").arg("/sys/class/net/v1/address").check(START_TIMEOUT)?;
        let mac: Vec<u8> = mac.trim().split(':').flat_map(|byte| u8::from_str_radix(byte, 16)).collect();
        let mac = mac.try_into().map_err(|mac| lab_error!("{mac:?} is no Ethernet address"))?;
        let program = Program::compile()?;
        let path = program.path().display().to_string();
        let hexes = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).concat();
        let lets_in = format!("LETS_IN=v1 {}", group.map(ethernet_group).map(hexes).unwrap_or_default());
        let group = group.map(|group| group.to_string());
        let words = ["env", &lets_in, &path, "sink", "-", gid].into_iter().chain(group.as_deref());
        // Only the program polls the engine, so a call that returns too early leaves its work undone.
        let run = ours(&namespace, net, &words.collect::<Vec<_>>())?.env("UWARP_THREAD", "caller");
        let mut sink = run.spawn()?;
        sink.wait_for("ready", START_TIMEOUT)?;
        let said = sink.text();
        let line = said.lines().find_map(|line| line.strip_prefix("queue pair "));
        let (number, gid) =
            line.and_then(|line| line.split_once(" at ")).ok_or_else(|| lab_error!("{said}"))?;
        let number = number.parse().map_err(|error| lab_error!("{error}: {number}"))?;
        let gid = u128::from_str_radix(gid, 16).map_err(|error| lab_error!("{error}: {gid}"))?;
        let address = Ipv6Addr::from(gid).to_canonical();
        Ok(Self { port, mac, sink, number, address, namespace })
    }

    /// Starts the program with our address of a family, and attaches it to the family's group.
    fn of_family(at: usize) -> Result<Self> {
        let prefix = [24, 64][at];
        Self::new(&format!("packet:v1,addr={}/{prefix}", OURS[at]), &[SENDERS[at]], ("3", Some(GROUPS[at])))
    }

    /// Returns the IP packet of a message of `bytes` bytes to queue pair `number`.
    fn message(&self, to: IpAddr, number: u32, bytes: usize) -> Result<Vec<u8>> {
        let qpn = |number| Qpn::new(number).ok_or_else(|| lab_error!("{number} has more than 24 bits"));
        let send = UdSend {
            solicited: false,
            pkey: roce::DEFAULT_PKEY,
            dest_qp: qpn(number)?,
            psn: 7,
            qkey: QKEY,
            src_qp: qpn(0x22)?,
            immediate: None,
        };
        let mut payload = vec![0; send.frame_bytes(bytes)];
        send.write(bytes, &mut payload);
        let mut packet = datagram(self.sender(to)?, to, PORT, &payload);
        roce::seal(&mut packet).map_err(|fault| lab_error!("{fault}"))?;
        Ok(packet)
    }

    fn sender(&self, to: IpAddr) -> Result<IpAddr> {
        parsed(SENDERS[usize::from(to.is_ipv6())])
    }

    /// Sends an IP packet to our program, or to a group.
    fn send(&mut self, packet: &[u8]) -> Result<()> {
        let destination = destination(packet);
        let to = if destination.is_multicast() { ethernet_group(destination) } else { self.mac };
        let ethertype: [u8; 2] = if destination.is_ipv6() { [0x86, 0xdd] } else { [8, 0] };
        let mut frame = [&to[..], &self.port.info().mac, &ethertype, packet].concat();
        if destination.is_ipv4() {
            checksum::complete_ipv4_header(&mut frame);
        }
        let mut buffer = self.port.mempool().alloc().ok_or_else(|| lab_error!("no buffer"))?;
        ensure!(buffer.append_slice(&frame), "too long for a buffer");
        let mut burst = Burst::new();
        burst.push(buffer);
        ensure!(self.port.tx_burst(0, &mut burst) == 1, "the frame was not sent");
        Ok(())
    }

    /// Waits for a packet with this protocol, or IPv6 header, to `to`.
    fn wait_for(&mut self, protocol: u8, to: IpAddr) -> Result<()> {
        let started = Instant::now();
        while !self.arrived().contains(&(protocol, to)) {
            ensure!(started.elapsed() < LIMIT, "no packet with protocol {protocol} to {to}");
        }
        Ok(())
    }

    /// Returns the protocols and destinations of the IP packets that the port has received.
    fn arrived(&mut self) -> Vec<(u8, IpAddr)> {
        let mut burst = Burst::new();
        self.port.rx_burst(0, &mut burst);
        let packet = |frame: &Mbuf| {
            let bytes: Vec<u8> = frame.segments().flatten().copied().collect();
            match &bytes[12..14] {
                [0x08, 0x00] => Some((bytes[23], destination(&bytes[14..]))),
                [0x86, 0xdd] => Some((bytes[20], destination(&bytes[14..]))),
                _ => None,
            }
        };
        burst.iter().filter_map(packet).collect()
    }

    /// Sends a message to the program, and waits until the program has received it.
    fn is_received(&mut self, to: IpAddr, bytes: usize) -> Result<()> {
        let number = if to.is_multicast() { 0xFF_FFFF } else { self.number };
        let packet = self.message(to, number, bytes)?;
        self.send(&packet)?;
        self.sink.wait_for(&format!("message of {bytes} bytes"), LIMIT)
    }

    /// Ends the program, which has received these messages.
    fn end(mut self, messages: &[usize]) -> Result<()> {
        self.sink.terminate();
        let said = self.sink.finish(START_TIMEOUT)?.success()?;
        let lines: Vec<_> = said.lines().filter(|line| line.starts_with("message")).collect();
        let expected: Vec<_> = messages.iter().map(|bytes| format!("message of {bytes} bytes")).collect();
        ensure!(lines == expected, "{said}");
        Ok(())
    }

    /// Number of ICMP messages that the kernel of the namespace has sent, or has tried to send.
    fn kernel_errors(&self) -> Result<u64> {
        let words = ["-asz", "IcmpOutMsgs", "Icmp6OutDestUnreachs"];
        let text = self.namespace.run("nstat").args(words).check(START_TIMEOUT)?;
        let values = text.lines().filter(|line| line.starts_with("Icmp"));
        let values: Vec<u64> =
            values.filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect();
        ensure!(values.len() == 2, "{text}");
        Ok(values.iter().sum())
    }
}

/// The Ethernet address of a group (RFC 1112 section 6.4, RFC 2464 section 7).
fn ethernet_group(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn parsed(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|error| lab_error!("{error}: {text}"))
}

/// The destination of an IP packet.
fn destination(packet: &[u8]) -> IpAddr {
    let part = |at: usize, bytes: usize| packet[at..at + bytes].to_vec();
    match packet[0] >> 4 {
        4 => IpAddr::from(<[u8; 4]>::try_from(part(16, 4)).unwrap_or_default()),
        _ => IpAddr::from(<[u8; 16]>::try_from(part(24, 16)).unwrap_or_default()),
    }
}

/// Returns an IP packet. The IPv4 checksum is not computed.
fn ip_packet(from: IpAddr, to: IpAddr, (protocol, hops): (u8, u8), payload: &[u8]) -> Vec<u8> {
    let bytes = payload.len() as u16;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [high, low] = (20 + bytes).to_be_bytes();
            let header = [0x45, 0, high, low, 0, 0, 0x40, 0, hops, protocol, 0, 0];
            [&header[..], &from.octets(), &to.octets(), payload].concat()
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V6(address) => address.octets(),
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            };
            let [high, low] = bytes.to_be_bytes();
            let header = [0x60, 0, 0, 0, high, low, protocol, hops];
            [&header[..], &octets(from), &octets(to), payload].concat()
        }
    }
}

/// Returns an IP packet with a UDP datagram without a checksum.
fn datagram(from: IpAddr, to: IpAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    let [length_high, length_low] = (8 + payload.len() as u16).to_be_bytes();
    let header = [0xc0, 0, high, low, length_high, length_low, 0, 0];
    ip_packet(from, to, (UDP, 64), &[&header[..], payload].concat())
}

/// Returns the general query of a router, which is answered within 100 ms.
fn query(family: usize) -> Result<Vec<u8>> {
    if family == 0 {
        // The checksum is the complement of the first two bytes, since all other bytes are 0.
        let message = [0x11, 1, 0xee, 0xfe, 0, 0, 0, 0];
        return Ok(ip_packet(parsed("10.77.0.9")?, parsed("224.0.0.1")?, (IGMP, 1), &message));
    }
    let (from, to) = (parsed("fe80::9")?, parsed("ff02::1")?);
    let mut message = vec![130, 0, 0, 0, 0, 100, 0, 0];
    message.extend([0; 16]);
    // The pseudo-header has the addresses, the length and the protocol.
    let sum = [0xfe80, 0x9, 0xff02, 0x1, 24, 58, 130 << 8, 100].iter().sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    message[2..4].copy_from_slice(&(!folded as u16).to_be_bytes());
    let router_alert = [58, 0, 5, 2, 0, 0, 1, 0];
    Ok(ip_packet(from, to, (HOP_BY_HOP, 1), &[&router_alert[..], &message].concat()))
}

/// A message whose ICRC does not fit its packet is dropped and counted. Routers change some fields, and the
/// ICRC does not depend on these.
fn icrc(family: usize) -> Result<()> {
    let mut lab = Lab::of_family(family)?;
    let to = lab.address;
    ensure!(to == parsed(OURS[family])?, "{to}");
    lab.is_received(to, 5)?;
    let whole = lab.message(to, lab.number, 6)?;
    let headers = whole.len() - 6 - 2 - 4;
    // The last bytes of the ICRC, of the padding, of the payload, of the Q_Key, and of the source.
    let source = if family == 0 { 15 } else { 23 };
    let places = [whole.len() - 1, whole.len() - 5, whole.len() - 7, headers - 5, source];
    for place in places {
        let mut damaged = whole.clone();
        damaged[place] ^= 2;
        lab.send(&damaged)?;
    }
    let mut routed = whole;
    routed[if family == 0 { 8 } else { 7 }] -= 1;
    routed[1] ^= 0x30;
    lab.send(&routed)?;
    lab.sink.wait_for("message of 6 bytes", LIMIT)?;
    lab.is_received(to, 7)?;
    let invalid = places.len() as u64;
    let expected = Counters { received: 3, invalid, refused: 0, not_ready: 0, sent: 0, unsent: 0 };
    Counters::wait(&lab.sink, expected)?;
    lab.end(&[5, 6, 7])
}

/// A program that has joined a group receives its messages, tells routers, and answers their queries.
fn queries(family: usize) -> Result<()> {
    let mut lab = Lab::of_family(family)?;
    let group = parsed(GROUPS[family])?;
    let protocol = [IGMP, HOP_BY_HOP][family];
    lab.wait_for(protocol, group)?;
    lab.is_received(group, 9)?;
    // The first report is repeated after some seconds. So at least one of these reports is an answer.
    for _ in 0..2 {
        lab.send(&query(family)?)?;
        lab.wait_for(protocol, group)?;
    }
    // Another group with the same Ethernet address.
    let other = parsed(["239.65.2.3", "ff18::1:7"][family])?;
    let packet = lab.message(other, 0xFF_FFFF, 10)?;
    lab.send(&packet)?;
    lab.is_received(group, 11)?;
    lab.end(&[9, 11])
}

/// The kernel has other addresses on the interface of our program. It does not answer datagrams to our
/// address, whether the port is open or not.
fn silent_kernel() -> Result<()> {
    let mut lab = Lab::of_family(0)?;
    let (ours, sender) = (parsed(OURS[0])?, parsed(SENDERS[0])?);
    // The kernel would know where to send an answer.
    let mac = lab.port.info().mac.map(|byte| format!("{byte:02x}")).join(":");
    lab.namespace.ip(["neigh", "replace", SENDERS[0], "lladdr", &mac, "dev", "v1", "nud", "permanent"])?;
    lab.is_received(ours, 5)?;
    lab.is_received(parsed(GROUPS[0])?, 6)?;
    lab.send(&datagram(sender, ours, CLOSED, &[1, 2, 3]))?;
    lab.is_received(ours, 7)?;
    ensure!(lab.kernel_errors()? == 0, "the kernel has answered");
    // This shows that the kernel's errors are seen.
    lab.send(&datagram(sender, parsed(KERNELS)?, PORT, &[1, 2, 3]))?;
    lab.wait_for(ICMP[0], sender)?;
    ensure!(lab.kernel_errors()? == 1, "the kernel has not answered");
    lab.end(&[5, 6, 7])
}

/// Without `addr=`, the address is that of a process, which the kernel does not have either.
fn address_of_process() -> Result<()> {
    let mut lab = Lab::new("packet:v1", &SENDERS, ("1", None))?;
    ensure!(lab.address.to_string().starts_with("fd75:7761:7270::a4d:3:75"), "{}", lab.address);
    lab.is_received(lab.address, 5)?;
    ensure!(lab.kernel_errors()? == 0, "the kernel has answered");
    lab.end(&[5])
}
