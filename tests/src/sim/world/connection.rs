//! One iWARP connection between two engines: the requests that its users post, the events that they get, and
//! the contents of memory.

use std::time::Duration;

use iwarp::rdmap::TerminateError;
use iwarp::verbs::{
    CmEventKind, CmId, ConnParam, ConnectionError, KeepalivePolicy, QpState, QueuePair, TerminateReport,
    VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

use crate::pattern::Pattern;
use crate::sim::coverage::{Coverage, Occurrence};

use super::operations::{Kind, Layout, Memory, Operation, faulty, request};
use super::rdma::Host;
use super::{CLIENT_PORT, Transferred};

pub use super::operations::Fault;

/// A time limit that no run reaches, so that only TCP's own timers end a connection.
pub(super) const FOREVER: Duration = Duration::from_secs(3600);

/// Time in microseconds for which users wait for more bytes on a connection with a corrupted payload. The
/// corruption may have changed the length of an FPDU.
const WAIT_FOR_BYTES_US: u64 = 3_000_000;

/// Time for which an engine waits for bytes that the peer no longer sends, if one side closes before all
/// requests are complete.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
const CLOSE_TIMEOUT_US: u64 = CLOSE_TIMEOUT.as_micros() as u64;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// One side disconnects when all requests are complete.
    By(usize),
    /// Both sides disconnect when all requests are complete.
    Both,
    /// One side disconnects after this many completions, or when all requests are complete, whichever is
    /// earlier.
    Early(usize, u64),
    /// One side aborts after this many completions, or when all requests are complete, whichever is earlier.
    Abort(usize, u64),
    /// After this many completions, or when all requests are complete, one side posts a request that its peer
    /// has to refuse.
    Fault(usize, u64, Fault),
}

/// For each state of a queue pair, the states that it may reach in one or more polls (`QpState` documents the
/// transitions).
const TRANSITIONS: [(QpState, &[QpState]); 5] = {
    use QpState::{Closing, Error, Idle, Rts, Terminate};
    [
        (Idle, &[Rts, Closing, Terminate, Error]),
        (Rts, &[Closing, Terminate, Error]),
        (Closing, &[Terminate, Error]),
        (Terminate, &[Error]),
        (Error, &[]),
    ]
};

/// The parameters of one connection.
#[derive(Clone, Debug)]
pub struct RdmaPlan {
    /// The side that connects.
    pub opener: usize,
    /// The engine at the host that connects; `None`: the engine with the fewest connections. At the other
    /// host, the SYN determines the engine: the engine at whose queue it arrives.
    pub engine: Option<usize>,
    /// Whether each side asks for markers.
    pub markers: [bool; 2],
    /// Whether CRCs are used. All plans of a run have the same value, since it is a setting of the engines.
    pub crc: bool,
    /// Maximum number of outstanding Reads and atomics of each side.
    pub depth: u16,
    /// Maximum number of outstanding requests of each side.
    pub outstanding: usize,
    /// The operations of each side.
    pub operations: [Vec<Operation>; 2],
    /// How the connection ends.
    pub close: Close,
    /// Whether payload may be corrupted with a correct checksum. The CRC may then end the connection.
    pub poison: bool,
    /// With a value, both sides agree on InfiniBand's semantics, and each side posts one receive at a time,
    /// this many microseconds after the previous receive was used. Messages therefore have to wait for
    /// receives. `None`: all receives are posted in advance.
    pub late_receives_us: Option<u64>,
}

impl RdmaPlan {
    pub(super) fn ends_early(&self) -> bool {
        matches!(self.close, Close::Early(..) | Close::Fault(..))
    }

    /// Returns the longest pause in microseconds of the users and engines of this connection.
    pub fn pause_us(&self) -> u64 {
        let thinks = self.operations.iter().flatten().map(|operation| operation.think_us).max().unwrap_or(0);
        let longest = thinks.max(self.late_receives_us.unwrap_or(0));
        if self.ends_early() { longest.max(CLOSE_TIMEOUT_US) } else { longest }
    }
}

pub(super) struct End {
    pub(super) qp: Option<QueuePair>,
    pub(super) id: Option<CmId>,
    memory: Memory,
    posted: usize,
    completed: usize,
    /// Number of messages received from the peer.
    received: usize,
    /// Number of the peer's operations up to the last one whose receive was posted late, and the number of
    /// these receives.
    awaited: (usize, usize),
    /// The time at which the next late receive is posted.
    receive_at_us: Option<u64>,
    /// Number of the first of the peer's operations whose effect here has not been checked.
    checked: usize,
    /// The expected value of the peer's counter.
    added: u64,
    post_again_us: u64,
    pub(super) established: bool,
    closing: bool,
    pub(super) over: bool,
    state: QpState,
}

pub(super) struct Connection {
    plan: RdmaPlan,
    layout: Layout,
    pub(super) ends: [End; 2],
    seed: u64,
    /// Whether the connection may end in any way, for example since a side has aborted or closed early, or
    /// since a payload was corrupted.
    pub(super) may_fail: bool,
    /// Whether a payload was corrupted with a correct checksum. If a side then waits for more bytes than will
    /// arrive, its user has to end the connection.
    poisoned: bool,
    /// The number of the request that the peer has to refuse.
    fault: Option<u64>,
    /// The last time at which a user got an event or a completion.
    last_event_us: u64,
    /// Whether a side has reported a Terminate for a wrong CRC. `access_error`: for a refused access.
    crc_error: bool,
    access_error: bool,
    pub(super) steps: u64,
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Connection {
    pub(super) fn new(
        plan: &RdmaPlan,
        hosts: &mut [Host; 2],
        number: usize,
        seed: u64,
    ) -> Result<Self, String> {
        let layout = Layout::new(&plan.operations);
        let mut ends = Vec::new();
        for (side, host) in hosts.iter_mut().enumerate() {
            ends.push(End {
                qp: Some(host.queue_pair(number)?),
                id: None,
                memory: Memory::new(&host.pd, layout.bytes[side]).map_err(text)?,
                posted: 0,
                completed: 0,
                received: 0,
                awaited: (0, 0),
                receive_at_us: None,
                checked: 0,
                added: 0,
                post_again_us: 0,
                established: false,
                closing: false,
                over: false,
                state: QpState::Idle,
            });
        }
        let ends = ends.try_into().map_err(|_| "two ends")?;
        let seed = seed.wrapping_add((number as u64) << 32);
        let connection = Self {
            plan: plan.clone(),
            layout,
            ends,
            seed,
            may_fail: false,
            poisoned: false,
            fault: None,
            last_event_us: 0,
            crc_error: false,
            access_error: false,
            steps: 0,
        };
        connection.prepare()?;
        Ok(connection)
    }

    fn pattern(&self, side: usize, operation: usize) -> Pattern {
        Pattern::new(self.seed ^ (2 * operation + side) as u64)
    }

    /// Fills the memory that will be sent and read, and posts the receives, unless the plan posts them late.
    fn prepare(&self) -> Result<(), String> {
        for side in [0, 1] {
            for (number, operation) in self.plan.operations[side].iter().enumerate() {
                let places = self.layout.places[side][number];
                let pattern = self.pattern(side, number);
                match operation.kind {
                    Kind::Send | Kind::Write | Kind::WriteImmediate => {
                        self.ends[side].memory.fill(places.own, operation.bytes, pattern)?;
                    }
                    Kind::Read => {
                        self.ends[1 - side].memory.fill(places.peer, operation.bytes, pattern)?;
                    }
                    Kind::FetchAdd(_) => {}
                }
                if operation.is_message() && self.plan.late_receives_us.is_none() {
                    self.post_receive(1 - side, number)?;
                }
            }
        }
        Ok(())
    }

    /// Posts the receive for a message of the peer.
    fn post_receive(&self, side: usize, number: usize) -> Result<(), String> {
        let operation = self.plan.operations[1 - side][number];
        let bytes = if operation.kind == Kind::Send { operation.bytes } else { 8 };
        let (end, places) = (&self.ends[side], self.layout.places[1 - side][number]);
        let receive = end.memory.receive(number as u64, places.receive, bytes);
        end.qp.as_ref().ok_or("the queue pair is missing")?.post_recv(&receive).map_err(text)
    }

    /// Posts the receive for the peer's next message, if it is time. Returns whether a receive was posted.
    fn post_late(&mut self, side: usize, now_us: u64, late_us: u64) -> Result<bool, String> {
        let End { awaited: (from, posted), received, receive_at_us, .. } = &mut self.ends[side];
        let next = self.plan.operations[1 - side][*from..].iter().position(Operation::is_message);
        let Some(skipped) = next.filter(|_| *received == *posted) else { return Ok(false) };
        if now_us < *receive_at_us.get_or_insert(now_us + late_us) {
            return Ok(false);
        }
        let number = *from + skipped;
        (*from, *posted, *receive_at_us) = (number + 1, *posted + 1, None);
        self.post_receive(side, number)?;
        Ok(true)
    }

    pub(super) fn param(&self, side: usize, number: usize) -> ConnParam {
        let ends_by_force = matches!(self.plan.close, Close::Abort(..) | Close::Early(..) | Close::Fault(..));
        let probing = self.plan.poison || ends_by_force;
        let (idle, interval) = (Duration::from_secs(2), Duration::from_secs(1));
        ConnParam {
            responder_resources: self.plan.depth,
            initiator_depth: self.plan.depth,
            markers: self.plan.markers[side],
            ib_semantics: self.plan.late_receives_us.is_some(),
            timeout: FOREVER,
            keepalive: if probing {
                KeepalivePolicy::Probe { idle, interval, probes: 200 }
            } else {
                KeepalivePolicy::Off
            },
            engine: self.plan.engine.filter(|_| side == self.plan.opener),
            local_port: (side == self.plan.opener).then_some(CLIENT_PORT + number as u16),
            ..ConnParam::default()
        }
    }

    /// Checks a message received from the peer, and the Writes before it. Returns the number of checked
    /// bytes.
    fn received(&mut self, side: usize, wc: &WorkCompletion) -> Result<u64, String> {
        let message = wc.wr_id as usize;
        let mut bytes = 0;
        while self.ends[side].checked <= message {
            let number = self.ends[side].checked;
            let operation = self.plan.operations[1 - side][number];
            let (places, pattern) = (self.layout.places[1 - side][number], self.pattern(1 - side, number));
            if operation.is_message() && number < message {
                return Err(format!("message {message} arrived, but message {number} was expected"));
            }
            let memory = &mut self.ends[side].memory;
            match operation.kind {
                Kind::Send => {
                    if wc.opcode != WcOpcode::Recv || wc.byte_len as usize != operation.bytes {
                        return Err(format!("message {number} of {} bytes: {wc:?}", operation.bytes));
                    }
                    memory.check(places.receive, operation.bytes, pattern)?;
                }
                Kind::Write => memory.check(places.peer, operation.bytes, pattern)?,
                Kind::WriteImmediate => {
                    if wc.immediate != Some((number as u64).to_be_bytes()) {
                        return Err(format!("message {number} has wrong immediate data: {wc:?}"));
                    }
                    memory.check(places.peer, operation.bytes, pattern)?;
                    memory.spend(places.receive, 8)?;
                }
                Kind::Read | Kind::FetchAdd(_) => {}
            }
            bytes += operation.bytes as u64;
            self.ends[side].checked += 1;
        }
        self.ends[side].received += 1;
        Ok(bytes)
    }

    /// Checks a completed operation of this side. Returns the number of checked bytes.
    fn completed(&mut self, side: usize, wc: &WorkCompletion) -> Result<u64, String> {
        let number = wc.wr_id as usize;
        if self.fault == Some(wc.wr_id) && matches!(self.plan.close, Close::Fault(who, ..) if who == side) {
            // A Write completes successfully when TCP has accepted its bytes, before the peer can refuse it.
            let write = wc.opcode == WcOpcode::Write;
            return if write {
                Ok(0)
            } else {
                Err(format!("a request succeeded that the peer has to refuse: {wc:?}"))
            };
        }
        let operation = self.plan.operations[side][number];
        let (places, pattern) = (self.layout.places[side][number], self.pattern(side, number));
        let end = &mut self.ends[side];
        match operation.kind {
            Kind::Read => {
                end.memory.check(places.own, operation.bytes, pattern)?;
                return Ok(operation.bytes as u64);
            }
            Kind::FetchAdd(add) => {
                let found = end.memory.counter(places.own)?;
                if found != end.added {
                    return Err(format!("atomic {number} found {found}, {} was there", end.added));
                }
                end.added = end.added.wrapping_add(add);
                end.memory.spend(places.own, 8)?;
            }
            Kind::Send | Kind::Write | Kind::WriteImmediate => {}
        }
        Ok(0)
    }

    pub(super) fn completion(
        &mut self,
        side: usize,
        wc: &WorkCompletion,
        transferred: &mut Transferred,
    ) -> Result<(), String> {
        self.steps += 1;
        let receives = matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvImmediate);
        if !receives {
            let end = &mut self.ends[side];
            if wc.wr_id != end.completed as u64 {
                return Err(format!("operation {} completes, {} is next", wc.wr_id, end.completed));
            }
            end.completed += 1;
        }
        if wc.status != WcStatus::Success {
            return if self.may_fail {
                Ok(())
            } else {
                Err(format!("a request failed without a cause: {wc:?}"))
            };
        }
        let bytes = if receives { self.received(side, wc)? } else { self.completed(side, wc)? };
        transferred.bytes += bytes;
        transferred.operations += 1;
        Ok(())
    }

    pub(super) fn is_through(&self, side: usize) -> bool {
        let messages =
            self.plan.operations[1 - side].iter().filter(|operation| operation.is_message()).count();
        let end = &self.ends[side];
        end.completed == self.plan.operations[side].len() && end.received == messages
    }

    /// Posts requests that are due, and ends the connection when it is time. Returns whether anything was
    /// done.
    pub(super) fn work(&mut self, side: usize, now_us: u64) -> Result<bool, String> {
        if !self.ends[side].established || self.ends[side].over || self.ends[side].closing {
            return Ok(false);
        }
        let mut busy = false;
        if let Some(late_us) = self.plan.late_receives_us {
            busy |= self.post_late(side, now_us, late_us)?;
        }
        while self.ends[side].posted < self.plan.operations[side].len()
            && self.ends[side].posted < self.ends[side].completed + self.plan.outstanding
            && self.ends[side].post_again_us <= now_us
        {
            let number = self.ends[side].posted;
            let operation = self.plan.operations[side][number];
            let places = self.layout.places[side][number];
            let counter = self.layout.counter[1 - side];
            let (own, peer) = (&self.ends[side].memory, &self.ends[1 - side].memory);
            let posted = request(number as u64, &operation, places, own, peer, counter);
            let qp = self.ends[side].qp.as_ref().ok_or("the queue pair is missing")?;
            if let Err(error) = qp.post_send(&posted) {
                // The peer closed early, and its FIN has also ended sending on this side.
                if self.may_fail && matches!(error, VerbsError::InvalidState(QpState::Closing)) {
                    self.ends[side].closing = true;
                    return Ok(busy);
                }
                return Err(format!("operation {number} is refused: {error}"));
            }
            self.ends[side].posted += 1;
            self.ends[side].post_again_us = now_us + operation.think_us;
            busy = true;
        }
        let done = (self.ends[side].completed + self.ends[side].received) as u64;
        let Some(id) = self.ends[side].id.clone() else { return Ok(busy) };
        if self.poisoned && now_us >= self.last_event_us + WAIT_FOR_BYTES_US {
            self.ends[side].closing = true;
            id.abort();
            return Ok(true);
        }
        let both = self.is_through(0) && self.is_through(1);
        match self.plan.close {
            Close::By(who) if both && who == side => id.disconnect(),
            Close::Both if both => id.disconnect(),
            Close::Early(who, after) if who == side && (done >= after || both) => {
                self.may_fail |= !both;
                id.disconnect();
            }
            Close::Abort(who, after) if who == side && (done >= after || both) => {
                self.may_fail = true;
                id.abort();
            }
            Close::Fault(who, after, fault) if who == side && (done >= after || both) => {
                self.may_fail = true;
                let end = &self.ends[side];
                let posted = faulty(end.posted as u64, fault, &end.memory, &self.ends[1 - side].memory);
                let qp = end.qp.as_ref().ok_or("the queue pair is missing")?;
                self.fault = Some(end.posted as u64);
                qp.post_send(&posted)
                    .map_err(|error| format!("the faulty request was refused at the post: {error}"))?;
                self.ends[side].posted += 1;
            }
            _ => return Ok(busy),
        }
        self.ends[side].closing = true;
        Ok(true)
    }

    /// Whether this side, of a connection with late receives, closes next because all requests are complete.
    /// The last step may happen at the peer, without a frame to this side: the peer receives a message that
    /// has waited for a receive.
    pub(super) fn may_close(&self, side: usize) -> bool {
        let end = &self.ends[side];
        let closes = match self.plan.close {
            Close::By(who) | Close::Early(who, _) | Close::Abort(who, _) | Close::Fault(who, ..) => {
                who == side
            }
            Close::Both => true,
        };
        let closes = closes && self.plan.late_receives_us.is_some();
        closes && end.established && !end.closing && !end.over && self.is_through(0) && self.is_through(1)
    }

    pub(super) fn next_us(&self, side: usize) -> Option<u64> {
        let end = &self.ends[side];
        let waits = end.established
            && !end.closing
            && !end.over
            && end.posted < self.plan.operations[side].len()
            && end.posted < end.completed + self.plan.outstanding;
        let patient = self.poisoned && end.established && !end.closing && !end.over;
        let receives = end.receive_at_us.filter(|_| end.established && !end.closing && !end.over);
        let posts = waits.then_some(end.post_again_us).into_iter().chain(receives);
        posts.chain(patient.then_some(self.last_event_us + WAIT_FOR_BYTES_US)).min()
    }

    /// Checks that a queue pair's state may follow its previous state, and agrees with the events that its
    /// user got.
    pub(super) fn check_state(&mut self, side: usize) -> Result<(), String> {
        let end = &mut self.ends[side];
        let Some(qp) = &end.qp else { return Ok(()) };
        let (from, to) = (end.state, qp.state());
        let legal = TRANSITIONS.iter().any(|(state, next)| *state == from && next.contains(&to));
        if from != to && !legal {
            return Err(format!("illegal transition of the queue pair from {from:?} to {to:?}"));
        }
        if end.over && to != QpState::Error {
            return Err(format!("the connection is over, but its queue pair is in {to:?}"));
        }
        if end.established && to == QpState::Idle {
            return Err("the connection is established, but its queue pair is idle".into());
        }
        end.state = to;
        Ok(())
    }

    /// Checks memory that may contain payload that was placed but never delivered.
    fn check_undelivered(&self) -> Result<(), String> {
        for side in [0, 1] {
            for (number, operation) in self.plan.operations[side].iter().enumerate() {
                let (places, pattern) = (self.layout.places[side][number], self.pattern(side, number));
                let (target, at) = match operation.kind {
                    Kind::Send => (1 - side, places.receive),
                    Kind::Write | Kind::WriteImmediate => (1 - side, places.peer),
                    Kind::Read => (side, places.own),
                    Kind::FetchAdd(_) => continue,
                };
                self.ends[target].memory.check_undelivered(at, operation.bytes, pattern)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(&self) -> Result<(), String> {
        self.check_undelivered()?;
        for side in [0, 1] {
            self.ends[side].memory.check_spent()?;
            self.ends[side].memory.check_guards(&self.layout.used[side])?;
            if !self.may_fail {
                let counter = self.ends[side].memory.counter(self.layout.counter[side])?;
                if counter != self.ends[1 - side].added {
                    return Err(format!(
                        "a counter is {counter}, but {} was added",
                        self.ends[1 - side].added
                    ));
                }
            }
        }
        Ok(())
    }

    /// Handles an event of this connection's identifier on host `side`, other than a connect request. The
    /// last fault was `since_fault_us` ago.
    pub(super) fn on_event(
        &mut self,
        side: usize,
        kind: CmEventKind,
        since_fault_us: u64,
    ) -> Result<(), String> {
        self.steps += 1;
        let through = self.is_through(0) && self.is_through(1);
        let end = &mut self.ends[side];
        if end.over {
            return Err(format!("an event after the end: {kind:?}"));
        }
        match kind {
            CmEventKind::Established { .. } if !end.established => end.established = true,
            CmEventKind::Disconnected { error, terminate } => {
                end.over = true;
                // The requests of the queue pair have been flushed, and their completions are in the
                // completion queue.
                end.id = None;
                self.learn_end(terminate.as_deref());
                // A fault may delay bytes for longer than the time for which the engine waits.
                self.may_fail |=
                    error == Some(ConnectionError::CloseTimeout) && since_fault_us < CLOSE_TIMEOUT_US;
                if (error.is_some() || !through) && !self.may_fail {
                    return Err(format!("the connection ended without a cause: {error:?}"));
                }
            }
            CmEventKind::ConnectError { .. } if self.may_fail => end.over = true,
            other => return Err(format!("an unexpected event: {other:?}")),
        }
        Ok(())
    }

    fn learn_end(&mut self, report: Option<&TerminateReport>) {
        let Some(TerminateReport { terminate, .. }) = report else { return };
        let codes = (terminate.layer, terminate.etype, terminate.code);
        self.crc_error |= codes == TerminateError::MpaCrc.codes();
        // These codes are the protection errors of DDP and RDMAP.
        self.access_error |= matches!(codes, (0 | 1, 1, _));
    }

    pub(super) fn cover(&self, coverage: &mut Coverage) {
        let plan = &self.plan;
        coverage.count_if(Occurrence::Markers, plan.markers != [false; 2]);
        coverage.count_if(Occurrence::WithoutCrc, !plan.crc);
        coverage.count_if(Occurrence::CrcError, self.crc_error);
        coverage.count_if(Occurrence::AccessError, self.access_error);
        coverage.count_if(Occurrence::Aborted, self.may_fail && matches!(plan.close, Close::Abort(..)));
        coverage.count_if(Occurrence::ClosedEarly, self.may_fail && matches!(plan.close, Close::Early(..)));
    }

    pub(super) fn describe(&self, side: usize) -> String {
        let end = &self.ends[side];
        format!(
            "posted {} completed {} of {}, received {}, checked {}, established {}, closing {}, over {}, may_fail {}, \
             {:?}\n",
            end.posted,
            end.completed,
            self.plan.operations[side].len(),
            end.received,
            end.checked,
            end.established,
            end.closing,
            end.over,
            self.may_fail,
            end.qp.as_ref().map(QueuePair::query),
        )
    }

    /// Records that a payload of this connection was corrupted with a correct checksum.
    pub(super) fn poison(&mut self) {
        self.may_fail = true;
        self.poisoned = true;
    }

    /// Records the time if `steps` has changed since it was `before`: a host has made progress.
    pub(super) fn note_steps(&mut self, before: u64, now_us: u64) {
        if self.steps != before {
            self.last_event_us = now_us;
        }
    }
}
