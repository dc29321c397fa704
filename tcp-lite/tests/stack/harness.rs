//! Two hosts on a wire in memory, and a clock that jumps to the next event. Each byte of a stream is a
//! function of its offset (`byte`), so the tests can check received bytes without storing the sent bytes.

use std::net::{IpAddr, SocketAddr};

use dp::link::{LinkConfig, pair};
use dp::{Burst, Mbuf, Port};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{
    AddressProbing, CloseReason, ConnId, Datagram, Event, Instant, Limits, SendError, Stack, StackConfig,
    TcpConfig,
};

use crate::in_order::InOrder;

pub(crate) use testkit::stream::byte;

pub(crate) const MAC_A: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x0a]);
pub(crate) const MAC_B: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x0b]);

/// Returns a configuration with an address of each family: `10.0.0.n/24` and `2001:db8::n/64`.
pub(crate) fn config(mac: EthernetAddress, n: u8) -> StackConfig {
    StackConfig {
        mac,
        vlan: None,
        addresses: [format!("10.0.0.{n}/24"), format!("2001:db8::{n:x}/64")]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect(),
        gateways: Default::default(),
        address_probing: AddressProbing::Off,
        derived_neighbors: None,
        loopback: false,
        mtu: 1500,
        offloads: Default::default(),
        limits: Limits::default(),
        tcp: TcpConfig::default(),
        seed: [n; 32],
    }
}

/// A connection of a host under test.
pub(crate) struct Stream {
    pub(crate) conn: ConnId,
    pub(crate) established: bool,
    to_send: u64,
    pub(crate) sent: u64,
    blocked: bool,
    close_when_sent: bool,
    close_called: bool,
    pub(crate) received: InOrder,
    pub(crate) peer_closed: bool,
    pub(crate) closed: Option<CloseReason>,
}

/// A stack, its port, and the application on it.
pub(crate) struct Host {
    pub(crate) stack: Stack,
    pub(crate) port: Box<dyn Port>,
    out: Burst,
    pub(crate) streams: Vec<Stream>,
    by_slot: Vec<Option<usize>>,
    /// Number of bytes that each accepted connection sends before it closes.
    pub(crate) serve: u64,
    /// If set, streams stay open after everything is sent.
    keeps_open: bool,
    /// All sent frames, if they are recorded.
    pub(crate) sent_frames: Option<Vec<Vec<u8>>>,
    /// Address conflicts: the address, the other host, and whether our host gave the address up.
    pub(crate) conflicts: Vec<(IpAddr, EthernetAddress, bool)>,
    /// The datagrams that arrived at open UDP ports.
    pub(crate) datagrams: Vec<Datagram>,
}

impl Host {
    pub(crate) fn new(mut config: StackConfig, port: Box<dyn Port>) -> Self {
        config.offloads = port.info().offloads;
        let stack = Stack::new(config, port.mempool().clone());
        let (streams, by_slot) = (Vec::new(), Vec::new());
        Self {
            stack,
            port,
            out: Burst::new(),
            streams,
            by_slot,
            serve: 0,
            keeps_open: false,
            sent_frames: None,
            conflicts: Vec::new(),
            datagrams: Vec::new(),
        }
    }

    /// Connects to `remote`. The stream sends `to_send` bytes and then closes.
    pub(crate) fn connect(&mut self, now: Instant, remote: SocketAddr, to_send: u64) -> usize {
        let conn = self.stack.connect(now, remote, None).unwrap();
        self.stream(conn, to_send)
    }

    fn stream(&mut self, conn: ConnId, to_send: u64) -> usize {
        let number = self.streams.len();
        self.streams.push(Stream {
            conn,
            established: false,
            to_send,
            sent: 0,
            blocked: false,
            close_when_sent: !self.keeps_open,
            close_called: false,
            received: InOrder::new(0, 4096),
            peer_closed: false,
            closed: None,
        });
        if self.by_slot.len() <= conn.slot() {
            self.by_slot.resize(conn.slot() + 1, None);
        }
        self.by_slot[conn.slot()] = Some(number);
        number
    }

    /// Leaves the stream open after everything is sent.
    pub(crate) fn keep_open(&mut self, stream: usize) {
        self.streams[stream].close_when_sent = false;
    }

    /// Leaves all future streams open.
    pub(crate) fn keep_all_open(&mut self) {
        self.keeps_open = true;
    }

    /// Sends `bytes` more bytes on an open stream.
    pub(crate) fn send_more(&mut self, stream: usize, bytes: u64) {
        self.streams[stream].to_send += bytes;
    }

    fn find(&mut self, conn: ConnId) -> &mut Stream {
        let number = self.by_slot[conn.slot()].expect("an event of a connection nobody knows");
        let stream = &mut self.streams[number];
        assert_eq!(stream.conn, conn, "an event of a dead connection");
        assert_eq!(stream.closed, None, "an event after Closed");
        stream
    }

    /// Polls once. Returns whether there was a frame or an event.
    pub(crate) fn poll(&mut self, now_us: u64) -> bool {
        let now = Instant::from_micros(now_us as i64);
        let mut moved = false;
        let mut frames = Burst::new();
        while self.port.rx_burst(now_us, &mut frames) > 0 {
            moved = true;
            let mut frames = frames.drain(..).peekable();
            while frames.peek().is_some() {
                self.stack.input_next(now, &mut frames);
            }
        }
        self.stack.poll(now);
        while let Some(event) = self.stack.event() {
            moved = true;
            self.on_event(event);
        }
        moved |= self.write(now);
        loop {
            let more = self.stack.transmit(now, &mut self.out);
            if let Some(log) = &mut self.sent_frames {
                log.extend(self.out.iter().map(bytes_of));
            }
            let sent = self.port.tx_burst(now_us, &mut self.out);
            moved |= sent > 0;
            if self.sent_frames.is_some() {
                assert!(self.out.is_empty(), "a logged host needs a ring that never fills");
            }
            self.stack.check_invariants().expect("invariants of the stack");
            if !more || sent == 0 {
                return moved;
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Established { conn, listener } => {
                if listener.is_some() {
                    self.stream(conn, self.serve);
                }
                self.find(conn).established = true;
            }
            Event::Received { conn, received } => {
                let stream = self.find(conn);
                assert!(stream.received.push(received).is_ok(), "more than the window is held");
                let mut release = 0;
                while let Some(ordered) = stream.received.pop() {
                    let mut offset = ordered.offset;
                    for segment in ordered.buf.segments() {
                        let wrong = segment.iter().zip(offset..).position(|(o, at)| *o != byte(at));
                        assert_eq!(wrong, None, "wrong byte behind stream offset {offset}");
                        offset += segment.len() as u64;
                    }
                    release += ordered.release;
                }
                if release > 0 {
                    self.stack.release(conn, release);
                }
            }
            Event::Evict { conn, bytes } => {
                let number = self.by_slot[conn.slot()].expect("an event of a connection nobody knows");
                let Self { stack, streams, .. } = self;
                streams[number].received.give_up(bytes, |stretches| stack.evict(conn, stretches));
            }
            Event::Writable { conn } => self.find(conn).blocked = false,
            Event::Acknowledged { .. } => {}
            Event::PeerClosed { conn } => self.find(conn).peer_closed = true,
            Event::Closed { conn, reason } => self.find(conn).closed = Some(reason),
            Event::AddressConflict { address, mac, lost } => self.conflicts.push((address, mac, lost)),
            Event::Datagram => self.datagrams.extend(self.stack.next_datagram()),
        }
    }

    fn write(&mut self, now: Instant) -> bool {
        let mut moved = false;
        let Self { stack, streams, .. } = self;
        for stream in streams.iter_mut().filter(|s| s.established && s.closed.is_none()) {
            while stream.sent < stream.to_send && !stream.blocked {
                let n = (stream.to_send - stream.sent).min(32_768);
                let bytes: Vec<u8> = (stream.sent..stream.sent + n).map(byte).collect();
                match stack.send(now, stream.conn, &bytes) {
                    Ok(taken) => {
                        stream.sent += taken as u64;
                        moved = true;
                    }
                    Err(SendError::BufferFull) => stream.blocked = true,
                    Err(SendError::NoMbuf | SendError::Closed) => break,
                }
            }
            if stream.sent == stream.to_send && stream.close_when_sent && !stream.close_called {
                stream.close_called = true;
                stack.close(now, stream.conn);
                moved = true;
            }
        }
        moved
    }

    pub(crate) fn received(&self, stream: usize) -> u64 {
        self.streams[stream].received.next_offset()
    }

    fn next_us(&mut self, now_us: u64) -> Option<u64> {
        let deadline = self.stack.next_deadline(Instant::from_micros(now_us as i64));
        let deadline_us = deadline.map(|d| (d.total_micros() as u64).max(now_us + 1));
        [deadline_us, self.port.next_due_us()].into_iter().flatten().min()
    }
}

pub(crate) fn bytes_of(frame: &Mbuf) -> Vec<u8> {
    frame.segments().flatten().copied().collect()
}

/// Two hosts, and the simulated time.
pub(crate) struct World {
    pub(crate) a: Host,
    pub(crate) b: Host,
    pub(crate) now_us: u64,
}

impl World {
    pub(crate) fn new(link: &LinkConfig, mut a: StackConfig, mut b: StackConfig) -> Self {
        (a.mtu, b.mtu) = (link.mtu, link.mtu);
        let (port_a, port_b) = pair(link);
        Self { a: Host::new(a, port_a), b: Host::new(b, port_b), now_us: 1_000_000 }
    }

    pub(crate) fn standard(link: &LinkConfig) -> Self {
        Self::new(link, config(MAC_A, 1), config(MAC_B, 2))
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros(self.now_us as i64)
    }

    /// Polls until `done` returns `true`, until `for_us` microseconds have passed, or until there are no more
    /// deadlines. Returns whether `done` has returned `true`.
    pub(crate) fn run(&mut self, for_us: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end_us = self.now_us + for_us;
        loop {
            let moved = self.a.poll(self.now_us) | self.b.poll(self.now_us);
            if done(self) {
                return true;
            }
            if moved {
                self.now_us += 1;
                continue;
            }
            let next = [self.a.next_us(self.now_us), self.b.next_us(self.now_us)];
            match next.into_iter().flatten().min() {
                Some(next_us) if next_us <= end_us => self.now_us = next_us.max(self.now_us + 1),
                _ => return false,
            }
        }
    }

    /// Connects `a` to `b`. Both hosts send and close. Checks that everything arrives, and that both hosts
    /// close gracefully.
    pub(crate) fn exchange(&mut self, remote: &str, a_sends: u64, b_sends: u64, for_us: u64) {
        let remote: SocketAddr = remote.parse().unwrap();
        self.b.stack.listen(remote.port()).unwrap();
        self.b.serve = b_sends;
        let now = self.now();
        self.a.connect(now, remote, a_sends);
        let ended = self.run(for_us, |w| {
            w.a.streams[0].closed.is_some() && w.b.streams.first().is_some_and(|s| s.closed.is_some())
        });
        let states = [&self.a, &self.b].map(|h| {
            let all = h.streams.iter().map(|s| (s.sent, s.received.next_offset(), s.peer_closed, s.closed));
            (all.collect::<Vec<_>>(), h.stack.counters())
        });
        assert!(ended, "not over in time: {states:#?}");
        assert_eq!(self.b.received(0), a_sends);
        assert_eq!(self.a.received(0), b_sends);
        for stream in [&self.a.streams[0], &self.b.streams[0]] {
            assert_eq!(stream.closed, Some(CloseReason::Graceful));
            assert!(stream.peer_closed);
        }
    }
}
