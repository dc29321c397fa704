//! Delivers arbitrary frames to a stack with a listener, for example IPv4 and IPv6, ARP and neighbour
//! discovery, ICMP, fragments, and TCP to ports with and without a listener. Some frames answer the stack's
//! own frames, so that connections are established.
//!
//! Rules: nothing panics; sent frames are well-formed; the number of frames that a received frame causes is
//! limited; limits are kept; at the end the stack holds nothing.

use dp::Checksum;
use tcp_lite::{ConnId, Duration, Event, Limits, ListenerId, TcpConfig};

use super::host::{ENDS, Host};
use super::rig;
use crate::input::Input;
use testkit::packet::{self, Addresses, ETHERNET, Ipv4, Tcp, TcpHeader, flag, parse, protocol};

/// The port that listens.
const PORT: u16 = 4000;

/// Maximum number of frames of one input.
const FRAMES: usize = 48;

/// Maximum number of frames sent for each received frame, for example fragments of a long echo reply, and
/// maximum number of frames sent in addition, for example retransmitted SYN-ACKs and solicitations.
const SENT_PER_FRAME: usize = 16;
const SENT_BESIDES: usize = 128;

/// Time, in microseconds, after which SYN-ACKs, reassembly and address resolution without an answer have
/// ended.
const REST_US: u64 = 600_000_000;

const LIMITS: Limits =
    Limits { connections: 6, backlog: 2, neighbors: 6, tx_segments: 32, events: 16, ..rig::LIMITS };

struct Run {
    host: Host,
    ends: Addresses,
    /// The last frame that the stack sent, and the last TCP frame that it sent.
    heard: Vec<u8>,
    heard_tcp: Option<(Vec<u8>, Tcp)>,
    /// Received frames, which may be delivered again, whole or in fragments.
    came: Vec<Vec<u8>>,
    sent: usize,
    alive: Vec<ConnId>,
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let tcp = TcpConfig {
        recv_window_bytes: input.pick(&[16_384, 65_535, 1 << 20]),
        syn_retries: 2,
        time_wait: Duration::from_secs(2),
        keepalive_idle: input.one_in(4).then_some(Duration::from_secs(30)),
        ..TcpConfig::default()
    };
    let limits = Limits { syn_cookies: !input.one_in(4), ..LIMITS };
    let mut host = Host::new(input.pick(&[1500, 1280, 576]), tcp, limits);
    let listener = host.stack.listen(PORT).expect("a free listener");
    let mut run = Run {
        host,
        ends: ENDS,
        heard: Vec::new(),
        heard_tcp: None,
        came: Vec::new(),
        sent: 0,
        alive: Vec::new(),
    };
    while !input.is_empty() && run.came.len() < FRAMES {
        run.step(&mut input);
    }
    run.take_sent();
    run.events();
    let listens = run.came.len().is_multiple_of(2);
    if !listens {
        run.unlisten(listener);
    }
    for conn in std::mem::take(&mut run.alive) {
        let now = run.host.now();
        run.host.stack.abort(now, conn);
    }
    let until_us = run.host.now_us + REST_US;
    let mut late = 0;
    run.host.rest(until_us, |_, _| late += 1);
    run.sent += late;
    run.assert_quiet();
    let half_open = run.host.stack.listener_counters(listener).map(|(_, half_open)| half_open);
    assert_eq!(half_open, listens.then_some(0), "half-open for ten minutes");
    run.events();
    run.host.assert_all_given_back();
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) {
        if input.one_in(8) {
            self.host.now_us += u64::from(input.size());
            self.take_sent();
            return;
        }
        self.ends = ENDS;
        if input.one_in(4) {
            self.choose_ends(input);
        }
        let mut frame = self.frame(input);
        self.deform(input, &mut frame);
        let cuts: Vec<usize> = match input.u8() {
            0..=191 => Vec::new(),
            many => (192..=many.min(197)).map(|_| usize::from(input.u8())).collect(),
        };
        let checksum = match input.u8() {
            0..=199 => Checksum::Unknown,
            200..=223 => Checksum::Good,
            224..=247 => Checksum::Partial,
            _ => Checksum::Bad,
        };
        frame.truncate(1600);
        self.host.deliver(&frame, &cuts, checksum);
        self.came.push(frame);
        if !input.one_in(4) {
            self.take_sent();
            self.events();
        }
    }

    /// Replaces one of the usual addresses, for example by a stranger's address, a group, the unspecified
    /// address or an address of the stack.
    fn choose_ends(&mut self, input: &mut Input<'_>) {
        let Addresses { macs, v4, v6 } = &mut self.ends;
        match input.below(10) {
            0 => macs[0][5] = input.u8(),
            1 => macs[1] = [0xff; 6],
            2 => macs[1] = [0x33, 0x33, 0xff, 0, 0, 2],
            3 => {
                v4[0] = input.pick(&[
                    [10, 0, 0, 77],
                    [0; 4],
                    [255; 4],
                    [224, 0, 0, 1],
                    [10, 0, 0, 2],
                    [127, 0, 0, 1],
                ])
            }
            4 => v4[1] = input.pick(&[[10, 0, 0, 255], [255; 4], [224, 0, 0, 1], [10, 0, 0, 3]]),
            5 => v6[0] = input.pick(&[[0; 16], [0xff; 16], v6[1]]),
            6 => v6[0][15] = input.u8(),
            // The solicited-node group and the link-local address of the stack.
            7 => v6[1] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2],
            8 => v6[1] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x0b],
            _ => v6[0] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        }
    }

    fn frame(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        match input.below(12) {
            0 => {
                let ethertype = input.pick(&[[0x08, 0], [0x86, 0xdd], [0x08, 0x06], [0x81, 0], [0x88, 0xcc]]);
                packet::raw(&self.ends, ethertype, input.bytes(120))
            }
            1 => self.arp(input),
            2 => {
                let (protocol, options) = (input.pick(&[1, 6, 17, 2, 4, 41]), input.bytes(12));
                let fragment = if input.one_in(4) { input.u16() } else { 0 };
                let header = Ipv4 { tos: input.u8(), id: 1, fragment, ttl: input.u8(), protocol };
                packet::ipv4(&self.ends, header, options, input.bytes(120))
            }
            3 => {
                let next = input.pick(&[0, 6, 43, 44, 58, 60, 59, 17, 50]);
                packet::ipv6(&self.ends, input.u8(), next, input.u8(), input.bytes(120))
            }
            4..=6 => self.tcp(input),
            7 => self.icmp(input),
            8 => self.icmpv6(input),
            9 => self.fragment(input),
            10 => self.answer(input),
            _ => {
                let back = input.below(8);
                self.came.iter().rev().nth(back).cloned().unwrap_or_default()
            }
        }
    }

    fn arp(&self, input: &mut Input<'_>) -> Vec<u8> {
        let Addresses { macs, v4, .. } = self.ends;
        let operation = [0, input.pick(&[1, 2, 3])];
        let head = [&[0, 1, 8, 0, 6, 4][..], &operation, &macs[0], &v4[0]].concat();
        packet::raw(&self.ends, [8, 6], &[&head[..], &macs[1], &v4[1]].concat())
    }

    fn ip(&self, v6: bool, number: [u8; 2], hop_limit: u8, payload: &[u8]) -> Vec<u8> {
        if v6 {
            return packet::ipv6(&self.ends, 0, number[1], hop_limit, payload);
        }
        let header = Ipv4 { tos: 0, id: 1, fragment: 0, ttl: hop_limit, protocol: number[0] };
        packet::ipv4(&self.ends, header, &[], payload)
    }

    fn tcp(&self, input: &mut Input<'_>) -> Vec<u8> {
        let header = TcpHeader {
            ports: [50_000 + input.below(8) as u16, input.pick(&[PORT, PORT, PORT, PORT + 1, 0])],
            seq: if input.one_in(4) { input.u32() } else { 1000 },
            ack: input.u32(),
            flags: match input.u8() {
                0..=159 => flag::SYN,
                flags => flags & 0x3f,
            },
            options: input.bytes(40),
            window: input.u16(),
            urgent: 0,
        };
        let segment = header.segment(input.bytes(60));
        self.ip(input.one_in(2), [protocol::TCP; 2], 64, &segment)
    }

    /// Returns the answer to the stack's address resolution, or the reply that the stack's latest segment
    /// waits for, with fields that may be wrong. If the stack has sent neither, the frame is empty.
    fn answer(&self, input: &mut Input<'_>) -> Vec<u8> {
        match (packet::resolution(&self.heard, &self.ends), &self.heard_tcp) {
            (Some(reply), _) => reply,
            (_, Some((frame, tcp))) => {
                let taken = tcp.len() as u32 + u32::from(tcp.has(flag::SYN)) + u32::from(tcp.has(flag::FIN));
                let echo =
                    tcp.options(frame).find(|(kind, _)| *kind == 8).map_or(&[0; 4][..], |(_, v)| &v[..4]);
                let header = TcpHeader {
                    ports: [tcp.dst_port, tcp.src_port],
                    seq: tcp.ack.wrapping_add(input.delta() as u32),
                    ack: tcp.seq.wrapping_add(taken).wrapping_add(input.delta() as u32),
                    flags: if input.one_in(4) { input.u8() & 0x3f } else { flag::ACK },
                    window: input.u16(),
                    urgent: 0,
                    options: &[&[8, 10, 0, 0, 0, 9][..], echo, &[1, 1]].concat(),
                };
                let segment = header.segment(input.bytes(40));
                self.ip(tcp.ipv6, [protocol::TCP; 2], 64, &segment)
            }
            _ => Vec::new(),
        }
    }

    /// Returns an ICMP message, often an error that quotes a frame of the stack.
    fn icmp(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut message = vec![input.pick(&[8, 3, 3, 11, 12, 5, 0, 13]), input.below(16) as u8, 0, 0];
        message.extend(input.u32().to_be_bytes());
        self.quote(input, &mut message);
        self.ip(false, [protocol::ICMP; 2], input.u8(), &message)
    }

    fn icmpv6(&self, input: &mut Input<'_>) -> Vec<u8> {
        let mut message =
            vec![input.pick(&[135, 136, 1, 2, 3, 4, 128, 133, 134, 137]), input.below(8) as u8, 0, 0];
        message.extend(input.u32().to_be_bytes());
        if matches!(message[0], 133..=137) {
            let target = if input.one_in(2) { self.ends.v6[0] } else { ENDS.v6[1] };
            message.extend(target);
            message.extend([input.pick(&[1, 2]), input.pick(&[1, 1, 0, 2])]);
            message.extend(self.ends.macs[0]);
            message.extend(input.bytes(24));
        } else {
            self.quote(input, &mut message);
        }
        self.ip(true, [protocol::ICMPV6; 2], if input.one_in(8) { 64 } else { 255 }, &message)
    }

    fn quote(&self, input: &mut Input<'_>, message: &mut Vec<u8>) {
        if input.one_in(2) && self.heard.len() > ETHERNET {
            let quoted = &self.heard[ETHERNET..];
            message.extend(&quoted[..quoted.len().min(20 + input.below(100))]);
        } else {
            message.extend(input.bytes(100));
        }
    }

    fn fragment(&self, input: &mut Input<'_>) -> Vec<u8> {
        let back = input.below(4);
        let packet = self.came.iter().rev().nth(back).filter(|frame| frame.len() > ETHERNET + 20);
        let packet = packet.cloned().unwrap_or_else(|| self.tcp(input));
        let (id, at, bytes) = (input.below(4) as u16, input.below(128), input.below(128));
        packet::fragment(&packet, id, at, bytes, input.one_in(2)).unwrap_or(packet)
    }

    /// May change some bytes, cut the frame short, and recompute the checksums.
    fn deform(&self, input: &mut Input<'_>, frame: &mut Vec<u8>) {
        if !input.one_in(3) {
            return;
        }
        for _ in 0..input.below(4) {
            let (at, byte) = (input.below(96), input.u8());
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        if input.one_in(4) {
            frame.truncate(input.below(120));
        }
        if input.one_in(2) {
            packet::complete(frame);
        }
    }

    /// Removes the listener. Checks that this removes its half-open connections, and no other connections.
    fn unlisten(&mut self, listener: ListenerId) {
        let half_open = self.host.stack.listener_counters(listener).expect("it listens").1;
        let before = self.host.stack.usage().connections;
        self.host.stack.unlisten(listener);
        assert_eq!(self.host.stack.usage().connections, before - half_open);
    }

    fn take_sent(&mut self) {
        for frame in self.host.sent() {
            self.sent += 1;
            if let Some(tcp) = parse(&frame) {
                self.heard_tcp = Some((frame.clone(), tcp));
            }
            self.heard = frame;
        }
        self.assert_quiet();
    }

    fn assert_quiet(&self) {
        let most = SENT_BESIDES + SENT_PER_FRAME * self.came.len();
        assert!(self.sent <= most, "{} frames sent, {} came: a storm", self.sent, self.came.len());
    }

    fn events(&mut self) {
        while let Some(event) = self.host.stack.event() {
            match event {
                Event::Established { conn, .. } => self.alive.push(conn),
                Event::Closed { conn, .. } => self.alive.retain(|alive| *alive != conn),
                // Any host can claim our address.
                Event::AddressConflict { .. } => {}
                Event::Datagram => panic!("no UDP port is open"),
                Event::Received { conn, .. }
                | Event::Evict { conn, .. }
                | Event::Writable { conn }
                | Event::Acknowledged { conn }
                | Event::PeerClosed { conn } => {
                    assert!(self.alive.contains(&conn), "an event of a connection that is not");
                }
            }
            assert!(self.alive.len() <= LIMITS.connections, "more connections than allowed");
        }
    }
}
