//! Measures the share of a wire that one connection reaches, in virtual time. One engine sends RDMA Writes to
//! another engine, back to back. Frames are lost when the queue in front of the wire is full, or at random.
//!
//! There are two shares: the share of time in which a frame is on the wire, and the rate of placed payload
//! relative to the wire's rate. Both shares are measured in the second half of a run, after slow start. The
//! wire's clock counts nanoseconds, and the engines' clocks count microseconds.

use iwarp::memory::{Access, Base};
use iwarp::verbs::{MemoryRegion, MrOptions, QueuePair, RemoteAddr, SendOp, SendRequest, WcStatus};
use tcp_lite::TcpConfig;

use crate::placement::Loss;
use crate::placement::hosts::{Connected, Hosts, HostsConfig};
use crate::placement::wire::Wire;
use crate::sim::queue::Queue;
use testkit::packet::parse;

const LOCAL_PORT: u16 = 40_000;

/// Length in bytes of a Write.
const WRITE: usize = 256 << 10;

/// Number of Writes that are posted but not completed: more than fit into the send buffer and the windows.
const POSTED: u64 = 64;

/// Number of packet buffers of each port: enough that only the wire matters.
const MBUFS: usize = 16_384;

/// A path, and the traffic over it.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Rate in each direction, in megabits per second.
    pub rate_mbit: u64,
    /// Round-trip time of the empty wire in microseconds.
    pub rtt_us: u64,
    /// Maximum length of the queue in front of the wire, in percent of the bandwidth-delay product. The queue
    /// has room for at least two frames.
    pub queue: u64,
    /// MTU in bytes.
    pub mtu: u16,
    /// Whether the receiver asks for markers.
    pub markers: bool,
    /// Share of frames that are lost at random in each direction, in parts per million.
    pub loss_ppm: u32,
}

/// The results of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Share of time in which a frame with payload was on the wire.
    pub wire: f64,
    /// Rate at which payload of Writes is placed, relative to the wire's rate.
    pub payload: f64,
    /// Number of the first round trip in which the wire was busy for at least nine tenths of the time. If
    /// there was none, the number of round trips of the first half.
    pub filled_after: u64,
    /// Number of frames that the sender's direction of the wire lost: at a full queue, or at random.
    pub overflowed: u64,
    /// Number of timeouts of the sender's TCP.
    pub timeouts: u64,
}

impl Path {
    /// Returns the bandwidth-delay product in bytes.
    pub fn bytes(&self) -> u64 {
        self.rate_mbit * self.rtt_us / 8
    }

    /// Sends Writes for `rounds` round trips, and then for another `rounds` round trips, which are measured.
    ///
    /// # Errors
    /// If a Write fails, or if no further event can happen.
    pub fn reach(&self, tcp: TcpConfig, rounds: u64) -> Result<Reached, String> {
        let mut run = Run::new(*self, tcp)?;
        let start_us = run.hosts.now_us;
        let half_us = rounds * self.rtt_us;
        // Slow start is run in steps of a round trip, to find the first round trip in which the wire is full.
        let mut filled_after = rounds;
        for round in 1..=rounds {
            let before = run.carried;
            run.until(start_us + round * self.rtt_us)?;
            if (run.carried - before) * 10 >= self.bytes() * 9 {
                filled_after = filled_after.min(round);
            }
        }
        let (carried, placed) = (run.carried, run.placed());
        run.until(start_us + 2 * half_us)?;
        let of_rate = |bytes: u64| bytes as f64 * 8.0 / (half_us * self.rate_mbit) as f64;
        Ok(Reached {
            wire: of_rate(run.carried - carried),
            payload: of_rate(run.placed() - placed),
            filled_after,
            overflowed: run.wires[0].lost(),
            timeouts: run.hosts.hosts[0].engine.counters().stack.rto_expired,
        })
    }
}

struct Run {
    hosts: Hosts,
    connected: Connected,
    source: MemoryRegion,
    sink: MemoryRegion,
    wires: [Wire; 2],
    arrivals: Queue<(usize, Vec<u8>)>,
    wakes: [Option<u64>; 2],
    posted: u64,
    completed: u64,
    /// Number of bytes of frames with payload that have reached the receiver.
    carried: u64,
}

impl Run {
    fn new(path: Path, tcp: TcpConfig) -> Result<Self, String> {
        // The handshake has the delay of the path. After a handshake without delay, slow start would mistake
        // this delay for queueing delay (RFC 9406).
        let config = HostsConfig { mtu: path.mtu, mbufs: MBUFS, tcp, seed: 1, exchange_us: path.rtt_us };
        let mut hosts = Hosts::new(&config)?;
        let connected = hosts.connect(LOCAL_PORT, path.markers, &mut |_, _| ())?;
        let options =
            MrOptions { base: Base::Zero, ..MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE) };
        let region = |side: usize| hosts.hosts[side].pd.reg_mr_with(WRITE, &options);
        let source = region(0).map_err(|error| error.to_string())?;
        let sink = region(1).map_err(|error| error.to_string())?;
        // The queue has space for at least two frames, since otherwise an acknowledgement could fill the
        // return path.
        let queue = (path.bytes() * path.queue / 100).max(2 * u64::from(path.mtu) + 28);
        let wire =
            |side| Wire::new(path.rate_mbit, path.rtt_us / 2, queue, Loss::Random(path.loss_ppm), 1, side);
        let wakes = [Some(hosts.now_us); 2];
        Ok(Self {
            hosts,
            connected,
            source,
            sink,
            wires: [wire(0), wire(1)],
            arrivals: Queue::default(),
            wakes,
            posted: 0,
            completed: 0,
            carried: 0,
        })
    }

    fn sender(&self) -> &QueuePair {
        &self.connected.qps[0]
    }

    /// Returns the number of payload bytes placed in the receiver's memory.
    fn placed(&self) -> u64 {
        self.hosts.hosts[1].engine.counters().rx_placed_bytes
    }

    fn until(&mut self, end_us: u64) -> Result<(), String> {
        loop {
            while self.posted < self.completed + POSTED {
                let remote = RemoteAddr { addr: 0, rkey: self.sink.rkey() };
                let write =
                    SendRequest::new(self.posted, SendOp::Write { remote }, self.source.sge(0, WRITE));
                self.sender().post_send(&write).map_err(|error| error.to_string())?;
                self.posted += 1;
                self.wakes[0] = Some(self.hosts.now_us);
            }
            let next = self.arrivals.next_us().into_iter().chain(self.wakes.into_iter().flatten()).min();
            let next_us = next.ok_or("no event is left")?;
            if next_us > end_us {
                self.hosts.now_us = end_us;
                return Ok(());
            }
            self.hosts.now_us = self.hosts.now_us.max(next_us);
            self.step()?;
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let now_us = self.hosts.now_us;
        while let Some((side, frame)) = self.arrivals.pop(now_us) {
            if side == 1 && parse(&frame).is_some_and(|tcp| !tcp.is_empty()) {
                self.carried += frame.len() as u64;
            }
            self.hosts.sockets[side].deliver(frame);
            self.wakes[side] = Some(now_us);
        }
        for side in [0, 1] {
            if self.wakes[side].is_none_or(|at_us| at_us > now_us) {
                continue;
            }
            let busy = self.hosts.hosts[side].poll_us(now_us);
            for frame in self.hosts.sockets[side].take_sent() {
                if let Some(at_us) = self.wires[side].carry(now_us, frame.len()) {
                    self.arrivals.push(at_us, (1 - side, frame));
                }
            }
            self.wakes[side] = if busy { Some(now_us) } else { self.hosts.hosts[side].next_us(now_us) };
        }
        while let Some(wc) = self.hosts.hosts[0].cq.poll_one() {
            if wc.status != WcStatus::Success {
                return Err(format!("a Write failed: {}", wc.status));
            }
            self.completed += 1;
        }
        Ok(())
    }
}
