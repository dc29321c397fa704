//! Asynchronous events of queue pairs, completion queues, shared receive queues and the port.
//!
//! The engine's events name objects by number. A table maps these numbers to the program's objects and their
//! contexts.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use iwarp::verbs::{AsyncEvent, AsyncEventKind, ConnectionError};
use libc::c_int;
use tcp_lite::CloseReason;

use crate::ffi::abi::Outcome;
use crate::ffi::event_fd::EventQueue;
use crate::ffi::pending_acks::PendingAcks;
use crate::ffi::sys;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ObjectKind {
    Qp,
    Cq,
    Srq,
}

/// An object of a program that may have events (`element` of `ibv_async_event`).
#[derive(Clone)]
pub(crate) struct Element {
    /// The address of the program's object, for example of an `ibv_qp`.
    pub(crate) object: usize,
    pub(crate) queue: AsyncQueue,
    pub(crate) pending_acks: Arc<PendingAcks>,
}

/// An event that the program has not read.
pub(crate) struct QueuedEvent {
    pub(crate) event: u32,
    /// The object of the event, or `None` for an event of the port.
    pub(crate) element: Option<Element>,
}

/// The events of one context (`ibv_context.async_fd`). A clone is cheap and refers to the same queue.
#[derive(Clone)]
pub(crate) struct AsyncQueue {
    queue: Arc<EventQueue<QueuedEvent>>,
}

impl AsyncQueue {
    pub(crate) fn new() -> Outcome<Self> {
        Ok(Self { queue: Arc::new(EventQueue::new()?) })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The queue, for a thread that waits for an event.
    pub(crate) fn events(&self) -> Arc<EventQueue<QueuedEvent>> {
        Arc::clone(&self.queue)
    }

    fn push(&self, event: u32, element: Option<Element>) {
        self.queue.lock().push(QueuedEvent { event, element });
    }
}

/// The event queues of all contexts of the process, and the objects that may have events.
#[derive(Default)]
pub(crate) struct AsyncEvents {
    queues: Mutex<Vec<AsyncQueue>>,
    elements: Mutex<Elements>,
}

#[derive(Default)]
struct Elements {
    by_number: HashMap<(ObjectKind, u32), Element>,
    /// All objects that are not destroyed, by their addresses.
    by_object: HashMap<usize, Element>,
}

/// Whether an event only reports that the peer has ended the connection: by a close, or by a reset, which the
/// peer sends when its program moves the queue pair to ERR. Then devices generate no event: siw only changes
/// the state of the queue pair, and a RoCE device does not know the state of the peer's queue pair. Requests
/// that waited for the peer are flushed.
fn is_of_ended_peer(kind: AsyncEventKind, cause: Option<ConnectionError>) -> bool {
    use ConnectionError::{PeerClosed, Tcp};
    kind == AsyncEventKind::QpFatal && matches!(cause, Some(PeerClosed | Tcp(CloseReason::Reset)))
}

impl AsyncEvents {
    fn queues(&self) -> MutexGuard<'_, Vec<AsyncQueue>> {
        self.queues.lock().expect("no holder of this lock panics")
    }

    fn elements(&self) -> MutexGuard<'_, Elements> {
        self.elements.lock().expect("no holder of this lock panics")
    }

    /// Adds the event queue of a context that was opened.
    pub(crate) fn add_queue(&self, queue: &AsyncQueue) {
        self.queues().push(queue.clone());
    }

    /// Removes the event queue of a context that was closed.
    pub(crate) fn remove_queue(&self, queue: &AsyncQueue) {
        self.queues().retain(|other| !Arc::ptr_eq(&other.queue, &queue.queue));
    }

    /// Adds an object, or a further engine number of an object. From now on events with this number belong to
    /// `element`.
    pub(crate) fn insert(&self, kind: ObjectKind, number: u32, element: Element) {
        let mut elements = self.elements();
        elements.by_object.insert(element.object, element.clone());
        elements.by_number.insert((kind, number), element);
    }

    /// From now on, ignores events with this engine number. Events that are already queued are kept.
    pub(crate) fn forget(&self, kind: ObjectKind, number: u32) {
        self.elements().by_number.remove(&(kind, number));
    }

    /// Drops the queued events of an object, and waits until the program has acknowledged all delivered
    /// events of the object. This function is called after [`forget`](Self::forget) when the object is
    /// destroyed.
    pub(crate) fn remove(&self, object: usize) {
        let Some(Element { queue, pending_acks, .. }) = self.elements().by_object.get(&object).cloned()
        else {
            return;
        };
        let is_gone =
            |waiting: &QueuedEvent| waiting.element.as_ref().is_some_and(|element| element.object == object);
        queue.queue.lock().remove(is_gone);
        // The object is still in the table during the wait, so that the program can acknowledge delivered
        // events.
        pending_acks.wait();
        self.elements().by_object.remove(&object);
    }

    /// Puts an event of the engine's context into the queue of the object's context, or into all queues if
    /// the event concerns the port.
    pub(crate) fn on_event(&self, event: &AsyncEvent) {
        if is_of_ended_peer(event.kind, event.cause) {
            return;
        }
        let (kind, code) = match event.kind {
            AsyncEventKind::QpFatal => (ObjectKind::Qp, sys::IBV_EVENT_QP_FATAL),
            AsyncEventKind::QpRequestError => (ObjectKind::Qp, sys::IBV_EVENT_QP_REQ_ERR),
            AsyncEventKind::QpAccessError => (ObjectKind::Qp, sys::IBV_EVENT_QP_ACCESS_ERR),
            AsyncEventKind::SqDrained => (ObjectKind::Qp, sys::IBV_EVENT_SQ_DRAINED),
            AsyncEventKind::LastWqeReached => (ObjectKind::Qp, sys::IBV_EVENT_QP_LAST_WQE_REACHED),
            AsyncEventKind::CqError => (ObjectKind::Cq, sys::IBV_EVENT_CQ_ERR),
            AsyncEventKind::SrqLimitReached => (ObjectKind::Srq, sys::IBV_EVENT_SRQ_LIMIT_REACHED),
            AsyncEventKind::PortActive => return self.on_port(sys::IBV_EVENT_PORT_ACTIVE),
            AsyncEventKind::PortError => return self.on_port(sys::IBV_EVENT_PORT_ERR),
            AsyncEventKind::AddressConflict => return self.on_port(sys::IBV_EVENT_GID_CHANGE),
            // `Removal` announces the removal of the device, after the connection manager's events.
            // libibverbs has no events of the other kinds, and this library does not enable them.
            _ => return,
        };
        // The table stays locked while the event is added, so that no event is added for an object whose
        // number was forgotten.
        if let Some(element) = self.elements().by_number.get(&(kind, event.number)) {
            element.queue.push(code, Some(element.clone()));
        }
    }

    /// Counts an acknowledgement of an event of an object.
    pub(crate) fn ack(&self, object: usize) {
        let pending_acks =
            self.elements().by_object.get(&object).map(|element| Arc::clone(&element.pending_acks));
        if let Some(pending_acks) = pending_acks {
            pending_acks.ack(1);
        }
    }

    /// Puts an event of the whole device into all queues.
    pub(crate) fn on_device(&self, code: u32) {
        self.on_port(code);
    }

    fn on_port(&self, code: u32) {
        self.queues().iter().for_each(|queue| queue.push(code, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_ends_is_no_error_and_a_peer_that_fails_is_one() {
        use AsyncEventKind::{LastWqeReached, QpAccessError, QpFatal};
        let closed = Some(ConnectionError::PeerClosed);
        for cause in [closed, Some(ConnectionError::Tcp(CloseReason::Reset))] {
            assert!(is_of_ended_peer(QpFatal, cause), "{cause:?}");
        }
        for (kind, cause) in [
            (QpFatal, None),
            (QpFatal, Some(ConnectionError::Tcp(CloseReason::TimedOut))),
            (QpFatal, Some(ConnectionError::CloseTimeout)),
            (QpAccessError, closed),
            (LastWqeReached, closed),
        ] {
            assert!(!is_of_ended_peer(kind, cause), "{kind:?} {cause:?}");
        }
    }
}
