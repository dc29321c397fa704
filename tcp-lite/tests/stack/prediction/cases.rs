//! Cases for the general path: frames that header prediction does not handle, connections in unusual
//! conditions, and unusual segments that the hosts send.

use std::sync::Arc;

use dp::{Checksum, ExtBuf, Offloads};
use smoltcp::wire::Icmpv4DstUnreachable;
use tcp_lite::{Duration, Instant};

use crate::craft::error_about;
use crate::harness::{MAC_A, MAC_B};

use super::{BURST, Field, FrameDelivery, IP, Setting, Step, TCP, Twins, move_field};

/// Fills in the checksums of IPv4 and TCP, whatever the other headers contain.
fn fill_in_checksums(frame: &mut [u8]) {
    fn sum(bytes: &[u8]) -> u32 {
        bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0))).sum()
    }
    let fold = |sum: u32| !((0..2).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16)) as u16);
    frame[IP + 10..IP + 12].fill(0);
    let header = fold(sum(&frame[IP..TCP]));
    frame[IP + 10..IP + 12].copy_from_slice(&header.to_be_bytes());
    let total = usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
    let end = (IP + total).min(frame.len());
    frame[TCP + 16..TCP + 18].fill(0);
    let pseudo = sum(&frame[IP + 12..TCP]) + 6 + (end - TCP) as u32;
    let segment = fold(pseudo + sum(&frame[TCP..end]));
    frame[TCP + 16..TCP + 18].copy_from_slice(&segment.to_be_bytes());
}

/// Most cases change a frame that is next in order, in a way that random changes seldom produce. Some cases
/// change the port's verdict on the checksum, or nothing. Both hosts must react in the same way.
#[test]
fn headers_that_are_nearly_usual_take_the_general_way() {
    type Change = fn(&mut Vec<u8>);
    let plain = Setting::default;
    let cases: [(&str, Setting, Change); 24] = [
        ("to another host", plain(), |frame| frame[5] ^= 4),
        ("a group address", plain(), |frame| frame[6] ^= 1),
        ("another ethertype", plain(), |frame| frame[12..14].copy_from_slice(&[0x86, 0xdd])),
        ("a first fragment", plain(), |frame| frame[IP + 6] |= 0x20),
        ("a later fragment", plain(), |frame| frame[IP + 7] |= 1),
        ("FIN", plain(), |frame| frame[TCP + 13] |= 1),
        ("SYN", plain(), |frame| frame[TCP + 13] |= 2),
        ("RST", plain(), |frame| frame[TCP + 13] |= 4),
        ("ECE", plain(), |frame| frame[TCP + 13] |= 0x40),
        ("without ACK", plain(), |frame| frame[TCP + 13] &= !0x10),
        ("a header cut short", plain(), |frame| frame[TCP + 12] = 0x50),
        ("a longer header", plain(), |frame| frame[TCP + 12] = 0x90),
        ("padded", plain(), |frame| frame.extend([0x55; 9])),
        ("an old timestamp", plain(), |frame| move_field(frame, Field::Timestamp, -5000)),
        ("an acknowledgement of what was not sent", plain(), |frame| move_field(frame, Field::Ack, 1)),
        ("one byte late", plain(), |frame| move_field(frame, Field::Seq, -1)),
        ("another version of IP", plain(), |frame| frame[IP] = 0x65),
        ("another protocol", plain(), |frame| frame[IP + 9] = 17),
        ("an option of another kind", plain(), |frame| frame[TCP + 22] = 254),
        ("beyond the window", Setting { window: 1000, ..plain() }, |frame| {
            frame.resize(frame.len() + 1300, 0x33);
            let total = (frame.len() - IP) as u16;
            frame[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
        }),
        ("longer than the frame", Setting { checksum: Checksum::Good, ..plain() }, |frame| {
            let total = (frame.len() - IP) as u16 + 10;
            frame[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
        }),
        ("shorter than its headers", Setting { checksum: Checksum::Good, ..plain() }, |frame| {
            frame[IP + 2..IP + 4].copy_from_slice(&45_u16.to_be_bytes());
        }),
        ("a wrong checksum", Setting { checksum: Checksum::Bad, ..plain() }, |_| {}),
        ("nothing", plain(), |_| {}),
    ];
    for (name, setting, change) in cases {
        let mut twins = Twins::new(&Setting { checksum: Checksum::Unknown, ..setting.clone() });
        // The timestamp clock ticks in this time.
        twins.run(&Step::Wait(20_000));
        twins.run(&Step::PeerSends(100));
        assert_eq!(twins.wire.len(), 1, "{name}");
        change(&mut twins.wire[0]);
        fill_in_checksums(&mut twins.wire[0]);
        for host in &mut twins.hosts {
            host.checksum = setting.checksum;
        }
        twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
        twins.run(&Step::TakeEvents);
        for host in &mut twins.hosts {
            host.checksum = Checksum::Unknown;
        }
        for _ in 0..4 {
            // Delayed acknowledgements are sent in this time, with the timestamp that they echo.
            twins.run(&Step::Wait(20_000));
        }
    }
}

/// Damages an acknowledgement that has a SACK block in several ways, and once not at all. Both hosts must
/// react in the same way.
#[test]
fn sack_blocks_are_read_like_those_of_other_headers() {
    const SACK: usize = TCP + 32;
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 9] = [
        ("nothing", |_| {}),
        ("padded", |frame| frame.extend([0x55; 9])),
        ("an option of another kind", |frame| frame[SACK + 2] = 254),
        ("the end of the options", |frame| frame[SACK] = 0),
        ("no whole block", |frame| frame[SACK + 3] = 9),
        ("more blocks than there is room for", |frame| frame[SACK + 3] = 18),
        ("a shorter header", |frame| frame[TCP + 12] = 0xa0),
        ("a longer header than packet", |frame| frame[TCP + 12] = 0xd0),
        ("payload behind it", |frame| {
            frame.extend([0x33; 100]);
            let total = (frame.len() - IP) as u16;
            frame[IP + 2..IP + 4].copy_from_slice(&total.to_be_bytes());
        }),
    ];
    for (name, change) in cases {
        println!("{name}");
        let mut twins = Twins::new(&Setting::default());
        twins.run(&Step::Lose { after: 0, frames: 1, late: true });
        twins.run(&Step::HostsSend(4000));
        assert_eq!(twins.wire[0][SACK..SACK + 4], [1, 1, 5, 10], "{name}");
        twins.wire.truncate(1);
        change(&mut twins.wire[0]);
        fill_in_checksums(&mut twins.wire[0]);
        twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
        twins.run(&Step::TakeEvents);
        for _ in 0..4 {
            twins.run(&Step::Wait(2000));
            twins.run(&Step::Arrive(vec![FrameDelivery::Arrives; BURST]));
        }
    }
}

#[test]
fn a_frame_without_our_tag_takes_the_general_way() {
    let mut twins = Twins::new(&Setting { vlan: Some(5), ..Setting::default() });
    twins.run(&Step::PeerSends(100));
    assert_eq!(twins.wire[0].drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 5]);
    twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
    assert_eq!(twins.hosts[0].stack.counters().rx_not_ours, 1);
}

/// With DCTCP, the receiver acknowledges at once when the first mark arrives, and when the first segment
/// without a mark follows.
#[test]
fn the_end_of_marks_is_seen() {
    let mut twins = Twins::new(&Setting { ecn: true, ..Setting::default() });
    for mark in [3, 3, 0, 0, 3, 0] {
        twins.run(&Step::PeerSends(100));
        twins.wire[0][IP + 1] |= 3;
        twins.wire[0][IP + 1] &= !3 | mark;
        fill_in_checksums(&mut twins.wire[0]);
        twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
        twins.run(&Step::TakeEvents);
    }
}

#[test]
fn wrong_checksums_take_the_general_way() {
    for at in [IP + 10, TCP + 16, TCP + 32] {
        let mut twins = Twins::new(&Setting::default());
        twins.run(&Step::PeerSends(100));
        twins.wire[0][at] ^= 1;
        twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
        assert_eq!(twins.hosts[0].stack.counters().rx_bad_checksum, 1, "byte {at}");
    }
}

/// Checks that both hosts give equal results in sequences of steps that random runs seldom contain.
#[test]
fn connections_in_another_condition_take_the_general_way() {
    use FrameDelivery::{Arrives, Late, Lost, Twice};
    use Step::{Arrive, HostsClose, HostsSend, Lose, PeerCloses, PeerSends, TakeEvents, Wait};
    let plain = Setting::default;
    let one = || Arrive(vec![Arrives]);
    let none = || Arrive(vec![Lost; BURST]);
    let sends = || PeerSends(100);
    let all = || Arrive(vec![Arrives; BURST]);
    let twice = || Arrive(vec![Twice]);
    let cases: [(&str, Setting, Vec<Step>); 14] = [
        (
            "a FIN is known",
            plain(),
            vec![sends(), PeerCloses, Arrive(vec![Late, Arrives]), one(), TakeEvents],
        ),
        ("our FIN is acknowledged", plain(), vec![HostsClose, one(), sends(), one(), TakeEvents]),
        (
            "a keepalive runs",
            Setting { keepalive: true, ..plain() },
            vec![Wait(20_000), sends(), one(), TakeEvents, Wait(20_000), Wait(20_000), one()],
        ),
        (
            "the event queue is full",
            Setting { events: 3, ..plain() },
            [sends(), one()].into_iter().cycle().take(12).collect(),
        ),
        ("segments are joined", plain(), vec![sends(), sends(), Arrive(vec![Arrives; 2]), TakeEvents]),
        (
            "a hole",
            plain(),
            vec![sends(), sends(), sends(), Arrive(vec![Late, Arrives]), one(), one(), TakeEvents],
        ),
        ("twice", plain(), vec![sends(), Arrive(vec![Twice]), TakeEvents]),
        // The acknowledgement echoes the timestamp of the first segment.
        (
            "not acknowledged",
            plain(),
            vec![
                sends(),
                Wait(5000),
                sends(),
                one(),
                TakeEvents,
                one(),
                TakeEvents,
                Wait(20_000),
                Wait(20_000),
            ],
        ),
        // The segment was sent more than once, so only the echoed timestamp gives the round-trip time.
        (
            "sent again",
            plain(),
            vec![
                HostsSend(100),
                Wait(60_000),
                none(),
                Wait(1_000_000),
                Wait(1_000_000),
                none(),
                sends(),
                one(),
                Wait(50_000),
            ],
        ),
        // These acknowledgements are not duplicates.
        (
            "bytes are in flight",
            Setting { sack: false, ..plain() },
            [vec![sends(), sends(), sends(), sends(), HostsSend(6000)], vec![one(); 4]].concat(),
        ),
        // Another probe may be sent after the first probe has been acknowledged.
        (
            "a tail loss probe of new bytes is in flight",
            plain(),
            [
                vec![HostsSend(20_000), Wait(40_000), Wait(40_000)],
                vec![all(), Wait(1000), all(), Wait(1000), all(), Wait(1000)],
                vec![HostsSend(1000), Wait(40_000), Wait(40_000), Wait(40_000)],
            ]
            .concat(),
        ),
        // An acknowledgement of new bytes starts a new count of duplicates.
        (
            "duplicates were counted",
            Setting { sack: false, ..plain() },
            [vec![HostsSend(14_000)], vec![twice(); 4], vec![Wait(1000)], vec![all(); 2]].concat(),
        ),
        (
            "later segments have arrived",
            plain(),
            vec![
                Lose { after: 2, frames: 1, late: true },
                HostsSend(8000),
                // The second acknowledgement covers new bytes, and reports bytes beyond the hole.
                Arrive(vec![Lost, Arrives, Lost, Lost, Lost]),
                one(),
                Wait(2000),
                one(),
            ],
        ),
        (
            "a search for the largest segment goes on",
            Setting { searches: true, ..plain() },
            (0..60).flat_map(|_| [HostsSend(6000), all(), Wait(10_000)]).collect(),
        ),
    ];
    for (name, setting, steps) in cases {
        println!("{name}");
        let mut twins = Twins::new(&setting);
        steps.iter().for_each(|step| twins.run(step));
        twins.run(&TakeEvents);
    }
}

/// The window of an old acknowledgement is ignored, although its segment is next in order.
#[test]
fn old_acknowledgements_take_the_general_way() {
    let mut twins = Twins::new(&Setting::default());
    twins.run(&Step::HostsSend(100));
    twins.run(&Step::Wait(60_000));
    twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
    for by in [-50, -1_000_000] {
        twins.run(&Step::PeerSends(100));
        twins.run(&Step::Arrive(vec![FrameDelivery::Moved(Field::Ack, by)]));
        twins.run(&Step::TakeEvents);
    }
}

/// The hosts send into a window that is full, and are polled only some time later.
#[test]
fn a_timer_runs_from_the_call_that_needs_it() {
    let mut twins = Twins::new(&Setting::default());
    let window = {
        twins.run(&Step::PeerSends(100));
        twins.wire[0][TCP + 14..TCP + 16].fill(0);
        fill_in_checksums(&mut twins.wire[0]);
        twins.run(&Step::Arrive(vec![FrameDelivery::Arrives]));
        twins.run(&Step::TakeEvents);
        twins.now()
    };
    // The test asks only one of the two hosts for its next timer at once.
    let [asked, other] = &mut twins.hosts;
    for host in [&mut *asked, &mut *other] {
        host.stack.poll(window);
        assert!(matches!(host.send(window, 100), Some(Ok(100))));
    }
    asked.stack.next_timer(window);
    // Deadlines may be announced early. Therefore the test compares the times of the delayed acknowledgement
    // and of the first probe.
    let sent_at = twins.hosts.each_mut().map(|host| {
        let (mut now, mut times) = (window + Duration::from_millis(30), Vec::new());
        while times.len() < 2 {
            for frame in host.poll(now) {
                assert_eq!(frame.bytes.len(), TCP + 32, "the window is full");
                times.push(now);
            }
            now = host.stack.next_deadline(now).expect("a timer");
        }
        times
    });
    assert_eq!(sent_at[0], sent_at[1]);
}

/// While the port accepts no frames, nothing is transmitted, but the timers run.
#[test]
fn timers_that_ran_are_set_again_though_nothing_is_transmitted() {
    let mut twins = Twins::new(&Setting::default());
    twins.run(&Step::HostsSend(100));
    for host in &mut twins.hosts {
        let mut now = Instant::from_micros(twins.now_us);
        for _ in 0..20 {
            host.stack.poll(now);
            host.stack.check_invariants().expect("bytes in flight have a timer");
            now = host.stack.next_timer(now).expect("bytes in flight have a timer");
        }
    }
}

/// Under each of these conditions, the host with header prediction and the host without it send the same
/// frames. The general path sends at least the FIN, and under some conditions all frames.
#[test]
fn what_hosts_send_in_unusual_conditions_is_the_same() {
    let trains = Offloads::TX_TSO | Offloads::TX_MULTI_SEGMENT | Offloads::TX_TCP_CHECKSUM;
    let plain = Setting::default;
    let cases: [(&str, Setting); 10] = [
        ("nothing", plain()),
        ("a port that sums headers of IPv4", Setting { offloads: Offloads::TX_IPV4_CHECKSUM, ..plain() }),
        ("a tag", Setting { vlan: Some(5), ..plain() }),
        ("marks", Setting { ecn: true, ..plain() }),
        ("no timestamps", Setting { timestamps: false, ..plain() }),
        ("a port that cuts", Setting { offloads: trains, ..plain() }),
        ("a peer with a small window", Setting { peer_window: 3000, ..plain() }),
        ("pacing", Setting { paced: true, ..plain() }),
        ("path MTU probes", Setting { searches: true, ..plain() }),
        ("a slow port", Setting { kept: 1000, ..plain() }),
    ];
    for (name, setting) in cases {
        println!("{name}");
        for bytes in [100, 513, 1448, 1449, 6000, 60_000] {
            let mut twins = Twins::new(&setting);
            for round in 0..6 {
                twins.run(&Step::HostsSend(bytes));
                if round % 2 == 1 {
                    twins.run(&Step::PeerSends(bytes));
                }
                twins.run(&Step::Wait(100));
                twins.run(&Step::Arrive(vec![FrameDelivery::Arrives; BURST]));
                twins.run(&Step::TakeEvents);
            }
            // In this time, all waiting segments are sent, including tail loss probes and retransmissions
            // after timeouts.
            for _ in 0..20 {
                twins.run(&Step::Wait(50_000));
            }
            twins.run(&Step::HostsSend(bytes));
            twins.run(&Step::HostsClose);
            for _ in 0..20 {
                twins.run(&Step::Wait(5000));
                twins.run(&Step::Arrive(vec![FrameDelivery::Arrives; BURST]));
            }
        }
    }
}

/// A segment that was queued before the path MTU fell is cut.
#[test]
fn a_segment_that_has_become_too_long_is_cut() {
    let mut twins = Twins::new(&Setting::default());
    twins.run(&Step::HostsSend(60_000));
    let sent = twins.hosts[0].latest_long.clone().expect("a long frame");
    assert_eq!(Some(&sent), twins.hosts[1].latest_long.as_ref());
    let error = error_about([MAC_A, MAC_B], &sent, Icmpv4DstUnreachable::FragRequired, 800);
    let now = twins.now();
    twins.both(|host| host.input(now, std::slice::from_ref(&error)));
    for _ in 0..20 {
        twins.run(&Step::Arrive(vec![FrameDelivery::Arrives; BURST]));
        twins.run(&Step::Wait(1000));
    }
    assert!(twins.hosts[0].stack.counters().tx_cut_by_emss > 0);
}

/// A frame with external memory consists of several buffers.
#[test]
fn external_memory_takes_the_general_way() {
    let offloads = Offloads::TX_EXTERNAL | Offloads::TX_MULTI_SEGMENT | Offloads::TX_TCP_CHECKSUM;
    let mut twins = Twins::new(&Setting { offloads, ..Setting::default() });
    let now = twins.now();
    twins.both(|host| {
        let mut sender = host.stack.sender(now, host.conn.unwrap()).unwrap();
        let mut segment = sender.segment(0).unwrap();
        assert!(segment.append_slice(&[1; 20]));
        assert!(segment.attach(ExtBuf::new(Arc::new(vec![2; 700]))).is_ok());
        assert!(segment.append_slice(&[3; 4]));
        segment.push();
    });
    twins.run(&Step::Wait(1));
    twins.run(&Step::Arrive(vec![FrameDelivery::Arrives; BURST]));
}

/// While the hosts report a hole, each of their segments carries SACK blocks.
#[test]
fn a_hole_is_reported_beside_data() {
    let mut twins = Twins::new(&Setting::default());
    twins.run(&Step::PeerSends(4000));
    twins.run(&Step::Arrive(vec![FrameDelivery::Lost, FrameDelivery::Arrives, FrameDelivery::Arrives]));
    for bytes in [100, 600] {
        twins.run(&Step::HostsSend(bytes));
        twins.run(&Step::Wait(10));
    }
}
