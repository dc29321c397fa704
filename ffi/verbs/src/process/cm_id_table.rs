//! A table that maps the engine's identifiers to the program's identifiers (`rdma_cm_id`).
//!
//! Each identifier has an event handler, as an `iw_cm_id` of the kernel has. The handler runs with the table
//! locked. An identifier is removed from the table before it is destroyed, so it is not destroyed while its
//! handler runs.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use iwarp::verbs::{CmEvent, CmEventKind, CmId};

/// A function that handles an event. The second argument is the address of the program's identifier. The
/// table is locked during the call. The handler of a connection request may insert the new identifier.
pub(crate) type Handler = fn(&mut CmIds, usize, &CmEvent);

/// The time from the end of a connection until the program gets `RDMA_CM_EVENT_TIMEWAIT_EXIT`. On InfiniBand,
/// this is the time until no packet of the connection can arrive any more, about one to four seconds. A
/// program that destroys the identifier earlier gets no such event.
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(1);

/// The time between two checks of the waiting identifiers.
const INTERVAL: Duration = Duration::from_millis(100);

/// The number of our limit on the engine's sleep.
const SLEEP_LIMIT: usize = 1;

/// The value of `CmIdTable::next_sweep` if no identifier is in time-wait.
const NEVER: u64 = u64::MAX;

pub(crate) struct CmIdTable {
    ids: Mutex<CmIds>,
    /// The time in nanoseconds since `begun` of the next sweep, or [`NEVER`].
    next_sweep: AtomicU64,
    begun: Instant,
}

/// The table, locked.
#[derive(Default)]
pub(crate) struct CmIds {
    all: HashMap<CmId, Entry>,
    /// The identifiers in time-wait, in the order in which they leave it.
    time_waits: VecDeque<TimeWait>,
    /// Whether the engine's sleep is limited because of a time-wait.
    limits_sleep: bool,
}

/// An identifier whose connection has ended.
struct TimeWait {
    cm: CmId,
    end: Instant,
    /// The function that announces the end of the time-wait. The argument is the address of the program's
    /// identifier.
    announce: fn(usize),
}

#[derive(Clone, Copy)]
struct Entry {
    /// The address of the `rdma_cm_id` that the program has.
    address: usize,
    handler: Handler,
}

impl CmIds {
    /// From now on, events of `cm` go to the identifier at `address`.
    pub(crate) fn insert(&mut self, cm: &CmId, address: usize, handler: Handler) {
        self.all.insert(cm.clone(), Entry { address, handler });
    }

    /// Begins the time-wait of an identifier whose connection has ended. At its end, `announce` is called
    /// with the address of the program's identifier, unless the identifier has left the table.
    pub(crate) fn begin_time_wait(&mut self, cm: &CmId, announce: fn(usize)) {
        let end = Instant::now() + TIME_WAIT;
        self.time_waits.push_back(TimeWait { cm: cm.clone(), end, announce });
    }
}

impl Default for CmIdTable {
    fn default() -> Self {
        Self { ids: Mutex::default(), next_sweep: AtomicU64::new(NEVER), begun: Instant::now() }
    }
}

impl CmIdTable {
    fn lock(&self) -> MutexGuard<'_, CmIds> {
        self.ids.lock().expect("no holder of this lock panics")
    }

    /// Locks the table, and calls [`CmIds::insert`].
    pub(crate) fn insert(&self, cm: &CmId, address: usize, handler: Handler) {
        self.lock().insert(cm, address, handler);
    }

    /// From now on, events of `cm` do not reach the program.
    pub(crate) fn remove(&self, cm: &CmId) {
        // The identifier is dropped after the table is unlocked, since dropping it may end a connection.
        let mut ids = self.lock();
        let removed = ids.all.remove_entry(cm);
        let at = ids.time_waits.iter().position(|one| one.cm == *cm);
        let left = at.and_then(|at| ids.time_waits.remove(at));
        self.note_next_sweep(&ids);
        drop(ids);
        drop((removed, left));
    }

    /// Stores the time of the next sweep where a poll finds it without the lock.
    fn note_next_sweep(&self, ids: &CmIds) {
        let since_begin = |one: &TimeWait| one.end.saturating_duration_since(self.begun).as_nanos() as u64;
        let next = match ids.time_waits.front() {
            // The limit on the engine's sleep has to change.
            first if first.is_some() != ids.limits_sleep => 0,
            Some(first) => since_begin(first),
            None => NEVER,
        };
        self.next_sweep.store(next, Ordering::Release);
    }

    /// Whether an identifier is in time-wait, or has just left it.
    #[inline]
    pub(crate) fn has_time_waits(&self) -> bool {
        self.next_sweep.load(Ordering::Acquire) != NEVER
    }

    /// Announces the ends of time-waits. This function is called after a poll.
    pub(crate) fn sweep(&self, engine: &SharedEngine) {
        let now = Instant::now();
        let since_begin = (now - self.begun).as_nanos() as u64;
        if self.next_sweep.load(Ordering::Acquire) > since_begin {
            return;
        }
        let mut ids = self.lock();
        let waiting = ids.time_waits.iter().position(|one| one.end > now).unwrap_or(ids.time_waits.len());
        let over: Vec<TimeWait> = ids.time_waits.drain(..waiting).collect();
        for TimeWait { cm, announce, .. } in &over {
            if let Some(entry) = ids.all.get(cm) {
                announce(entry.address);
            }
        }
        let limits_sleep = !ids.time_waits.is_empty();
        if std::mem::replace(&mut ids.limits_sleep, limits_sleep) != limits_sleep {
            engine.limit_sleep(SLEEP_LIMIT, limits_sleep.then_some(INTERVAL));
        }
        self.note_next_sweep(&ids);
        drop(ids);
        // `over` is dropped after the table is unlocked, since dropping an identifier may end a connection.
        drop(over);
    }

    /// Calls the handler of the event's identifier, or the listener's handler for a connection request. If
    /// the identifier is not in the table, the event is dropped, which rejects a connection request.
    pub(crate) fn on_event(&self, event: &CmEvent) {
        let cm = match event.kind {
            CmEventKind::ConnectRequest { .. } => event.listener.as_ref(),
            _ => Some(&event.id),
        };
        let mut ids = self.lock();
        if let Some(Entry { address, handler }) = cm.and_then(|cm| ids.all.get(cm)).copied() {
            handler(&mut ids, address, event);
            self.note_next_sweep(&ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use dp::link::{LinkConfig, pair};
    use iwarp::engine::{Engine, EngineConfig, SharedOptions};
    use iwarp::verbs::{
        ConnParam, Context, ContextConfig, CqOptions, EventChannel, ListenOptions, QpInit, QueuePair,
    };

    use super::*;

    thread_local! {
        /// The identifiers whose handlers were called.
        static HANDLED: RefCell<Vec<(&'static str, usize)>> = const { RefCell::new(Vec::new()) };
    }

    fn first(_ids: &mut CmIds, address: usize, _event: &CmEvent) {
        HANDLED.with_borrow_mut(|handled| handled.push(("first", address)));
    }

    /// Inserts the new identifier of a request.
    fn second(ids: &mut CmIds, address: usize, event: &CmEvent) {
        HANDLED.with_borrow_mut(|handled| handled.push(("second", address)));
        if matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
            ids.insert(&event.id, address + 1, first);
        }
    }

    struct Host {
        context: Context,
        channel: EventChannel,
        engine: Engine,
    }

    /// Makes two hosts, a listener at port 7 of one host, and an identifier of the other host that connects a
    /// queue pair to the listener. Returns the hosts, the listener, the identifier and the queue pair.
    fn connecting() -> ([Host; 2], CmId, CmId, QueuePair) {
        let (left, right) = pair(&LinkConfig::default());
        let host = |port: Box<dyn dp::Port>, address| {
            let context = Context::new(ContextConfig::default()).unwrap();
            let config = EngineConfig::new(&*port, &[address]).unwrap();
            let engine = Engine::new(&context, port, config).unwrap();
            Host { channel: context.create_event_channel().unwrap(), context, engine }
        };
        let (left, right) = (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"));
        let listener = left.context.create_id(&left.channel);
        listener.listen_with(&ListenOptions::new(7)).unwrap();
        let cq = right.context.create_cq_with(&CqOptions::new(16)).unwrap();
        let qp = right.context.alloc_pd().unwrap().create_qp(&QpInit::new(&cq)).unwrap();
        let connects = right.context.create_id(&right.channel);
        connects.connect(&qp, "10.0.0.1:7".parse().unwrap(), &ConnParam::default()).unwrap();
        ([left, right], listener, connects, qp)
    }

    /// The next event of the host at index `at`.
    fn next(hosts: &mut [Host; 2], at: usize) -> CmEvent {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < end, "no event");
            hosts.iter_mut().for_each(|host| _ = host.engine.poll());
            if let Some(event) = hosts[at].channel.poll() {
                return event;
            }
        }
    }

    fn ended(address: usize) {
        HANDLED.with_borrow_mut(|handled| handled.push(("ended", address)));
    }

    #[test]
    fn a_time_wait_is_announced_at_its_end_unless_its_identifier_has_left() {
        let (port, _other) = pair(&LinkConfig::default());
        let context = Context::new(ContextConfig::default()).unwrap();
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let engine = Engine::new(&context, port, config).unwrap();
        let engine = SharedEngine::without_thread(engine, SharedOptions::default(), Box::new(|| {})).unwrap();
        let channel = context.create_event_channel().unwrap();
        let ids = CmIdTable::default();
        let [early, second, third] = [(); 3].map(|()| context.create_id(&channel));
        for (cm, address) in [(&early, 10), (&second, 20), (&third, 30)] {
            ids.insert(cm, address, first);
        }
        ids.sweep(&engine);
        assert!(!ids.has_time_waits());
        for cm in [&early, &second, &third] {
            let mut locked = ids.lock();
            locked.begin_time_wait(cm, ended);
            ids.note_next_sweep(&locked);
        }
        ids.sweep(&engine);
        assert!(ids.has_time_waits() && ids.lock().limits_sleep && HANDLED.take().is_empty());
        ids.remove(&second);
        // The time of the first identifier is over.
        let advance = |seconds: u64| {
            let mut locked = ids.lock();
            for one in &mut locked.time_waits {
                one.end -= Duration::from_secs(seconds);
            }
            ids.note_next_sweep(&locked);
        };
        ids.lock().time_waits[1].end += Duration::from_secs(60);
        advance(1);
        ids.sweep(&engine);
        assert_eq!(HANDLED.take(), [("ended", 10)]);
        ids.sweep(&engine);
        assert!(HANDLED.take().is_empty() && ids.has_time_waits());
        // The last identifier leaves before its time.
        ids.remove(&third);
        assert!(ids.has_time_waits(), "the engine's sleep is still limited");
        ids.sweep(&engine);
        assert!(!ids.has_time_waits() && !ids.lock().limits_sleep && HANDLED.take().is_empty());
    }

    #[test]
    fn a_request_is_for_its_listener_and_any_other_event_for_its_identifier() {
        let (mut hosts, listener, connects, _qp) = connecting();
        let ids = CmIdTable::default();
        ids.insert(&listener, 10, second);
        ids.insert(&connects, 20, first);
        let request = next(&mut hosts, 0);
        ids.on_event(&request);
        assert_eq!(HANDLED.take(), [("second", 10)]);
        request.id.reject(&[]).unwrap();
        let rejected = next(&mut hosts, 1);
        ids.on_event(&rejected);
        assert_eq!(HANDLED.take(), [("first", 20)]);
        // The listener's handler has inserted the new identifier with another handler, which receives later
        // events.
        let mut of_new_id = rejected.clone();
        of_new_id.id = request.id.clone();
        ids.on_event(&of_new_id);
        assert_eq!(HANDLED.take(), [("first", 11)]);
        ids.remove(&listener);
        ids.remove(&connects);
        ids.on_event(&request);
        ids.on_event(&rejected);
        assert_eq!(HANDLED.take(), []);
    }
}
