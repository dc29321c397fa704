//! A host with tcp-lite alone: a stack on a port, and users of plain streams.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use dp::{Burst, Port};
use tcp_lite::{
    Backoff, CloseReason, ConnId, Duration, Event, Instant, Keepalive, Received, SendError, Stack, State,
};

use crate::sim::coverage::Coverage;
use crate::sim::setup::{HostSetup, address};
use crate::sim::watch::{Condition, Watch};

use super::states::Cause;
use super::streams::{Chunks, End, Ending};
use super::{Transferred, cover_stack, repairs};

/// Time in microseconds until the host tries to send again after no packet buffer was free.
const NO_MBUF_US: u64 = 1000;

/// Keepalive on connections that one side aborts, since the RST may be lost.
const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(2), interval: Duration::from_secs(1), probes: 200 };

pub(super) struct LiteHost {
    side: usize,
    setup: HostSetup,
    stack: Stack,
    port: Box<dyn Port>,
    out: Burst,
    /// Backoff while the port accepts no frames.
    full: Backoff,
    pub(super) ends: Vec<End>,
    conns: Vec<Option<ConnId>>,
    /// The last known state of each connection.
    states: Vec<Option<State>>,
    by_conn: HashMap<ConnId, usize>,
    /// For each stream, the number of bytes that its user holds: unread bytes in order, or kept bytes ahead
    /// of a hole.
    held: Vec<u64>,
    blocked: Vec<bool>,
    retry_us: Option<u64>,
    started: bool,
    /// Connections that no plan expects. The host aborts them.
    unwanted: HashSet<ConnId>,
}

impl LiteHost {
    pub(super) fn new(
        side: usize,
        setup: &HostSetup,
        port: Box<dyn Port>,
        ends: Vec<End>,
    ) -> Result<Self, String> {
        let stack = Stack::new(setup.stack_config(side), port.mempool().clone());
        let count = ends.len();
        Ok(Self {
            side,
            setup: setup.clone(),
            stack,
            port,
            out: Burst::new(),
            full: Backoff::default(),
            ends,
            conns: vec![None; count],
            states: vec![None; count],
            by_conn: HashMap::new(),
            held: vec![0; count],
            blocked: vec![false; count],
            retry_us: None,
            started: false,
            unwanted: HashSet::new(),
        })
    }

    fn start(&mut self, now: Instant) -> Result<(), String> {
        self.started = true;
        let mut listening = Vec::new();
        for number in 0..self.ends.len() {
            let port = self.ends[number].server_port();
            if self.ends[number].opens {
                self.open(number, now)?;
            } else if !listening.contains(&port) {
                self.stack.listen(port).map_err(|error| error.to_string())?;
                listening.push(port);
            }
        }
        Ok(())
    }

    /// Connects, unless this connection has to follow an earlier connection that is not over yet.
    fn open(&mut self, number: usize, now: Instant) -> Result<bool, String> {
        let end = &self.ends[number];
        if end.after.is_some_and(|before| self.ends[before].over.is_none()) {
            return Ok(false);
        }
        let (local, remote) = end.ports(self.side);
        let remote = SocketAddr::new(address(1 - self.side, self.setup.ipv6), remote);
        let conn = self.stack.connect(now, remote, Some(local)).map_err(|error| error.to_string())?;
        self.adopt(now, number, conn);
        Ok(true)
    }

    fn adopt(&mut self, now: Instant, number: usize, conn: ConnId) {
        self.conns[number] = Some(conn);
        self.by_conn.insert(conn, number);
        if self.ends[number].aborts {
            self.stack.set_keepalive(now, conn, Some(KEEPALIVE));
        }
    }

    pub(super) fn poll(&mut self, now_us: u64, watch: &mut Watch) -> Result<bool, String> {
        let now = Instant::from_micros(now_us as i64);
        let mut busy = false;
        if !self.started {
            self.start(now)?;
            busy = true;
        }
        let mut frames = Burst::new();
        while self.port.rx_burst(now_us, &mut frames) > 0 {
            busy = true;
            for frame in frames.drain(..) {
                self.stack.input(now, frame);
                self.note_states(Cause::Segment)?;
            }
        }
        self.stack.poll(now);
        self.note_states(Cause::Timer)?;
        while let Some(event) = self.stack.event() {
            busy = true;
            self.on_event(event, now)?;
        }
        self.retry_us = None;
        for number in 0..self.ends.len() {
            busy |= self.work(number, now_us, watch)?;
        }
        self.note_states(Cause::User)?;
        loop {
            let more = self.full.is_refused() || self.stack.transmit(now, &mut self.out);
            if self.out.is_empty() {
                break;
            }
            let sent = self.port.tx_burst(now_us, &mut self.out);
            busy |= sent > 0;
            if sent == 0 {
                self.full.refused(now);
                break;
            }
            self.full.succeeded();
            if !more {
                break;
            }
        }
        self.note_states(Cause::Transmission)?;
        // An abort raises the event of the end at once.
        while let Some(event) = self.stack.event() {
            self.on_event(event, now)?;
        }
        self.check_limits()?;
        self.stack.check_invariants().map_err(|what| format!("host {}: {what}", self.side))?;
        Ok(busy)
    }

    /// Checks that every connection is in its previous state, or in a state to which `cause` leads.
    fn note_states(&mut self, cause: Cause) -> Result<(), String> {
        for (number, conn) in self.conns.iter().enumerate() {
            let Some(conn) = *conn else { continue };
            let state = self.stack.info(conn).map_or(State::Closed, |info| info.state);
            let before = self.states[number].replace(state).unwrap_or(state);
            if before != state && !cause.leads(before, state) {
                return Err(format!("connection {number} goes from {before:?} to {state:?} by {cause:?}"));
            }
        }
        Ok(())
    }

    fn number(&self, conn: ConnId) -> Result<usize, String> {
        self.by_conn.get(&conn).copied().ok_or_else(|| "an event of an unknown connection".into())
    }

    fn on_event(&mut self, event: Event, now: Instant) -> Result<(), String> {
        if let Event::Received { conn, .. }
        | Event::Writable { conn }
        | Event::PeerClosed { conn }
        | Event::Closed { conn, .. } = &event
            && self.unwanted.contains(conn)
        {
            return Ok(());
        }
        match event {
            Event::Established { conn, listener } => {
                if listener.is_some() {
                    let Some(info) = self.stack.info(conn) else {
                        // A RST arrived right after the handshake. The next event reports the end of the
                        // connection.
                        if !self.ends.iter().any(|end| end.aborts && !end.established) {
                            return Err("a connection is established but has ended".into());
                        }
                        self.unwanted.insert(conn);
                        return Ok(());
                    };
                    let port = info.remote.port();
                    let is_next =
                        |number: &usize| self.ends[*number].port == port && self.conns[*number].is_none();
                    let next = (0..self.ends.len()).find(is_next);
                    let Some(number) = next else {
                        // The acknowledgement of a cookie may arrive again after the connection is over.
                        let over = |end: &End| end.port == port && end.over.is_some();
                        if !self.ends.iter().any(over) || self.stack.counters().rx_syn_cookies == 0 {
                            return Err(format!("connection {port} is accepted twice"));
                        }
                        self.stack.abort(now, conn);
                        self.unwanted.insert(conn);
                        return Ok(());
                    };
                    self.adopt(now, number, conn);
                }
                let number = self.number(conn)?;
                let end = &mut self.ends[number];
                if std::mem::replace(&mut end.established, true) {
                    return Err(format!("connection {number} is established twice"));
                }
                end.step();
            }
            Event::Received { conn, received } => self.on_received(conn, received)?,
            Event::Evict { conn, bytes } => self.give_up(conn, bytes as u64)?,
            Event::Writable { conn } => {
                let number = self.number(conn)?;
                self.blocked[number] = false;
            }
            Event::Acknowledged { .. } => {
                return Err("an acknowledgement that nobody asked for is reported".into());
            }
            Event::PeerClosed { conn } => {
                let number = self.number(conn)?;
                self.ends[number].on_peer_closed()?;
            }
            Event::Closed { conn, reason } => {
                let number = self.number(conn)?;
                let over = if reason == CloseReason::Graceful { Ending::Graceful } else { Ending::Reset };
                self.ends[number].on_over(over, &reason.to_string())?;
                if matches!(
                    reason,
                    CloseReason::TimedOut | CloseReason::NoNeighbor | CloseReason::Unreachable
                ) {
                    return Err(format!("connection {number} ended: {reason}"));
                }
                self.by_conn.remove(&conn);
            }
            Event::AddressConflict { address, mac, .. } => return Err(format!("{mac} uses {address}, too")),
            Event::Datagram => return Err("a datagram arrived, and no UDP port is open".into()),
        }
        Ok(())
    }

    /// Drops at most `bytes` of the bytes that the user holds, since memory is low. The bytes furthest ahead
    /// of the next expected byte are dropped first. A user that places bytes at once drops nothing. Bytes
    /// that are in order now are kept, even if the event that reports them has not been handled yet.
    fn give_up(&mut self, conn: ConnId, bytes: u64) -> Result<(), String> {
        let number = self.number(conn)?;
        let end = &mut self.ends[number];
        if !end.plan.holds && end.plan.reader.is_none() {
            return Ok(());
        }
        let Some(frontier) = self.stack.info(conn).map(|info| info.frontier) else { return Ok(()) };
        let mut left = bytes;
        while left > 0
            && let Some((start, last)) = end.got.last().filter(|(start, _)| *start > frontier)
        {
            let from = last.saturating_sub(left).max(start);
            if !self.stack.evict(conn, std::slice::from_ref(&(from..last))) {
                return Err(format!(
                    "the stack asks for bytes {from}..{last}, which are not ahead of {frontier} or were placed"
                ));
            }
            end.got.remove(from, last);
            left -= last - from;
            self.held[number] -= last - from;
        }
        Ok(())
    }

    fn on_received(&mut self, conn: ConnId, received: Received) -> Result<(), String> {
        let number = self.number(conn)?;
        let Received { offset, buf, frontier } = received;
        let end = &mut self.ends[number];
        if !end.established {
            return Err("bytes on a connection that is not established".into());
        }
        let before = end.got.frontier();
        let mut at = offset;
        for piece in buf.segments() {
            end.receive(at, piece)?;
            at += piece.len() as u64;
        }
        if end.got.frontier() != frontier {
            let is = end.got.frontier();
            return Err(format!(
                "the stack reports the frontier {frontier}, but with bytes {offset}..{at} it is {is}"
            ));
        }
        let bytes = at - offset;
        let ahead = at > frontier;
        let slow = end.plan.reader.is_some();
        if ahead {
            end.early += bytes;
        }
        if ahead && !slow && !end.plan.holds {
            // The bytes are placed at once, as iWARP does.
            self.stack.release(conn, bytes as usize);
        } else if ahead {
            self.held[number] += bytes;
        } else if slow {
            self.stack.hold(conn, bytes as usize);
            self.held[number] += bytes;
        }
        if !slow && end.plan.holds && frontier > before {
            // Bytes that arrived beyond a hole and are in order now have counted as held since they
            // arrived.
            let passed = frontier - before - if ahead { 0 } else { bytes };
            self.stack.release(conn, passed as usize);
            self.held[number] -= passed;
        }
        Ok(())
    }

    /// Reads, writes, closes or aborts if it is time to do so. Returns whether anything was done.
    fn work(&mut self, number: usize, now_us: u64, watch: &mut Watch) -> Result<bool, String> {
        let now = Instant::from_micros(now_us as i64);
        let Some(conn) = self.conns[number] else {
            return if self.ends[number].opens { self.open(number, now) } else { Ok(false) };
        };
        let end = &mut self.ends[number];
        if end.over.is_some() || !end.established {
            return Ok(false);
        }
        let taken = end.reads(now_us);
        let mut busy = end.plan.reader.is_some() && taken > 0;
        if busy {
            self.stack.release(conn, taken as usize);
            self.held[number] -= taken;
        }
        if self.ends[number].wants_abort() {
            self.stack.abort(now, conn);
            return Ok(true);
        }
        busy |= self.write(number, conn, now_us, watch)?;
        if self.ends[number].wants_close() {
            self.ends[number].closing = true;
            self.stack.close(now, conn);
            busy = true;
        }
        Ok(busy)
    }

    fn write(&mut self, number: usize, conn: ConnId, now_us: u64, watch: &mut Watch) -> Result<bool, String> {
        let now = Instant::from_micros(now_us as i64);
        let mut busy = false;
        while self.ends[number].sent < self.ends[number].plan.bytes && !self.blocked[number] {
            let end = &mut self.ends[number];
            let result = match end.plan.chunks {
                Chunks::Stream => {
                    let emss = self.stack.info(conn).map_or(1, |info| info.emss as u64);
                    let bytes = end.next_bytes(1 << 15);
                    self.stack.send(now, conn, &bytes).inspect(|&taken| {
                        let (from, to) = (end.sent, end.sent + taken as u64);
                        let borders = (from..to).step_by(emss as usize).skip(1).chain([to]);
                        borders.for_each(|at| watch.pushed(self.side, end.port, at));
                    })
                }
                Chunks::Records(max) => self.stack.sender(now, conn).and_then(|mut sender| {
                    let mut segment = sender.segment(0)?;
                    // The size of a record depends only on the offset.
                    let sized = end.sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                    let max = segment.capacity().min(max) as u64;
                    let bytes = end.next_bytes(1 + sized % max);
                    let room = segment.append(bytes.len()).ok_or(SendError::NoMbuf)?;
                    room.copy_from_slice(&bytes);
                    segment.push();
                    watch.pushed(self.side, end.port, end.sent + bytes.len() as u64);
                    Ok(bytes.len())
                }),
            };
            match result {
                Ok(taken) => {
                    self.ends[number].sent += taken as u64;
                    busy = true;
                }
                Err(SendError::BufferFull) => self.blocked[number] = true,
                Err(SendError::NoMbuf) => {
                    self.retry_us = Some(now_us + NO_MBUF_US);
                    break;
                }
                Err(SendError::Closed) => {
                    return Err("a connection accepts no bytes although it is not over".into());
                }
            }
        }
        Ok(busy)
    }

    fn check_limits(&self) -> Result<(), String> {
        /// A limit may be exceeded by at most one segment, which LRO may have joined, until other bytes are
        /// released.
        const SEGMENT_MAX: u64 = 1 << 16;
        self.setup.check_usage(&self.stack.usage())?;
        for (number, conn) in self.conns.iter().enumerate() {
            let Some(info) = conn.and_then(|conn| self.stack.info(conn)) else { continue };
            let tcp = &self.setup.tcp;
            let most = u64::from(tcp.send_buffer_bytes).max(info.emss as u64);
            if info.unacknowledged > most {
                return Err(format!(
                    "connection {number} holds {} bytes to send, the limit is {most}",
                    info.unacknowledged
                ));
            }
            let ahead = info.out_of_order.held_bytes;
            if self.ends[number].plan.reader.is_none()
                && ahead > u64::from(tcp.out_of_order_bytes) + SEGMENT_MAX
            {
                return Err(format!(
                    "connection {number} holds {ahead} bytes out of order, the limit is {}",
                    tcp.out_of_order_bytes
                ));
            }
            if self.held[number] > u64::from(tcp.recv_window_bytes) {
                let held = self.held[number];
                return Err(format!(
                    "connection {number} has delivered {held} bytes that the user holds, but the window is {}",
                    tcp.recv_window_bytes
                ));
            }
        }
        Ok(())
    }

    pub(super) fn next_us(&mut self, now_us: u64) -> Option<u64> {
        if !self.started {
            return Some(now_us);
        }
        let now = Instant::from_micros(now_us as i64);
        let deadline = match self.full.next_try(now) {
            None => self.stack.next_deadline(now),
            Some(again) => self.stack.next_timer(now).map_or(Some(again), |at| Some(at.min(again))),
        };
        let deadline_us = deadline.map(|at| at.total_micros() as u64);
        let reads = self.ends.iter().filter_map(End::next_read_us).min();
        [deadline_us, reads, self.retry_us].into_iter().flatten().min()
    }

    pub(super) fn condition(&self) -> Condition {
        Condition::of(&self.stack.counters(), self.setup.tcp.time_wait)
    }

    pub(super) fn cover(&self, coverage: &mut Coverage, timestamps: bool) {
        cover_stack(coverage, &self.setup, &self.stack.counters(), timestamps);
    }

    pub(super) fn add_to(&self, transferred: &mut Transferred) {
        let counters = self.stack.counters();
        transferred.retransmits += repairs(&counters);
        transferred.timeouts += counters.rto_expired;
        transferred.raises += counters.path_mtu_probes_answered;
        transferred.cuts += self.condition().cuts;
    }

    pub(super) fn describe(&self) -> String {
        let infos: Vec<_> =
            self.conns.iter().map(|conn| conn.and_then(|conn| self.stack.info(conn))).collect();
        format!("host {}: {infos:?}\n{:?}\n", self.side, self.stack.counters())
    }
}
