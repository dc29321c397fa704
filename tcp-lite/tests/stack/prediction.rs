//! Tests that header prediction does not change the results. Two hosts receive the same frames and calls, and
//! one of the hosts works without prediction. Both hosts have to send the same frames, generate the same
//! events, and have the same counters.

mod cases;

use std::collections::VecDeque;
use std::ops::Range;

use dp::{Burst, Checksum, Mbuf, Mempool, Offloads, TxOffload, checksum};
use proptest::prelude::*;
use tcp_lite::{
    CongestionAlgorithm, ConnId, Duration, EcnMode, Event, Instant, Limits, Pacing, PathMtuConfig,
    PathMtuProbing, SendError, Stack, StackConfig, TcpConfig,
};

use crate::harness::{MAC_A, MAC_B, byte, bytes_of, config};

const IP: usize = 14;
const TCP: usize = IP + 20;

/// Length of a long frame in bytes.
const LONG: usize = 1000;

/// Maximum number of frames that are delivered in one burst.
const BURST: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    /// The peer sends this many bytes.
    PeerSends(usize),
    /// The hosts send this many bytes.
    HostsSend(usize),
    /// The oldest frames of the peer arrive in one burst. Each entry says what happens to one frame.
    Arrive(Vec<FrameDelivery>),
    /// The hosts' next `after` frames arrive. The `frames` frames after them are lost, or arrive after later
    /// frames.
    Lose {
        after: usize,
        frames: usize,
        late: bool,
    },
    /// This number of microseconds passes.
    Wait(u64),
    /// The hosts report that they hold this many bytes ([`Stack::hold`]).
    Hold(usize),
    /// The hosts release all bytes that they hold.
    Release,
    /// Both hosts read their events now. Otherwise the events wait.
    TakeEvents,
    PeerCloses,
    HostsClose,
}

/// What happens to a frame on its way to the hosts.
#[derive(Clone, Debug)]
enum FrameDelivery {
    Arrives,
    Lost,
    Twice,
    /// The frame arrives after all frames that are on the wire now.
    Late,
    /// A byte of the headers is changed, with or without correct checksums.
    Forged {
        at: usize,
        flips: u8,
        fits: bool,
    },
    /// The value of a TCP field is changed by this difference, with a correct checksum.
    Moved(Field, i32),
    /// The frame has padding after the packet.
    Padded(usize),
    /// The last bytes of the frame are missing.
    Cut(usize),
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Seq,
    Ack,
    Timestamp,
    Echo,
}

fn fate() -> impl Strategy<Value = FrameDelivery> {
    let field = prop::sample::select(vec![Field::Seq, Field::Ack, Field::Timestamp, Field::Echo]);
    prop_oneof![
        20 => Just(FrameDelivery::Arrives),
        1 => Just(FrameDelivery::Lost),
        1 => Just(FrameDelivery::Twice),
        1 => Just(FrameDelivery::Late),
        2 => (0usize..66, any::<u8>(), prop::bool::weighted(0.8))
            .prop_map(|(at, flips, fits)| FrameDelivery::Forged { at, flips, fits }),
        // Changes one bit of the flags, or of the type of service.
        1 => (prop::sample::select(vec![TCP + 13, IP + 1]), 0u32..8)
            .prop_map(|(at, bit)| FrameDelivery::Forged { at, flips: 1 << bit, fits: true }),
        1 => (field, prop_oneof![-3i32..4, -5000i32..5000, any::<i32>()]).prop_map(|(field, by)| FrameDelivery::Moved(field, by)),
        1 => (1usize..20).prop_map(FrameDelivery::Padded),
        1 => (1usize..80).prop_map(FrameDelivery::Cut),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![1usize..200, 1usize..6000].prop_map(Step::PeerSends),
        2 => prop_oneof![1usize..200, 1usize..6000].prop_map(Step::HostsSend),
        8 => prop::collection::vec(fate(), 1..BURST).prop_map(Step::Arrive),
        1 => (0usize..5, 1usize..3, any::<bool>()).prop_map(|(after, frames, late)| Step::Lose { after, frames, late }),
        3 => prop_oneof![1u64..300, 1u64..100_000].prop_map(Step::Wait),
        1 => (1usize..3000).prop_map(Step::Hold),
        1 => Just(Step::Release),
        4 => Just(Step::TakeEvents),
    ]
}

/// The configuration of the hosts and of their peer.
#[derive(Clone, Debug)]
struct Setting {
    ecn: bool,
    timestamps: bool,
    sack: bool,
    window: u32,
    events: usize,
    keepalive: bool,
    /// If set, the hosts probe the path MTU from the beginning of each connection (`PathMtuProbing::Always`).
    searches: bool,
    vlan: Option<u16>,
    /// What the hosts' port reports about the checksums of received frames.
    checksum: Checksum,
    /// The offloads of the hosts' port.
    offloads: Offloads,
    /// Number of sent frames that the hosts' port keeps for a while.
    kept: usize,
    /// The receive window of the peer.
    peer_window: u32,
    paced: bool,
}

impl Default for Setting {
    fn default() -> Self {
        let (vlan, checksum) = (None, Checksum::Unknown);
        Self {
            ecn: false,
            timestamps: true,
            sack: true,
            window: 4 << 20,
            events: 1024,
            keepalive: false,
            searches: false,
            vlan,
            checksum,
            offloads: Offloads::empty(),
            kept: 0,
            peer_window: 4 << 20,
            paced: false,
        }
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let window = prop::sample::select(vec![3000, 20_000, 4 << 20]);
    let events = prop::sample::select(vec![3, 1024]);
    let rare = || prop::bool::weighted(0.1);
    let offloads = prop::sample::select(vec![
        Offloads::empty(),
        Offloads::TX_IPV4_CHECKSUM,
        Offloads::TX_TCP_CHECKSUM,
        Offloads::TX_IPV4_CHECKSUM | Offloads::TX_TCP_CHECKSUM | Offloads::TX_MULTI_SEGMENT,
    ]);
    let port = (offloads, prop::sample::select(vec![0, 2, 100]));
    let sending = (prop::sample::select(vec![3000, 4 << 20]), rare(), rare());
    let receiving = (prop::bool::weighted(0.2), rare(), rare(), window, events, any::<bool>());
    (receiving, port, sending).prop_map(
        |(
            (ecn, plain, unsacked, window, events, keepalive),
            (offloads, kept),
            (peer_window, paced, searches),
        )| Setting {
            ecn,
            timestamps: !plain,
            sack: !unsacked,
            window,
            events,
            keepalive,
            searches,
            offloads,
            kept,
            peer_window,
            paced,
            ..Setting::default()
        },
    )
}

impl Setting {
    fn host(&self, header_prediction: bool) -> Host {
        let probing = if self.searches { PathMtuProbing::Always } else { PathMtuProbing::WhenReduced };
        let tcp = TcpConfig {
            path_mtu: PathMtuConfig { probing, ..PathMtuConfig::default() },
            timestamps: self.timestamps,
            sack: self.sack,
            recv_window_bytes: self.window,
            keepalive_idle: self.keepalive.then(|| Duration::from_millis(30)),
            header_prediction,
            // With DCTCP, the receiver answers each change of the mark at once.
            congestion: CongestionAlgorithm::Dctcp,
            pacing: self.paced.then(|| Pacing { rtt_min: Duration::from_micros(1), ..Pacing::default() }),
            ..TcpConfig::default()
        };
        let limits = Limits { events: self.events, ..Limits::default() };
        let (offloads, vlan) = (self.offloads, self.vlan);
        let config = StackConfig { tcp, limits, vlan, offloads, ..config(MAC_B, 2) };
        Host { kept_frames: self.kept, ..Host::new(config, self.checksum) }
    }

    fn peer(&self) -> Host {
        let ecn = if self.ecn { EcnMode::Request } else { EcnMode::Accept };
        let tcp = TcpConfig { ecn, recv_window_bytes: self.peer_window, ..TcpConfig::default() };
        Host::new(StackConfig { tcp, vlan: self.vlan, ..config(MAC_A, 1) }, Checksum::Unknown)
    }
}

/// A stack with its buffers and its only connection.
struct Host {
    stack: Stack,
    pool: Mempool,
    conn: Option<ConnId>,
    held: usize,
    checksum: Checksum,
    /// The frames that the port keeps, with the bytes that they had when the port received them.
    /// `kept_frames` is the maximum number of kept frames.
    kept: VecDeque<(Mbuf, Vec<u8>)>,
    kept_frames: usize,
    /// The latest long frame that the host has sent; `None` if it has sent none.
    latest_long: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq)]
struct SentFrame {
    bytes: Vec<u8>,
    offload: TxOffload,
}

impl std::fmt::Debug for SentFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (headers, payload) = self.bytes.split_at(self.bytes.len().min(TCP + 32));
        write!(f, "{headers:?} and {} bytes, {:?}", payload.len(), self.offload)
    }
}

impl SentFrame {
    /// Returns the bytes of the frame on the wire, with complete checksums.
    fn on_the_wire(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if self.offload.ipv4_checksum {
            checksum::complete_ipv4_header(&mut bytes);
        }
        if self.offload.tcp_checksum {
            checksum::complete(&mut bytes);
        }
        bytes
    }
}

impl Host {
    fn new(config: StackConfig, checksum: Checksum) -> Self {
        let pool = Mempool::heap("prediction", 4096, 2048);
        let stack = Stack::new(config, pool.clone());
        Self {
            stack,
            pool,
            conn: None,
            held: 0,
            checksum,
            kept: VecDeque::new(),
            kept_frames: 0,
            latest_long: None,
        }
    }

    fn input(&mut self, now: Instant, frames: &[Vec<u8>]) {
        let frames: Vec<_> = frames
            .iter()
            .map(|bytes| {
                let mut frame = self.pool.alloc().expect("a buffer");
                assert!(frame.append_slice(bytes));
                frame.set_rx_checksum(self.checksum);
                frame
            })
            .collect();
        let mut frames = frames.into_iter().peekable();
        while frames.peek().is_some() {
            self.stack.input_next(now, &mut frames);
        }
    }

    fn send(&mut self, now: Instant, bytes: usize) -> Option<Result<usize, SendError>> {
        let bytes: Vec<u8> = (0..bytes as u64).map(byte).collect();
        self.conn.map(|conn| self.stack.send(now, conn, &bytes))
    }

    /// Reads all events, and returns them as text.
    fn events(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        while let Some(event) = self.stack.event() {
            words.push(match event {
                Event::Established { conn, listener } => {
                    self.conn = Some(conn);
                    format!("established {conn:?} {listener:?}")
                }
                Event::Received { received, .. } => {
                    let bytes = received.buf.len();
                    if received.offset + bytes as u64 > received.frontier {
                        self.held += bytes;
                    }
                    let content = bytes_of(&received.buf);
                    format!("received {} {} {content:?}", received.offset, received.frontier)
                }
                Event::Evict { bytes, .. } => format!("evict {bytes}"),
                Event::Writable { .. } => "writable".to_owned(),
                Event::Acknowledged { .. } => "acknowledged".to_owned(),
                Event::PeerClosed { .. } => "peer closed".to_owned(),
                Event::Closed { reason, .. } => format!("closed {reason:?}"),
                Event::AddressConflict { .. } => "address conflict".to_owned(),
                Event::Datagram => "datagram".to_owned(),
            });
        }
        words
    }

    /// Runs timers, and returns the frames that the host sends.
    fn poll(&mut self, now: Instant) -> Vec<SentFrame> {
        self.stack.poll(now);
        let (mut frames, mut out) = (Vec::new(), Burst::new());
        loop {
            let more = self.stack.transmit(now, &mut out);
            for frame in out.drain(..) {
                let (bytes, mut offload) = (all_bytes_of(&frame), frame.tx_offload());
                if !(offload.ipv4_checksum || offload.tcp_checksum) {
                    // No port needs the lengths of the headers.
                    offload = TxOffload::default();
                }
                self.kept.push_back((frame, bytes.clone()));
                if bytes.len() > LONG {
                    self.latest_long = Some(bytes.clone());
                }
                frames.push(SentFrame { bytes, offload });
            }
            while self.kept.len() > self.kept_frames {
                let (frame, bytes) = self.kept.pop_front().expect("not empty");
                assert_eq!(all_bytes_of(&frame), bytes, "a frame changed before the port had sent it");
            }
            if !more {
                self.stack.check_invariants().expect("invariants of the stack");
                return frames;
            }
        }
    }
}

/// Returns all bytes of a frame, including bytes in external memory.
fn all_bytes_of(frame: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    assert_eq!(frame.copy_to(0, &mut bytes), bytes.len());
    bytes
}

/// The peer, the host with prediction, and the host without prediction.
struct Twins {
    peer: Host,
    hosts: [Host; 2],
    now_us: i64,
    /// Frames of the peer that have not arrived yet.
    wire: Vec<Vec<u8>>,
    /// The range of the hosts' next frames that are lost or late, and whether they are late.
    lost: (Range<usize>, bool),
    late: Vec<Vec<u8>>,
}

impl Twins {
    /// Creates the hosts, and connects the peer to both.
    fn new(setting: &Setting) -> Self {
        let hosts = [true, false].map(|predicts| setting.host(predicts));
        let mut twins = Self {
            peer: setting.peer(),
            hosts,
            now_us: 1_000_000,
            wire: Vec::new(),
            lost: (0..0, false),
            late: Vec::new(),
        };
        for host in &mut twins.hosts {
            host.stack.listen(4000).unwrap();
        }
        let conn = twins.peer.stack.connect(twins.now(), "10.0.0.2:4000".parse().unwrap(), None).unwrap();
        twins.peer.conn = Some(conn);
        for _ in 0..10 {
            twins.run(&Step::Arrive(vec![FrameDelivery::Arrives; BURST]));
            twins.run(&Step::TakeEvents);
            twins.run(&Step::Wait(100));
        }
        assert!(twins.hosts.iter().all(|host| host.conn.is_some()), "no connection");
        twins
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.now_us)
    }

    /// Runs `act` on both hosts, and checks that both have the same result.
    fn both<T: PartialEq + std::fmt::Debug>(&mut self, mut act: impl FnMut(&mut Host) -> T) -> T {
        let [one, other] = self.hosts.each_mut().map(&mut act);
        assert_eq!(one, other, "with prediction, and without");
        one
    }

    fn run(&mut self, step: &Step) {
        let now = self.now();
        match step {
            Step::PeerSends(bytes) => drop(self.peer.send(now, *bytes)),
            Step::HostsSend(bytes) => {
                self.both(|host| host.send(now, *bytes));
            }
            Step::Arrive(fates) => {
                let mut burst = Vec::new();
                let count = fates.len().min(self.wire.len());
                let frames: Vec<_> = self.wire.drain(..count).collect();
                for (frame, fate) in frames.into_iter().zip(fates) {
                    meet(frame, fate, &mut burst, &mut self.wire);
                }
                self.both(|host| host.input(now, &burst));
            }
            Step::Lose { after, frames, late } => self.lost = (*after..after + frames, *late),
            Step::Wait(us) => self.now_us += *us as i64,
            Step::Hold(bytes) => self.both(|host| {
                if let Some(conn) = host.conn {
                    host.stack.hold(conn, *bytes);
                    host.held += bytes;
                }
            }),
            Step::Release => self.both(|host| {
                if let Some(conn) = host.conn {
                    host.stack.release(conn, std::mem::take(&mut host.held));
                }
            }),
            Step::TakeEvents => {
                self.both(Host::events);
            }
            Step::PeerCloses => self.peer.stack.close(now, self.peer.conn.expect("it has connected")),
            Step::HostsClose => self.both(|host| {
                if let Some(conn) = host.conn {
                    host.stack.close(now, conn);
                }
            }),
        }
        let now = self.now();
        let frames = self.both(|host| host.poll(now));
        self.both(|host| (host.stack.counters(), host.stack.next_deadline(now)));
        self.both(|host| host.conn.map(|conn| format!("{:?}", host.stack.info(conn))));
        let mut arriving = Vec::new();
        let mut late = std::mem::take(&mut self.late);
        for frame in frames.iter().map(SentFrame::on_the_wire) {
            let (lost, is_late) = &mut self.lost;
            match (lost.contains(&0), *is_late) {
                (false, _) => arriving.push(frame),
                (true, false) => {}
                (true, true) => self.late.push(frame),
            }
            *lost = lost.start.saturating_sub(1)..lost.end.saturating_sub(1);
        }
        arriving.append(&mut late);
        // A TSO frame that the port has not segmented does not fit into the peer's buffers of 2048 bytes, so
        // the frame is lost.
        arriving.retain(|frame| frame.len() < 2048);
        self.peer.input(now, &arriving);
        self.wire.extend(self.peer.poll(now).into_iter().map(|frame| frame.bytes));
        self.peer.events();
    }
}

/// Delivers a frame as `fate` says: appends it to the burst, or puts it back on the wire.
fn meet(mut frame: Vec<u8>, fate: &FrameDelivery, burst: &mut Vec<Vec<u8>>, wire: &mut Vec<Vec<u8>>) {
    match *fate {
        FrameDelivery::Arrives => {}
        FrameDelivery::Lost => return,
        FrameDelivery::Twice => burst.push(frame.clone()),
        FrameDelivery::Late => return wire.push(frame),
        FrameDelivery::Forged { at, flips, fits } => {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= flips;
            }
            if fits {
                checksum::complete_ipv4_header(&mut frame);
                checksum::complete(&mut frame);
            }
        }
        FrameDelivery::Moved(field, by) => {
            move_field(&mut frame, field, by);
            checksum::complete(&mut frame);
        }
        FrameDelivery::Padded(bytes) => frame.extend(std::iter::repeat_n(0x55, bytes)),
        FrameDelivery::Cut(bytes) => frame.truncate(frame.len().saturating_sub(bytes).max(1)),
    }
    burst.push(frame);
}

fn move_field(frame: &mut [u8], field: Field, by: i32) {
    let at = TCP
        + match field {
            Field::Seq => 4,
            Field::Ack => 8,
            Field::Timestamp => 24,
            Field::Echo => 28,
        };
    if let Some(bytes) = frame.get_mut(at..at + 4) {
        let value = i32::from_be_bytes(bytes.try_into().unwrap());
        bytes.copy_from_slice(&value.wrapping_add(by).to_be_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn prediction_changes_nothing(
        setting in setting(),
        steps in prop::collection::vec(step(), 1..150),
        closes in prop::option::of((0usize..150, any::<bool>())),
    ) {
        let mut twins = Twins::new(&setting);
        for (number, step) in steps.iter().enumerate() {
            if let Some((_, by_peer)) = closes.filter(|(at, _)| *at == number) {
                twins.run(if by_peer { &Step::PeerCloses } else { &Step::HostsClose });
            }
            twins.run(step);
        }
    }
}
