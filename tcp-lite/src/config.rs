//! Configuration of a stack, passed when the stack is made. Every limit has a name and a default.

use arrayvec::ArrayVec;
use dp::Offloads;

use crate::facade::{Duration, EthernetAddress, IpAddress, IpCidr};

/// Addresses, sizes and limits of one stack.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our Ethernet address: the source of every frame sent. Unicast frames for another address are dropped
    /// ([`StackCounters::rx_not_ours`](crate::StackCounters::rx_not_ours)).
    pub mac: EthernetAddress,
    /// VLAN id (1..=4094) put on every frame sent and required of every frame received.
    pub vlan: Option<u16>,
    /// Our addresses with their prefix lengths; both families may be mixed.
    pub addresses: ArrayVec<IpCidr, 8>,
    /// The next hops of packets for other networks, at most one for each family.
    pub gateways: ArrayVec<IpAddress, 2>,
    /// Whether our addresses are probed or announced.
    pub address_probing: AddressProbing,
    /// The Ethernet addresses of IPv4 neighbours, where they are known in advance: these two bytes, then the
    /// IPv4 address. Such neighbours are never queried, and their announcements are ignored. For a wire
    /// without broadcasts. `None`: ARP finds them.
    pub derived_neighbors: Option<[u8; 2]>,
    /// Whether connections to our own addresses are possible. The port has to return frames that are sent to
    /// its own Ethernet address ([`dp::Loopback`]). Otherwise segments from our addresses are dropped, as
    /// no other host sends them.
    pub loopback: bool,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Offloads that the stack may use: those of its port
    /// ([`PortInfo::offloads`](dp::PortInfo::offloads)).
    pub offloads: Offloads,
    /// Limits of all memory that grows by actions of a peer or a user.
    pub limits: Limits,
    /// How each connection behaves.
    pub tcp: TcpConfig,
    /// Key of ISNs, ports and all other values that must not be guessed. Take it from OS entropy, except in
    /// tests.
    pub seed: [u8; 32],
}

/// Address conflict detection. In all modes, probes for our addresses are answered, and a conflict raises an
/// [`Event::AddressConflict`](crate::Event). If the address is in use, the stack also sends an announcement,
/// at most once in ten seconds (RFC 5227 section 2.4 (c)); the address is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressProbing {
    /// Addresses are used at once, and not announced.
    Off,
    /// Addresses are used at once, and announced (gratuitous ARP, unsolicited neighbour advertisement)
    /// at the start and when the link comes up again.
    #[default]
    Announce,
    /// Addresses are probed first (RFC 5227 section 2.1, RFC 4862 section 5.4), which takes four to five
    /// seconds. Until then nothing is sent from them or accepted for them, and connections wait. An address
    /// that another host has is not used; connections from it end with
    /// [`CloseReason::AddressLost`](crate::CloseReason). After probing, the stack behaves as with `Announce`.
    Probe,
}

/// Limits of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in any state, including TIME-WAIT. At the limit, a new connection replaces the oldest one
    /// in TIME-WAIT. Default: 16,384.
    pub connections: usize,
    /// Listening ports. Default: 64.
    pub listeners: usize,
    /// Connections of one listener that are not established yet. Default: 1024.
    pub backlog: usize,
    /// Whether SYNs beyond the backlog are answered with cookies (RFC 4987 section 3.6), which hold no
    /// state. Otherwise they are dropped. Default: `true`.
    pub syn_cookies: bool,
    /// Entries of the neighbour table. Default: 1024.
    pub neighbors: usize,
    /// Segments that all connections together hold for transmission, one or more in a buffer. Never more
    /// than half of the pool's buffers, since acknowledgements need buffers to arrive in. Default: 32,768.
    pub tx_segments: usize,
    /// Memory that all connections together keep ahead of their frontiers, in bytes of packet buffers; never
    /// more than three eighths of the pool. At seven eighths of the limit the largest holders are asked to
    /// give up bytes ([`Event::Evict`](crate::Event::Evict)); at the limit new segments are refused.
    /// Default: 64 MiB.
    pub out_of_order_bytes: u64,
    /// Events waiting for [`Stack::event`](crate::Stack::event). Beyond the limit received bytes are dropped,
    /// so that the peer retransmits them, and no connection begins. Each existing connection may still queue
    /// at most four events. Default: 4096.
    pub events: usize,
    /// Connections that search for a larger path MTU at the same time, each with a packet buffer; other
    /// connections wait until a search ends. Never more than a sixteenth of the pool's buffers. Default: 256.
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
    /// Offer timestamps (RFC 7323). Default: `true`.
    pub timestamps: bool,
    /// Offer SACK (RFC 2018). Default: `true`.
    pub sack: bool,
    /// Whether segments that continue a stream and have nothing unusual take a fast path through the stack.
    /// Only their processing time depends on it: tests turn it off to verify that. Default: `true`.
    pub header_prediction: bool,
    /// Receive window, bytes. Sets the window scale. To fill a path it has to cover rate times delay,
    /// plus a quarter of [`send_buffer_bytes`](Self::send_buffer_bytes) at the other end: its user gets
    /// `Event::Writable` only when a quarter is free. The defaults fill 10 Gb/s over 2 ms; over 3 ms they
    /// reach 88 % of the wire, as at 600 Mb/s over 50 ms (`tests/src/reach.rs`).
    ///
    /// The whole window is announced from the beginning, less what a slow reader
    /// [`hold`](crate::Stack::hold)s. The window does not grow with the rate of the path. In other stacks it
    /// does, because they charge a socket for its window. Here bytes take memory only ahead of a hole, and
    /// two limits (`out_of_order_bytes`, here and in [`Limits`]) bound that. Default: 4 MiB.
    pub recv_window_bytes: u32,
    /// Maximum number of bytes held ahead of the frontier (and one segment more until the user has given up
    /// that many bytes). The packet buffers that are kept for these bytes ([`Stack::pin`](crate::Stack::pin))
    /// may have at most twice as many bytes. Beyond either limit, the bytes furthest from the frontier are
    /// given up. Default: 4 MiB.
    pub out_of_order_bytes: u32,
    /// Bytes a connection holds for transmission (unsent and unacknowledged). Default: 4 MiB.
    pub send_buffer_bytes: u32,
    /// How the congestion window grows, and how it reacts to loss and marks.
    /// Default: [`CongestionAlgorithm::Cubic`].
    pub congestion: CongestionAlgorithm,
    /// Whether routers may mark our packets instead of dropping them. Default: [`EcnMode::Accept`].
    pub ecn: EcnMode,
    /// Spaces segments over the round trip; `None`: segments are sent as soon as the window allows. Pacing
    /// helps if the bottleneck queue is at most a quarter of a round trip and the round trip is at least a
    /// millisecond. It costs goodput if the round trip is tens of microseconds. Default: `None`.
    pub pacing: Option<Pacing>,
    /// RTO before the first measurement (RFC 6298: 1 s). Default: 1 s.
    pub rto_initial: Duration,
    /// The minimum difference between the RTO and the smoothed RTT. It has to be above the peer's delayed
    /// ACK, which is 40 ms in Linux. Default: 50 ms.
    pub rto_min: Duration,
    /// Shortest wait for acknowledgements before a tail loss probe is sent; the probe otherwise comes after
    /// twice the round-trip time (RFC 8985 section 7.2). This time covers the delay until the peer polls its
    /// queue. Default: 2 ms.
    pub tail_probe_min: Duration,
    /// Largest RTO, backoff included. A timestamp that the peer echoes later than this gives no measurement.
    /// Default: 60 s.
    pub rto_max: Duration,
    /// Retransmissions of one SYN before giving up. The attempt ends earlier if
    /// [`user_timeout`](Self::user_timeout) expires: with the defaults after 10 s and three retransmissions.
    /// Default: 6.
    pub syn_retries: u8,
    /// How long a SYN or data may stay unacknowledged before the connection is given up (R2 of RFC 9293
    /// section 3.8.3, which requires at least 3 minutes for a SYN and 100 s for data). The default is shorter
    /// on purpose, so that users soon notice a peer that has failed. A connection is given up only after at
    /// least one more attempt to reach the peer: a stack that was not polled meanwhile knows nothing about
    /// the peer. Default: 10 s.
    pub user_timeout: Duration,
    /// How long connections survive without a link. Then all existing connections end with
    /// [`CloseReason::LinkDown`](crate::CloseReason::LinkDown), except those that wait for the answer to
    /// their SYN. If the other end of a cable may be plugged in again, the user timeout is a good choice; if
    /// there is no peer without the link ([`PortInfo::point_to_point`](dp::PortInfo::point_to_point)), choose
    /// a shorter time. Default: 10 s.
    pub link_timeout: Duration,
    /// Longest delay of an ACK (RFC 9293: below 0.5 s). It has to be below a peer's
    /// [`rto_min`](Self::rto_min). Default: 10 ms.
    pub delayed_ack: Duration,
    /// Idle time before the first keepalive probe; `None`: no keepalive. Default: `None`.
    pub keepalive_idle: Option<Duration>,
    /// Time between keepalive probes. Default: 10 s.
    pub keepalive_interval: Duration,
    /// Unanswered keepalive probes before the connection is given up. Default: 5.
    pub keepalive_probes: u8,
    /// Maximum number of answers per second and connection to segments that are not acceptable, or whose
    /// bytes do not fit (RFC 5961 section 7). Default: 64.
    pub challenge_acks_per_second: u32,
    /// Minimum time in TIME-WAIT (twice the MSL); longer if the peer took longer to retransmit its FIN. If
    /// this time is shorter than the largest RTO of a peer, that peer's connection may end in a reset.
    /// Default: 10 s.
    pub time_wait: Duration,
    /// Traffic class (IPv6) or type of service (IPv4) of TCP packets that we send: DSCP times 4 (RFC 2474).
    /// The lowest two bits are left to ECN. A peer with this stack receives packets of a class other than 0
    /// on the general path, which costs it more. Default: 0.
    pub traffic_class: u8,
    /// Hop limit / TTL of packets that we send. Default: 64.
    pub hop_limit: u8,
    /// How a path MTU below [`StackConfig::mtu`] is found. Default: the defaults of [`PathMtuConfig`].
    pub path_mtu: PathMtuConfig,
}

/// How the congestion window grows, and how it reacts to loss and marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// Grows by one segment for each round trip (RFC 5681, RFC 6582).
    NewReno,
    /// Grows with time rather than with round trips (RFC 9438), leaves slow start by round-trip time
    /// (RFC 9406).
    #[default]
    Cubic,
    /// As NewReno, but marks reduce the window in proportion to their share (RFC 8257): for networks
    /// whose switches mark early, with [`EcnMode::Request`] and with DCTCP at both ends.
    Dctcp,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// Never requested, and refused to a peer that requests it.
    Off,
    /// Accepted if a connecting peer requests it.
    #[default]
    Accept,
    /// Also requested in each connect.
    Request,
}

/// How segments are spaced: bursts, at a rate of twice the congestion window per round trip in slow
/// start and 1.2 times the window otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Segments that leave together, at least 1. More segments mean fewer wake-ups. Default: 4.
    pub burst_segments: u8,
    /// Smoothed round-trip time below which segments are not spaced: the engine is not polled often enough to
    /// space them. Default: 500 us.
    pub rtt_min: Duration,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { burst_segments: 4, rtt_min: Duration::from_micros(500) }
    }
}

/// Finding the path's MTU without routers' help (RFC 8899). Routers' reports (RFC 1191, RFC 8201) are always
/// obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtuConfig {
    /// When to probe. Default: [`PathMtuProbing::WhenReduced`].
    pub probing: PathMtuProbing,
    /// `BASE_PLPMTU`, bytes of IP packet: the size used in a black hole, at least 1280 with IPv6. If
    /// that is too large as well, IPv4 goes down to 576 bytes. Default: 1200.
    pub base_bytes: u16,
    /// Consecutive timeouts of a segment, while small segments pass, that indicate a black hole; at
    /// least 2. Default: 3.
    pub black_hole_timeouts: u8,
    /// `MAX_PROBES`: consecutive lost probes of one size until it counts as too large. Default: 3.
    pub max_probes: u8,
    /// `PROBE_TIMER`: how long to wait for the answer to a probe, unless the RTO is longer. RFC 8899 section
    /// 5.1.1: not below 1 s, and above 15 s where the round trip is not known (RFC 8085 section 3.1.1). TCP
    /// measures the round trip, and a peer answers a duplicate at once, so an answer that has not arrived
    /// within the RTO never arrives. With 15 s every search would take minutes. Default: 1 s.
    pub probe_timer: Duration,
    /// `PMTU_RAISE_TIMER`: how long a path MTU below what the SYNs agreed on is used before a larger one
    /// is searched for (RFC 8201 section 4: not below 5 minutes, 10 are recommended). Default: 600 s.
    pub raise_timer: Duration,
}

/// When the path's MTU is probed. Probing upwards needs a peer that agrees on SACK and reports duplicates
/// (RFC 2883).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtuProbing {
    /// Never: black holes end connections, and a reduced MTU stays.
    Never,
    /// Once the path MTU turned out to be smaller than assumed: by a black hole or, after
    /// [`PathMtuConfig::raise_timer`], by a router's report.
    #[default]
    WhenReduced,
    /// From the beginning: connections start with [`PathMtuConfig::base_bytes`].
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

/// How a silent peer is probed (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence of the peer before the first probe.
    pub idle: Duration,
    /// Time from each probe to the next, and from the last to the end of the connection.
    pub interval: Duration,
    /// Unanswered probes before the connection is given up.
    pub probes: u8,
}

impl TcpConfig {
    /// The configured keepalive as one value; `None`: no keepalive.
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
