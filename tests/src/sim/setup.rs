//! The parameters of a run, as its scenario draws them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dp::Offloads;
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{Limits, StackConfig, StackUsage, TcpConfig};

use super::dice::Part;
use super::link::{Plan, Span};
use super::port::mac;
use super::steering::SteeringPlan;
use super::world::{RdmaPlan, StreamPlan};

/// A host that runs smoltcp.
#[derive(Clone, Copy, Debug)]
pub struct SmoltcpConfig {
    /// Receive buffer of a socket.
    pub rx_bytes: usize,
    /// Send buffer of a socket.
    pub tx_bytes: usize,
    /// Nagle's algorithm.
    pub nagle: bool,
    /// CUBIC; otherwise no congestion control.
    pub cubic: bool,
}

/// One host.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// MTU of its port.
    pub mtu: u16,
    /// Whether the run uses IPv6.
    pub ipv6: bool,
    /// Configuration of tcp-lite.
    pub tcp: TcpConfig,
    /// Buffers of its port.
    pub mbufs: usize,
    /// Limit of the memory for out-of-order bytes, bytes of packet buffers.
    pub out_of_order_bytes: u64,
    /// Seed of its secrets.
    pub key: [u8; 32],
    /// Bytes that a queue pair may send in one poll of the engine.
    pub quantum_bytes: usize,
    /// smoltcp's sockets in place of tcp-lite.
    pub smoltcp: Option<SmoltcpConfig>,
    /// Limit of half-open connections at a listener.
    pub backlog: usize,
    /// The queues of its device, each with an engine.
    pub steering: SteeringPlan,
    /// The path MTU from this host becomes smaller, so its EMSS may too.
    pub path_shrinks: bool,
}

/// The address of host `side`.
pub fn address(side: usize, ipv6: bool) -> IpAddr {
    let number = 1 + side as u8;
    if ipv6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, number).into()
    }
}

/// The address with its prefix length.
pub fn cidr(side: usize, ipv6: bool) -> String {
    format!("{}/{}", address(side, ipv6), if ipv6 { 64 } else { 24 })
}

impl HostSetup {
    /// Limits of the stack.
    pub fn limits(&self) -> Limits {
        let backlog = self.backlog;
        Limits {
            connections: 32,
            tx_segments: 4096,
            events: 1024,
            neighbors: 4,
            backlog,
            out_of_order_bytes: self.out_of_order_bytes,
            ..Limits::default()
        }
    }

    /// Checks that the stack is within its limits.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub fn check_usage(&self, usage: &StackUsage) -> Result<(), String> {
        let limits = self.limits();
        let StackUsage { connections, tx_segments, tx_buffers, holes, neighbors, events, answers: _ } =
            *usage;
        for (what, held, most) in [
            ("connections", connections, limits.connections),
            ("connections with holes", holes, connections),
            // A connection without a segment may always allocate one segment.
            ("segments to send", tx_segments, limits.tx_segments + connections),
            ("buffers of segments to send", tx_buffers, self.mbufs / 2),
            ("neighbours", neighbors, limits.neighbors),
            ("events", events, limits.events),
        ] {
            if held > most {
                return Err(format!("{held} {what} are held, {most} may be"));
            }
        }
        Ok(())
    }

    /// The stack of host `side`.
    pub fn stack_config(&self, side: usize) -> StackConfig {
        StackConfig {
            mac: EthernetAddress(mac(side)),
            vlan: None,
            addresses: cidr(side, self.ipv6).parse().into_iter().collect(),
            gateways: Default::default(),
            address_probing: Default::default(),
            derived_neighbors: None,
            loopback: false,
            mtu: self.mtu,
            offloads: Offloads::TX_MULTI_SEGMENT | Offloads::RX_SCATTER,
            limits: self.limits(),
            tcp: self.tcp,
            seed: self.key,
        }
    }
}

/// A period in which a host cannot work, for a reason other than the wire.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// The period of the stall.
    pub span: Span,
    /// The kind of the stall.
    pub kind: StallKind,
}

/// The way in which a host is stalled.
#[derive(Clone, Copy, Debug)]
pub enum StallKind {
    /// The host's port accepts no frames, like a port whose peer does not empty the ring.
    PortStuck,
    /// The host's pool has no free buffer.
    NoBuffers,
    /// It is not polled, and its clock jumps when it continues. At most this many frames wait for it.
    Stopped(usize),
}

/// The work of the hosts.
#[derive(Clone, Debug)]
pub enum Work {
    /// Plain streams.
    Streams(Vec<StreamPlan>),
    /// iWARP on both hosts.
    Rdma(Vec<RdmaPlan>),
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Both hosts.
    pub hosts: [HostSetup; 2],
    /// `links[i]` carries the frames that host `i` sends.
    pub links: [Plan; 2],
    /// Large receive offload of each host: the maximum bytes, and how long a segment waits.
    pub lro: [Option<(usize, u64)>; 2],
    /// Periods in which both links are down.
    pub flaps: Vec<Span>,
    /// Stalls of each host.
    pub stalls: [Vec<Stall>; 2],
    /// The work of the hosts.
    pub work: Work,
    /// Some fault may make TCP split segments that it should keep whole.
    pub may_cut: bool,
    /// Nothing is lost and the queue is never full, so nothing may be retransmitted.
    pub lossless: bool,
}

impl Setup {
    /// Which hosts run tcp-lite.
    pub fn ours(&self) -> [bool; 2] {
        [0, 1].map(|side: usize| self.hosts[side].smoltcp.is_none())
    }

    /// Sets whether the hosts predict headers. It changes nothing in a run.
    pub fn set_header_prediction(&mut self, on: bool) {
        for host in &mut self.hosts {
            host.tcp.header_prediction = on;
        }
    }

    /// The longest time that an answer may take without a fault: delays, full queues, delayed
    /// acknowledgements, and pauses of users.
    pub fn pause_us(&self) -> u64 {
        let wire = |plan: &Plan| {
            let held = plan.join.map_or(0, |(_, hold_us)| hold_us);
            plan.delay_us + plan.reorder_us + held + plan.queue_bytes.min(1 << 22) * 1000 / plan.rate
        };
        let lro: u64 = self.lro.iter().flatten().map(|(_, hold_us)| hold_us).sum();
        let delayed: u64 = self.hosts.iter().map(|host| host.tcp.delayed_ack.total_micros()).sum();
        let user = match &self.work {
            Work::Streams(plans) => {
                let ends = plans.iter().flat_map(|plan| &plan.ends);
                ends.filter_map(|end| end.reader.map(|reader| reader.every_us)).max()
            }
            Work::Rdma(plans) => plans.iter().map(RdmaPlan::pause_us).max(),
        };
        self.links.iter().map(wire).sum::<u64>() + lro + delayed + user.unwrap_or(0)
    }

    /// The keys of both hosts, from their own random stream.
    pub fn keys(seed: u64) -> [[u8; 32]; 2] {
        [0, 1].map(|side| Part::Host(side).dice(seed).key())
    }
}
