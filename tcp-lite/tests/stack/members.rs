//! Tests of a host with four stacks. Each test chooses the rule by which the device distributes frames to the
//! stacks.

use std::net::SocketAddr;

use dp::{Burst, Flow, Mbuf, Mempool, Queue, Rss, RssFields};
use smoltcp::wire::{ArpOperation, Icmpv4DstUnreachable, IpProtocol, TcpControl};
use tcp_lite::facade::{EthernetAddress, Ipv4Address};
use tcp_lite::{
    AddressProbing, CloseReason, ConnId, Event, Instant, Member, Stack, StackConfig, StackCounters,
};

use crate::craft;
use crate::harness::{MAC_A, MAC_B, byte, bytes_of, config};

const STACKS: usize = 4;
const A: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const B: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
/// Size of a buffer in bytes, which is larger than any frame of these hosts.
const BUFFER_BYTES: usize = 2048;

/// A stack, and the state of its user.
struct One {
    stack: Option<Stack>,
    pool: Mempool,
    established: Vec<ConnId>,
    closed: Vec<CloseReason>,
    received: u64,
    conflicts: usize,
    /// The destinations of the datagrams that arrived.
    datagrams: Vec<SocketAddr>,
}

impl One {
    fn new(mut config: StackConfig, member: Option<Member>) -> Self {
        config.offloads = Default::default();
        let pool = Mempool::heap("one", 4096, BUFFER_BYTES);
        let mut stack = Stack::new(config, pool.clone());
        if let Some(member) = member {
            stack.join(member);
        }
        Self {
            stack: Some(stack),
            pool,
            established: Vec::new(),
            closed: Vec::new(),
            received: 0,
            conflicts: 0,
            datagrams: Vec::new(),
        }
    }

    fn stack(&mut self) -> &mut Stack {
        self.stack.as_mut().expect("it has not left")
    }

    fn frame(&self, bytes: &[u8]) -> Mbuf {
        let mut frame = self.pool.alloc().expect("a buffer");
        assert!(frame.append_slice(bytes));
        frame
    }

    fn input(&mut self, now: Instant, bytes: &[u8]) {
        let frame = self.frame(bytes);
        self.stack().input(now, frame);
    }

    /// Receives the frames that other stacks have handed over, runs timers, handles events, and returns the
    /// frames to send.
    fn turn(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let Some(stack) = &mut self.stack else { return Vec::new() };
        let mut burst = Burst::new();
        while stack.has_handed() {
            stack.take_handed(now, &mut burst);
            let mut frames = burst.drain(..).peekable();
            while frames.peek().is_some() {
                stack.input_next(now, &mut frames);
            }
        }
        stack.flush_handed();
        stack.poll(now);
        while let Some(event) = self.stack().event() {
            match event {
                Event::Established { conn, .. } => self.established.push(conn),
                Event::Closed { reason, .. } => self.closed.push(reason),
                Event::AddressConflict { .. } => self.conflicts += 1,
                Event::Datagram => {
                    let datagram = self.stack().next_datagram().expect("the event announces a datagram");
                    self.datagrams.push(datagram.local);
                }
                Event::Received { conn, received } => {
                    let bytes = received.buf.len();
                    let whole = bytes_of(&received.buf);
                    let right = whole.iter().zip(received.offset..).all(|(got, at)| *got == byte(at));
                    assert!(right, "wrong bytes at {}", received.offset);
                    self.received += bytes as u64;
                    self.stack().release(conn, bytes);
                }
                _ => {}
            }
        }
        let stack = self.stack();
        let mut out = Vec::new();
        while stack.transmit(now, &mut burst) || !burst.is_empty() {
            out.extend(burst.drain(..).map(|frame| bytes_of(&frame)));
        }
        stack.check_invariants().expect("invariants of the stack");
        out
    }
}

/// The rule of a device: returns the queue of a frame, or the queue of each copy of the frame.
type Rule = Box<dyn FnMut(&[u8]) -> Vec<usize>>;

/// Host A, which has four stacks, and host B, which has one.
struct Members {
    a: Vec<One>,
    b: One,
    rule: Rule,
    now_us: i64,
    /// Frames that A has sent.
    sent: Vec<Vec<u8>>,
}

impl Members {
    fn new(rule: impl FnMut(&[u8]) -> Vec<usize> + 'static) -> Self {
        Self::with(config(MAC_A, 1), None, rule)
    }

    fn with(
        config_a: StackConfig,
        rss: Option<Rss>,
        rule: impl FnMut(&[u8]) -> Vec<usize> + 'static,
    ) -> Self {
        let queues: Vec<_> = (0..STACKS as u16).map(|index| Queue { index, rss: rss.clone() }).collect();
        let members = Member::group(&config_a, &queues).into_iter();
        let a = members.map(|member| One::new(config_a.clone(), Some(member))).collect();
        let b = One::new(config(MAC_B, 2), None);
        Self { a, b, rule: Box::new(rule), now_us: 1_000_000, sent: Vec::new() }
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.now_us)
    }

    /// Delivers a frame to A.
    fn arrive(&mut self, frame: &[u8]) {
        for queue in (self.rule)(frame) {
            let now = self.now();
            if self.a[queue].stack.is_some() {
                self.a[queue].input(now, frame);
                self.a[queue].stack().flush_handed();
            }
        }
    }

    /// Runs turns of all stacks for `for_us` microseconds.
    fn run(&mut self, for_us: i64) {
        let end_us = self.now_us + for_us;
        while self.now_us < end_us {
            let now = self.now();
            let to_b: Vec<_> = self.a.iter_mut().flat_map(|one| one.turn(now)).collect();
            self.sent.extend(to_b.iter().cloned());
            to_b.iter().for_each(|frame| self.b.input(now, frame));
            let to_a = self.b.turn(now);
            to_a.iter().for_each(|frame| self.arrive(frame));
            self.now_us += if to_b.is_empty() && to_a.is_empty() { 500 } else { 10 };
        }
    }

    fn counters(&self) -> StackCounters {
        let mut all = StackCounters::default();
        self.a.iter().filter_map(|one| one.stack.as_ref()).for_each(|stack| all += stack.counters());
        all
    }

    /// Makes the leader learn B's Ethernet address, so that a later answer to B needs no query.
    fn meet(&mut self) {
        self.arrive(&datagram(A, 1));
        self.run(10_000);
    }

    /// Connects stack `n` of A to B.
    fn connect(&mut self, n: usize) -> ConnId {
        let now = self.now();
        self.a[n].stack().connect(now, SocketAddr::new(B.into(), 80), None).expect("a connection")
    }

    /// Sends `bytes` bytes on a connection of A, from the beginning of its stream.
    fn send(&mut self, n: usize, conn: ConnId, bytes: u64) {
        let (now, bytes) = (self.now(), (0..bytes).map(byte).collect::<Vec<u8>>());
        assert_eq!(self.a[n].stack().send(now, conn, &bytes), Ok(bytes.len()));
    }
}

/// Returns the rule by which all frames arrive at this queue.
fn at(queue: usize) -> impl FnMut(&[u8]) -> Vec<usize> {
    move |_| vec![queue]
}

#[test]
fn a_connection_of_any_stack_moves_data_whatever_queue_its_frames_arrive_at() {
    let mut turn = 0;
    let mut hosts = Members::new(move |_| {
        turn += 1;
        vec![turn % STACKS]
    });
    hosts.b.stack().listen(80).unwrap();
    let conns: Vec<_> = (0..STACKS).map(|n| hosts.connect(n)).collect();
    hosts.run(2_000_000);
    for (n, conn) in conns.into_iter().enumerate() {
        assert_eq!(hosts.a[n].established, [conn]);
        hosts.send(n, conn, 200_000);
    }
    for conn in hosts.b.established.clone() {
        let (now, bytes) = (hosts.now(), (0..100_000).map(byte).collect::<Vec<u8>>());
        assert_eq!(hosts.b.stack().send(now, conn, &bytes), Ok(bytes.len()));
    }
    hosts.run(2_000_000);
    assert_eq!(hosts.b.received, 4 * 200_000);
    assert_eq!(hosts.a.iter().map(|one| one.received).collect::<Vec<_>>(), [100_000; 4]);
    let counters = hosts.counters();
    assert!(counters.handed_over > 150, "{counters:?}");
    assert_eq!((counters.handed_over, counters.handed_over_dropped), (counters.rx_handed_over, 0));
    assert_eq!(counters.rx_no_connection + counters.tx_resets, 0);
}

#[test]
fn a_listener_is_on_all_stacks_and_a_syn_stays_where_it_arrives() {
    // The SYN arrives at the third queue, and all later frames arrive at the second queue.
    let mut hosts = Members::new(|frame| vec![if frame[23] == 6 && frame[47] == 2 { 2 } else { 1 }]);
    let accepted = hosts.accept_one();
    assert_eq!(accepted, [0, 0, 1, 0]);
    let conn = hosts.b.established[0];
    let bytes: Vec<u8> = (0..50_000).map(byte).collect();
    let now = hosts.now();
    hosts.b.stack().send(now, conn, &bytes).unwrap();
    hosts.run(1_000_000);
    assert_eq!(hosts.a[2].received, 50_000);
}

#[test]
fn a_syn_that_arrives_at_two_queues_makes_one_connection() {
    let mut hosts = Members::new(|_| vec![0, 3]);
    let accepted = hosts.accept_one();
    assert_eq!(accepted, [1, 0, 0, 0]);
    assert_eq!(hosts.b.closed, []);
}

#[test]
fn the_port_of_a_connection_is_chosen_so_that_its_answers_arrive_at_its_stack() {
    let key: Vec<u8> = (1..=dp::rss::RSS_KEY_BYTES as u8).map(|n| n.wrapping_mul(151)).collect();
    let table: Vec<u16> = (0..128).map(|entry| entry % STACKS as u16).collect();
    let rss = Rss::new(&key, &table, RssFields::Ports, RssFields::Ports).unwrap();
    let device = rss.clone();
    let rule = move |frame: &[u8]| {
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let flow = Flow { src: (B.into(), port(34)), dst: (A.into(), port(36)) };
        vec![if frame[23] == 6 { usize::from(device.queue(&flow)) } else { 0 }]
    };
    let mut hosts = Members::with(config(MAC_A, 1), Some(rss), rule);
    hosts.b.stack().listen(80).unwrap();
    for _ in 0..50 {
        for n in 0..STACKS {
            hosts.connect(n);
        }
        hosts.run(10_000);
    }
    hosts.run(2_000_000);
    let established: Vec<_> = hosts.a.iter().map(|one| one.established.len()).collect();
    assert_eq!(established, [50; STACKS]);
    assert_eq!(hosts.counters().handed_over, 0, "{:?}", hosts.counters());
}

#[test]
fn one_stack_answers_for_the_host_and_tells_the_others_of_neighbours() {
    let mut hosts = Members::new(at(2));
    hosts.arrive(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B, A));
    let ping = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    hosts.arrive(&craft::ip([MAC_B, MAC_A], B.into(), A.into(), IpProtocol::Icmp, 64, &ping));
    let now = hosts.now();
    let sent: Vec<Vec<Vec<u8>>> = hosts.a.iter_mut().map(|one| one.turn(now)).collect();
    let sizes: Vec<_> = sent.iter().map(Vec::len).collect();
    assert_eq!(sizes, [2, 0, 0, 0], "the answers to ARP and to the echo request");
    // All stacks have learned B's address from an ARP request of B.
    hosts.b.stack().listen(80).unwrap();
    hosts.sent.clear();
    for n in 0..STACKS {
        hosts.connect(n);
    }
    hosts.run(1_000_000);
    assert!(hosts.a.iter().all(|one| one.established.len() == 1));
    let asks = |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[21] == 1;
    assert!(!hosts.sent.iter().any(asks), "nobody asked for B");
}

#[test]
fn a_report_of_the_path_mtu_reaches_the_stack_of_the_connection() {
    let mut hosts = Members::new(at(0));
    hosts.b.stack().listen(80).unwrap();
    let conn = hosts.connect(3);
    hosts.run(1_000_000);
    hosts.send(3, conn, 10_000);
    let now = hosts.now();
    let frames = hosts.a[3].turn(now);
    let long = frames.iter().find(|frame| frame.len() > 1000).expect("a full segment");
    let report = craft::error_about([MAC_B, MAC_A], long, Icmpv4DstUnreachable::FragRequired, 1000);
    hosts.arrive(&report);
    hosts.run(1_000_000);
    let info = hosts.a[3].stack().info(conn).unwrap();
    assert!(info.emss < 1000, "{info:?}");
    // The report arrives at the first stack and is handed over to the last stack, which owns the connection.
    assert_eq!(hosts.counters().icmp_ignored, 0);
}

#[test]
fn fragments_are_joined_by_one_stack_and_go_to_the_one_of_the_connection() {
    let mut turn = 0;
    let mut number = 0;
    let mut hosts = Members::new(at(1));
    hosts.b.stack().listen(80).unwrap();
    let conn = hosts.connect(3);
    hosts.run(1_000_000);
    assert_eq!(hosts.a[3].established, [conn]);
    let to_a = hosts.b.established[0];
    let (now, bytes) = (hosts.now(), (0..8000).map(byte).collect::<Vec<u8>>());
    hosts.b.stack().send(now, to_a, &bytes).unwrap();
    for frame in hosts.b.turn(now) {
        number += 1;
        for fragment in craft::fragments(&frame, 576, number) {
            turn += 1;
            let now = hosts.now();
            hosts.a[turn % STACKS].input(now, &fragment);
            hosts.a[turn % STACKS].stack().flush_handed();
        }
        // The stacks are polled twice in turn. The frame goes to the stack that reassembles, and then to the
        // owner.
        let now = hosts.now();
        (0..2).for_each(|_| hosts.a.iter_mut().for_each(|one| drop(one.turn(now))));
    }
    let counters: Vec<_> = hosts.a.iter_mut().map(|one| one.stack().counters()).collect();
    assert_eq!(hosts.a[3].received, 8000, "{counters:?}");
    assert!(hosts.a[0].stack().counters().rx_reassembled == 0, "they were not its own");
}

#[test]
fn when_the_leading_stack_leaves_the_next_one_leads_and_connections_of_others_go_on() {
    let mut hosts = Members::new(at(2));
    hosts.b.stack().listen(80).unwrap();
    let conn = hosts.connect(3);
    let gone = hosts.connect(0);
    hosts.run(1_000_000);
    let now = hosts.now();
    hosts.a[0].stack().abort(now, gone);
    hosts.run(100_000);
    hosts.a[0].stack = None;
    hosts.send(3, conn, 100_000);
    hosts.run(1_000_000);
    assert_eq!(hosts.b.received, 100_000);
    hosts.sent.clear();
    hosts.arrive(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B, A));
    let now = hosts.now();
    let answers: Vec<_> = hosts.a.iter_mut().map(|one| one.turn(now).len()).collect();
    assert_eq!(answers, [0, 1, 0, 0]);
}

#[test]
fn one_stack_probes_the_addresses_and_the_others_wait_for_it() {
    let config = StackConfig { address_probing: AddressProbing::Probe, ..config(MAC_A, 1) };
    let mut hosts = Members::with(config, None, at(1));
    hosts.b.stack().listen(80).unwrap();
    hosts.connect(3);
    hosts.run(3_000_000);
    assert!(hosts.a[3].established.is_empty());
    hosts.run(4_000_000);
    assert_eq!(hosts.a[3].established.len(), 1);
    let asks_for_a = |frame: &&Vec<u8>| frame[12..14] == [8, 6] && frame[28..32] == [0; 4];
    assert_eq!(hosts.sent.iter().filter(asks_for_a).count(), 3, "the probes of one stack");
}

#[test]
fn an_address_that_another_host_has_is_lost_for_all_stacks() {
    let config = StackConfig { address_probing: AddressProbing::Probe, ..config(MAC_A, 1) };
    let mut hosts = Members::with(config, None, at(2));
    hosts.connect(3);
    hosts.run(500_000);
    hosts.arrive(&craft::arp(ArpOperation::Reply, MAC_B, MAC_A, A, A));
    hosts.run(2_000_000);
    assert_eq!(hosts.a[3].closed, [CloseReason::AddressLost]);
    assert_eq!(hosts.a.iter().map(|one| one.conflicts).collect::<Vec<_>>(), [1, 0, 0, 0]);
}

#[test]
fn a_stack_that_is_not_polled_loses_frames_as_at_a_full_receive_ring() {
    let mut hosts = Members::new(at(0));
    hosts.b.stack().listen(80).unwrap();
    let conn = hosts.connect(1);
    hosts.run(1_000_000);
    let answer = hosts.port(1, conn);
    let answer = craft::segment([MAC_B, MAC_A], (B.into(), 80), (A.into(), answer), TcpControl::None);
    let now = hosts.now();
    for _ in 0..1500 {
        hosts.a[0].input(now, &answer);
    }
    hosts.a[0].stack().flush_handed();
    let counters = hosts.a[0].stack().counters();
    assert_eq!(counters.handed_over_dropped, 1500 - 1024, "{counters:?}");
    hosts.run(1_000_000);
    hosts.send(1, conn, 10_000);
    hosts.run(1_000_000);
    assert_eq!(hosts.b.received, 10_000);
}

impl Members {
    /// All stacks of A listen, and B connects. Returns how many connections each stack of A then has.
    fn accept_one(&mut self) -> Vec<usize> {
        for one in &mut self.a {
            one.stack().listen(80).unwrap();
        }
        let now = self.now();
        self.b.stack().connect(now, SocketAddr::new(A.into(), 80), None).unwrap();
        self.run(1_000_000);
        self.a.iter().map(|one| one.established.len()).collect()
    }

    /// Returns the local port of a connection.
    fn port(&mut self, n: usize, conn: ConnId) -> u16 {
        self.a[n].stack().info(conn).expect("a connection").local.port()
    }
}

/// Returns a frame from B to the UDP port 4791 of `dst`.
fn datagram(dst: Ipv4Address, port: u16) -> Vec<u8> {
    craft::udp([MAC_B, MAC_A], (B.into(), 50_000), (dst.into(), port), b"x")
}

#[test]
fn a_datagram_reaches_the_stack_with_its_port_whatever_queue_it_arrives_at() {
    for queue in 0..STACKS {
        let mut hosts = Members::new(at(queue));
        hosts.a[2].stack().open_udp(4791).unwrap();
        hosts.arrive(&datagram(A, 4791));
        hosts.run(10_000);
        let datagrams: Vec<_> = hosts.a.iter().map(|one| one.datagrams.len()).collect();
        assert_eq!(datagrams, [0, 0, 1, 0]);
        assert_eq!(hosts.counters().handed_over, u64::from(queue != 2));
        // Fragments are not taken, and are not answered either.
        for fragment in craft::fragments(&datagram(A, 4791), 8, 7) {
            hosts.arrive(&fragment);
        }
        hosts.run(10_000);
        assert_eq!((hosts.counters().rx_datagram_dropped, hosts.sent.len()), (1, 0));
    }
}

/// The stack at which the datagram arrives has the port open, so the datagram is not handed over.
#[test]
fn a_datagram_stays_where_it_arrives_if_the_port_is_open_there() {
    let mut hosts = Members::new(at(3));
    hosts.meet();
    let before = hosts.counters();
    for n in [1, 3] {
        hosts.a[n].stack().open_udp(4791).unwrap();
    }
    hosts.arrive(&datagram(A, 4791));
    hosts.run(10_000);
    assert_eq!((hosts.a[3].datagrams.len(), hosts.counters().handed_over - before.handed_over), (1, 0));
    hosts.a[3].stack().close_udp(4791);
    hosts.arrive(&datagram(A, 4791));
    hosts.run(10_000);
    assert_eq!((hosts.a[1].datagrams.len(), hosts.counters().handed_over - before.handed_over), (1, 1));
    // The stack with the port has left the host, so the leader answers the datagram.
    hosts.a[1].stack = None;
    hosts.sent.clear();
    hosts.arrive(&datagram(A, 4791));
    hosts.run(10_000);
    assert_eq!(hosts.counters().handed_over - before.handed_over, 2);
    assert_eq!(hosts.sent.iter().map(|frame| frame[23]).collect::<Vec<_>>(), [1], "ICMP");
}

/// No port 0 is open, a broadcast goes to the leader, and a stack with the port drops a datagram to a group
/// that it has not joined. No frame goes in circles.
#[test]
fn other_datagrams_are_handed_over_once_at_most() {
    let mut hosts = Members::new(at(3));
    hosts.meet();
    hosts.a[1].stack().open_udp(4791).unwrap();
    for (dst, port, handed, dropped) in [
        (A, 0, 1, 0),
        (A, 4790, 1, 0),
        (Ipv4Address::new(10, 0, 0, 255), 4791, 1, 0),
        (Ipv4Address::new(239, 1, 2, 3), 4791, 1, 1),
    ] {
        let before = hosts.counters();
        hosts.arrive(&datagram(dst, port));
        hosts.run(10_000);
        let after = hosts.counters();
        assert_eq!(after.handed_over - before.handed_over, handed, "{dst} {port}");
        assert_eq!(after.rx_datagram_dropped - before.rx_datagram_dropped, dropped, "{dst} {port}");
    }
    let now = hosts.now();
    hosts.a[1].stack().join_group(now, [239, 1, 2, 3].into()).unwrap();
    hosts.arrive(&datagram(Ipv4Address::new(239, 1, 2, 3), 4791));
    hosts.run(10_000);
    assert_eq!(hosts.a[1].datagrams, ["239.1.2.3:4791".parse().unwrap()]);
}
