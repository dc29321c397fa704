//! Asynchronous events: of queue pairs, completion queues, shared receive queues and the port.
//!
//! The engine names objects by their numbers. A table has the objects of programs by these numbers, and the
//! context that each belongs to.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use iwarp::verbs::{AsyncEvent, AsyncEventKind};
use libc::c_int;

use crate::ffi::abi::Outcome;
use crate::ffi::acked::Acked;
use crate::ffi::event_fd::EventQueue;
use crate::ffi::sys;

/// The kinds of objects that events name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Qp,
    Cq,
    Srq,
}

/// An object of a program that may have events.
#[derive(Clone)]
pub(crate) struct Subject {
    /// Its address, as the program knows it.
    pub(crate) object: usize,
    pub(crate) queue: AsyncQueue,
    pub(crate) acked: Arc<Acked>,
}

/// An event that waits.
pub(crate) struct Waiting {
    pub(crate) event: u32,
    /// The object; `None`: the port.
    pub(crate) subject: Option<Subject>,
}

/// The events of one context (`ibv_context.async_fd`). Cheap to clone.
#[derive(Clone)]
pub(crate) struct AsyncQueue {
    queue: Arc<EventQueue<Waiting>>,
}

impl AsyncQueue {
    pub(crate) fn new() -> Outcome<Self> {
        Ok(Self { queue: Arc::new(EventQueue::new()?) })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The events themselves, for a thread that waits for one.
    pub(crate) fn events(&self) -> Arc<EventQueue<Waiting>> {
        Arc::clone(&self.queue)
    }

    fn push(&self, event: u32, subject: Option<Subject>) {
        self.queue.lock().push(Waiting { event, subject });
    }
}

/// The contexts of the process, and the objects that may have events.
#[derive(Default)]
pub(crate) struct Contexts {
    queues: Mutex<Vec<AsyncQueue>>,
    subjects: Mutex<Subjects>,
}

#[derive(Default)]
struct Subjects {
    by_number: HashMap<(Kind, u32), Subject>,
    /// All that are not destroyed, by their addresses.
    by_object: HashMap<usize, Subject>,
}

impl Contexts {
    fn queues(&self) -> MutexGuard<'_, Vec<AsyncQueue>> {
        self.queues.lock().expect("no holder of this lock panics")
    }

    fn subjects(&self) -> MutexGuard<'_, Subjects> {
        self.subjects.lock().expect("no holder of this lock panics")
    }

    /// A context was opened.
    pub(crate) fn add(&self, queue: &AsyncQueue) {
        self.queues().push(queue.clone());
    }

    /// A context was closed.
    pub(crate) fn remove(&self, queue: &AsyncQueue) {
        self.queues().retain(|other| !Arc::ptr_eq(&other.queue, &queue.queue));
    }

    /// An object with this number of the engine's was made, or has it from now on.
    pub(crate) fn enter(&self, kind: Kind, number: u32, subject: Subject) {
        let mut subjects = self.subjects();
        subjects.by_object.insert(subject.object, subject.clone());
        subjects.by_number.insert((kind, number), subject);
    }

    /// From now on no event of this number of the engine's is one of an object. Those that wait stay.
    pub(crate) fn forget(&self, kind: Kind, number: u32) {
        self.subjects().by_number.remove(&(kind, number));
    }

    /// An object is destroyed, whose numbers are forgotten: its events that wait are dropped. Returns once
    /// those that were delivered are acknowledged.
    pub(crate) fn leave(&self, object: usize) {
        let Some(Subject { queue, acked, .. }) = self.subjects().by_object.get(&object).cloned() else {
            return;
        };
        let is_gone =
            |waiting: &Waiting| waiting.subject.as_ref().is_some_and(|subject| subject.object == object);
        queue.queue.lock().remove(is_gone);
        // It stays in the table, for the program to acknowledge what was delivered.
        acked.wait();
        self.subjects().by_object.remove(&object);
    }

    /// An event of the engine. It is the handler of the events of the engine's context.
    pub(crate) fn on_event(&self, event: &AsyncEvent) {
        let (kind, code) = match event.kind {
            AsyncEventKind::QpFatal => (Kind::Qp, sys::IBV_EVENT_QP_FATAL),
            AsyncEventKind::QpRequestError => (Kind::Qp, sys::IBV_EVENT_QP_REQ_ERR),
            AsyncEventKind::QpAccessError => (Kind::Qp, sys::IBV_EVENT_QP_ACCESS_ERR),
            AsyncEventKind::SqDrained => (Kind::Qp, sys::IBV_EVENT_SQ_DRAINED),
            AsyncEventKind::LastWqeReached => (Kind::Qp, sys::IBV_EVENT_QP_LAST_WQE_REACHED),
            AsyncEventKind::CqError => (Kind::Cq, sys::IBV_EVENT_CQ_ERR),
            AsyncEventKind::SrqLimitReached => (Kind::Srq, sys::IBV_EVENT_SRQ_LIMIT_REACHED),
            AsyncEventKind::PortActive => return self.on_port(sys::IBV_EVENT_PORT_ACTIVE),
            AsyncEventKind::PortError => return self.on_port(sys::IBV_EVENT_PORT_ERR),
            AsyncEventKind::AddressConflict => return self.on_port(sys::IBV_EVENT_GID_CHANGE),
            // Programs of verbs do not know it: no queue pair of this library has a mark.
            _ => return,
        };
        // With the table locked: no event of an object is added once its number is forgotten.
        if let Some(subject) = self.subjects().by_number.get(&(kind, event.number)) {
            subject.queue.push(code, Some(subject.clone()));
        }
    }

    /// The program has acknowledged an event of an object.
    pub(crate) fn ack(&self, object: usize) {
        let acked = self.subjects().by_object.get(&object).map(|subject| Arc::clone(&subject.acked));
        if let Some(acked) = acked {
            acked.ack(1);
        }
    }

    fn on_port(&self, code: u32) {
        self.queues().iter().for_each(|queue| queue.push(code, None));
    }
}
