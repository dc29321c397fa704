//! A stream over our TCP, on any port of the data plane.

use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use dp::{Burst, Clock, Port};
use tcp_lite::facade::{EthernetAddress, IpCidr};
use tcp_lite::{
    CloseReason, ConnId, EcnMode, Event, Instant, Limits, Received, SendError, Stack, StackConfig, TcpConfig,
};

use super::{Direction, Opener, Report, Sink, Source, Task};
use crate::lab::{LabError, Result};
use crate::{ensure, lab_error};

/// Time in microseconds for which the host repeats its last acknowledgement if the peer did not receive it.
const LINGER_US: u64 = 200_000;
/// Time for which an idle poll loop sleeps, since the peer's kernel needs the same core.
const IDLE_REST: Duration = Duration::from_micros(50);

/// Opens, transfers and closes the stream on `port`, as a host with the address `address`. Calls `ready` when
/// the host has begun to listen or to connect.
///
/// # Errors
/// If the connection does not end by both FINs, if a byte is wrong or missing, or if the time limit has
/// passed.
pub fn run(port: &mut dyn Port, address: IpCidr, task: &Task, ready: impl FnOnce()) -> Result<Report> {
    let mut host = Host::new(port, address, task)?;
    host.open()?;
    ready();
    let limit_us = task.limit.as_micros() as u64;
    while host.closed_us.is_none() {
        ensure!(host.clock.now_us() < limit_us, "not done after {:?}: {}", task.limit, host.describe());
        if !host.poll()? {
            thread::sleep(IDLE_REST);
        }
    }
    while host.closed_us.is_some_and(|at| host.clock.now_us() < at + LINGER_US) {
        host.poll()?;
        thread::sleep(IDLE_REST);
    }
    host.report()
}

/// A stack on a port, with one connection.
struct Host<'a> {
    port: &'a mut dyn Port,
    stack: Stack,
    clock: Clock,
    task: &'a Task,
    conn: Option<ConnId>,
    source: Source,
    sink: Sink,
    fin_sent: bool,
    opened_us: u64,
    closed_us: Option<u64>,
    /// The length of the host's pause, until the pause begins.
    pause: Option<Duration>,
    /// The time at which the pause ends, in microseconds.
    paused_until_us: Option<u64>,
    /// Number of bytes received during the pause. These bytes reduce the receive window.
    unread: usize,
    outgoing: Burst,
}

impl<'a> Host<'a> {
    fn new(port: &'a mut dyn Port, address: IpCidr, task: &'a Task) -> Result<Self> {
        let info = port.info();
        let mut addresses = ArrayVec::new();
        addresses.push(address);
        let default = TcpConfig::default();
        let recv_window_bytes = match task.options.window {
            0 => default.recv_window_bytes,
            bytes => bytes,
        };
        let ecn = if task.options.ecn { EcnMode::Request } else { EcnMode::default() };
        let config = StackConfig {
            mac: EthernetAddress(info.mac),
            vlan: None,
            addresses,
            gateways: ArrayVec::new(),
            address_probing: Default::default(),
            derived_neighbors: None,
            loopback: false,
            mtu: info.mtu,
            offloads: info.offloads,
            limits: Limits { connections: 16, ..Limits::default() },
            tcp: TcpConfig { time_wait: tcp_lite::Duration::from_secs(1), ecn, recv_window_bytes, ..default },
            seed: seed()?,
        };
        let stack = Stack::new(config, port.mempool().clone());
        Ok(Self {
            port,
            stack,
            clock: Clock::new(),
            task,
            conn: None,
            source: Source::new(task),
            sink: Sink::new(task),
            fin_sent: false,
            opened_us: 0,
            closed_us: None,
            pause: task.options.pause(),
            paused_until_us: None,
            unread: 0,
            outgoing: Burst::new(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.clock.now_us() as i64)
    }

    fn open(&mut self) -> Result<()> {
        let now = self.now();
        self.opened_us = self.clock.now_us();
        match self.task.opener {
            Opener::Passive(port) => {
                self.stack.listen(port).map_err(|error| LabError(error.to_string()))?;
            }
            Opener::Active(peer) => {
                let conn =
                    self.stack.connect(now, peer, None).map_err(|error| LabError(error.to_string()))?;
                self.conn = Some(conn);
            }
        }
        Ok(())
    }

    /// Polls the stack and the port once. Returns whether anything was done.
    fn poll(&mut self) -> Result<bool> {
        let mut incoming = Burst::new();
        let received = self.port.rx_burst(self.clock.now_us(), &mut incoming);
        let now = self.now();
        for frame in incoming {
            self.stack.input(now, frame);
        }
        self.stack.poll(now);
        let mut moved = received > 0;
        while let Some(event) = self.stack.event() {
            moved = true;
            self.on_event(event)?;
        }
        self.pause();
        self.send(now)?;
        loop {
            let more = self.stack.transmit(now, &mut self.outgoing);
            let sent = self.port.tx_burst(self.clock.now_us(), &mut self.outgoing);
            moved |= sent > 0;
            // If the ring is full, the frames wait for the next poll.
            if !more || sent == 0 {
                return Ok(moved);
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<()> {
        let now = self.now();
        match event {
            Event::Established { conn, .. } => {
                ensure!(self.conn.is_none_or(|known| known == conn), "an event of a second connection");
                self.conn = Some(conn);
            }
            Event::Received { conn, received } => {
                let mut offset = received.offset;
                for piece in received.buf.segments() {
                    self.sink.put(offset, piece)?;
                    offset += piece.len() as u64;
                }
                self.read(conn, &received);
            }
            Event::Writable { .. } | Event::Acknowledged { .. } | Event::Evict { .. } => {}
            Event::PeerClosed { conn } => {
                if self.task.direction == Direction::Receive {
                    self.fin_sent = true;
                    self.stack.close(now, conn);
                }
            }
            Event::AddressConflict { address, mac, .. } => {
                return Err(lab_error!("{mac} uses {address}, too"));
            }
            Event::Datagram => {
                return Err(lab_error!("a datagram arrived, and no UDP port is open"));
            }
            Event::Closed { reason: CloseReason::Graceful, .. } => self.closed_us = Some(self.clock.now_us()),
            Event::Closed { reason, .. } => {
                return Err(lab_error!("the connection ended early: {reason}; {}", self.describe()));
            }
        }
        Ok(())
    }

    /// Handles delivered bytes: releases them, or keeps them unread during the pause.
    fn read(&mut self, conn: ConnId, received: &Received) {
        let bytes = received.buf.len();
        if self.paused_until_us.is_none() {
            self.stack.release(conn, bytes);
            return;
        }
        self.unread += bytes;
        // The stack already counts bytes beyond a hole as held.
        if received.offset < received.frontier {
            self.stack.hold(conn, bytes);
        }
    }

    /// Begins or ends the pause when it is time.
    fn pause(&mut self) {
        let now_us = self.clock.now_us();
        let is_half = match self.task.direction {
            Direction::Send => self.source.is_half(),
            Direction::Receive => self.sink.is_half(),
        };
        if is_half && let Some(pause) = self.pause.take() {
            self.paused_until_us = Some(now_us + pause.as_micros() as u64);
        }
        if self.paused_until_us.is_some_and(|at_us| at_us <= now_us) {
            self.paused_until_us = None;
            if let Some(conn) = self.conn {
                self.stack.release(conn, std::mem::take(&mut self.unread));
            }
        }
    }

    /// Passes as many bytes to TCP as the send buffer accepts, and closes after the last byte.
    fn send(&mut self, now: Instant) -> Result<()> {
        let Some(conn) = self.conn.filter(|_| {
            self.task.direction == Direction::Send && !self.fin_sent && self.paused_until_us.is_none()
        }) else {
            return Ok(());
        };
        loop {
            let bytes = self.source.next();
            if bytes.is_empty() {
                self.fin_sent = true;
                self.stack.close(now, conn);
                return Ok(());
            }
            match self.stack.send(now, conn, bytes) {
                Ok(taken) => self.source.take(taken),
                Err(SendError::BufferFull | SendError::NoMbuf) => return Ok(()),
                // The connection is not established yet.
                Err(SendError::Closed) if self.stack.info(conn).is_some_and(|info| info.send_offset == 0) => {
                    return Ok(());
                }
                Err(error) => return Err(lab_error!("{error}; {}", self.describe())),
            }
        }
    }

    fn report(&self) -> Result<Report> {
        let elapsed = Duration::from_micros(self.closed_us.unwrap_or_default() - self.opened_us);
        let report = match self.task.direction {
            Direction::Send => self.source.report(elapsed),
            Direction::Receive => self.sink.report(elapsed)?,
        };
        Ok(Report { counters: Some(self.stack.counters()), ..report })
    }

    /// Returns a description of the state, for an error.
    fn describe(&self) -> String {
        let conn = self.conn.and_then(|conn| self.stack.info(conn));
        format!("{conn:?}\n{:?}\n{:?}", self.stack.counters(), self.port.counters())
    }
}

/// Returns a random seed. The seed differs from run to run, since a peer in TIME-WAIT remembers our sequence
/// numbers.
fn seed() -> Result<[u8; 32]> {
    use std::io::Read;
    let mut seed = [0u8; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(seed)
}

#[cfg(test)]
mod tests;
