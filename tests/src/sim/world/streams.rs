//! Plain streams: the number of bytes that each side sends, the segments, the speed of the reader, and the
//! end of the connection.

use crate::pattern::Pattern;
use crate::sim::coverage::{Coverage, Occurrence};
use crate::sim::setup::HostSetup;
use crate::sim::watch::{Condition, Ranges, Watch};

use super::lite::LiteHost;
use super::smoltcp_host::SmoltcpHost;
use super::{Progress, Transferred, World};

/// The form in which a sender passes its bytes to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// A stream, which TCP cuts into segments of the EMSS.
    Stream,
    /// Segments of random sizes, with at most this many bytes each.
    Records(usize),
}

/// A slow reader.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// Maximum number of bytes that the reader reads at a time.
    pub bytes: u64,
    /// Time in microseconds between two reads.
    pub every_us: u64,
}

/// The parameters of one side of a connection.
#[derive(Clone, Copy, Debug)]
pub struct EndPlan {
    /// Number of bytes that this side sends.
    pub bytes: u64,
    /// The form in which this side passes its bytes to TCP.
    pub chunks: Chunks,
    /// The reader of this side. `None` means that this side reads all bytes at once.
    pub reader: Option<Reader>,
    /// Whether the user holds bytes received beyond a hole until the hole is filled, instead of using them
    /// at once.
    pub holds: bool,
    /// Number of received bytes at which this side aborts.
    pub abort_at: Option<u64>,
    /// Whether this side closes only after the peer has closed.
    pub closes_last: bool,
}

/// The parameters of one connection.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    /// The side that connects.
    pub opener: usize,
    /// Whether both sides connect at the same time.
    pub simultaneous: bool,
    /// The earlier connection whose ports this connection reuses. This connection begins when the earlier
    /// connection is over for the side that opened it.
    pub after: Option<usize>,
    /// Whether the connection is accepted on the port that all connections with this flag share.
    pub shares_port: bool,
    /// The parameters of both sides.
    pub ends: [EndPlan; 2],
}

impl StreamPlan {
    /// Returns a connection that `opener` opens, on ports of its own.
    pub fn new(opener: usize, ends: [EndPlan; 2]) -> Self {
        Self { opener, simultaneous: false, after: None, shares_port: false, ends }
    }

    /// Whether one side is going to abort.
    pub fn aborts(&self) -> bool {
        self.ends.iter().any(|end| end.abort_at.is_some())
    }
}

/// How a connection has ended for one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Both FINs ended the connection.
    Graceful,
    /// Something else ended the connection, such as a RST of either side.
    Reset,
}

/// The state of one side of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) plan: EndPlan,
    pub(super) opens: bool,
    shares_port: bool,
    opener: usize,
    pub(super) after: Option<usize>,
    /// Whether one side is going to abort this connection.
    pub(super) aborts: bool,
    pub(super) port: u16,
    pattern: Pattern,
    peer: Pattern,
    expects: u64,
    /// Number of bytes passed to TCP.
    pub(super) sent: u64,
    pub(super) got: Ranges,
    /// Number of bytes that the reader has read.
    pub(super) read: u64,
    pub(super) read_again_us: u64,
    pub(super) established: bool,
    pub(super) closing: bool,
    pub(super) peer_closed: bool,
    pub(super) over: Option<Ending>,
    pub(super) early: u64,
    steps: u64,
}

impl End {
    fn new(plan: &StreamPlan, number: usize, side: usize, seed: u64) -> Self {
        let pattern = |side: usize| Pattern::new(seed ^ (2 * number + side) as u64);
        Self {
            plan: plan.ends[side],
            opens: plan.opener == side || plan.simultaneous,
            shares_port: plan.shares_port,
            opener: plan.opener,
            after: plan.after,
            aborts: plan.aborts(),
            port: super::CLIENT_PORT + plan.after.unwrap_or(number) as u16,
            pattern: pattern(side),
            peer: pattern(1 - side),
            expects: plan.ends[1 - side].bytes,
            sent: 0,
            got: Ranges::default(),
            read: 0,
            read_again_us: 0,
            established: false,
            closing: false,
            peer_closed: false,
            over: None,
            early: 0,
            steps: 0,
        }
    }

    /// Returns the port on which the connection is accepted.
    pub(super) fn server_port(&self) -> u16 {
        if self.shares_port { 3999 } else { 4000 + (self.port - super::CLIENT_PORT) }
    }

    /// Returns the port of host `side` and the port of its peer.
    pub(super) fn ports(&self, side: usize) -> (u16, u16) {
        if side == self.opener { (self.port, self.server_port()) } else { (self.server_port(), self.port) }
    }

    pub(super) fn step(&mut self) {
        self.steps += 1;
    }

    /// Returns the next bytes to send, at most `max`.
    pub(super) fn next_bytes(&self, max: u64) -> Vec<u8> {
        let mut bytes = vec![0; (self.plan.bytes - self.sent).min(max) as usize];
        self.pattern.fill(self.sent, &mut bytes);
        bytes
    }

    /// Checks bytes that have arrived: each byte has to be right, and may arrive only once.
    pub(super) fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let end = offset + bytes.len() as u64;
        if self.peer_closed {
            return Err(format!("bytes {offset}..{end} are after the peer's FIN"));
        }
        if end > self.expects {
            return Err(format!("bytes {offset}..{end} exceed the stream's length of {}", self.expects));
        }
        let again = self.got.add(offset, end);
        if again > 0 {
            return Err(format!("{again} bytes of {offset}..{end} delivered twice"));
        }
        if let Some(at) = self.peer.first_wrong(offset, bytes) {
            return Err(format!("byte {at} of the stream is wrong"));
        }
        self.step();
        Ok(())
    }

    /// Checks the stream when the peer's FIN is reported.
    pub(super) fn on_peer_closed(&mut self) -> Result<(), String> {
        if self.peer_closed {
            return Err("the peer's FIN was reported twice".into());
        }
        if self.got.frontier() != self.expects {
            let frontier = self.got.frontier();
            return Err(format!("the stream ends at {frontier}, but the peer sent {} bytes", self.expects));
        }
        self.peer_closed = true;
        self.step();
        Ok(())
    }

    /// Returns the number of bytes that the reader reads at `now_us`, and counts them as read.
    pub(super) fn reads(&mut self, now_us: u64) -> u64 {
        let waiting = self.got.frontier() - self.read;
        let Some(reader) = self.plan.reader else {
            self.read += waiting;
            return waiting;
        };
        if waiting == 0 || now_us < self.read_again_us {
            return 0;
        }
        let taken = waiting.min(reader.bytes);
        self.read += taken;
        self.read_again_us = now_us + reader.every_us;
        self.step();
        taken
    }

    /// Returns the time at which a slow reader reads again, or `None` if it has nothing to read or the
    /// connection is over. The result is also `None` for a reader that reads at once.
    pub(super) fn next_read_us(&self) -> Option<u64> {
        let slow = self.plan.reader.is_some() && self.over.is_none();
        (slow && self.got.frontier() > self.read).then_some(self.read_again_us)
    }

    pub(super) fn wants_abort(&self) -> bool {
        self.over.is_none() && self.plan.abort_at.is_some_and(|at| self.established && self.got.len() >= at)
    }

    pub(super) fn wants_close(&self) -> bool {
        let last = !self.plan.closes_last || self.peer_closed;
        self.established && !self.closing && self.sent == self.plan.bytes && last
    }

    /// Records that the connection is over for this side, and checks that it may end in this way.
    pub(super) fn on_over(&mut self, over: Ending, reason: &str) -> Result<(), String> {
        if self.over.is_some() {
            return Err(format!("over twice: {reason}"));
        }
        if over == Ending::Reset && !self.aborts {
            return Err(format!("the connection ended without a cause: {reason}"));
        }
        if over == Ending::Graceful && !(self.closing && self.peer_closed) {
            return Err("the connection ended gracefully without both FINs".into());
        }
        self.over = Some(over);
        self.step();
        Ok(())
    }
}

/// A host with plain streams.
pub(super) enum StreamHost {
    Lite(Box<LiteHost>),
    Smoltcp(Box<SmoltcpHost>),
}

/// Two hosts with plain streams.
pub struct StreamWorld {
    hosts: [StreamHost; 2],
    connections: usize,
    /// Whether both sides offer timestamps.
    timestamps: bool,
}

impl StreamWorld {
    /// Creates hosts with these setups, each on its port, for connections with these plans.
    ///
    /// # Errors
    /// If a host cannot be created.
    pub fn new(
        setups: &[HostSetup; 2],
        plans: &[StreamPlan],
        ports: [Box<dyn dp::Port>; 2],
        seed: u64,
    ) -> Result<Self, String> {
        let mut hosts = Vec::new();
        for (side, port) in ports.into_iter().enumerate() {
            let ends =
                plans.iter().enumerate().map(|(number, plan)| End::new(plan, number, side, seed)).collect();
            hosts.push(match setups[side].smoltcp {
                None => StreamHost::Lite(Box::new(LiteHost::new(side, &setups[side], port, ends)?)),
                Some(smoltcp) => {
                    StreamHost::Smoltcp(Box::new(SmoltcpHost::new(side, &setups[side], smoltcp, port, ends)?))
                }
            });
        }
        let hosts = hosts.try_into().map_err(|_| "two hosts")?;
        let timestamps = setups.iter().all(|setup| setup.tcp.timestamps && setup.smoltcp.is_none());
        Ok(Self { hosts, connections: plans.len(), timestamps })
    }

    fn ends(&self, side: usize) -> &[End] {
        match &self.hosts[side] {
            StreamHost::Lite(host) => &host.ends,
            StreamHost::Smoltcp(host) => &host.ends,
        }
    }
}

impl World for StreamWorld {
    fn poll(&mut self, side: usize, now_us: u64, watch: &mut Watch) -> Result<bool, String> {
        match &mut self.hosts[side] {
            StreamHost::Lite(host) => host.poll(now_us, watch),
            StreamHost::Smoltcp(host) => host.poll(now_us),
        }
    }

    fn next_us(&mut self, side: usize, now_us: u64) -> Option<u64> {
        match &mut self.hosts[side] {
            StreamHost::Lite(host) => host.next_us(now_us),
            StreamHost::Smoltcp(host) => host.next_us(now_us),
        }
    }

    fn condition(&self, side: usize) -> Condition {
        match &self.hosts[side] {
            StreamHost::Lite(host) => host.condition(),
            StreamHost::Smoltcp(_) => Condition::default(),
        }
    }

    fn poisoned(&mut self, _port: u16) {}

    fn connections(&self) -> usize {
        self.connections
    }

    fn port(&self, connection: usize) -> u16 {
        self.ends(0)[connection].port
    }

    fn before(&self, connection: usize) -> Option<usize> {
        self.ends(0)[connection].after
    }

    fn is_over(&self, side: usize, connection: usize) -> bool {
        self.ends(side)[connection].over.is_some()
    }

    fn cover(&self, coverage: &mut Coverage) {
        for host in &self.hosts {
            match host {
                StreamHost::Lite(host) => host.cover(coverage, self.timestamps),
                StreamHost::Smoltcp(host) => coverage.count(Occurrence::SmoltcpPeer, host.ends.len() as u64),
            }
        }
    }

    fn progress(&self, connection: usize) -> Progress {
        let ends = [0, 1].map(|side| &self.ends(side)[connection]);
        let before = ends[0].after.map_or(0, |before| self.progress(before).steps);
        Progress {
            steps: before + ends.iter().map(|end| end.steps).sum::<u64>(),
            // A RST may overtake the end of the handshake. In this case one side never knows of the
            // connection.
            done: ends.iter().all(|end| {
                end.over.is_some()
                    || end.aborts && !end.established && ends.iter().any(|end| end.over.is_some())
            }),
        }
    }

    fn finish(&mut self) -> Result<Transferred, String> {
        let mut transferred = Transferred::default();
        for side in [0, 1] {
            for end in self.ends(side) {
                transferred.bytes += end.got.len();
                transferred.early += end.early;
            }
            if let StreamHost::Lite(host) = &self.hosts[side] {
                host.add_to(&mut transferred);
            }
        }
        Ok(transferred)
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for side in [0, 1] {
            for end in self.ends(side) {
                text += &format!(
                    "host {side}, connection {}: sent {} of {}, got {} of {}, frontier {}, read {}, \
                     established {}, closing {}, peer closed {}, over {:?}\n",
                    end.port,
                    end.sent,
                    end.plan.bytes,
                    end.got.len(),
                    end.expects,
                    end.got.frontier(),
                    end.read,
                    end.established,
                    end.closing,
                    end.peer_closed,
                    end.over,
                );
            }
            if let StreamHost::Lite(host) = &self.hosts[side] {
                text += &host.describe();
            }
        }
        text
    }
}
