//! Configuration of a stack, passed when the stack is created. [`Limits`] and [`TcpConfig`] have defaults.

use arrayvec::ArrayVec;
use dp::Offloads;

use crate::facade::{Duration, EthernetAddress, IpAddress, IpCidr};

/// Addresses, sizes and limits of one stack.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our Ethernet address: the source of every frame that we send. Unicast frames for another address are
    /// dropped ([`StackCounters::rx_not_ours`](crate::StackCounters::rx_not_ours)).
    pub mac: EthernetAddress,
    /// VLAN id (1..=4094) of every frame that we send; `None`: frames without a tag. Received frames of
    /// another VLAN are dropped. A frame without a tag, or with id 0, belongs to no VLAN, and is accepted
    /// only if the value is `None`.
    pub vlan: Option<u16>,
    /// Our addresses with their prefix lengths: IPv4, IPv6 or both.
    pub addresses: ArrayVec<IpCidr, 8>,
    /// The next hops of packets for other networks, at most one for each family.
    pub gateways: ArrayVec<IpAddress, 2>,
    /// How our addresses are probed and announced.
    pub address_probing: AddressProbing,
    /// The first two bytes of every IPv4 neighbour's Ethernet address, for a link without broadcasts. The
    /// last four bytes are the neighbour's IPv4 address. The stack sends no ARP requests to such neighbours
    /// and ignores their announcements. `None`: ARP finds the Ethernet addresses.
    pub derived_neighbors: Option<[u8; 2]>,
    /// Whether connections to our own addresses are possible. The port has to return frames that are sent to
    /// its own Ethernet address ([`dp::Loopback`]). If `false`, segments from our addresses are dropped,
    /// because no other host may send them.
    pub loopback: bool,
    /// Size of the largest IP packet in bytes.
    pub mtu: u16,
    /// Offloads that the stack may use: the offloads of its port
    /// ([`PortInfo::offloads`](dp::PortInfo::offloads)).
    pub offloads: Offloads,
    /// Limits of the memory that actions of peers or of the user can enlarge.
    pub limits: Limits,
    /// How each connection behaves.
    pub tcp: TcpConfig,
    /// Key of ISNs, ports and all other values that an attacker must not be able to guess. Use random bytes
    /// of the operating system, except in tests.
    pub seed: [u8; 32],
}

/// Address conflict detection. In all modes, the stack answers probes for our addresses and reports a
/// conflict with [`Event::AddressConflict`](crate::Event). If the stack already uses the address, the stack
/// keeps the address, and sends an announcement. For such an address, announcements and reports are at least
/// ten seconds apart (RFC 5227 section 2.4 (c)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressProbing {
    /// The stack uses addresses at once, and does not announce them.
    Off,
    /// The stack uses addresses at once, and announces them at the start and when the link comes up again
    /// (gratuitous ARP, unsolicited neighbour advertisement).
    #[default]
    Announce,
    /// The stack probes addresses first (RFC 5227 section 2.1, RFC 4862 section 5.4). Probing takes four to
    /// five seconds. During this time the stack sends no packets from the address and accepts no packets to
    /// it, and connections wait. If another host has the address, the stack does not use the address, and
    /// connections from it end with [`CloseReason::AddressLost`](crate::CloseReason). After probing, the
    /// stack behaves as with `Announce`.
    Probe,
}

/// Limits of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections in any state, including TIME-WAIT. At the limit, a new connection
    /// replaces the oldest connection in TIME-WAIT. If no connection is in TIME-WAIT, the new connection is
    /// refused. Default: 16,384.
    pub connections: usize,
    /// Maximum number of listening ports. Default: 64.
    pub listeners: usize,
    /// Maximum number of connections of one listener that are not established yet. Default: 1024.
    pub backlog: usize,
    /// If `true`, SYNs beyond the backlog are answered with cookies (RFC 4987 section 3.6), which need no
    /// state. If `false`, such SYNs are dropped. Default: `true`.
    pub syn_cookies: bool,
    /// Maximum number of entries in the neighbour table. Default: 1024.
    pub neighbors: usize,
    /// Maximum number of segments that all connections together hold for transmission. Several segments may
    /// share a buffer. These segments use at most half of the pool's buffers, because received
    /// acknowledgements need buffers as well. Default: 32,768.
    pub tx_segments: usize,
    /// Maximum number of bytes of packet buffers in which all connections together keep out-of-order bytes;
    /// at most three eighths of the pool. At seven eighths of the limit, an
    /// [`Event::Evict`](crate::Event::Evict) asks the connections that keep the most bytes to give up some of
    /// these bytes. At the limit, new out-of-order segments are refused. Default: 64 MiB.
    pub out_of_order_bytes: u64,
    /// Maximum number of events that wait for [`Stack::event`](crate::Stack::event). Beyond the limit,
    /// received bytes are dropped, so that the peer retransmits them. In addition, no new connection is
    /// accepted or opened. Each existing connection may still queue at most five events that are neither
    /// received bytes nor an [`Event::Evict`](crate::Event::Evict). Default: 4096.
    pub events: usize,
    /// Maximum number of connections that search for a larger path MTU at the same time, each with a packet
    /// buffer; at most a sixteenth of the pool's buffers. Other connections wait until a search ends.
    /// Default: 256.
    pub path_mtu_searches: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            listeners: 64,
            backlog: 1024,
            syn_cookies: true,
            neighbors: 1024,
            tx_segments: 32_768,
            out_of_order_bytes: 64 << 20,
            events: 4096,
            path_mtu_searches: 256,
        }
    }
}

/// How each connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// If `true`, the stack offers timestamps (RFC 7323). Default: `true`.
    pub timestamps: bool,
    /// If `true`, the stack offers SACK (RFC 2018). Default: `true`.
    pub sack: bool,
    /// If `true`, received segments over IPv4 without a VLAN tag take a fast path through the stack if they
    /// are in order and have only usual header fields. Most segments that the stack sends over IPv4 without a
    /// VLAN tag also take a fast path. This setting changes only the processing time. Tests set it to `false`
    /// to verify that all results stay the same. Default: `true`.
    pub header_prediction: bool,
    /// Receive window in bytes, on which the window scale depends. To fill a path, the window has to be at
    /// least rate times delay plus a quarter of the peer's [`send_buffer_bytes`](Self::send_buffer_bytes).
    /// The reason for the quarter is that the peer's user receives `Event::Writable` only when a quarter of
    /// that buffer is free. The defaults fill a path of 10 Gb/s with a round trip of 2 ms. With a round trip
    /// of 3 ms, or at 600 Mb/s with 50 ms, the defaults reach 88 % of the link's rate (`tests/src/reach.rs`).
    ///
    /// The stack announces the whole window as soon as the connection is established, less the bytes that the
    /// user reports with [`Stack::hold`](crate::Stack::hold) because the user has not read these bytes yet.
    /// The window reserves no memory. Two limits bound the memory of out-of-order bytes: this struct's
    /// `out_of_order_bytes` and the field of the same name in [`Limits`]. Default: 4 MiB.
    pub recv_window_bytes: u32,
    /// Maximum number of bytes that a connection holds ahead of the frontier (the next expected byte). A
    /// connection can exceed this limit by one segment, until the user has given up the excess. The packet
    /// buffers that the user keeps for held bytes ([`Stack::pin`](crate::Stack::pin)) may have at most twice
    /// as many bytes as this limit. Beyond either limit, the user has to give up the bytes that are furthest
    /// from the frontier. Default: 4 MiB.
    pub out_of_order_bytes: u32,
    /// Maximum number of bytes that a connection holds for transmission (unsent, or sent and not
    /// acknowledged). Default: 4 MiB.
    pub send_buffer_bytes: u32,
    /// How the congestion window grows, and how it reacts to loss and marks.
    /// Default: [`CongestionAlgorithm::Cubic`].
    pub congestion: CongestionAlgorithm,
    /// Use of ECN, with which routers mark packets instead of dropping them (RFC 3168). Default:
    /// [`EcnMode::Accept`].
    pub ecn: EcnMode,
    /// Spaces segments over the round trip; `None`: segments are sent as soon as the window allows. Pacing
    /// helps if the round trip is at least a millisecond, and the bottleneck queue has room for at most the
    /// bytes of a quarter of a round trip. Pacing costs goodput if the round trip is tens of microseconds.
    /// Default: `None`.
    pub pacing: Option<Pacing>,
    /// RTO before the first measurement (RFC 6298: 1 s). Default: 1 s.
    pub rto_initial: Duration,
    /// The minimum difference between the RTO and the smoothed RTT. This difference has to be longer than the
    /// peer's delay of ACKs, which is 40 ms in Linux. Default: 50 ms.
    pub rto_min: Duration,
    /// The minimum wait before a tail loss probe. If twice the round-trip time is longer than this minimum,
    /// the wait is twice the round-trip time (RFC 8985 section 7.2). The minimum covers the delay until the
    /// peer polls its queue. Default: 2 ms.
    pub tail_probe_min: Duration,
    /// The maximum RTO, including backoff. An echoed timestamp that is older than this time gives no
    /// measurement of the round trip. Default: 60 s.
    pub rto_max: Duration,
    /// Maximum number of retransmissions of one SYN. The attempt ends earlier if
    /// [`user_timeout`](Self::user_timeout) expires. With the defaults, the attempt ends after 10 s and three
    /// retransmissions. Default: 6.
    pub syn_retries: u8,
    /// The maximum time for which a SYN or data may be unacknowledged. After this time, the stack gives up
    /// the connection (R2 of RFC 9293 section 3.8.3, which requires at least 3 minutes for a SYN and 100 s
    /// for data). The default is shorter on purpose, so that users soon notice a peer that has failed. A
    /// stack that was not polled during this time cannot know whether the peer answered. Therefore the stack
    /// sends at least one more segment to the peer before it gives up the connection. Default: 10 s.
    pub user_timeout: Duration,
    /// The maximum time without a link. After this time, all existing connections end with
    /// [`CloseReason::LinkDown`](crate::CloseReason::LinkDown), except those in SYN-SENT or TIME-WAIT. If a
    /// cable may be plugged in again, set this time to the user timeout. Set a shorter time for a
    /// point-to-point port, because its peer is gone when the link is down
    /// ([`PortInfo::point_to_point`](dp::PortInfo::point_to_point)). Default: 10 s.
    pub link_timeout: Duration,
    /// Longest delay of an ACK (RFC 9293: below 0.5 s). This time has to be shorter than the peer's
    /// [`rto_min`](Self::rto_min). Default: 10 ms.
    pub delayed_ack: Duration,
    /// Idle time before the first keepalive probe; `None`: no keepalive. Default: `None`.
    pub keepalive_idle: Option<Duration>,
    /// Time between keepalive probes. Default: 10 s.
    pub keepalive_interval: Duration,
    /// Number of unanswered keepalive probes after which the stack gives up the connection. Default: 5.
    pub keepalive_probes: u8,
    /// Maximum number of ACKs per second with which a connection answers segments that are not acceptable,
    /// and segments whose bytes were refused for lack of memory (RFC 5961 section 7). Default: 64.
    pub challenge_acks_per_second: u32,
    /// Minimum time in TIME-WAIT (twice the MSL). The time is longer if our RTO is long, or if the peer took
    /// longer to retransmit its FIN. If a peer's largest RTO is longer than this time, we may answer its last
    /// retransmission with an RST. Default: 10 s.
    pub time_wait: Duration,
    /// Traffic class (IPv6) or type of service (IPv4) of TCP packets that we send: DSCP times 4 (RFC 2474).
    /// The lowest two bits are the ECN field. Default: 0.
    pub traffic_class: u8,
    /// Hop limit / TTL of packets that we send. Default: 64.
    pub hop_limit: u8,
    /// The search for a path MTU below [`StackConfig::mtu`]. Default: the defaults of [`PathMtuConfig`].
    pub path_mtu: PathMtuConfig,
}

/// How the congestion window grows, and how it reacts to loss and marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// In congestion avoidance, the window grows by one segment for each round trip (RFC 5681, RFC 6582).
    NewReno,
    /// The window grows with time rather than with round trips (RFC 9438). The first slow start ends soon
    /// after the round-trip time has begun to grow (RFC 9406).
    #[default]
    Cubic,
    /// Like NewReno, but after marks the window is reduced in proportion to the share of marked bytes (RFC
    /// 8257). DCTCP needs switches that mark early, [`EcnMode::Request`], and DCTCP at both endpoints.
    Dctcp,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// We never request ECN, and refuse ECN to a peer that requests it.
    Off,
    /// We accept ECN if a connecting peer requests it.
    #[default]
    Accept,
    /// Like `Accept`, but we also request ECN in the first SYN of each connection that we open.
    /// Retransmissions of the SYN do not request ECN.
    Request,
}

/// The spacing of segments. The stack sends segments in bursts. The rate is twice the congestion window per
/// round trip in slow start, and 1.2 times the window per round trip otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Number of segments in a burst, at least 1. Larger bursts cause fewer wake-ups. Default: 4.
    pub burst_segments: u8,
    /// The smoothed round-trip time below which segments are not spaced, because the engine is not polled
    /// often enough. Default: 500 us.
    pub rtt_min: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { burst_segments: 4, rtt_min: Duration::from_micros(500) }
    }
}

/// The search for the path MTU without help of routers (RFC 8899). With any setting, the stack also obeys
/// ICMP errors of routers (RFC 1191, RFC 8201).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtuConfig {
    /// When the path MTU is probed. Default: [`PathMtuProbing::WhenReduced`].
    pub probing: PathMtuProbing,
    /// `BASE_PLPMTU`: the size in bytes of the IP packets that are sent after a black hole was found; with
    /// IPv6 at least 1280. If packets of this size are also lost, IPv4 uses 576 bytes. Default: 1200.
    pub base_bytes: u16,
    /// Number of consecutive timeouts of a large segment, while small segments arrive, after which the path
    /// counts as a black hole; at least 2. Default: 3.
    pub black_hole_timeouts: u8,
    /// `MAX_PROBES`: number of consecutive lost probes of a size after which the size counts as too large.
    /// Default: 3.
    pub max_probes: u8,
    /// `PROBE_TIMER`: the time to wait for the answer to a probe. If the RTO is longer, this time is the RTO.
    /// RFC 8899 section 5.1.1 requires at least 1 s, and more than 15 s if the round trip is not known (RFC
    /// 8085 section 3.1.1). TCP measures the round trip, and a peer answers a duplicate at once, so an answer
    /// that has not arrived within the RTO will not arrive. With 15 s, every search would take minutes.
    /// Default: 1 s.
    pub probe_timer: Duration,
    /// `PMTU_RAISE_TIMER`: the time after which the stack searches for a larger path MTU, if the path MTU is
    /// below the size that the SYNs agreed on. RFC 8201 section 4 requires at least 5 minutes, and recommends
    /// 10 minutes. Default: 600 s.
    pub raise_timer: Duration,
}

/// When the path MTU is probed. A search for a larger MTU is possible only if the peer agrees on SACK and
/// reports duplicates (RFC 2883).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtuProbing {
    /// Never: a connection whose path becomes a black hole ends, and a reduced path MTU is never raised
    /// again.
    Never,
    /// When the path MTU has become smaller: after [`PathMtuConfig::probe_timer`] if a black hole was found,
    /// and after [`PathMtuConfig::raise_timer`] if a router reported the smaller MTU.
    #[default]
    WhenReduced,
    /// From the beginning of each connection. A connection starts with packets of at most
    /// [`PathMtuConfig::base_bytes`].
    Always,
}

impl Default for PathMtuConfig {
    fn default() -> Self {
        Self {
            probing: PathMtuProbing::WhenReduced,
            base_bytes: 1200,
            black_hole_timeouts: 3,
            max_probes: 3,
            probe_timer: Duration::from_secs(1),
            raise_timer: Duration::from_secs(600),
        }
    }
}

/// When a silent peer is probed, and when its connection is given up (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without a segment from the peer before the first probe.
    pub idle: Duration,
    /// Time from each probe to the next, and from the last probe to the end of the connection.
    pub interval: Duration,
    /// Number of unanswered probes after which the stack gives up the connection.
    pub probes: u8,
}

impl TcpConfig {
    /// The three keepalive fields as one value; `None`: no keepalive.
    pub fn keepalive(&self) -> Option<Keepalive> {
        let (interval, probes) = (self.keepalive_interval, self.keepalive_probes);
        self.keepalive_idle.map(|idle| Keepalive { idle, interval, probes })
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            timestamps: true,
            sack: true,
            header_prediction: true,
            recv_window_bytes: 4 << 20,
            out_of_order_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            congestion: CongestionAlgorithm::Cubic,
            ecn: EcnMode::Accept,
            pacing: None,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(50),
            tail_probe_min: Duration::from_millis(2),
            rto_max: Duration::from_secs(60),
            syn_retries: 6,
            user_timeout: Duration::from_secs(10),
            link_timeout: Duration::from_secs(10),
            delayed_ack: Duration::from_millis(10),
            keepalive_idle: None,
            keepalive_interval: Duration::from_secs(10),
            keepalive_probes: 5,
            challenge_acks_per_second: 64,
            time_wait: Duration::from_secs(10),
            traffic_class: 0,
            hop_limit: 64,
            path_mtu: PathMtuConfig::default(),
        }
    }
}
