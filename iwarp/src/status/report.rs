//! The request of a client, and the answer of a process.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::verbs::{ConnectionStatus, ContextStatus, EngineStatus, QpState, QpStatus};

/// The bytes that a client sends.
pub(super) const REQUEST: &[u8; 7] = b"status\n";

/// A context of a process, and its engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessReport {
    /// The number of the process in the PID namespace of the client. If the client's namespace does not
    /// contain the process, the number is that of the process's own namespace.
    pub pid: u32,
    /// The name of the process's program.
    pub program: String,
    /// All queue pairs, connected or not.
    pub queue_pairs: Vec<QpReport>,
    /// Number of completion queues.
    pub completion_queues: usize,
    /// Number of protection domains.
    pub protection_domains: usize,
    /// Number of registered memory regions.
    pub memory_regions: usize,
    /// Number of memory windows.
    pub memory_windows: usize,
    /// Sum of the lengths of the registered regions, in bytes. Bytes in several regions are counted once per
    /// region.
    pub registered_bytes: u64,
    /// The engines that have answered.
    pub engines: Vec<EngineReport>,
    /// The indices of the engines that have not answered in time.
    pub silent_engines: Vec<usize>,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QpReport {
    /// The number of the queue pair.
    pub qp_num: u32,
    /// The type of the queue pair, as libibverbs names it: `RC` (reliable connection), `UC` (unreliable
    /// connection) or `UD` (unreliable datagram).
    pub qp_type: String,
    /// The state of the queue pair: IDLE, RTS, CLOSING, TERMINATE, ERROR or ORPHANED.
    pub qp_state: String,
    /// The number of the queue pair's protection domain.
    pub protection_domain: u32,
    /// Whether the queue pair uses a shared receive queue.
    pub has_srq: bool,
    /// Number of send requests that are not complete.
    pub open_sends: u64,
    /// Number of receives that were posted to the queue pair, or taken from a shared receive queue, and are
    /// not complete.
    pub open_receives: u64,
}

/// An engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EngineReport {
    /// The index of the engine in its context.
    pub engine: usize,
    /// The name of the engine's port.
    pub port: String,
    /// The Ethernet address of the port.
    pub mac: String,
    /// Maximum size of an IP packet, in bytes.
    pub mtu: u16,
    /// Whether the link was up when the engine last queried the port.
    pub link_up: bool,
    /// Bytes of memory that the port shares with other processes: the rings of a local wire. Each of the two
    /// processes that share a pair of rings counts the pair.
    #[serde(default)]
    pub shared_memory_bytes: u64,
    /// The engine's addresses with their prefix lengths.
    pub addresses: Vec<String>,
    /// TCP ports on which the engine listens.
    pub listens: Vec<u16>,
    /// The multicast groups to which queue pairs are attached.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The engine's connections.
    pub connections: Vec<ConnectionReport>,
    /// All counters by their names ([`dp::Metric::name`]).
    pub counters: BTreeMap<String, u64>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// The number of the connection's queue pair; `None` before the connection has a queue pair.
    pub qp_num: Option<u32>,
    /// The state of the queue pair.
    pub qp_state: Option<String>,
    /// The phase of the connection: connecting, streaming, startup, deciding, established or ending.
    pub state: String,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The state of the TCP connection (RFC 9293 section 3.3.2).
    pub tcp_state: String,
    /// Smoothed round-trip time, microseconds; 0 before the first measurement.
    pub rtt_us: u32,
    /// Retransmission timeout, microseconds.
    pub rto_us: u32,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow start threshold, bytes; `None` before the first reduction.
    pub ssthresh: Option<u32>,
    /// Maximum payload of a segment, bytes.
    pub mss: usize,
    /// Number of retransmitted segments.
    pub retransmits: u64,
    /// Bytes handed to TCP, including the headers of MPA, DDP and RDMAP.
    pub tx_bytes: u64,
    /// Sent bytes that the peer has not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Bytes received in order, including the headers of MPA, DDP and RDMAP.
    pub rx_bytes: u64,
    /// Bytes received out of order, and held until the missing bytes arrive. In streaming mode, received
    /// bytes for which the user's buffer has no space are included.
    pub out_of_order_bytes: u64,
}

impl ProcessReport {
    pub(super) fn new(pid: u32, program: String, status: &ContextStatus) -> Self {
        let usage = &status.usage;
        Self {
            pid,
            program,
            queue_pairs: status.queue_pairs.iter().map(QpReport::new).collect(),
            completion_queues: usage.cq.used,
            protection_domains: usage.pd.used,
            memory_regions: usage.mr.used,
            memory_windows: usage.mw.used,
            registered_bytes: status.registered_bytes,
            engines: status.engines.iter().map(|engine| EngineReport::new(engine)).collect(),
            silent_engines: status.silent.clone(),
        }
    }
}

impl QpReport {
    fn new(status: &QpStatus) -> Self {
        Self {
            qp_num: status.qp_num,
            qp_type: status.qp_type.name().to_owned(),
            qp_state: state_name(status.state).to_owned(),
            protection_domain: status.pd,
            has_srq: status.has_srq,
            open_sends: status.open_sends,
            open_receives: status.open_receives,
        }
    }
}

impl EngineReport {
    fn new(status: &EngineStatus) -> Self {
        let mut counters = BTreeMap::new();
        status.counters.for_each(&mut |metric| {
            counters.insert(metric.name.to_owned(), metric.value);
        });
        Self {
            engine: status.index,
            port: status.port.clone(),
            mac: status.mac.map(|byte| format!("{byte:02x}")).join(":"),
            mtu: status.mtu,
            link_up: status.link_up,
            shared_memory_bytes: status.shared_memory_bytes,
            addresses: status.addresses.iter().map(|(ip, length)| format!("{ip}/{length}")).collect(),
            listens: status.listens.clone(),
            groups: status.groups.iter().map(ToString::to_string).collect(),
            connections: status.connections.iter().map(ConnectionReport::new).collect(),
            counters,
        }
    }
}

impl ConnectionReport {
    fn new(status: &ConnectionStatus) -> Self {
        let tcp = &status.tcp;
        Self {
            qp_num: status.qp.map(|(number, _)| number),
            qp_state: status.qp.map(|(_, state)| state_name(state).to_owned()),
            state: status.phase.name().to_owned(),
            local: tcp.local,
            remote: tcp.remote,
            tcp_state: format!("{:?}", tcp.state),
            rtt_us: tcp.srtt_us,
            rto_us: tcp.rto_us,
            cwnd: tcp.cwnd,
            ssthresh: (tcp.ssthresh != u32::MAX).then_some(tcp.ssthresh),
            mss: tcp.emss,
            retransmits: tcp.retransmits,
            tx_bytes: tcp.send_offset,
            unacknowledged_bytes: tcp.unacknowledged,
            rx_bytes: tcp.frontier,
            out_of_order_bytes: tcp.out_of_order.held_bytes,
        }
    }
}

fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Idle => "IDLE",
        QpState::Rts => "RTS",
        QpState::Closing => "CLOSING",
        QpState::Terminate => "TERMINATE",
        QpState::Error => "ERROR",
        QpState::Orphaned => "ORPHANED",
    }
}
