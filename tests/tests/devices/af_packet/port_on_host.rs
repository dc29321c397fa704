//! `dp::packet` and its host, for example: interfaces that the port refuses, the addresses that the port
//! makes an interface accept, links that go down and up, and the memory of the kernel.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dp::packet::{PacketConfig, PacketError, PacketPort};
use dp::{BURST, Burst, Link, LinkState, Mbuf, Port, Statistics, TxOffload};
use tests::lab::{Namespace, Result, Suite, Wire, veth};
use tests::{ensure, lab_error};

use super::port::{
    ADDRESSES, LIMIT, Test, bytes, config, frame, open, open_both, pair, passes, readable, receive, segment,
    send, silence, superframe, waits_for,
};
use super::programs::hosts;

/// Maximum time for which a port waits for the link of an interface that has a carrier.
const LINK_WAIT: Duration = Duration::from_secs(2);

pub(super) fn add_to(suite: &mut Suite) {
    let tests: [(&str, Test); 12] = [
        ("interfaces_that_cannot_be_used_are_refused", interfaces_that_cannot_be_used_are_refused),
        ("a_name_has_up_to_15_bytes", a_name_has_up_to_15_bytes),
        ("the_interface_lets_in_our_address_and_groups", the_interface_lets_in_our_address_and_groups),
        ("groups_are_joined_and_left", groups_are_joined_and_left),
        ("a_link_that_does_not_come_is_waited_for", a_link_that_does_not_come_is_waited_for),
        ("a_frame_finds_that_the_link_is_there_again", a_frame_finds_that_the_link_is_there_again),
        ("a_burst_into_a_link_that_is_down", a_burst_into_a_link_that_is_down),
        ("what_came_before_the_link_went_down", what_came_before_the_link_went_down),
        ("a_full_send_queue_leaves_frames_with_the_caller", a_full_send_queue_leaves_frames_with_the_caller),
        ("a_burst_is_bounded_in_bytes", a_burst_is_bounded_in_bytes),
        ("a_lost_superframe_is_not_taken_for_the_next", a_lost_superframe_is_not_taken_for_the_next),
        ("a_frame_of_many_buffers", a_frame_of_many_buffers),
    ];
    for (name, test) in tests {
        suite.add(format!("packet_port_on_host_{name}"), test);
    }
}

fn refusal(host: &Namespace, config: &PacketConfig) -> Result<PacketError> {
    match host.enter(|| dp::packet::open(config))? {
        Ok(port) => Err(lab_error!("{port:?} was opened")),
        Err(error) => Ok(error),
    }
}

fn interfaces_that_cannot_be_used_are_refused() -> Result<()> {
    let hosts = hosts(1500, true)?;
    hosts[0].address("v0", "10.65.0.101/24")?;
    hosts[0].address("v0", "fd65::101/64")?;
    for (address, known) in
        [("10.65.0.101", true), ("fd65::101", true), ("10.65.0.1", false), ("fd65::1", false)]
    {
        let address = address.parse().map_err(|error| lab_error!("{error}"))?;
        let config = PacketConfig::new("v0", [address]);
        if known {
            let error = refusal(&hosts[0], &config)?;
            ensure!(error == PacketError::KernelAddress { address, owner: "v0".to_owned() }, "{error}");
        } else {
            open(&hosts[0], &config)?;
        }
    }
    let no_ethernet = PacketConfig { interface: "lo".to_owned(), ..config(0) };
    let error = refusal(&hosts[0], &no_ethernet)?;
    let suitable = PacketError::NotEthernet { interface: "lo".to_owned(), suitable: vec!["v0".to_owned()] };
    ensure!(error == suitable, "{error}");
    let group = PacketConfig { mac: Some([3, 0, 0, 0, 0, 1]), ..config(0) };
    let error = refusal(&hosts[0], &group)?;
    ensure!(error == PacketError::Mac { mac: [3, 0, 0, 0, 0, 1] }, "{error}");
    let long = PacketConfig { mtu: Some(1501), ..config(0) };
    let error = refusal(&hosts[0], &long)?;
    ensure!(matches!(error, PacketError::Mtu { mtu: 1501, most: 1500, .. }), "{error}");
    hosts[0].ip(["link", "set", "v0", "down"])?;
    let error = refusal(&hosts[0], &config(0))?;
    ensure!(error == PacketError::Down { interface: "v0".to_owned() }, "{error}");
    Ok(())
}

/// The longest name of an interface has 15 bytes (`IFNAMSIZ` without the final zero).
fn a_name_has_up_to_15_bytes() -> Result<()> {
    const NAME: &str = "fifteen-letters";
    let hosts = [Namespace::new()?, Namespace::new()?];
    veth(Wire { namespace: &hosts[0], dev: NAME }, Wire { namespace: &hosts[1], dev: "v0" }, 1500)?;
    hosts[0].offloads_on(NAME)?;
    hosts[1].offloads_on("v0")?;
    let longest = PacketConfig { interface: NAME.to_owned(), ..config(0) };
    let mut ports = [open(&hosts[0], &longest)?, open(&hosts[1], &config(1))?];
    ensure!(ports[0].info().name == format!("packet:{NAME}"), "{:?}", ports[0].info());
    passes(&mut ports)?;
    // The port also asks for the carrier of an interface with this name, and waits for its link.
    hosts[1].ip(["link", "set", "v0", "down"])?;
    waits_for(&mut ports[0], LinkState::Down)?;
    hosts[0].ip(["link", "set", NAME, "mode", "dormant"])?;
    hosts[1].ip(["link", "set", "v0", "up"])?;
    let begun = Instant::now();
    ensure!(open(&hosts[0], &longest)?.link_state() == LinkState::Down, "it is dormant");
    ensure!(begun.elapsed() >= LINK_WAIT, "opened after {:?}, with a carrier", begun.elapsed());
    Ok(())
}

/// Returns the Ethernet addresses that the interface of a host accepts in addition to its own.
fn let_in(host: &Namespace) -> Result<String> {
    host.run("bridge").args(["fdb", "show", "dev", "v0"]).check(LIMIT)
}

/// The interface accepts the port's own Ethernet address and the groups of Neighbor Discovery, also after the
/// interface was deleted and created again.
fn the_interface_lets_in_our_address_and_groups() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let own = PacketConfig {
        mac: Some([2, 0, 0, 0, 0x65, 1]),
        ..PacketConfig::new("v0", [IpAddr::from([0xfd65, 0, 0, 0, 0, 1, 2, 3])])
    };
    // The last group belongs to the IP address. The kernel has already joined the second group, that of all
    // nodes.
    let ours = ["02:00:00:00:65:01", "33:33:00:00:00:01", "33:33:ff:02:00:03"];
    let before = let_in(&hosts[0])?;
    ensure!(!before.contains(ours[0]) && !before.contains(ours[2]), "{before}");
    let mut port = open(&hosts[0], &own)?;
    let during = let_in(&hosts[0])?;
    ensure!(ours.iter().all(|address| during.contains(address)), "{during}");
    hosts[0].ip(["link", "del", "v0"])?;
    waits_for(&mut port, LinkState::Down)?;
    hosts[0].ip(["link", "add", "v3", "type", "veth", "peer", "name", "v4"])?;
    veth(Wire { namespace: &hosts[0], dev: "v0" }, Wire { namespace: &hosts[1], dev: "v0" }, 1500)?;
    waits_for(&mut port, LinkState::Up)?;
    let anew = let_in(&hosts[0])?;
    ensure!(ours.iter().all(|address| anew.contains(address)), "{anew}");
    drop(port);
    let after = let_in(&hosts[0])?;
    ensure!(!after.contains(ours[0]) && !after.contains(ours[2]), "{after}");
    Ok(())
}

/// Frames for the groups of the last call arrive, and the interface accepts their Ethernet addresses. The
/// groups that are set while there is no interface are joined on the next interface.
fn groups_are_joined_and_left() -> Result<()> {
    let (hosts, mut ports) = pair(1500, false)?;
    let groups = [[239, 193, 2, 3], [239, 193, 2, 4]];
    let macs = [3, 4].map(|last| [0x01, 0, 0x5e, 0x41, 2, last]);
    let text = ["01:00:5e:41:02:03", "01:00:5e:41:02:04"];
    let is_let_in = |expected: [bool; 2]| -> Result<()> {
        let found = let_in(&hosts[0])?;
        ensure!(text.map(|mac| found.contains(mac)) == expected, "{expected:?}: {found}");
        Ok(())
    };
    let arrive = |ports: &mut [PacketPort; 2], expected: &[usize]| -> Result<()> {
        for at in [0, 1] {
            let (bytes, offload) = segment(&ports[1], macs[at], groups[at], None, at);
            send(&mut ports[1], &bytes, offload)?;
        }
        let (last, offload) = segment(&ports[1], ports[0].info().mac, ADDRESSES[0], None, 7);
        send(&mut ports[1], &last, offload)?;
        let payloads: Vec<_> =
            receive(&mut ports[0], expected.len() + 1)?.iter().map(|it| it.len() - 54).collect();
        ensure!(payloads == [expected, &[7]].concat(), "{payloads:?}");
        Ok(())
    };
    is_let_in([false, false])?;
    arrive(&mut ports, &[])?;
    for (set, expected) in [(&[0, 1][..], [true, true]), (&[1], [false, true]), (&[1, 1, 0], [true; 2])] {
        let set: Vec<IpAddr> = set.iter().map(|at| IpAddr::from(groups[*at])).collect();
        ports[0].set_groups(&set)?;
        is_let_in(expected)?;
        let expected: Vec<usize> = (0..2).filter(|at| expected[*at]).collect();
        arrive(&mut ports, &expected)?;
    }
    let refused = ports[0].set_groups(&[ADDRESSES[0].into()]);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidInput), "no group");
    let many: Vec<IpAddr> = (0..65).map(|last| [239, 0, 0, last].into()).collect();
    ensure!(ports[0].set_groups(&many).is_err() && ports[0].set_groups(&many[..64]).is_ok(), "64 groups");
    is_let_in([false, false])?;
    hosts[0].ip(["link", "del", "v0"])?;
    waits_for(&mut ports[0], LinkState::Down)?;
    ports[0].set_groups(&[groups[0].into()])?;
    // Another interface gets the index that the former interface had, if indexes are reused.
    hosts[0].ip(["link", "add", "v3", "type", "veth", "peer", "name", "v4"])?;
    veth(Wire { namespace: &hosts[0], dev: "v0" }, Wire { namespace: &hosts[1], dev: "v0" }, 1500)?;
    for port in &mut ports {
        waits_for(port, LinkState::Up)?;
    }
    is_let_in([true, false])?;
    arrive(&mut ports, &[0])?;
    ports[0].set_groups(&[])?;
    is_let_in([false, false])?;
    arrive(&mut ports, &[])
}

/// A port waits for a link that has a carrier but is not up yet (dormant: a program decides when it is up).
/// The wait has a limit.
fn a_link_that_does_not_come_is_waited_for() -> Result<()> {
    let hosts = hosts(1500, true)?;
    hosts[0].ip(["link", "set", "v0", "down"])?;
    hosts[0].ip(["link", "set", "v0", "mode", "dormant"])?;
    hosts[0].ip(["link", "set", "v0", "up"])?;
    let begun = Instant::now();
    let mut port = open(&hosts[0], &config(0))?;
    ensure!(begun.elapsed() >= LINK_WAIT, "opened after {:?}", begun.elapsed());
    ensure!(port.link_state() == LinkState::Down, "the link is dormant");
    hosts[0].ip(["link", "set", "v0", "mode", "default"])?;
    hosts[0].ip(["link", "set", "v0", "state", "up"])?;
    waits_for(&mut port, LinkState::Up)
}

/// A caller that only sends frames notices that the link is up again.
fn a_frame_finds_that_the_link_is_there_again() -> Result<()> {
    let (hosts, mut ports) = pair(1500, true)?;
    let mac = ports[1].info().mac;
    let (sent, offload) = segment(&ports[0], mac, ADDRESSES[1], None, 100);
    hosts[1].ip(["link", "set", "v0", "down"])?;
    waits_for(&mut ports[0], LinkState::Down)?;
    send(&mut ports[0], &sent, offload)?;
    ensure!(ports[0].counters().tx_link_down == 1, "{:?}", ports[0].counters());
    hosts[1].ip(["link", "set", "v0", "up"])?;
    let started = Instant::now();
    while ports[0].counters().tx_frames == 0 {
        send(&mut ports[0], &sent, offload)?;
        ensure!(started.elapsed() < LIMIT, "{:?}", ports[0].counters());
    }
    waits_for(&mut ports[1], LinkState::Up)?;
    send(&mut ports[0], &sent, offload)?;
    ensure!(bytes(&receive(&mut ports[1], 1)?[0]) == sent, "a frame");
    Ok(())
}

/// The first of two bursts finds that the link is down. The port drops all frames of both bursts, and counts
/// them as dropped for this reason.
fn a_burst_into_a_link_that_is_down() -> Result<()> {
    let (hosts, mut ports) = pair(1500, true)?;
    let (sent, offload) = segment(&ports[0], ports[1].info().mac, ADDRESSES[1], None, 100);
    hosts[0].ip(["link", "set", "v0", "down"])?;
    for rounds in 1..=2 {
        let mut burst = Burst::new();
        for _ in 0..5 {
            burst.push(frame(&ports[0], &sent, offload)?);
        }
        ensure!(ports[0].tx_burst(0, &mut burst) == 5 && burst.is_empty(), "they are taken");
        let counters = ports[0].counters();
        let counted = (counters.tx_link_down, counters.tx_dropped, counters.tx_frames);
        ensure!(counted == (5 * rounds, 0, 0), "{counters:?}");
    }
    Ok(())
}

/// A superframe waits in the socket when the interface goes down. The error of the socket hides the frame for
/// one call, and then the port returns the frame.
fn what_came_before_the_link_went_down() -> Result<()> {
    let (hosts, mut ports) = pair(1500, true)?;
    let (large, offload) = superframe(&ports[0], ports[1].info().mac, None, 30_000);
    send(&mut ports[0], &large, offload)?;
    ensure!(readable(&ports[1], LIMIT)?, "the frame has come");
    hosts[1].ip(["link", "set", "v0", "down"])?;
    ensure!(bytes(&receive(&mut ports[1], 1)?[0]) == large, "the superframe");
    ensure!(ports[1].counters().rx_dropped == 0, "{:?}", ports[1].counters());
    Ok(())
}

/// The kernel's queue of the interface is slow, so frames wait in this queue and occupy the memory for
/// sending.
fn a_full_send_queue_leaves_frames_with_the_caller() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let small = PacketConfig { tx_bytes: 32 << 10, ..config(0) };
    let mut ports = open_both(&hosts, [&small, &config(1)])?;
    let mac = ports[1].info().mac;
    let queue = ["root", "tbf", "rate", "8kbit", "burst", "1600", "limit", "10000000"];
    hosts[0].run("tc").args(["qdisc", "add", "dev", "v0"]).args(queue).check(LIMIT)?;
    let frames: Vec<_> =
        (0..BURST).map(|nr| segment(&ports[0], mac, ADDRESSES[1], None, 1000 + nr)).collect();
    let mut burst = Burst::new();
    for (bytes, offload) in &frames {
        burst.push(frame(&ports[0], bytes, *offload)?);
    }
    let taken = ports[0].tx_burst(0, &mut burst);
    ensure!(taken > 0 && taken < BURST - 1, "{taken} taken");
    let left: Vec<Vec<u8>> = burst.iter().map(bytes).collect();
    let expected: Vec<&Vec<u8>> = frames[taken..].iter().map(|(bytes, _)| bytes).collect();
    ensure!(left.iter().eq(expected), "the others stay, in their order");
    let counters = ports[0].counters();
    ensure!((counters.tx_frames, counters.tx_ring_full) == (taken as u64, left.len() as u64), "{counters:?}");
    ensure!((counters.tx_dropped, counters.tx_link_down) == (0, 0), "{counters:?}");
    // The kernel drops the frames of a queue that is removed, and frees their memory.
    hosts[0].run("tc").args(["qdisc", "del", "dev", "v0", "root"]).check(LIMIT)?;
    let started = Instant::now();
    while !burst.is_empty() {
        ports[0].tx_burst(0, &mut burst);
        ensure!(started.elapsed() < LIMIT, "{:?}", ports[0].counters());
    }
    ensure!(ports[0].counters().tx_frames == BURST as u64, "{:?}", ports[0].counters());
    let mut last: Vec<Mbuf> = Vec::new();
    while last.last().is_none_or(|frame| bytes(frame) != frames[BURST - 1].0) {
        last.extend(receive(&mut ports[1], 1)?);
    }
    Ok(())
}

/// A burst ends with the frame that reaches the maximum number of bytes.
fn a_burst_is_bounded_in_bytes() -> Result<()> {
    let hosts = hosts(1500, true)?;
    // The kernel passes each frame first to the socket that was opened last.
    let mut witness = open(&hosts[1], &config(1))?;
    let mut ports = open_both(&hosts, [&config(0), &config(1)])?;
    let (large, offload) = superframe(&ports[0], ports[1].info().mac, None, 60_000);
    for _ in 0..20 {
        send(&mut ports[0], &large, offload)?;
    }
    receive(&mut witness, 20)?;
    let mut burst = Burst::new();
    let counts = [0; 3].map(|_| ports[1].rx_burst(0, &mut burst));
    // The maximum of 512 KiB is reached by the ninth frame.
    ensure!(counts == [9, 9, 2], "{counts:?}");
    ensure!(burst.iter().all(|frame| bytes(frame) == large), "all of them");
    Ok(())
}

/// The socket has no memory for a superframe, but has memory for the next superframe before the port reads
/// the slot of the lost superframe.
fn a_lost_superframe_is_not_taken_for_the_next() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let small = PacketConfig { rx_bytes: 0, ..config(1) };
    let mut witness = open(&hosts[1], &config(1))?;
    let mut ports = open_both(&hosts, [&config(0), &small])?;
    let mac = ports[1].info().mac;
    let frames: Vec<(Vec<u8>, TxOffload)> = (0..3_u8)
        .map(|nr| {
            let (mut bytes, offload) =
                superframe(&ports[0], mac, None, [30_000, 25_000, 20_000][usize::from(nr)]);
            bytes[1000..].fill(nr);
            (bytes, offload)
        })
        .collect();
    for (bytes, offload) in &frames[..2] {
        send(&mut ports[0], bytes, *offload)?;
    }
    receive(&mut witness, 2)?;
    // The burst has space for one frame, so the port returns only the first frame.
    let mut full = Burst::new();
    for _ in 0..BURST - 1 {
        full.push(frame(&witness, &frames[0].0[..100], TxOffload::default())?);
    }
    ensure!(ports[1].rx_burst(0, &mut full) == 1, "one place");
    ensure!(bytes(&full[BURST - 1]) == frames[0].0, "the first");
    send(&mut ports[0], &frames[2].0, frames[2].1)?;
    receive(&mut witness, 1)?;
    let got = receive(&mut ports[1], 1)?;
    ensure!(bytes(&got[0]) == frames[2].0, "the third");
    ensure!(ports[1].counters().rx_dropped == 1, "{:?}", ports[1].counters());
    silence(&mut ports[1])
}

/// Sends a frame of as many buffers as a chain may have. The last buffer has the last bytes.
fn a_frame_of_many_buffers() -> Result<()> {
    let (_hosts, mut ports) = pair(1500, true)?;
    let (sent, offload) = segment(&ports[0], ports[1].info().mac, ADDRESSES[1], None, 1400);
    let mut parts = Vec::new();
    for piece in sent.chunks(sent.len().div_ceil(dp::mbuf::MAX_SEGMENTS)) {
        let mut part = ports[0].mempool().alloc().ok_or_else(|| lab_error!("no buffer"))?;
        ensure!(part.append_slice(piece), "too long for a buffer");
        parts.push(part);
    }
    ensure!(parts.len() > dp::mbuf::MAX_SEGMENTS / 2, "{} buffers", parts.len());
    // The chain is built from its end, so that each step visits only one buffer.
    let mut whole: Option<Mbuf> = None;
    while let Some(mut part) = parts.pop() {
        if let Some(rest) = whole.take() {
            part.chain(rest).map_err(|_| lab_error!("too many buffers"))?;
        }
        whole = Some(part);
    }
    let mut whole = whole.ok_or_else(|| lab_error!("no bytes"))?;
    whole.set_tx_offload(offload);
    let mut burst: Burst = [whole].into_iter().collect();
    ensure!(ports[0].tx_burst(0, &mut burst) == 1, "it is taken");
    ensure!(bytes(&receive(&mut ports[1], 1)?[0]) == sent, "{} bytes", sent.len());
    // The port has a second pool, with buffers for large frames.
    let bulk = ports[0].bulk_mempool().map(|pool| (pool.available(), pool.data_bytes()));
    ensure!(bulk == Some((512, 32 << 10)), "{bulk:?}");
    Ok(())
}
