//! A table that maps the engine's identifiers to the program's identifiers (`rdma_cm_id`).
//!
//! Each identifier has an event handler, as an `iw_cm_id` of the kernel has. The handler runs with the table
//! locked. An identifier is removed from the table before it is destroyed, so it is not destroyed while its
//! handler runs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::{CmEvent, CmEventKind, CmId};

/// A function that handles an event. The second argument is the address of the program's identifier. The
/// table is locked during the call. The handler of a connection request may insert the new identifier.
pub(crate) type Handler = fn(&mut CmIds, usize, &CmEvent);

#[derive(Default)]
pub(crate) struct CmIdTable {
    ids: Mutex<CmIds>,
}

/// The table, locked.
#[derive(Default)]
pub(crate) struct CmIds(HashMap<CmId, Entry>);

#[derive(Clone, Copy)]
struct Entry {
    /// The address of the `rdma_cm_id` that the program has.
    address: usize,
    handler: Handler,
}

impl CmIds {
    /// From now on, events of `cm` go to the identifier at `address`.
    pub(crate) fn insert(&mut self, cm: &CmId, address: usize, handler: Handler) {
        self.0.insert(cm.clone(), Entry { address, handler });
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
        let removed = self.lock().0.remove_entry(cm);
        drop(removed);
    }

    /// Calls the handler of the event's identifier, or the listener's handler for a connection request. If
    /// the identifier is not in the table, the event is dropped, which rejects a connection request.
    pub(crate) fn on_event(&self, event: &CmEvent) {
        let cm = match event.kind {
            CmEventKind::ConnectRequest { .. } => event.listener.as_ref(),
            _ => Some(&event.id),
        };
        let mut ids = self.lock();
        if let Some(Entry { address, handler }) = cm.and_then(|cm| ids.0.get(cm)).copied() {
            handler(&mut ids, address, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    use dp::link::{LinkConfig, pair};
    use iwarp::engine::{Engine, EngineConfig};
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
