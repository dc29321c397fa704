//! The lookup of datagram services (SIDR): asks the connection managers of other hosts for the queue pair of
//! a service, and answers their questions for the services of this process.
//!
//! As in the kernel, a question is repeated until its answer arrives, and a repeated question that the
//! program has not decided yet is ignored. Unlike in the kernel, a repeated question that the program has
//! decided gets the same answer again, so a lost answer does not lead to a second request.
//!
//! The identifiers that take part have handlers, which run with the table locked. An identifier leaves the
//! table before it is destroyed, so it is not destroyed while its handler runs.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use iwarp::roce::{CmAddresses, MAD_BYTES, SidrMessage, SidrReply, SidrRequest};
use iwarp::verbs::{Context, ProtectionDomain};

use super::gsi::Gsi;
use crate::ffi::abi::Outcome;
use crate::net::Claim;

/// The number of our limit on the engine's sleep.
const SLEEP_LIMIT: usize = 2;
/// The time between two checks of the questions.
const INTERVAL: Duration = Duration::from_millis(50);

/// The pause after a question before it is sent again. The pause doubles with each repetition up to
/// [`LONGEST_PAUSE`], the pause of Linux. The first pause is short, since programs of this library answer
/// fast, and a datagram may be lost.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// How often a question is repeated, as in Linux. After the last pause, about 52 seconds after the first
/// question, the service counts as unreachable.
const REPETITIONS: u32 = 15;

/// Minimum number of requests of a listener that the program has not decided, even if the program asks for a
/// smaller backlog; and the maximum number.
const BACKLOG: usize = 1024;
const MAX_BACKLOG: usize = 16_384;

/// Maximum number of answers that are kept for repeated questions, and the time for which they are kept.
const MAX_ANSWERS: usize = 1024;
const ANSWERS_KEPT: Duration = Duration::from_secs(64);

/// What a handler is told.
pub(crate) enum SidrEvent<'a> {
    /// To a listener: another host asks for the service. The handler returns the new identifier, or `None`
    /// if none can be made.
    Request { origin: Origin, addresses: CmAddresses, private_data: &'a [u8] },
    /// To an identifier that has asked: the answer, and the address on the wire of the host that has sent it.
    Reply(&'a SidrReply, IpAddr),
    /// To an identifier that has asked: no host has answered.
    TimedOut,
}

/// A function that handles an event of the identifier at an address. The table is locked during the call.
pub(crate) type SidrHandler = fn(usize, SidrEvent<'_>) -> Option<usize>;

/// A question of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    from: IpAddr,
    transaction: u64,
    request_id: u32,
    service: u64,
}

impl Origin {
    fn of(from: IpAddr, request: &SidrRequest) -> Self {
        let SidrRequest { transaction, request_id, service, .. } = *request;
        Self { from, transaction, request_id, service }
    }

    /// Returns the answer with this status.
    pub(crate) fn answer(&self, status: u8) -> SidrReply {
        let Self { transaction, request_id, service, .. } = *self;
        SidrRequest { transaction, request_id, service, ..SidrRequest::of_port(0) }.refusal(status)
    }
}

/// The datagram services of this process, and its questions.
pub(crate) struct Sidr {
    gsi: OnceLock<Gsi>,
    opening: Mutex<()>,
    table: Mutex<Table>,
    /// The time in nanoseconds since `begun` of the next sweep, or [`NEVER`].
    next_sweep: AtomicU64,
    limits_sleep: AtomicBool,
    begun: Instant,
    /// The messages that were sent.
    #[cfg(test)]
    sent: Mutex<Vec<(IpAddr, [u8; MAD_BYTES])>>,
}

/// The value of `Sidr::next_sweep` if no question waits for its answer.
const NEVER: u64 = u64::MAX;

struct Table {
    /// The listeners by their ports.
    listeners: HashMap<u16, Vec<Listener>>,
    /// The questions of this process that wait for their answer, by their request IDs.
    asked: HashMap<u32, Asked>,
    /// The questions of other hosts that the program has not decided. The value is the serial number of the
    /// listener.
    undecided: HashMap<Origin, u64>,
    next_serial: u64,
    /// The last answers, the oldest first.
    answers: VecDeque<Answer>,
    next_request_id: u32,
    next_transaction: u64,
}

struct Listener {
    /// No other listener of this process has the same number. The address of an identifier may be that of an
    /// earlier one.
    serial: u64,
    /// The address of the `rdma_cm_id` that the program has.
    id: usize,
    claim: Claim,
    handler: SidrHandler,
    /// Number of requests that the program has not decided, and its maximum.
    undecided: usize,
    backlog: usize,
}

/// A question of this process.
struct Asked {
    id: usize,
    handler: SidrHandler,
    to: IpAddr,
    mad: Box<[u8; MAD_BYTES]>,
    repetitions: Repetitions,
}

struct Answer {
    origin: Origin,
    mad: Box<[u8; MAD_BYTES]>,
    kept_until: Instant,
}

/// When a question is sent again.
#[derive(Clone, Copy, Debug)]
struct Repetitions {
    left: u32,
    pause: Duration,
    next: Instant,
}

impl Repetitions {
    fn after(first: Instant) -> Self {
        Self { left: REPETITIONS, pause: FIRST_PAUSE, next: first + FIRST_PAUSE }
    }

    /// Begins the next pause, or returns false if the question was repeated often enough.
    fn again(&mut self, now: Instant) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        let pause = LONGEST_PAUSE.min(2 * self.pause);
        *self = Self { left, pause, next: now + pause };
        true
    }
}

impl Default for Sidr {
    fn default() -> Self {
        // A hasher is keyed by the system's entropy.
        let random = || RandomState::new().build_hasher().finish();
        let table = Table {
            listeners: HashMap::new(),
            asked: HashMap::new(),
            undecided: HashMap::new(),
            next_serial: 0,
            answers: VecDeque::new(),
            next_request_id: random() as u32,
            next_transaction: random(),
        };
        Self {
            gsi: OnceLock::new(),
            opening: Mutex::default(),
            table: Mutex::new(table),
            next_sweep: AtomicU64::new(NEVER),
            limits_sleep: AtomicBool::new(false),
            begun: Instant::now(),
            #[cfg(test)]
            sent: Mutex::default(),
        }
    }
}

impl Sidr {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder of this lock panics")
    }

    /// Opens queue pair 1, unless it is open. Until then, this process neither asks nor answers.
    pub(crate) fn open(&self, context: &Context, pd: &ProtectionDomain) -> Outcome<()> {
        let _alone = self.opening.lock().expect("no holder of this lock panics");
        if self.gsi.get().is_none() {
            // Only one thread at a time runs this code, so the value is not set yet.
            let _ = self.gsi.set(Gsi::open(context, pd)?);
        }
        Ok(())
    }

    fn send(&self, to: IpAddr, mad: &[u8; MAD_BYTES]) {
        #[cfg(test)]
        self.sent.lock().expect("no holder of this lock panics").push((to, *mad));
        if let Some(gsi) = self.gsi.get() {
            gsi.send(to, mad);
        }
    }

    // ---- listening ----

    /// From now on, requests for the service at `port` that have the addresses of `claim` go to `id`.
    pub(crate) fn listen(&self, id: usize, port: u16, claim: Claim, backlog: usize, handler: SidrHandler) {
        let backlog = backlog.clamp(BACKLOG, MAX_BACKLOG);
        let mut table = self.table();
        let serial = table.next_serial;
        table.next_serial += 1;
        let listener = Listener { serial, id, claim, handler, undecided: 0, backlog };
        table.listeners.entry(port).or_default().push(listener);
    }

    /// Answers a request, and keeps the answer. Returns false if the request was answered before. The next
    /// poll of the engine sends the answer.
    pub(crate) fn answer(&self, origin: &Origin, reply: &SidrReply) -> bool {
        let mut table = self.table();
        let Some(serial) = table.undecided.remove(origin) else { return false };
        if let Some(listener) = table.listener(origin.service as u16, serial) {
            listener.undecided -= 1;
        }
        let mad = Box::new(reply.to_bytes());
        self.send(origin.from, &mad);
        let kept_until = Instant::now() + ANSWERS_KEPT;
        if table.answers.len() == MAX_ANSWERS {
            table.answers.pop_front();
        }
        table.answers.push_back(Answer { origin: *origin, mad, kept_until });
        true
    }

    // ---- asking ----

    /// Asks the connection manager at `to` for a service, and repeats the question until the answer arrives.
    /// The next poll of the engine sends the question.
    pub(crate) fn ask(&self, id: usize, to: IpAddr, request: SidrRequest, handler: SidrHandler) {
        let mut table = self.table();
        let request = table.number(request);
        let mad = Box::new(request.to_bytes());
        self.send(to, &mad);
        let repetitions = Repetitions::after(Instant::now());
        table.asked.insert(request.request_id, Asked { id, handler, to, mad, repetitions });
        self.note_next_sweep(&table);
    }

    /// From now on, nothing reaches the identifier: it neither listens nor waits for an answer.
    pub(crate) fn forget(&self, id: usize) {
        let mut table = self.table();
        table.asked.retain(|_, asked| asked.id != id);
        table.listeners.retain(|_, listeners| {
            listeners.retain(|listener| listener.id != id);
            !listeners.is_empty()
        });
        self.note_next_sweep(&table);
    }

    // ---- after a poll ----

    /// Whether [`after_poll`](Self::after_poll) has work, or may have work soon.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.gsi.get().is_some_and(|gsi| gsi.has_completions() || self.waits())
    }

    /// Whether questions wait for their answers, or the engine's sleep is still limited.
    fn waits(&self) -> bool {
        self.next_sweep.load(Ordering::Acquire) != NEVER || self.limits_sleep.load(Ordering::Acquire)
    }

    /// Handles the messages that have arrived, and repeats questions. This function is called after a poll.
    pub(crate) fn after_poll(&self, engine: &SharedEngine) {
        if let Some(gsi) = self.gsi.get().filter(|gsi| gsi.has_completions()) {
            gsi.poll(|from, message| match message {
                SidrMessage::Request(request) => self.on_request(from, request),
                SidrMessage::Reply(reply) => self.on_reply(from, reply),
            });
        }
        let now = Instant::now();
        if self.next_sweep.load(Ordering::Acquire) <= (now - self.begun).as_nanos() as u64 {
            self.sweep(now);
        }
        let waits = self.next_sweep.load(Ordering::Acquire) != NEVER;
        if self.limits_sleep.swap(waits, Ordering::AcqRel) != waits {
            engine.limit_sleep(SLEEP_LIMIT, waits.then_some(INTERVAL));
        }
    }

    fn on_request(&self, from: IpAddr, request: &SidrRequest) {
        let origin = Origin::of(from, request);
        let mut table = self.table();
        table.drop_old_answers(Instant::now());
        if let Some(answer) = table.answers.iter().find(|answer| answer.origin == origin) {
            return self.send(from, &answer.mad);
        }
        if table.undecided.contains_key(&origin) {
            return;
        }
        let refuse = |status| self.send(from, &request.refusal(status).to_bytes());
        let listeners = request.port().and_then(|port| table.listeners.get_mut(&port));
        let Some(listeners) = listeners else { return refuse(SidrReply::UNSUPPORTED) };
        let Some((header, private_data)) = request.private_data.split_first_chunk() else { return };
        let addresses = CmAddresses::parse(header);
        let is_meant = |listener: &&mut Listener| {
            addresses.is_some_and(|addresses| listener.claim.includes(addresses.destination))
        };
        let (Some(listener), Some(addresses)) = (listeners.iter_mut().find(is_meant), addresses) else {
            return refuse(SidrReply::REJECTED);
        };
        // The other host asks again, and then the program may have decided other requests.
        if listener.undecided >= listener.backlog {
            return;
        }
        let id = listener.id;
        let event = SidrEvent::Request { origin, addresses, private_data };
        if (listener.handler)(id, event).is_none() {
            return refuse(SidrReply::REJECTED);
        }
        listener.undecided += 1;
        let serial = listener.serial;
        table.undecided.insert(origin, serial);
    }

    fn on_reply(&self, from: IpAddr, reply: &SidrReply) {
        let mut table = self.table();
        // Only the host that was asked may answer.
        let is_answer = table.asked.get(&reply.request_id).is_some_and(|asked| asked.to == from);
        if let Some(Asked { id, handler, .. }) =
            if is_answer { table.asked.remove(&reply.request_id) } else { None }
        {
            handler(id, SidrEvent::Reply(reply, from));
            self.note_next_sweep(&table);
        }
    }

    /// Repeats the questions whose answer has not arrived in time, or gives them up.
    fn sweep(&self, now: Instant) {
        let mut table = self.table();
        let mut unanswered = Vec::new();
        table.asked.retain(|_, asked| {
            if asked.repetitions.next > now {
                return true;
            }
            let again = asked.repetitions.again(now);
            match again {
                true => self.send(asked.to, &asked.mad),
                false => unanswered.push((asked.id, asked.handler)),
            }
            again
        });
        for (id, handler) in unanswered {
            handler(id, SidrEvent::TimedOut);
        }
        self.note_next_sweep(&table);
    }

    /// Stores the time of the next sweep where a poll finds it without the lock.
    fn note_next_sweep(&self, table: &Table) {
        let next = table.asked.values().map(|asked| asked.repetitions.next).min();
        let since_begin = next.map(|next| next.saturating_duration_since(self.begun).as_nanos() as u64);
        self.next_sweep.store(since_begin.unwrap_or(NEVER), Ordering::Release);
    }
}

impl Table {
    fn listener(&mut self, port: u16, serial: u64) -> Option<&mut Listener> {
        self.listeners.get_mut(&port)?.iter_mut().find(|listener| listener.serial == serial)
    }

    /// Gives a question its request ID, which no other question of this process has, and its transaction.
    fn number(&mut self, request: SidrRequest) -> SidrRequest {
        while self.asked.contains_key(&self.next_request_id) {
            self.next_request_id = self.next_request_id.wrapping_add(1);
        }
        let numbered =
            SidrRequest { request_id: self.next_request_id, transaction: self.next_transaction, ..request };
        self.next_request_id = self.next_request_id.wrapping_add(1);
        self.next_transaction = self.next_transaction.wrapping_add(1);
        numbered
    }

    fn drop_old_answers(&mut self, now: Instant) {
        while self.answers.front().is_some_and(|answer| answer.kept_until <= now) {
            self.answers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
