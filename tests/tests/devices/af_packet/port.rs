//! `dp::packet` by itself, for example: frames in both directions over a veth pair, superframes, frames that
//! the filter or the kernel drops, and an interface that disappears and is created again.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dp::packet::{PacketConfig, PacketPort};
use dp::{Burst, Checksum, Link, LinkState, Mbuf, Offloads, Port, Sleep, Statistics, TxOffload, checksum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tests::lab::{Namespace, Result, Suite, Wire, veth};
use tests::{ensure, lab_error};

use super::programs::hosts;

pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// Time for which a test waits for frames that must not arrive.
const PAUSE: Duration = Duration::from_millis(200);
pub(super) const ADDRESSES: [[u8; 4]; 2] = [[10, 65, 0, 1], [10, 65, 0, 2]];

/// A test.
pub(super) type Test = fn() -> Result<()>;

pub(super) fn add_to(suite: &mut Suite) {
    let tests: [(&str, Test); 14] = [
        ("frames_of_all_lengths", frames_of_all_lengths),
        ("superframes_pass_whole", superframes_pass_whole),
        ("superframes_are_cut", superframes_are_cut),
        ("without_offloads", without_offloads),
        ("vlan_tags_are_put_back", vlan_tags_are_put_back),
        ("only_ours_arrives", only_ours_arrives),
        ("own_mac", own_mac),
        ("ports_of_one_host_reach_each_other", ports_of_one_host_reach_each_other),
        ("the_descriptor_is_readable_while_frames_wait", the_descriptor_is_readable_while_frames_wait),
        ("a_full_ring_and_a_full_socket_are_counted", a_full_ring_and_a_full_socket_are_counted),
        ("frames_wait_for_buffers", frames_wait_for_buffers),
        ("the_interface_goes_and_comes", the_interface_goes_and_comes),
        ("a_new_interface_is_waited_for", a_new_interface_is_waited_for),
        ("hints", hints),
    ];
    for (name, test) in tests {
        suite.add(format!("packet_port_{name}"), test);
    }
}

pub(super) fn config(end: usize) -> PacketConfig {
    PacketConfig::new("v0", [IpAddr::from(ADDRESSES[end])])
}

pub(super) fn open(host: &Namespace, config: &PacketConfig) -> Result<PacketPort> {
    host.enter(|| dp::packet::open(config))?.map_err(|error| lab_error!("{error}"))
}

/// Opens a port at each side of a veth pair.
pub(super) fn pair(mtu: u16, offloads: bool) -> Result<([Namespace; 2], [PacketPort; 2])> {
    let hosts = hosts(mtu, offloads)?;
    let ports = open_both(&hosts, [&config(0), &config(1)])?;
    Ok((hosts, ports))
}

/// Opens both ports, and waits until their links are up.
pub(super) fn open_both(hosts: &[Namespace; 2], configs: [&PacketConfig; 2]) -> Result<[PacketPort; 2]> {
    let mut ports = [open(&hosts[0], configs[0])?, open(&hosts[1], configs[1])?];
    for port in &mut ports {
        waits_for(port, LinkState::Up)?;
    }
    Ok(ports)
}

/// Returns a frame that `from` can send: a TCP segment over IPv4, with its offload. The IPv4 checksum is
/// correct; the field of the TCP checksum has the sum of the pseudo-header.
pub(super) fn segment(
    from: &PacketPort,
    to: [u8; 6],
    ip: [u8; 4],
    tag: Option<u16>,
    payload: usize,
) -> (Vec<u8>, TxOffload) {
    let mut frame = [to, from.info().mac].concat();
    if let Some(tag) = tag {
        frame.extend(0x8100_u16.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([8, 0]);
    let l2 = frame.len();
    let bytes = (40 + payload) as u16;
    frame.extend([0x45, 0, (bytes >> 8) as u8, bytes as u8, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 65, 0, 9]);
    frame.extend(ip);
    frame.extend([0x1b, 0x58, 0x1b, 0x59, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| (at * 7 + at / 251) as u8));
    checksum::complete_ipv4_header(&mut frame);
    let words = frame[l2 + 12..l2 + 20].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum = words.sum::<u32>() + 6 + u32::from(bytes - 20);
    frame[l2 + 36..l2 + 38].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    let offload = TxOffload {
        tcp_checksum: true,
        l2_bytes: l2 as u8,
        l3_bytes: 20,
        l4_bytes: 20,
        ..TxOffload::default()
    };
    (frame, offload)
}

/// Returns a frame in buffers of the port.
pub(super) fn frame(port: &PacketPort, bytes: &[u8], offload: TxOffload) -> Result<Mbuf> {
    let pool = port.mempool();
    let mut parts = Vec::new();
    // The headers have a buffer of their own, as in our stack.
    let (head, rest) = bytes.split_at(bytes.len().min(54));
    for bytes in std::iter::once(head).chain(rest.chunks(pool.data_bytes())) {
        let mut part = pool.alloc().ok_or_else(|| lab_error!("no buffer"))?;
        ensure!(part.append_slice(bytes), "too long for a buffer");
        parts.push(part);
    }
    let mut parts = parts.into_iter();
    let mut frame = parts.next().ok_or_else(|| lab_error!("no bytes"))?;
    for part in parts {
        frame.chain(part).map_err(|_| lab_error!("too many buffers"))?;
    }
    frame.set_tx_offload(offload);
    Ok(frame)
}

pub(super) fn send(port: &mut PacketPort, bytes: &[u8], offload: TxOffload) -> Result<()> {
    let mut burst = Burst::new();
    burst.push(frame(port, bytes, offload)?);
    let taken = port.tx_burst(0, &mut burst);
    ensure!(taken == 1 && burst.is_empty(), "the frame was not taken");
    Ok(())
}

/// Receives the next `count` frames.
pub(super) fn receive(port: &mut PacketPort, count: usize) -> Result<Burst> {
    let (started, mut burst) = (Instant::now(), Burst::new());
    while burst.len() < count {
        port.rx_burst(0, &mut burst);
        ensure!(started.elapsed() < LIMIT, "{} of {count} frames: {:?}", burst.len(), port.counters());
    }
    Ok(burst)
}

/// Fails if a frame arrives within `PAUSE`.
pub(super) fn silence(port: &mut PacketPort) -> Result<()> {
    std::thread::sleep(PAUSE);
    let mut burst = Burst::new();
    ensure!(port.rx_burst(0, &mut burst) == 0, "{:?}", burst.iter().map(bytes).collect::<Vec<_>>());
    Ok(())
}

pub(super) fn bytes(frame: &Mbuf) -> Vec<u8> {
    frame.segments().flatten().copied().collect()
}

/// Returns the frame with the TCP checksum, which `segment` leaves to the port.
fn completed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    assert!(checksum::complete(&mut bytes));
    bytes
}

fn frames_of_all_lengths() -> Result<()> {
    for mtu in [1500, 9000] {
        let (_hosts, mut ports) = pair(mtu, true)?;
        let macs = [0, 1].map(|end| ports[end].info().mac);
        ensure!(ports.iter().all(|port| port.info().mtu == mtu), "the MTU of the interface");
        for round in 0..60 {
            let (from, to) = (round % 2, 1 - round % 2);
            // Each round sends a whole burst of frames with different lengths. The first length of the first
            // round is the maximum.
            let longest = usize::from(mtu) - 40;
            let lengths: Vec<usize> =
                (0..64).map(|nr| longest - (round * 64 + nr) * longest / (60 * 64)).collect();
            let sent: Vec<_> = lengths
                .iter()
                .map(|&payload| segment(&ports[from], macs[to], ADDRESSES[to], None, payload))
                .collect();
            let mut burst = Burst::new();
            for (bytes, offload) in &sent {
                burst.push(frame(&ports[from], bytes, *offload)?);
            }
            ensure!(ports[from].tx_burst(0, &mut burst) == 64, "all are taken");
            for (got, (bytes_sent, _)) in receive(&mut ports[to], 64)?.iter().zip(&sent) {
                // A veth pair does not complete the checksum.
                ensure!(got.rx_checksum() == Checksum::Partial, "{:?}", got.rx_checksum());
                ensure!(bytes(got) == *bytes_sent, "a frame of {} bytes", bytes_sent.len());
            }
        }
        let [a, b] = [0, 1].map(|end| ports[end].counters());
        ensure!((a.rx_frames, b.rx_frames, a.rx_dropped, b.rx_dropped) == (1920, 1920, 0, 0), "{a:?} {b:?}");
        ensure!((a.tx_frames, a.tx_bytes, a.tx_dropped) == (1920, b.rx_bytes, 0), "{a:?} {b:?}");
        // This frame is one byte longer than the interface accepts.
        let (long, offload) = segment(&ports[0], macs[1], ADDRESSES[1], None, usize::from(mtu) - 39);
        send(&mut ports[0], &long, offload)?;
        ensure!(ports[0].counters().tx_dropped == 1, "{:?}", ports[0].counters());
    }
    Ok(())
}

pub(super) fn superframe(
    port: &PacketPort,
    to: [u8; 6],
    tag: Option<u16>,
    payload: usize,
) -> (Vec<u8>, TxOffload) {
    let (bytes, offload) = segment(port, to, ADDRESSES[1], tag, payload);
    (bytes, TxOffload { tso_segment_bytes: 1448, ..offload })
}

fn superframes_pass_whole() -> Result<()> {
    let (_hosts, mut ports) = pair(1500, true)?;
    ensure!(ports[0].info().offloads.contains(Offloads::TX_TSO | Offloads::RX_LRO), "superframes");
    let mac = ports[1].info().mac;
    // Some of these lengths fit a slot, some are close to the size of a slot, and for some the port uses the
    // socket. The last length is the maximum.
    for payload in [1449, 5000, 8000, 8010, 8020, 8030, 8040, 8050, 8200, 20_000, 64_000, 65_495] {
        let (sent, offload) = superframe(&ports[0], mac, None, payload);
        let (small, plain) = segment(&ports[0], mac, ADDRESSES[1], None, 10);
        send(&mut ports[0], &sent, offload)?;
        send(&mut ports[0], &small, plain)?;
        // The kernel cuts frames that are longer than the interface's limit (`gso_max_size`).
        let pieces = if sent.len() < 65_536 { 1 } else { payload.div_ceil(1448) };
        let got = receive(&mut ports[1], pieces + 1)?;
        ensure!(got.len() == pieces + 1 && bytes(&got[pieces]) == small, "the frame behind {payload} bytes");
        if pieces == 1 {
            ensure!(bytes(&got[0]) == sent, "{payload} bytes of payload: {} of {}", got[0].len(), sent.len());
            ensure!(got[0].rx_checksum() == Checksum::Partial, "{:?}", got[0].rx_checksum());
        }
    }
    ensure!(ports[1].counters().rx_dropped == 0, "{:?}", ports[1].counters());
    Ok(())
}

/// The interface has no offloads, so the kernel cuts superframes and computes their checksums.
fn superframes_are_cut() -> Result<()> {
    let (_hosts, mut ports) = pair(1500, false)?;
    let mac = ports[1].info().mac;
    let (sent, offload) = superframe(&ports[0], mac, None, 20_000);
    send(&mut ports[0], &sent, offload)?;
    let mut payload = Vec::new();
    for (nr, piece) in receive(&mut ports[1], 14)?.iter().enumerate() {
        let piece_bytes = bytes(piece);
        ensure!(completed(&piece_bytes) == piece_bytes, "the sum of piece {nr}");
        ensure!(piece.rx_checksum() == Checksum::Unknown, "{:?}", piece.rx_checksum());
        ensure!(piece_bytes[38..42] == (1 + 1448 * nr as u32).to_be_bytes(), "its sequence number");
        payload.extend_from_slice(&piece_bytes[54..]);
    }
    ensure!(payload == sent[54..], "the payload");
    Ok(())
}

fn without_offloads() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let plain = PacketConfig { offloads: Offloads::empty(), ..config(0) };
    let mut ports = open_both(&hosts, [&plain, &config(1)])?;
    ensure!(ports[0].info().offloads.is_empty(), "{:?}", ports[0].info().offloads);
    let macs = [0, 1].map(|end| ports[end].info().mac);
    for payload in [0, 100, 1460] {
        let sent = completed(&segment(&ports[0], macs[1], ADDRESSES[1], None, payload).0);
        send(&mut ports[0], &sent, TxOffload::default())?;
        let got = receive(&mut ports[1], 1)?;
        ensure!(bytes(&got[0]) == sent && got[0].rx_checksum() == Checksum::Unknown, "to the other");
        // Received frames do not depend on the offloads of the receiving port.
        let (sent, offload) = segment(&ports[1], macs[0], ADDRESSES[0], None, payload);
        send(&mut ports[1], &sent, offload)?;
        let got = receive(&mut ports[0], 1)?;
        ensure!(bytes(&got[0]) == sent && got[0].rx_checksum() == Checksum::Partial, "from the other");
    }
    let (sent, offload) = segment(&ports[1], macs[0], ADDRESSES[0], None, 30_000);
    send(&mut ports[1], &sent, TxOffload { tso_segment_bytes: 1448, ..offload })?;
    ensure!(bytes(&receive(&mut ports[0], 1)?[0]) == sent, "a superframe");
    Ok(())
}

fn vlan_tags_are_put_back() -> Result<()> {
    let (_hosts, mut ports) = pair(1500, true)?;
    let mac = ports[1].info().mac;
    // The tagged frames are: a frame in a slot, a full frame, a superframe in a slot, and a superframe in the
    // socket.
    for payload in [1, 1460, 6000, 50_000] {
        let (sent, mut offload) = segment(&ports[0], mac, ADDRESSES[1], Some(0x6007), payload);
        if payload > 1460 {
            offload.tso_segment_bytes = 1448;
        }
        send(&mut ports[0], &sent, offload)?;
        let got = receive(&mut ports[1], 1)?;
        ensure!(bytes(&got[0]) == sent, "{payload}: {:x?}", &bytes(&got[0])[..58]);
        ensure!(got[0].rx_checksum() == Checksum::Partial, "{:?}", got[0].rx_checksum());
    }
    Ok(())
}

/// The filter of a port drops frames to other addresses, and frames that the port's own host sends.
fn only_ours_arrives() -> Result<()> {
    let hosts = hosts(1500, true)?;
    hosts[0].address("v0", "10.65.0.101/24")?;
    hosts[1].address("v0", "10.65.0.102/24")?;
    let mut ports = open_both(&hosts, [&config(0), &config(1)])?;
    let mac = ports[1].info().mac;
    // The kernels resolve each other's addresses and exchange datagrams over the interfaces of the ports.
    let near = hosts[0].enter(|| std::net::UdpSocket::bind("10.65.0.101:7000"))??;
    let far = hosts[1].enter(|| std::net::UdpSocket::bind("10.65.0.102:7000"))??;
    far.set_read_timeout(Some(LIMIT))?;
    near.set_read_timeout(Some(LIMIT))?;
    for _ in 0..20 {
        let mut room = [0; 100];
        near.send_to(&[1; 100], "10.65.0.102:7000")?;
        ensure!(far.recv(&mut room)? == 100, "a datagram");
        far.send_to(&[2; 100], "10.65.0.101:7000")?;
        ensure!(near.recv(&mut room)? == 100, "a datagram");
    }
    // Our port sends frames to addresses that are not the other port's.
    for ip in [[10, 65, 0, 102], [10, 65, 0, 3]] {
        let (bytes, offload) = segment(&ports[0], mac, ip, None, 100);
        send(&mut ports[0], &bytes, offload)?;
    }
    let (foreign, offload) = segment(&ports[0], [2, 0, 0, 0, 0, 9], ADDRESSES[1], None, 100);
    send(&mut ports[0], &foreign, offload)?;
    silence(&mut ports[0])?;
    silence(&mut ports[1])?;
    // A frame for the port still arrives.
    let (ours, offload) = segment(&ports[0], mac, ADDRESSES[1], None, 100);
    send(&mut ports[0], &ours, offload)?;
    ensure!(bytes(&receive(&mut ports[1], 1)?[0]) == ours, "ours");
    // The ARP request of the port's own host for the port's address does not reach the port.
    near.send_to(&[1; 100], "10.65.0.1:7000")?;
    silence(&mut ports[0])
}

/// Frames for the configured Ethernet address arrive at the port. Frames for the Ethernet address of the
/// interface do not.
fn own_mac() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let own = [2, 0, 0, 0, 0x65, 1];
    let mut ports = open_both(&hosts, [&PacketConfig { mac: Some(own), ..config(0) }, &config(1)])?;
    ensure!(ports[0].info().mac == own, "{:?}", ports[0].info());
    let (ours, offload) = segment(&ports[1], own, ADDRESSES[0], None, 100);
    send(&mut ports[1], &ours, offload)?;
    ensure!(bytes(&receive(&mut ports[0], 1)?[0]) == ours, "ours");
    let link = hosts[0].ip(["link", "show", "dev", "v0"])?;
    let kernel = link.split_once("link/ether ").and_then(|(_, rest)| rest.get(..17)).unwrap_or_default();
    let kernel: Vec<u8> = kernel.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let kernel = kernel.try_into().map_err(|_| lab_error!("no address in {link}"))?;
    let (to_kernel, offload) = segment(&ports[1], kernel, ADDRESSES[0], None, 100);
    send(&mut ports[1], &to_kernel, offload)?;
    silence(&mut ports[0])
}

/// Two ports are on one interface. Each port receives the frames that the other port sends to it, including
/// superframes, and does not receive its own frames.
fn ports_of_one_host_reach_each_other() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let neighbour = [10, 65, 0, 7];
    let second = PacketConfig::new("v0", [IpAddr::from(neighbour)]);
    let [first, second] = [config(0), second].map(|config| PacketConfig { sees_host: true, ..config });
    let mut ports = [open(&hosts[0], &first)?, open(&hosts[0], &second)?];
    for port in &mut ports {
        waits_for(port, LinkState::Up)?;
    }
    let mac = ports[0].info().mac;
    for (from, to, ip) in [(0, 1, neighbour), (1, 0, ADDRESSES[0])] {
        for payload in [100, 30_000] {
            let (sent, mut offload) = segment(&ports[from], mac, ip, None, payload);
            if payload > 1460 {
                offload.tso_segment_bytes = 1448;
            }
            send(&mut ports[from], &sent, offload)?;
            ensure!(bytes(&receive(&mut ports[to], 1)?[0]) == sent, "{payload} bytes from {from}");
        }
        let (to_itself, offload) = segment(&ports[from], mac, [ADDRESSES[0], neighbour][from], None, 100);
        send(&mut ports[from], &to_itself, offload)?;
        silence(&mut ports[from])?;
    }
    Ok(())
}

/// Whether the descriptor of the port is readable within `limit`.
pub(super) fn readable(port: &PacketPort, limit: Duration) -> Result<bool> {
    let fd = port.poll_fd().ok_or_else(|| lab_error!("no descriptor"))?;
    let mut set = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let count = poll(&mut set, Some(&limit)).map_err(|error| lab_error!("{error}"))?;
    Ok(count > 0)
}

fn the_descriptor_is_readable_while_frames_wait() -> Result<()> {
    let (_hosts, mut ports) = pair(1500, true)?;
    let mac = ports[1].info().mac;
    ensure!(!readable(&ports[1], PAUSE)?, "before any frame");
    for payload in [100, 30_000] {
        let (sent, mut offload) = segment(&ports[0], mac, ADDRESSES[1], None, payload);
        if payload > 1460 {
            offload.tso_segment_bytes = 1448;
        }
        send(&mut ports[0], &sent, offload)?;
        send(&mut ports[0], &sent, offload)?;
        ensure!(readable(&ports[1], LIMIT)?, "a frame of {payload} bytes has come");
        // The test waits, so that the frame has arrived before the descriptor is polled.
        std::thread::sleep(PAUSE);
        ensure!(readable(&ports[1], Duration::ZERO)?, "level-triggered");
        receive(&mut ports[1], 2)?;
        ensure!(!readable(&ports[1], Duration::ZERO)?, "all are taken");
    }
    Ok(())
}

fn a_full_ring_and_a_full_socket_are_counted() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let small = PacketConfig { rx_slots: 32, rx_bytes: 0, ..config(1) };
    // The kernel passes each frame first to the socket that was opened last. Therefore a frame that the
    // witness has received has been passed to the port before.
    let mut witness = open(&hosts[1], &config(1))?;
    let mut ports = open_both(&hosts, [&config(0), &small])?;
    let mac = ports[1].info().mac;
    let (sent, offload) = segment(&ports[0], mac, ADDRESSES[1], None, 100);
    for _ in 0..40 {
        send(&mut ports[0], &sent, offload)?;
    }
    receive(&mut witness, 40)?;
    let got = receive(&mut ports[1], 32)?;
    ensure!(got.iter().all(|frame| bytes(frame) == sent), "those that fit");
    silence(&mut ports[1])?;
    ensure!(ports[1].counters().rx_dropped == 8, "{:?}", ports[1].counters());
    // The first superframe fills the memory of the socket. The kernel drops the other superframes, and the
    // port counts them when it reads their slots.
    let (large, offload_large) = superframe(&ports[0], mac, None, 30_000);
    for _ in 0..10 {
        send(&mut ports[0], &large, offload_large)?;
    }
    send(&mut ports[0], &sent, offload)?;
    receive(&mut witness, 11)?;
    let got = receive(&mut ports[1], 2)?;
    ensure!(bytes(&got[0]) == large && bytes(&got[1]) == sent, "the first and the last");
    ensure!(ports[1].counters().rx_dropped == 17, "{:?}", ports[1].counters());
    // The port continues to receive.
    send(&mut ports[0], &large, offload_large)?;
    ensure!(bytes(&receive(&mut ports[1], 1)?[0]) == large, "one more");
    let counters = ports[1].counters();
    ensure!((counters.rx_frames, counters.rx_dropped) == (35, 17), "{counters:?}");
    Ok(())
}

fn frames_wait_for_buffers() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let few = PacketConfig { mbufs: 64, ..config(1) };
    let mut ports = open_both(&hosts, [&config(0), &few])?;
    let mac = ports[1].info().mac;
    let (sent, offload) = segment(&ports[0], mac, ADDRESSES[1], None, 100);
    let (large, offload_large) = superframe(&ports[0], mac, None, 30_000);
    for _ in 0..62 {
        send(&mut ports[0], &sent, offload)?;
    }
    let held = receive(&mut ports[1], 62)?;
    send(&mut ports[0], &large, offload_large)?;
    send(&mut ports[0], &sent, offload)?;
    let mut none = Burst::new();
    ensure!(readable(&ports[1], LIMIT)?, "the first has come");
    ensure!(ports[1].rx_burst(0, &mut none) == 0 && none.is_empty(), "two buffers are too few");
    ensure!(ports[1].counters().rx_no_mbuf == 1, "{:?}", ports[1].counters());
    drop(held);
    let got = receive(&mut ports[1], 2)?;
    ensure!(bytes(&got[0]) == large && bytes(&got[1]) == sent, "both, in order");
    ensure!(ports[1].counters().rx_dropped == 0, "{:?}", ports[1].counters());
    drop(got);
    ensure!(ports[1].mempool().available() == 64, "no buffer is lost");
    Ok(())
}

pub(super) fn waits_for(port: &mut PacketPort, state: LinkState) -> Result<()> {
    let started = Instant::now();
    while port.link_state() != state {
        ensure!(started.elapsed() < LIMIT, "the link is not {state:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits until both links are up, and checks that a frame passes in each direction.
pub(super) fn passes(ports: &mut [PacketPort; 2]) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)] {
        waits_for(&mut ports[from], LinkState::Up)?;
        waits_for(&mut ports[to], LinkState::Up)?;
        let (sent, offload) = segment(&ports[from], ports[to].info().mac, ADDRESSES[to], None, 100);
        send(&mut ports[from], &sent, offload)?;
        ensure!(bytes(&receive(&mut ports[to], 1)?[0]) == sent, "a frame from {from}");
    }
    Ok(())
}

/// After an interface was set up, some time passes before the kernel lets frames pass. Opening a port during
/// this time waits, so the opened port reports at once that its link is up. Without a carrier, opening a port
/// does not wait.
fn a_new_interface_is_waited_for() -> Result<()> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    // If both interfaces have the same index, the kernel waits up to a second (`linkwatch_urgent_event`).
    veth(Wire { namespace: &hosts[0], dev: "v0" }, Wire { namespace: &hosts[1], dev: "v0" }, 1500)?;
    for (end, host) in hosts.iter().enumerate() {
        ensure!(open(host, &config(end))?.link_state() == LinkState::Up, "the port of host {end} is down");
    }
    // Without a carrier, opening the port does not wait. The kernel may report the loss of the carrier late.
    hosts[1].ip(["link", "set", "v0", "down"])?;
    waits_for(&mut open(&hosts[0], &config(0))?, LinkState::Down)?;
    let begun = Instant::now();
    let mut port = open(&hosts[0], &config(0))?;
    ensure!(port.link_state() == LinkState::Down, "there is no carrier");
    // With a carrier, opening a port may wait for the link for this long.
    ensure!(begun.elapsed() < Duration::from_secs(2), "opened after {:?}", begun.elapsed());
    Ok(())
}

fn the_interface_goes_and_comes() -> Result<()> {
    let (hosts, mut ports) = pair(1500, true)?;
    passes(&mut ports)?;
    let mac = ports[1].info().mac;
    let (sent, offload) = segment(&ports[0], mac, ADDRESSES[1], None, 100);

    // The interface is set down. The port of this interface notices the change when it sends its first frame,
    // and the other interface loses its carrier.
    hosts[0].ip(["link", "set", "v0", "down"])?;
    send(&mut ports[0], &sent, offload)?;
    ensure!(ports[0].counters().tx_link_down == 1, "{:?}", ports[0].counters());
    waits_for(&mut ports[0], LinkState::Down)?;
    waits_for(&mut ports[1], LinkState::Down)?;
    ensure!(!readable(&ports[0], Duration::ZERO)?, "the error of the socket is taken");
    send(&mut ports[1], &sent, offload)?;
    ensure!(ports[1].counters().tx_link_down == 1, "{:?}", ports[1].counters());
    hosts[0].ip(["link", "set", "v0", "up"])?;
    passes(&mut ports)?;

    // The interface is renamed.
    hosts[0].ip(["link", "set", "v0", "down"])?;
    hosts[0].ip(["link", "set", "v0", "name", "other"])?;
    waits_for(&mut ports[0], LinkState::Down)?;
    hosts[0].ip(["link", "set", "other", "up"])?;
    passes(&mut ports)?;
    hosts[0].ip(["link", "set", "other", "down"])?;
    hosts[0].ip(["link", "set", "other", "name", "v0"])?;
    hosts[0].ip(["link", "set", "v0", "up"])?;
    passes(&mut ports)?;

    // The interface is removed and created again with other indices and MAC addresses.
    hosts[0].ip(["link", "del", "v0"])?;
    waits_for(&mut ports[0], LinkState::Down)?;
    waits_for(&mut ports[1], LinkState::Down)?;
    let before = ports[0].counters().tx_link_down;
    send(&mut ports[0], &sent, offload)?;
    ensure!(ports[0].counters().tx_link_down == before + 1, "{:?}", ports[0].counters());
    hosts[0].ip(["link", "add", "v3", "type", "veth", "peer", "name", "v4"])?;
    veth(Wire { namespace: &hosts[0], dev: "v0" }, Wire { namespace: &hosts[1], dev: "v0" }, 1500)?;
    for host in &hosts {
        host.offloads_on("v0")?;
    }
    passes(&mut ports)?;
    ensure!(ports[1].info().mac == mac, "the port keeps its address");
    let counters = ports[0].counters();
    ensure!(counters.link_changes >= 6 && counters.tx_dropped == 0, "{counters:?}");
    Ok(())
}

fn hints() -> Result<()> {
    let hosts = hosts(1500, true)?;
    ensure!(open(&hosts[0], &config(0))?.hints().is_empty(), "nothing to say");
    hosts[0].sysctl("conf/v0/forwarding", "1")?;
    let port = open(&hosts[0], &config(0))?;
    let [hint] = port.hints() else { return Err(lab_error!("{:?}", port.hints())) };
    ensure!(hint.starts_with("the kernel forwards ipv4 on v0"), "{hint}");
    let own = PacketConfig { mac: Some([2, 0, 0, 0, 0x65, 1]), ..config(0) };
    ensure!(open(&hosts[0], &own)?.hints().is_empty(), "an address of its own");
    Ok(())
}
