//! A live connection under a program of actions: segments whose fields stand somewhere near the connection's
//! own, the user's calls, losses, time. Then everybody behaves, and the connection has to come to a good end.
//!
//! Rules: the simulator's on the wire; both streams whole, byte by byte; nothing is handed up twice or beyond
//! the window; events come in order; what an honest peer needs to go on it gets; at the end nothing is held.
//! A peer that contradicts itself about where its stream ends (`lawless`) frees the stack of the rules on the
//! wire, not of the others.

mod peer;
mod user;

use std::net::SocketAddr;

use dp::Checksum;
use tcp_lite::{CloseReason, CongestionAlgorithm, Duration, EcnMode, Limits, State, TcpConfig};

use self::peer::{Peer, Segment};
use self::user::{User, byte};
use super::host::{ENDS, Host};
use super::{packet, rig};
use crate::input::Input;
use crate::sim::packet::{Damage, Frame, Tcp, flag, mark_congestion, parse, too_big};
use crate::sim::watch::{Condition, Framing, Watch};

/// The port of the listener, and the client's.
const SERVER_PORT: u16 = 4000;
const CLIENT_PORT: u16 = 50_000;
/// Sides, as the rules on the wire count them.
const PEER: usize = 0;
const HOST: usize = 1;

/// Actions of one input at most.
const ACTIONS: usize = 96;

/// TIME-WAIT of the host.
const TIME_WAIT: Duration = Duration::from_secs(2);

/// Bytes of the peer's stream at most.
const STREAM: u64 = 1 << 16;

/// Segments until an honest peer has everything: enough for all that a program can leave.
const ROUNDS: usize = 1000;

/// Time after the end: TIME-WAIT, and retransmissions that nobody answers.
const REST_US: u64 = 600_000_000;

const LIMITS: Limits = Limits { connections: 2, listeners: 1, backlog: 1, ..rig::LIMITS };

struct Run {
    host: Host,
    peer: Peer,
    user: User,
    watch: Option<Watch>,
    /// The peer has announced a window from where it has not come to: until then others do not count (RFC
    /// 9293 section 3.10.7.4, SND.WL1), and it has itself to blame.
    ahead: bool,
    /// Frames of the stack's that are lost from now on.
    losses: usize,
    /// Frames that were delivered, for repetition and for fragments.
    came: Vec<Vec<u8>>,
    /// The identification of the next packet that is cut into fragments.
    fragmented: u16,
}

/// One input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut run = Run::open(&mut input);
    for _ in 0..ACTIONS {
        if input.is_empty() || run.user.over.is_some() {
            break;
        }
        run.act(&mut input);
        run.look();
    }
    run.end();
}

impl Run {
    /// A connection, by the handshake of the documents.
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
                came: Vec::new(),
                fragmented: 9,
            };
            run.look();
            run.open_with(input, flag::SYN | flag::ACK);
            run
        } else {
            host.stack.listen(host_port).expect("a free listener");
            let mut run =
                Self { host, peer, user, watch, ahead: false, losses: 0, came: Vec::new(), fragmented: 9 };
            run.open_with(input, flag::SYN);
            let ack = run.peer.honest(0, 0, u16::MAX);
            run.say(&ack, true);
            run
        }
    }

    /// The peer's SYN, with the options that the input names.
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
        self.say(&syn, true);
    }

    /// The peer sends this, as the rules on the wire see it.
    fn announce(&mut self, frame: &[u8]) {
        let now_us = self.host.now_us;
        if let Some(watch) = &mut self.watch {
            let said = watch.on_sent(now_us, PEER, frame, Condition::default());
            said.unwrap_or_else(|what| panic!("the peer's own: {what}"));
        }
    }

    /// A segment arrives. `proper`: one that the stack has to take; of others the rules on the wire see less,
    /// since what they carry may count or not.
    fn say(&mut self, segment: &Segment, proper: bool) {
        let frame = self.peer.frame(segment);
        self.arrive(&frame, &[], proper);
    }

    fn arrive(&mut self, frame: &[u8], cuts: &[usize], proper: bool) {
        if self.came.len() < 64 {
            self.came.push(frame.to_vec());
        }
        if packet::is_whole_tcp(frame) {
            self.witness(frame, proper);
        }
        self.host.deliver(frame, cuts, Checksum::Unknown);
        self.user.take(&mut self.host.stack, self.peer.edge);
        self.look();
    }

    /// The rules on the wire see a frame arrive.
    fn witness(&mut self, frame: &[u8], proper: bool) {
        let condition = self.condition();
        let tcp = parse(frame);
        // It is answered, but nothing of it counts, whatever it offers.
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

    /// Whether a segment is in the window that the stack has announced (RFC 9293 table 6, by overlap); its
    /// right edge is, for a segment without length. A connection that is not there yet takes what it takes.
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

    /// What the stack sends now; whoever asks for the peer's Ethernet address gets it.
    fn look(&mut self) {
        for frame in self.host.sent() {
            self.on_frame(frame);
        }
        self.user.take(&mut self.host.stack, self.peer.edge);
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
                self.look();
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
            // It opens the window from where the peer will begin.
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
        self.peer.hear(frame, tcp);
    }

    /// What the stack sends is what its user gave it.
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
                // All is well for a while.
                let (count, bytes) = (1 + input.below(6), input.pick(&[1460, 100, 536, 1]));
                for _ in 0..count {
                    let from = self.peer.written;
                    let bytes = self.write(from as i64 + bytes as i64).saturating_sub(from) as usize;
                    let window = if input.one_in(4) { input.u16() } else { u16::MAX };
                    let segment = self.peer.honest(from, bytes, window);
                    self.say(&segment, true);
                }
            }
            6 => {
                let segment = self.peer.honest(self.peer.acked, 0, input.u16());
                self.say(&segment, true);
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
                self.pass(until_us);
            }
            13 => {
                let next_us = self.host.next_us().unwrap_or(0).min(self.host.now_us + 60_000_000);
                self.pass(next_us);
            }
            14 => self.losses = input.below(20),
            15 => self.icmp(input),
            16 => self.again(input),
            _ => self.user.release(&mut self.host.stack, input.size() as usize),
        }
    }

    /// Extends the peer's stream to `end`, as far as it may; returns where it ends.
    fn write(&mut self, end: i64) -> u64 {
        let end = (end.max(0) as u64).min(STREAM).min(self.peer.edge + 3000);
        while self.peer.written < end && !self.peer.finished {
            let bytes = (end - self.peer.written).min(1460) as usize;
            let segment = self.peer.honest(self.peer.written, bytes, 0);
            self.announce(&self.peer.frame(&segment));
            self.peer.written += bytes as u64;
        }
        end.min(self.peer.written)
    }

    /// A segment with each field where it might stand, or near.
    fn segment(&mut self, input: &mut Input<'_>) {
        let peer = &self.peer;
        let bases = [peer.acked, peer.written, peer.edge, 0];
        let offset = input.pick(&bases) as i64 + i64::from(input.delta() as i32);
        let bytes = if input.one_in(2) { 0 } else { input.size() as usize % 1461 };
        let end = offset + bytes as i64;
        let inside = self.write(end) as i64 == end;
        // What is not written is nowhere near a window, now or when it comes again.
        let bytes = if inside || offset > 4 * STREAM as i64 + (1 << 20) { bytes } else { 0 };
        let (heard, claimed) = (self.peer.heard_up_to(), self.peer.claimed);
        let ack =
            input.pick(&[heard, self.user.sent, claimed, heard]) as i64 + i64::from(input.delta() as i32);
        let mut flags = flag::ACK;
        if input.one_in(3) {
            // FIN is for `close`, but for peers without law.
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
            self.peer.claim(ack);
        }
        let ecn = input.u8() & 3;
        let mut frame = self.peer.frame(&Segment { seq, ack, flags, window, urgent, options, payload, ecn });
        let cuts: Vec<usize> =
            if input.one_in(8) { vec![input.u8().into(), input.u16().into()] } else { Vec::new() };
        if input.one_in(12) {
            // A bit turns on the way: seen by a checksum, or where none looks.
            let at = packet::ETHERNET + input.below(frame.len() - packet::ETHERNET);
            frame[at] ^= 1 << input.below(8);
        }
        self.arrive(&frame, &cuts, false);
    }

    /// Selective acknowledgements: true ones, and others.
    fn selective(&mut self, input: &mut Input<'_>) {
        let lies = input.one_in(3);
        let mut segment = self.peer.honest(self.peer.acked, 0, u16::MAX);
        segment.options.extend([1, 1, 5, 0]);
        let at = segment.options.len() - 1;
        let heard = self.peer.heard.frontier();
        for _ in 0..1 + input.below(3) {
            let from = heard as i64 + i64::from(input.size()) * if lies && input.one_in(2) { -1 } else { 1 };
            let to = from + i64::from(input.size());
            if lies || self.peer.heard.contains(from as u64, to as u64) && from < to {
                segment.options.extend(self.peer.ack(from as u64).to_be_bytes());
                segment.options.extend(self.peer.ack(to as u64).to_be_bytes());
                self.peer.claimed = self.peer.claimed.max(heard);
            }
        }
        segment.options[at] = (segment.options.len() - at + 1) as u8;
        if segment.options.len() <= 40 {
            if lies {
                self.forget_law_of_sack();
            }
            self.say(&segment, !lies);
        }
    }

    /// Bytes that the peer says it has, and has not: they may be sent again or not.
    fn forget_law_of_sack(&mut self) {
        self.watch = None;
    }

    fn close(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0..=2 => {
                let end = self.peer.written;
                let mut fin = self.peer.honest(end, 0, u16::MAX);
                fin.flags |= flag::FIN;
                if !self.peer.finished {
                    self.announce(&self.peer.frame(&fin));
                    self.peer.finished = true;
                }
                self.say(&fin, true);
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

    /// An ICMP error about what the stack sent last.
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
        packet::finish(&mut error);
        self.host.deliver(&error, &[], Checksum::Unknown);
    }

    /// Something that came once comes again, whole or in fragments, marked or not.
    fn again(&mut self, input: &mut Input<'_>) {
        let back = input.below(self.came.len().max(1));
        let Some(mut frame) = self.came.iter().rev().nth(back).cloned() else { return };
        if !packet::is_whole_tcp(&frame) {
            // It was damaged on its way before; cut into fragments it would be another one.
            return self.arrive(&frame, &[], false);
        }
        if let Some(tcp) = parse(&frame).filter(|tcp| tcp.has(flag::ACK)) {
            // What it acknowledges may have been sent since.
            self.peer.claim(tcp.ack);
        }
        if input.one_in(3) {
            let payload = frame.len() - packet::ETHERNET - if self.peer.ipv6 { 40 } else { 20 };
            let size = 8 * (1 + input.below(60));
            let mut pieces: Vec<_> = (0..payload)
                .step_by(size)
                .filter_map(|at| packet::fragment(&frame, self.fragmented, at, size, at + size < payload))
                .collect();
            // The other pieces of a refused packet must not spoil the next one.
            self.fragmented = self.fragmented.wrapping_add(1);
            if input.one_in(2) {
                pieces.reverse();
            }
            // A first fragment that hides a part of TCP's header in the next is refused (RFC 3128).
            let is_tiny = pieces.len() > 1 && size < packet::TCP_BYTES;
            // As it is when it has been put together again, by IPv4 and IPv6 alike: behind a fragment header
            // the rules would not see that it is TCP.
            if !is_tiny {
                self.witness(&frame, false);
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

    /// Time passes; what the stack says meanwhile is heard.
    fn pass(&mut self, until_us: u64) {
        for _ in 0..200 {
            self.look();
            match self.host.next_us() {
                Some(next_us) if next_us <= until_us => self.host.now_us = next_us.max(self.host.now_us + 1),
                _ => break,
            }
        }
        self.host.now_us = self.host.now_us.max(until_us);
    }

    /// From here on everybody behaves: what was sent arrives, both sides close, and nothing stays behind.
    fn end(&mut self) {
        self.losses = 0;
        self.look();
        let lawful = self.watch.is_some() && !self.ahead;
        if self.user.is_alive() && lawful {
            self.settle();
        } else if let Some(conn) = self.user.conn.filter(|_| self.user.over.is_none()) {
            self.user.aborted = true;
            let now = self.host.now();
            self.host.stack.abort(now, conn);
        }
        self.look();
        let until_us = self.host.now_us + REST_US;
        let mut late = Vec::new();
        self.host.rest(until_us, |_, frame| late.push(frame));
        assert!(late.len() < 100, "{} frames sent to nobody", late.len());
        self.user.take(&mut self.host.stack, self.peer.edge);
        assert!(self.user.over.is_some() || self.user.conn.is_none(), "it never ends");
        self.host.assert_all_given_back();
    }

    /// An honest peer, until both streams are whole and closed.
    fn settle(&mut self) {
        // What has waited for its acknowledgement for long may be given up before it comes.
        let waits = self.user.closing || self.user.sent > self.peer.heard_up_to();
        self.user.slow = false;
        self.user.release(&mut self.host.stack, usize::MAX);
        self.close_user();
        let limit_us = self.host.now_us + 200_000_000;
        for _ in 0..ROUNDS {
            if self.user.over.is_some() {
                break;
            }
            // Behind its own FIN, once that was acknowledged.
            let from = self.user.got.frontier().max(self.peer.acked);
            let bytes =
                self.peer.written.saturating_sub(from).min(1000).min(self.peer.edge.saturating_sub(from))
                    as usize;
            let mut segment = self.peer.honest(from, bytes, u16::MAX);
            if from + bytes as u64 == self.peer.written {
                segment.flags |= flag::FIN;
                if !self.peer.finished {
                    self.announce(&self.peer.frame(&segment));
                    self.peer.finished = true;
                }
            }
            self.say(&segment, true);
            let next_us = self.host.next_us().unwrap_or(u64::MAX).min(self.host.now_us + 100_000);
            self.host.now_us = next_us.max(self.host.now_us + 100);
            assert!(self.host.now_us < limit_us, "not over: {:?}", self.describe());
        }
        if waits && self.user.over == Some(CloseReason::TimedOut) {
            return;
        }
        assert_eq!(self.user.over, Some(CloseReason::Graceful), "{:?}", self.describe());
        assert_eq!(self.user.got.frontier(), self.peer.written, "what the peer wrote has arrived");
        let heard = self.peer.heard.frontier();
        let claimed = self.peer.claimed;
        assert!(heard == self.user.sent || claimed > heard, "{heard} of {} bytes arrived", self.user.sent);
    }

    fn describe(&self) -> impl std::fmt::Debug {
        let info = self.user.conn.and_then(|conn| self.host.stack.info(conn));
        (info, self.user.got.frontier(), self.peer.written, self.peer.heard.frontier(), self.user.sent)
    }
}
