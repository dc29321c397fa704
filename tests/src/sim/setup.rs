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

/// The parameters of a host that runs smoltcp.
#[derive(Clone, Copy, Debug)]
pub struct SmoltcpConfig {
    /// Size in bytes of a socket's receive buffer.
    pub rx_bytes: usize,
    /// Size in bytes of a socket's send buffer.
    pub tx_bytes: usize,
    /// Whether Nagle's algorithm is on.
    pub nagle: bool,
    /// Whether CUBIC is used; otherwise there is no congestion control.
    pub cubic: bool,
}

/// The parameters of one host.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// MTU of the host's port in bytes.
    pub mtu: u16,
    /// Whether the run uses IPv6.
    pub ipv6: bool,
    /// The configuration of tcp-lite.
    pub tcp: TcpConfig,
    /// Number of packet buffers of the host's port.
    pub mbufs: usize,
    /// Maximum size in bytes of the packet buffers with out-of-order bytes.
    pub out_of_order_bytes: u64,
    /// Seed of the host's secrets.
    pub key: [u8; 32],
    /// Maximum number of bytes that a queue pair may send in one poll of the engine.
    pub quantum_bytes: usize,
    /// If set, the host runs smoltcp's sockets instead of tcp-lite.
    pub smoltcp: Option<SmoltcpConfig>,
    /// Maximum number of half-open connections of a listener.
    pub backlog: usize,
    /// The queues of the host's device. Each queue has an engine.
    pub steering: SteeringPlan,
    /// Whether the MTU of the path from this host becomes smaller, so that its EMSS may also become smaller.
    pub path_shrinks: bool,
}

/// Returns the address of host `side`.
pub fn address(side: usize, ipv6: bool) -> IpAddr {
    let number = 1 + side as u8;
    if ipv6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, number).into()
    }
}

/// Returns the address of host `side` with its prefix length.
pub fn cidr(side: usize, ipv6: bool) -> String {
    format!("{}/{}", address(side, ipv6), if ipv6 { 64 } else { 24 })
}

impl HostSetup {
    /// Returns the limits of the stack.
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
    /// The limit that the stack exceeds.
    pub fn check_usage(&self, usage: &StackUsage) -> Result<(), String> {
        let limits = self.limits();
        let StackUsage {
            connections,
            tx_segments,
            tx_buffers,
            holes,
            neighbors,
            events,
            answers: _,
            datagrams: _,
        } = *usage;
        for (what, held, most) in [
            ("connections", connections, limits.connections),
            ("connections with holes", holes, connections),
            // A connection that has no segment may allocate a segment even if the limit is reached.
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

    /// Returns the configuration of the stack of host `side`.
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
    /// The host is not polled. When the host continues, its clock jumps. At most this number of frames wait
    /// for the host.
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
    /// Large receive offload of each host: the maximum payload of a joined segment in bytes, and the maximum
    /// time in microseconds for which a segment waits.
    pub lro: [Option<(usize, u64)>; 2],
    /// Periods in which both links are down.
    pub flaps: Vec<Span>,
    /// Stalls of each host.
    pub stalls: [Vec<Stall>; 2],
    /// The work of the hosts.
    pub work: Work,
    /// Whether some fault may make TCP split segments that it should keep whole.
    pub may_cut: bool,
    /// Whether no frame is lost and the queue is never full, so that no segment may be retransmitted.
    pub lossless: bool,
}

impl Setup {
    /// Returns which hosts run tcp-lite.
    pub fn ours(&self) -> [bool; 2] {
        [0, 1].map(|side: usize| self.hosts[side].smoltcp.is_none())
    }

    /// Sets whether the hosts predict headers. The frames of a run do not depend on this setting.
    pub fn set_header_prediction(&mut self, on: bool) {
        for host in &mut self.hosts {
            host.tcp.header_prediction = on;
        }
    }

    /// Returns the longest time in microseconds that an answer may take without a fault. The time consists of
    /// delays, full queues, delayed acknowledgements, and pauses of users.
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

    /// Returns the keys of both hosts, each from the host's own stream of random numbers.
    pub fn keys(seed: u64) -> [[u8; 32]; 2] {
        [0, 1].map(|side| Part::Host(side).dice(seed).key())
    }
}
