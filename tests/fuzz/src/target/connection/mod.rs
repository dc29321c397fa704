//! A live connection and a sequence of actions, for example segments whose fields are close to the valid
//! values, ICMP errors, calls of the user, losses, and the passing of time. After these actions the peer
//! behaves well, and the connection has to end gracefully (or by the user timeout, if bytes have long been
//! unacknowledged). If the peer contradicted itself before, or announced a window ahead of its stream, the
//! user aborts the connection instead.
//!
//! Rules: the simulator's rules on the wire are kept; both streams arrive complete, byte by byte; no byte is
//! delivered twice or beyond the window; events are delivered in order; an honest peer receives the segments
//! that it needs to continue; at the end no resource is held. If the peer contradicts itself about its stream
//! or its SACK blocks, the rules on the wire do not apply, but all other rules do.

mod peer;
mod user;

use std::net::SocketAddr;

use dp::Checksum;
use tcp_lite::{CloseReason, CongestionAlgorithm, Duration, EcnMode, Limits, State, TcpConfig};

use self::peer::{Peer, Segment};
use self::user::{User, byte};
use super::host::{ENDS, Host};
use super::rig;
use crate::input::Input;
use crate::sim::watch::{Condition, Framing, Watch};
use testkit::packet::{self, Damage, Frame, Tcp, flag, mark_congestion, parse, too_big};

/// The port of the listener, and the port of the client.
const SERVER_PORT: u16 = 4000;
const CLIENT_PORT: u16 = 50_000;
/// The two sides, numbered as in the rules on the wire.
const PEER: usize = 0;
const HOST: usize = 1;

/// Maximum number of actions of one input.
const ACTIONS: usize = 96;

/// Duration of the host's TIME-WAIT.
const TIME_WAIT: Duration = Duration::from_secs(2);

/// Maximum length in bytes of the peer's stream.
const STREAM: u64 = 1 << 16;

/// Maximum number of segments until an honest peer has received and sent everything: enough for any state in
/// which the actions can leave the connection.
const ROUNDS: usize = 1000;

/// Time after the end, in microseconds, during which TIME-WAIT and unanswered retransmissions have to end.
const REST_US: u64 = 600_000_000;

const LIMITS: Limits = Limits { connections: 2, listeners: 1, backlog: 1, ..rig::LIMITS };

struct Run {
    host: Host,
    peer: Peer,
    user: User,
    watch: Option<Watch>,
    /// Whether the peer has announced a window in a segment whose sequence number is ahead of the peer's
    /// stream. Until the stream reaches this number, the stack ignores other windows (RFC 9293 section
    /// 3.10.7.4, SND.WL1).
    ahead: bool,
    /// Number of the stack's next TCP frames that will be lost.
    losses: usize,
    /// Delivered frames, which may be delivered again, whole or in fragments.
    frames: Vec<Vec<u8>>,
    /// The identification of the next fragmented packet.
    fragmented: u16,
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut run = Run::open(&mut input);
    for _ in 0..ACTIONS {
        if input.is_empty() || run.user.over.is_some() {
            break;
        }
        run.act(&mut input);
        run.handle_sent();
    }
    run.end();
}

impl Run {
    /// Opens a connection with a regular handshake.
    fn open(input: &mut Input<'_>) -> Self {
        let setup = input.u16();
        let bit = |at: u32| setup >> at & 1 == 1;
        let tcp = TcpConfig {
            timestamps: !bit(0),
            sack: !bit(1),
            recv_window_bytes: [65_535, 4096, 1 << 18, 20_000][usize::from(setup >> 2 & 3)],
            send_buffer_bytes: [65_536, 8192][usize::from(setup >> 4 & 1)],
            congestion: [
                CongestionAlgorithm::Cubic,
                CongestionAlgorithm::NewReno,
                CongestionAlgorithm::Dctcp,
            ][usize::from(setup >> 5 & 3) % 3],
            ecn: if bit(7) { EcnMode::Request } else { EcnMode::Accept },
            time_wait: TIME_WAIT,
            user_timeout: Duration::from_secs(20),
            keepalive_idle: bit(8).then_some(Duration::from_secs(15)),
            ..TcpConfig::default()
        };
        let (active, ipv6, slow) = (bit(9), bit(10), bit(11));
        let mtu = if bit(12) { 1280 } else { 1500 };
        let mut host = Host::new(mtu, tcp, LIMITS);
        let isn = if bit(13) { u32::MAX - 2000 } else { 5000 };
        let (port, host_port) = if active { (SERVER_PORT, CLIENT_PORT) } else { (CLIENT_PORT, SERVER_PORT) };
        let peer = Peer { ipv6, port, host_port, isn, stamp: 100, ..Peer::default() };
        let user = User { slow, ..User::default() };
        let watch = Some(Watch::new(Framing::Plain, [false, true], [9000, mtu]));
        if active {
            let remote = if ipv6 {
                SocketAddr::from((ENDS.v6[0], port))
            } else {
                SocketAddr::from((ENDS.v4[0], port))
            };
            let conn = host.stack.connect(host.now(), remote, Some(host_port)).expect("a free connection");
            let mut run = Self {
                host,
                peer,
                user: User { conn: Some(conn), ..user },
                watch,
                ahead: false,
                losses: 0,
                frames: Vec::new(),
                fragmented: 9,
            };
            run.handle_sent();
            run.open_with(input, flag::SYN | flag::ACK);
            run
        } else {
            host.stack.listen(host_port).expect("a free listener");
            let mut run =
                Self { host, peer, user, watch, ahead: false, losses: 0, frames: Vec::new(), fragmented: 9 };
            run.open_with(input, flag::SYN);
            let ack = run.peer.regular(0, 0, u16::MAX);
            run.arrives(&ack, true);
            run
        }
    }

    /// Sends the peer's SYN, with options chosen by the input.
    fn open_with(&mut self, input: &mut Input<'_>, flags: u8) {
        let offered = input.u8();
        let mut options = vec![2, 4];
        options.extend([1460_u16, 536, 1220, 64][usize::from(offered & 3)].to_be_bytes());
        if offered & 4 == 0 {
            options.extend([4, 2]);
        }
        if offered & 8 == 0 {
            options.extend([&[8, 10][..], &100_u32.to_be_bytes(), &self.peer.echo.to_be_bytes()].concat());
        }
        if offered & 16 == 0 {
            options.extend([3, 3, 7 * (offered >> 7)]);
        }
        let ecn = match (offered & 32 == 0, flags & flag::ACK == 0) {
            (true, true) => flag::ECE | flag::CWR,
            (true, false) => flag::ECE,
            _ => 0,
        };
        let ack = if flags & flag::ACK == 0 { 0 } else { self.peer.ack(0) };
        let seq = self.peer.isn;
        let window = if offered & 64 == 0 { u16::MAX } else { 1000 };
        let syn =
            Segment { seq, ack, flags: flags | ecn, window, urgent: 0, options, payload: Vec::new(), ecn: 0 };
        self.announce(&self.peer.frame(&syn));
        self.peer.offers = (offered & 8 == 0, offered & 16 == 0);
        self.arrives(&syn, true);
    }

    /// Checks a frame that the peer sends against the rules on the wire.
    fn announce(&mut self, frame: &[u8]) {
        let now_us = self.host.now_us;
        if let Some(watch) = &mut self.watch {
            let said = watch.on_sent(now_us, PEER, frame, Condition::default());
            said.unwrap_or_else(|what| panic!("the peer's own: {what}"));
        }
    }

    /// Delivers a segment. If `proper`, the stack has to process the segment. Otherwise the stack may ignore
    /// the segment, so the rules on the wire see only a part of the segment.
    fn arrives(&mut self, segment: &Segment, proper: bool) {
        let frame = self.peer.frame(segment);
        self.arrive(&frame, &[], proper);
    }

    fn arrive(&mut self, frame: &[u8], cuts: &[usize], proper: bool) {
        if self.frames.len() < 64 {
            self.frames.push(frame.to_vec());
        }
        if packet::is_whole_tcp(frame) {
            self.update_rules(frame, proper);
        }
        self.host.deliver(frame, cuts, Checksum::Unknown);
        self.user.events(&mut self.host.stack, self.peer.edge);
        self.handle_sent();
    }

    /// Passes an arriving frame to the rules on the wire.
    fn update_rules(&mut self, frame: &[u8], proper: bool) {
        let condition = self.condition();
        let tcp = parse(frame);
        // The stack answers a void segment, but uses none of its contents.
        let is_void =
            tcp.as_ref().is_some_and(|tcp| !proper && tcp.has(flag::SYN) || !self.is_acceptable(tcp));
        if let Some(watch) = &mut self.watch {
            let mut bytes = frame.to_vec();
            if !proper && let Some(tcp) = tcp {
                watch.doubt_timestamp(HOST, frame);
                bytes[tcp.options.clone()].fill(1);
                bytes[packet::ETHERNET + 1] &= if tcp.ipv6 { 0xcf } else { 0xfc };
                bytes[tcp.l4 + 13] &= !(flag::ECE | flag::CWR);
            }
            let damage = if is_void { Damage::Forged } else { Damage::None };
            let frame = Frame { bytes, damage };
            watch.on_delivered(self.host.now_us, HOST, &frame, condition);
        }
    }

    /// Whether a segment overlaps the window that the stack has announced (RFC 9293 table 6). A segment
    /// without length may also be at the right edge of the window. Before the connection is established,
    /// every segment is acceptable.
    fn is_acceptable(&self, tcp: &Tcp) -> bool {
        let info = self.user.conn.and_then(|conn| self.host.stack.info(conn));
        let Some(info) = info.filter(|info| !matches!(info.state, State::SynSent | State::SynReceived))
        else {
            return true;
        };
        let start = i64::from(tcp.seq.wrapping_sub(self.peer.seq(info.frontier)) as i32);
        let right = self.peer.edge as i64 - info.frontier as i64;
        match tcp.payload.len() as i64 + i64::from(tcp.has(flag::FIN)) {
            _ if start == 0 => true,
            0 => 0 < start && start <= right,
            len => start < right && start + len > 0,
        }
    }

    fn condition(&self) -> Condition {
        Condition::of(&self.host.stack.counters(), TIME_WAIT)
    }

    /// Handles the frames that the stack sends now, and the events of its user. Answers requests for the
    /// peer's Ethernet address.
    fn handle_sent(&mut self) {
        for frame in self.host.sent() {
            self.on_frame(frame);
        }
        self.user.events(&mut self.host.stack, self.peer.edge);
    }

    fn on_frame(&mut self, frame: Vec<u8>) {
        let condition = self.condition();
        if let Some(watch) = &mut self.watch {
            let said = watch.on_sent(self.host.now_us, HOST, &frame, condition);
            said.unwrap_or_else(|what| panic!("{what}"));
        }
        let Some(tcp) = parse(&frame) else {
            if let Some(reply) = packet::resolution(&frame, &ENDS) {
                self.host.deliver(&reply, &[], Checksum::Unknown);
                self.handle_sent();
            }
            return;
        };
        self.check_stream(&frame);
        self.peer.learn(&frame, &tcp);
        if tcp.has(flag::ACK) && !tcp.has(flag::RST) {
            let scale = if tcp.has(flag::SYN) { 0 } else { self.peer.scale() };
            let acked = u64::from(tcp.ack.wrapping_sub(self.peer.seq(0)));
            self.peer.acked = self.peer.acked.max(acked.min(STREAM + 1));
            self.peer.edge = self.peer.edge.max(acked + (u64::from(tcp.window) << scale));
        } else if tcp.has(flag::SYN) {
            // The window of a SYN begins at the peer's first byte.
            self.peer.edge = self.peer.edge.max(u64::from(tcp.window));
        }
        if self.losses > 0 {
            self.losses -= 1;
            return;
        }
        if let Some(watch) = &mut self.watch {
            let arrived = Frame { bytes: frame.clone(), damage: Damage::None };
            watch.on_delivered(self.host.now_us, PEER, &arrived, Condition::default());
        }
        self.peer.on_segment(frame, tcp);
    }

    /// Checks that the stack sends the bytes that its user passed to it.
    fn check_stream(&self, frame: &[u8]) {
        let (Some(tcp), Some(isn)) = (parse(frame), self.peer.host_isn) else { return };
        let start = u64::from(tcp.seq.wrapping_sub(isn).wrapping_sub(1));
        let payload = &frame[tcp.payload.clone()];
        if payload.is_empty() {
            return;
        }
        let end = start + payload.len() as u64;
        assert!(end <= self.user.sent, "bytes {start}..{end} sent, the user gave {}", self.user.sent);
        let wrong = payload.iter().zip(start..).find(|(got, at)| **got != byte(1, *at));
        assert!(wrong.is_none(), "the stream is altered: {wrong:?}");
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(18) {
            0..=3 => self.segment(input),
            4 | 5 => {
                // The peer sends some regular segments.
                let (count, bytes) = (1 + input.below(6), input.pick(&[1460, 100, 536, 1]));
                for _ in 0..count {
                    let from = self.peer.written;
                    let bytes = self.write(from as i64 + bytes as i64).saturating_sub(from) as usize;
                    let window = if input.one_in(4) { input.u16() } else { u16::MAX };
                    let segment = self.peer.regular(from, bytes, window);
                    self.arrives(&segment, true);
                }
            }
            6 => {
                let segment = self.peer.regular(self.peer.acked, 0, input.u16());
                self.arrives(&segment, true);
            }
            7 => self.selective(input),
            8 | 9 => {
                let record = input.one_in(2).then(|| 1 + input.size() as usize % 1460);
                let (now, bytes) = (self.host.now(), input.size() as usize % 30_000);
                let borders = self.user.send(&mut self.host.stack, now, bytes, record);
                let port = CLIENT_PORT;
                for at in borders {
                    if let Some(watch) = &mut self.watch {
                        watch.pushed(HOST, port, at);
                    }
                }
            }
            10 => self.close(input),
            11 | 12 => {
                let until_us = self.host.now_us + u64::from(input.size());
                self.advance(until_us);
            }
            13 => {
                let next_us = self.host.next_us().unwrap_or(0).min(self.host.now_us + 60_000_000);
                self.advance(next_us);
            }
            14 => self.losses = input.below(20),
            15 => self.icmp(input),
            16 => self.repeat(input),
            _ => self.user.release(&mut self.host.stack, input.size() as usize),
        }
    }

    /// Extends the peer's stream to `end`, as far as allowed. Returns the smaller of `end` and the stream's
    /// end.
    fn write(&mut self, end: i64) -> u64 {
        let end = (end.max(0) as u64).min(STREAM).min(self.peer.edge + 3000);
        while self.peer.written < end && !self.peer.finished {
            let bytes = (end - self.peer.written).min(1460) as usize;
            let segment = self.peer.regular(self.peer.written, bytes, 0);
            self.announce(&self.peer.frame(&segment));
            self.peer.written += bytes as u64;
        }
        end.min(self.peer.written)
    }

    /// Delivers a segment whose fields are at or near their regular values.
    fn segment(&mut self, input: &mut Input<'_>) {
        let peer = &self.peer;
        let bases = [peer.acked, peer.written, peer.edge, 0];
        let offset = input.pick(&bases) as i64 + i64::from(input.delta() as i32);
        let bytes = if input.one_in(2) { 0 } else { input.size() as usize % 1461 };
        let end = offset + bytes as i64;
        let inside = self.write(end) as i64 == end;
        // Bytes that are not part of the stream must stay far from any window, also when the segment is
        // repeated later.
        let bytes = if inside || offset > 4 * STREAM as i64 + (1 << 20) { bytes } else { 0 };
        let (heard, claimed) = (self.peer.received_to(), self.peer.acked_to);
        let ack =
            input.pick(&[heard, self.user.sent, claimed, heard]) as i64 + i64::from(input.delta() as i32);
        let mut flags = flag::ACK;
        if input.one_in(3) {
            // FIN is sent by `close`, and by the code below if the peer contradicts itself.
            flags = input.u8() & !flag::FIN;
        }
        if input.one_in(40) {
            flags |= flag::FIN;
            self.watch = None;
        }
        let window = if input.one_in(2) { input.u16() } else { u16::MAX };
        self.ahead |= offset > self.peer.written as i64;
        let late = if input.one_in(4) { (input.delta() as i32) >> 12 } else { 1 };
        let stamp = self.peer.stamp.wrapping_add(late as u32);
        let options = if input.one_in(6) { input.bytes(40).to_vec() } else { self.peer.stamped(stamp) };
        if late > 0 {
            self.peer.stamp = stamp;
        }
        let seq = self.peer.seq(0).wrapping_add(offset as u32);
        let payload = self.peer.bytes(offset, bytes);
        let urgent = if flags & 0x20 != 0 { input.u16() } else { 0 };
        let ack = self.peer.ack(0).wrapping_add(ack as u32);
        if flags & flag::ACK != 0 {
            self.peer.acknowledge(ack);
        }
        let ecn = input.u8() & 3;
        let mut frame = self.peer.frame(&Segment { seq, ack, flags, window, urgent, options, payload, ecn });
        let cuts: Vec<usize> =
            if input.one_in(8) { vec![input.u8().into(), input.u16().into()] } else { Vec::new() };
        if input.one_in(12) {
            // A bit flips on the wire. A checksum may detect the flip or not.
            let at = packet::ETHERNET + input.below(frame.len() - packet::ETHERNET);
            frame[at] ^= 1 << input.below(8);
        }
        self.arrive(&frame, &cuts, false);
    }

    /// Delivers an acknowledgement with at most three SACK blocks. Some acknowledgements have false blocks.
    fn selective(&mut self, input: &mut Input<'_>) {
        let lies = input.one_in(3);
        let mut segment = self.peer.regular(self.peer.acked, 0, u16::MAX);
        segment.options.extend([1, 1, 5, 0]);
        let at = segment.options.len() - 1;
        let heard = self.peer.received.frontier();
        for _ in 0..1 + input.below(3) {
            let from = heard as i64 + i64::from(input.size()) * if lies && input.one_in(2) { -1 } else { 1 };
            let to = from + i64::from(input.size());
            if lies || self.peer.received.contains(from as u64, to as u64) && from < to {
                segment.options.extend(self.peer.ack(from as u64).to_be_bytes());
                segment.options.extend(self.peer.ack(to as u64).to_be_bytes());
                self.peer.acked_to = self.peer.acked_to.max(heard);
            }
        }
        segment.options[at] = (segment.options.len() - at + 1) as u8;
        if segment.options.len() <= 40 {
            if lies {
                self.stop_rules_on_wire();
            }
            self.arrives(&segment, !lies);
        }
    }

    /// Ends the checks by the rules on the wire, because the peer has acknowledged bytes that it does not
    /// have, and the stack need not retransmit these bytes.
    fn stop_rules_on_wire(&mut self) {
        self.watch = None;
    }

    fn close(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0..=2 => {
                let end = self.peer.written;
                let mut fin = self.peer.regular(end, 0, u16::MAX);
                fin.flags |= flag::FIN;
                if !self.peer.finished {
                    self.announce(&self.peer.frame(&fin));
                    self.peer.finished = true;
                }
                self.arrives(&fin, true);
            }
            3..=5 => self.close_user(),
            6 if input.one_in(4) => {
                if let Some(conn) = self.user.conn.filter(|_| self.user.is_alive()) {
                    self.user.aborted = true;
                    let now = self.host.now();
                    self.host.stack.abort(now, conn);
                }
            }
            _ => {}
        }
    }

    fn close_user(&mut self) {
        if let Some(conn) = self.user.conn.filter(|_| self.user.is_alive()) {
            self.user.closing = true;
            let now = self.host.now();
            self.host.stack.close(now, conn);
        }
    }

    /// Delivers an ICMP error about the last segment that the peer received from the stack. Some of its bytes
    /// may be wrong.
    fn icmp(&mut self, input: &mut Input<'_>) {
        let Some((frame, tcp)) = &self.peer.last else { return };
        let mut error = too_big(frame, tcp, 40 + input.size() as u16 % 1500);
        let l4 = packet::ETHERNET + if tcp.ipv6 { 40 } else { 20 };
        if input.one_in(3) {
            (error[l4], error[l4 + 1]) = (input.u8(), input.u8());
        }
        if input.one_in(3) {
            let at = l4 + input.below(error.len() - l4);
            error[at] = input.u8();
        }
        packet::complete(&mut error);
        self.host.deliver(&error, &[], Checksum::Unknown);
    }

    /// Repeats a frame that arrived before: whole or in fragments, with or without a congestion mark.
    fn repeat(&mut self, input: &mut Input<'_>) {
        let back = input.below(self.frames.len().max(1));
        let Some(mut frame) = self.frames.iter().rev().nth(back).cloned() else { return };
        if !packet::is_whole_tcp(&frame) {
            // The frame is damaged, so its fragments could not be reassembled to the same frame. The frame is
            // repeated whole.
            return self.arrive(&frame, &[], false);
        }
        if let Some(tcp) = parse(&frame).filter(|tcp| tcp.has(flag::ACK)) {
            // Since the frame first arrived, the stack may have sent the bytes that the segment acknowledges.
            self.peer.acknowledge(tcp.ack);
        }
        if input.one_in(3) {
            let payload = frame.len() - packet::ETHERNET - if self.peer.ipv6 { 40 } else { 20 };
            let size = 8 * (1 + input.below(60));
            let mut pieces: Vec<_> = (0..payload)
                .step_by(size)
                .filter_map(|at| packet::fragment(&frame, self.fragmented, at, size, at + size < payload))
                .collect();
            // If a first fragment is refused, the packet's other fragments must not be reassembled with the
            // next packet.
            self.fragmented = self.fragmented.wrapping_add(1);
            if input.one_in(2) {
                pieces.reverse();
            }
            // The stack refuses a first fragment that leaves a part of the TCP header to the second fragment
            // (RFC 3128).
            let is_tiny = pieces.len() > 1 && size < packet::TCP_BYTES;
            // The rules get the reassembled packet (IPv4 or IPv6), since they would not recognise TCP after a
            // fragment header.
            if !is_tiny {
                self.update_rules(&frame, false);
            }
            pieces.iter().for_each(|piece| self.host.deliver(piece, &[], Checksum::Unknown));
            return;
        }
        if input.one_in(4)
            && let Some(tcp) = parse(&frame)
        {
            mark_congestion(&mut frame, &tcp);
        }
        self.arrive(&frame, &[], false);
    }

    /// Advances the time to `until_us`, and handles the frames that the stack sends.
    fn advance(&mut self, until_us: u64) {
        for _ in 0..200 {
            self.handle_sent();
            match self.host.next_us() {
                Some(next_us) if next_us <= until_us => self.host.now_us = next_us.max(self.host.now_us + 1),
                _ => break,
            }
        }
        self.host.now_us = self.host.now_us.max(until_us);
    }

    /// Ends the connection, and checks that no object is left. If the connection lives, the rules on the wire
    /// still apply, and the peer has not announced a window ahead of its stream, both sides behave well from
    /// here on, everything arrives, and both sides close. Otherwise the user aborts the connection.
    fn end(&mut self) {
        self.losses = 0;
        self.handle_sent();
        let lawful = self.watch.is_some() && !self.ahead;
        if self.user.is_alive() && lawful {
            self.settle();
        } else if let Some(conn) = self.user.conn.filter(|_| self.user.over.is_none()) {
            self.user.aborted = true;
            let now = self.host.now();
            self.host.stack.abort(now, conn);
        }
        self.handle_sent();
        let until_us = self.host.now_us + REST_US;
        let mut late = Vec::new();
        self.host.rest(until_us, |_, frame| late.push(frame));
        assert!(late.len() < 100, "{} frames sent to nobody", late.len());
        self.user.events(&mut self.host.stack, self.peer.edge);
        assert!(self.user.over.is_some() || self.user.conn.is_none(), "it never ends");
        self.host.assert_all_given_back();
    }

    /// Behaves as an honest peer until both streams are complete and closed.
    fn settle(&mut self) {
        // If bytes have long been unacknowledged, the user timeout may pass before their acknowledgement
        // arrives.
        let waits = self.user.closing || self.user.sent > self.peer.received_to();
        self.user.slow = false;
        self.user.release(&mut self.host.stack, usize::MAX);
        self.close_user();
        let limit_us = self.host.now_us + 200_000_000;
        for _ in 0..ROUNDS {
            if self.user.over.is_some() {
                break;
            }
            // Once the stack has acknowledged the peer's FIN, `acked` is the position after the FIN.
            let from = self.user.got.frontier().max(self.peer.acked);
            let bytes =
                self.peer.written.saturating_sub(from).min(1000).min(self.peer.edge.saturating_sub(from))
                    as usize;
            let mut segment = self.peer.regular(from, bytes, u16::MAX);
            if from + bytes as u64 == self.peer.written {
                segment.flags |= flag::FIN;
                if !self.peer.finished {
                    self.announce(&self.peer.frame(&segment));
                    self.peer.finished = true;
                }
            }
            self.arrives(&segment, true);
            let next_us = self.host.next_us().unwrap_or(u64::MAX).min(self.host.now_us + 100_000);
            self.host.now_us = next_us.max(self.host.now_us + 100);
            assert!(self.host.now_us < limit_us, "not over: {:?}", self.describe());
        }
        if waits && self.user.over == Some(CloseReason::TimedOut) {
            return;
        }
        assert_eq!(self.user.over, Some(CloseReason::Graceful), "{:?}", self.describe());
        assert_eq!(self.user.got.frontier(), self.peer.written, "what the peer wrote has arrived");
        let heard = self.peer.received.frontier();
        let claimed = self.peer.acked_to;
        assert!(heard == self.user.sent || claimed > heard, "{heard} of {} bytes arrived", self.user.sent);
    }

    fn describe(&self) -> impl std::fmt::Debug {
        let info = self.user.conn.and_then(|conn| self.host.stack.info(conn));
        (info, self.user.got.frontier(), self.peer.written, self.peer.received.frontier(), self.user.sent)
    }
}
