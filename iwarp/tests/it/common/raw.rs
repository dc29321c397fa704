//! An engine, and a bare TCP peer that sends whatever bytes a test chooses.

use dp::{Burst, Mbuf, Mempool, Port};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::mpa::Framer;
use iwarp::verbs::{CmEvent, Context, EventChannel};
use tcp_lite::{CloseReason, ConnId, Event, Instant, Limits, Stack, StackConfig};

use super::PORT;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// A Write of no bytes. This Write is the first FPDU of an initiator, after which the responder may send.
pub(crate) const EMPTY_WRITE: [u8; 14] = [0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An engine, and a TCP stack that is its peer.
pub(crate) struct RawPair {
    pub(crate) context: Context,
    pub(crate) engine: Engine,
    pub(crate) now_us: i64,
    /// The peer's packet buffers. A buffer returns to this pool when the engine has freed it.
    pub(crate) pool: Mempool,
    stack: Stack,
    port: Box<dyn Port>,
    out: Burst,
    pub(crate) conn: Option<ConnId>,
    /// The bytes that the peer has received from the engine.
    pub(crate) inbox: Vec<u8>,
    /// The payload length of each TCP segment that the peer has received in order.
    pub(crate) segments: Vec<usize>,
    /// How the connection ended, or `None` if it has not ended.
    pub(crate) closed: Option<CloseReason>,
    pub(crate) peer_closed: bool,
    /// Number of connections that the engine has made to this peer's listener.
    pub(crate) accepted: usize,
    /// If set, a router on the path drops packets of the engine that are longer than this number of bytes,
    /// and reports each drop by ICMP.
    pub(crate) path_mtu: Option<u16>,
    /// If set, frames of the engine are lost.
    pub(crate) deaf: bool,
    /// If set, the peer's application reads nothing: the peer's window closes, but the peer's TCP continues
    /// to work.
    pub(crate) stopped_reading: bool,
    /// Engines of other hosts, which are polled together with `engine`.
    pub(crate) beside: Vec<Engine>,
    /// The invariants of the engine are checked after every `check_every`th poll.
    pub(crate) check_every: usize,
    polls: usize,
}

impl RawPair {
    /// Returns a pair on any two ports, of which the first port is the engine's. `limits` are the limits of
    /// the peer.
    pub(crate) fn over(
        context: Context,
        (port_a, port_b): (Box<dyn Port>, Box<dyn Port>),
        limits: Limits,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let mut config = EngineConfig::new(&*port_a, &["10.0.0.1/24"]).unwrap();
        config.stack.seed = [1; 32];
        configure(&mut config);
        let peer = EngineConfig::new(&*port_b, &["10.0.0.2/24"]).unwrap().stack;
        let peer = StackConfig { seed: [2; 32], limits, ..peer };
        let stack = Stack::new(peer, port_b.mempool().clone());
        let pool = port_b.mempool().clone();
        let engine = Engine::new(&context, port_a, config).unwrap();
        Self {
            context,
            engine,
            pool,
            now_us: 0,
            stack,
            port: port_b,
            out: Burst::new(),
            conn: None,
            inbox: Vec::new(),
            segments: Vec::new(),
            closed: None,
            peer_closed: false,
            accepted: 0,
            path_mtu: None,
            deaf: false,
            stopped_reading: false,
            beside: Vec::new(),
            check_every: 1,
            polls: 0,
        }
    }

    /// Aborts the previous connection, if there is one, and opens a TCP connection to the engine's listener.
    pub(crate) fn connect(&mut self) {
        let now = Instant::from_micros(self.now_us);
        if let Some(old) = self.conn.take() {
            self.stack.abort(now, old);
        }
        (self.closed, self.peer_closed) = (None, false);
        self.inbox.clear();
        self.segments.clear();
        let remote = format!("10.0.0.1:{PORT}").parse().unwrap();
        self.conn = Some(self.stack.connect(now, remote, None).unwrap());
    }

    /// Opens one more TCP connection to the engine's listener. The previous connection stays open.
    pub(crate) fn connect_beside(&mut self) {
        self.conn = None;
        self.connect();
    }

    /// Accepts connections of the engine.
    pub(crate) fn listen(&mut self) {
        self.stack.listen(PORT).unwrap();
    }

    /// Whether a connection was opened, by either side.
    #[allow(dead_code, reason = "for the fuzzing targets")]
    pub(crate) fn has_connection(&self) -> bool {
        self.conn.is_some()
    }

    /// Whether the connection has ended, or the engine has sent a FIN.
    pub(crate) fn is_over(&self) -> bool {
        self.closed.is_some() || self.peer_closed
    }

    pub(crate) fn poll(&mut self) {
        self.poll_before(i64::MAX);
    }

    /// Polls once and advances the time, but not beyond `limit_us`. Returns `true` if the poll had nothing to
    /// do and no timer is set.
    fn poll_before(&mut self, limit_us: i64) -> bool {
        let now = Instant::from_micros(self.now_us);
        let mut busy = self.engine.poll_at(now);
        self.polls += 1;
        if self.polls.is_multiple_of(self.check_every) {
            self.engine.check_invariants().expect("invariants of the engine's stack");
        }
        for engine in &mut self.beside {
            busy |= engine.poll_at(now);
        }
        let mut frames = Burst::new();
        self.port.rx_burst(self.now_us as u64, &mut frames);
        for frame in frames.drain(..) {
            busy = true;
            if self.deaf {
                continue;
            }
            match self.path_mtu.filter(|mtu| frame.len() > ETHERNET + usize::from(*mtu)) {
                Some(mtu) => self.report_too_big(&frame, mtu),
                None => self.stack.input(now, frame),
            }
        }
        self.stack.poll(now);
        while let Some(event) = self.stack.event() {
            busy = true;
            self.on_event(event);
        }
        self.stack.transmit(now, &mut self.out);
        busy |= self.port.tx_burst(self.now_us as u64, &mut self.out) > 0;
        let engines = self.beside.iter_mut().chain([&mut self.engine]);
        let next = engines.filter_map(|it| it.next_deadline(now)).chain(self.stack.next_deadline(now)).min();
        let idle_until = next.map_or(self.now_us + 1000, |at| at.total_micros());
        self.now_us = if busy { self.now_us + 1 } else { idle_until.min(limit_us).max(self.now_us + 1) };
        !busy && next.is_none()
    }

    /// Polls until `us` microseconds have passed, or no work and no timer is left. Returns the number of
    /// polls, plus one if the time has passed.
    #[allow(dead_code, reason = "for the fuzzing targets")]
    pub(crate) fn rest(&mut self, us: i64) -> usize {
        let end = self.now_us + us;
        let mut polls = 1;
        while self.now_us < end && !self.poll_before(end) {
            polls += 1;
        }
        polls
    }

    /// Sends the ICMP message of a router for an IPv4 packet that is too long for its next link (RFC 1191).
    fn report_too_big(&mut self, frame: &Mbuf, mtu: u16) {
        let mut head = [0; ETHERNET + 28];
        frame.copy_to(0, &mut head);
        let (ethernet, packet) = head.split_at(ETHERNET);
        let mut icmp = [&[3, 4, 0, 0, 0, 0][..], &mtu.to_be_bytes(), packet].concat();
        let field = checksum(&icmp);
        icmp[2..4].copy_from_slice(&field);
        let mut ip =
            [&[0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0][..], &packet[16..20], &packet[12..16]].concat();
        let field = checksum(&ip);
        ip[10..12].copy_from_slice(&field);
        let report = [&ethernet[6..12], &ethernet[..6], &ethernet[12..], &ip, &icmp].concat();
        let mut buf = self.pool.alloc().unwrap();
        buf.append(report.len()).unwrap().copy_from_slice(&report);
        self.out.push(buf);
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Established { conn, listener: Some(_) } => {
                self.accepted += 1;
                (self.conn, self.closed, self.peer_closed) = (Some(conn), None, false);
                self.inbox.clear();
            }
            Event::Received { conn, received } if Some(conn) == self.conn => {
                self.segments.push(received.buf.len());
                if self.stopped_reading {
                    self.stack.hold(conn, received.buf.len());
                }
                for run in received.buf.segments() {
                    self.inbox.extend_from_slice(run);
                }
            }
            Event::PeerClosed { conn } if Some(conn) == self.conn => self.peer_closed = true,
            Event::Closed { conn, reason } if Some(conn) == self.conn => self.closed = Some(reason),
            _ => {}
        }
    }

    /// Polls until `done` returns `true`, for at most `us` microseconds. Returns whether `done` has returned
    /// `true`.
    pub(crate) fn until(&mut self, us: i64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now_us + us;
        while self.now_us < end {
            if done(self) {
                return true;
            }
            self.poll_before(end);
        }
        done(self)
    }

    /// Returns the next event of the engine's user, or `None` if no event arrives within `us` microseconds.
    pub(crate) fn next_event(&mut self, channel: &EventChannel, us: i64) -> Option<CmEvent> {
        let mut event = None;
        self.until(us, |_| {
            event = event.take().or_else(|| channel.poll());
            event.is_some()
        });
        event
    }

    /// Sends an MPA Request. If `request` offers InfiniBand's semantics ([`ib_request`]), inserts the mark of
    /// this connection into the offer.
    #[allow(dead_code, reason = "not for the fuzzing targets")]
    pub(crate) fn send_request(&mut self, request: &[u8]) {
        let mut request = request.to_vec();
        let (iss, irs) = self.stack.initial_sequence_numbers(self.conn.unwrap()).unwrap();
        let (mark, len) = (iss ^ irs, request.len());
        if len > 12 && request[len - 12..].starts_with(b"uwarp?") && request[len - 5..len - 1] == [0; 4] {
            request[len - 5..len - 1].copy_from_slice(&mark.to_be_bytes());
        }
        self.send(&request);
    }

    /// Sends `bytes` unchanged, and polls until TCP has accepted all bytes. Returns early if the connection
    /// ends.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        let conn = self.conn.unwrap();
        for _ in 0..100_000 {
            if bytes.is_empty() || self.closed.is_some() {
                return;
            }
            let now = Instant::from_micros(self.now_us);
            let sent = self.stack.send(now, conn, bytes).unwrap_or(0);
            bytes = &bytes[sent..];
            self.poll();
        }
        panic!("{} bytes were not taken", bytes.len());
    }

    /// Sends as many of `bytes` as TCP accepts now, in one segment if these bytes fit into a segment. Returns
    /// the number of sent bytes.
    pub(crate) fn offer(&mut self, bytes: &[u8]) -> usize {
        let now = Instant::from_micros(self.now_us);
        self.stack.send(now, self.conn.unwrap(), bytes).unwrap_or(0)
    }

    /// Resets the connection.
    pub(crate) fn abort(&mut self) {
        self.stack.abort(Instant::from_micros(self.now_us), self.conn.unwrap());
    }

    /// Sends a FIN.
    pub(crate) fn close(&mut self) {
        self.stack.close(Instant::from_micros(self.now_us), self.conn.unwrap());
    }
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// Returns a Request of revision 2, without the peer-to-peer model, whose IRD and ORD are 8. `crc` is the
/// value of the C bit.
pub(crate) fn request(crc: bool) -> Vec<u8> {
    let mut bytes = b"MPA ID Req Frame".to_vec();
    bytes.extend([if crc { 0x50 } else { 0x10 }, 2, 0, 4, 0, 8, 0, 8]);
    bytes
}

/// Returns a Request that offers InfiniBand's semantics. The offer contains 7 as `rnr_retry`.
#[allow(dead_code, reason = "not for the fuzzing targets")]
pub(crate) fn ib_request() -> Vec<u8> {
    let mut bytes = request(true);
    // The length of the private data, which includes the enhanced data.
    bytes[19] = 4 + 12;
    bytes.extend(b"uwarp?3\0\0\0\0\x07");
    bytes
}

/// Returns a Request of revision 2 for the peer-to-peer model. `bits` select the kinds of RTR: they are set
/// in IRD and ORD, the last four bytes of the frame.
pub(crate) fn peer_to_peer_request(bits: [u8; 2]) -> Vec<u8> {
    let mut bytes = request(true);
    let depths = bytes.len() - 4;
    bytes[depths] |= bits[0];
    bytes[depths + 2] |= bits[1];
    bytes
}

pub(crate) fn fpdu(framer: &mut Framer, ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; framer.wire_len(ulpdu.len())];
    framer.frame(&mut bytes, ulpdu);
    bytes
}

/// Removes the complete FPDUs from `bytes`, and returns their ULPDUs. Frames each ULPDU again with `theirs`,
/// and checks that the result equals the removed bytes.
pub(crate) fn ulpdus(theirs: &mut Framer, bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut ulpdus = Vec::new();
    loop {
        let (start, markers) = (theirs.position(), theirs.markers());
        let in_marker = |at: usize| markers && (start + at as u64) % 512 < 4;
        let mut content = bytes.iter().enumerate().filter(|(at, _)| !in_marker(*at)).map(|(_, byte)| *byte);
        let (Some(high), Some(low)) = (content.next(), content.next()) else { return ulpdus };
        let ulpdu: Vec<u8> = content.take(u16::from_be_bytes([high, low]).into()).collect();
        if bytes.len() < theirs.wire_len(usize::from(u16::from_be_bytes([high, low]))) {
            return ulpdus;
        }
        let whole = fpdu(theirs, &ulpdu);
        assert_eq!(bytes[..whole.len()], whole, "an FPDU that is not as it should be");
        bytes.drain(..whole.len());
        ulpdus.push(ulpdu);
    }
}

/// Returns a startup frame. `key` is `Req` for a Request and `Rep` for a Reply.
pub(crate) fn frame(key: &str, flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let length = (private_data.len() as u16).to_be_bytes();
    [format!("MPA ID {key} Frame").as_bytes(), &[flags, revision], &length, private_data].concat()
}
