//! The completions of a connection, and the futures that wait for them.
//!
//! The completion queue calls [`Router::drain`] on the thread that completes a request. This is usually the
//! thread that polls the engine: the engine's own thread, or the thread of a waiting task. `drain` wakes the
//! future of the request. A dropped future leaves its memory in the router until the request completes. That
//! memory is never released within a poll of the engine, since deregistering memory waits for the engine. The
//! memory stays in `State::released` until a later call releases it.
//!
//! Wakers are cloned, dropped and called without a lock, since a waker runs code of an async runtime, which
//! may drop a future of the same connection.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use iwarp::verbs::{CompletionQueue, ConnectionError, VerbsError, WcStatus, WorkCompletion};
use slab::Slab;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::region::{Region, Slice};
use crate::served::Served;
use crate::spin::Spin;
use crate::wr_id::{Tag, WrId};

#[cfg(test)]
mod tests;
mod waiters;

pub(crate) use waiters::Direction;
use waiters::Waiters;

/// Maximum number of completions that are removed from the queue at once.
const BATCH: usize = 16;

/// The memory that a request in flight keeps.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// No memory, since the bytes were copied.
    Nothing,
    /// Memory of the user.
    Memory { _slice: Slice },
    /// A buffer of the connection.
    Buffer(Region),
}

enum Request {
    Open { waker: Option<Waker>, pinned: Pinned },
    Abandoned { pinned: Pinned },
    Done { completion: WorkCompletion, pinned: Pinned },
}

/// A completed receive: its buffer, and its completion.
pub(crate) type Received = (usize, WorkCompletion);

#[derive(Default)]
struct State {
    requests: Slab<Request>,
    /// Completed receives, oldest first.
    received: VecDeque<Received>,
    /// The futures that wait for a message. Each future has one entry, with a waker while the future sleeps.
    receivers: Slab<Option<Waker>>,
    /// The tasks that wait for a message on a direction of a stream.
    stream_receivers: Waiters,
    /// The cause of the connection's end, which is set once a receive was flushed. After that, no further
    /// message arrives.
    ended: Option<Option<ConnectionError>>,
    /// Buffers of the connection that no request uses.
    buffers: Vec<Region>,
    /// Memory of completed requests whose futures were dropped.
    released: Vec<Pinned>,
    /// The tasks that wait for a place in the send queue on a direction of a stream. Other futures wait on
    /// `Router::places`.
    stream_places: Waiters,
}

/// The tasks that completions wake, and the number of places in the send queue that these completions free.
#[derive(Default)]
struct Wakeups {
    wakers: Vec<Waker>,
    places: usize,
}

/// The operations of a completion queue that [`Router::drain`] uses.
trait Completions {
    fn arm(&self);

    /// Moves completions into `out`, and returns their number.
    fn take(&self, out: &mut [WorkCompletion]) -> usize;
}

impl Completions for CompletionQueue {
    fn arm(&self) {
        let armed = self.req_notify(false);
        debug_assert!(armed.is_ok(), "the queue has a handler");
    }

    fn take(&self, out: &mut [WorkCompletion]) -> usize {
        self.poll(out)
    }
}

pub(crate) struct Router {
    /// The tag of the connection's requests.
    pub(crate) tag: Tag,
    /// The completion queue; `None` once the connection is dropped, since the queue refers to the router.
    cq: Mutex<Option<CompletionQueue>>,
    state: Mutex<State>,
    /// Free places of the send queue.
    places: Semaphore,
}

impl Router {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            tag: Tag::random(),
            cq: Mutex::new(None),
            state: Mutex::new(State::default()),
            places: Semaphore::new(places),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Begins to handle completions of `cq`.
    pub(crate) fn start(&self, cq: &CompletionQueue) -> Result<(), VerbsError> {
        *self.cq.lock().expect("no holder of this lock panics") = Some(cq.clone());
        cq.req_notify(false)
    }

    /// Stops handling completions, and releases all memory. The queue pair must have been dropped before.
    pub(crate) fn stop(&self) {
        // Each value is dropped after its lock is released.
        let cq = self.cq.lock().expect("no holder of this lock panics").take();
        let state = std::mem::take(&mut *self.state());
        drop((cq, state));
    }

    // ---- on the thread that completes requests ----

    /// Passes completions to the futures that wait for them. Only one thread at a time does this, even if
    /// several threads complete requests, so that messages stay in order and are delivered before a later
    /// flush.
    pub(crate) fn drain(&self) {
        let mut woken = Wakeups::default();
        {
            let cq = self.cq.lock().expect("no holder of this lock panics");
            let Some(cq) = &*cq else { return };
            self.take_all(cq, &mut woken);
        }
        self.wake(woken);
    }

    /// Wakes tasks, without a lock.
    fn wake(&self, woken: Wakeups) {
        self.free_places(woken.places);
        woken.wakers.into_iter().for_each(Waker::wake);
    }

    fn take_all(&self, queue: &impl Completions, woken: &mut Wakeups) {
        // The queue is armed before the last check, so that a later completion causes an event.
        queue.arm();
        let mut batch = [WorkCompletion::default(); BATCH];
        loop {
            let count = queue.take(&mut batch);
            if count == 0 {
                break;
            }
            self.state().route(self.tag, &batch[..count], woken);
        }
    }

    // ---- requests ----

    /// Records a request that is about to be posted, and returns its `wr_id`. The caller has reserved a place
    /// in the send queue.
    pub(crate) fn open(&self, pinned: Pinned) -> u64 {
        let mut state = self.state();
        let released = std::mem::take(&mut state.released);
        let key = state.requests.insert(Request::Open { waker: None, pinned });
        drop(state);
        // The drop runs on a thread of the user.
        drop(released);
        self.tag.request(key)
    }

    /// Called if the request was not posted.
    pub(crate) fn cancel(&self, wr_id: u64) {
        let request = self.state().requests.try_remove(Tag::number(wr_id));
        if let Some(Request::Open { pinned, .. }) = request {
            self.release(pinned);
        }
        self.free_places(1);
    }

    /// Lets the request complete without a future.
    pub(crate) fn forget(&self, wr_id: u64) {
        self.abandon(Tag::number(wr_id));
    }

    /// Waits for the completion of a request. If the wait is dropped, the request continues.
    pub(crate) fn wait<'a>(&'a self, wr_id: u64, engine: &'a Served) -> Wait<'a> {
        Wait { router: self, engine, key: Tag::number(wr_id), spin: Spin::default(), done: false }
    }

    /// Returns a buffer of the connection if one is free.
    pub(crate) fn free_buffer(&self) -> Option<Region> {
        self.state().buffers.pop()
    }

    /// Releases the memory of a request that is complete or was not posted. A buffer of the connection is
    /// kept for later requests. Must not be called within a poll of the engine, since deregistering memory
    /// waits for the engine.
    pub(crate) fn release(&self, pinned: Pinned) {
        if let Pinned::Buffer(buffer) = pinned {
            self.state().buffers.push(buffer);
        }
    }

    fn abandon(&self, key: usize) {
        let mut state = self.state();
        let Some(request) = state.requests.get_mut(key) else { return };
        let placeholder = Request::Abandoned { pinned: Pinned::Nothing };
        match std::mem::replace(request, placeholder) {
            Request::Open { waker, pinned } => {
                *request = Request::Abandoned { pinned };
                drop(state);
                drop(waker);
            }
            Request::Done { pinned, .. } => {
                state.requests.remove(key);
                // A waker that `drain` calls may drop the future within a poll of the engine.
                state.keep(pinned);
            }
            abandoned @ Request::Abandoned { .. } => *request = abandoned,
        }
    }

    // ---- places of the send queue ----

    /// Reserves a place in the send queue if there is a free place. Returns whether a place was reserved.
    pub(crate) fn take_place(&self) -> bool {
        self.places.try_acquire().is_ok_and(|place| {
            place.forget();
            true
        })
    }

    /// Waits until the send queue has a free place, and reserves it.
    pub(crate) async fn place(&self) -> Result<()> {
        let passed_on = PassedOn(self);
        self.places.acquire().await.map_err(|_| Error::Closed)?.forget();
        std::mem::forget(passed_on);
        Ok(())
    }

    /// Reserves a place in the send queue for a direction of a stream. If no place is free, registers the
    /// task to be woken when a place becomes free.
    pub(crate) fn poll_place(&self, direction: Direction, cx: &Context<'_>) -> Poll<()> {
        if self.take_place() {
            return Poll::Ready(());
        }
        self.let_wake(|state| &mut state.stream_places, direction, cx.waker());
        // A place may have become free before the waker was registered.
        if self.take_place() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Frees places in the send queue. The caller must not hold a lock.
    pub(crate) fn free_places(&self, count: usize) {
        if count > 0 {
            // The places are added before the waiting tasks are searched, so a task that begins to wait later
            // finds the place.
            self.places.add_permits(count);
            self.wake_for_places();
        }
    }

    fn wake_for_places(&self) {
        let wakers = self.state().stream_places.take();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn let_wake(&self, waiters: fn(&mut State) -> &mut Waiters, direction: Direction, waker: &Waker) {
        if waiters(&mut self.state()).will_wake(direction, waker) {
            return;
        }
        let waker = waker.clone();
        let before = waiters(&mut self.state()).replace(direction, waker);
        drop(before);
    }

    // ---- receives ----

    /// Returns the oldest received message, for a direction of a stream. If there is no message, registers
    /// the task to be woken by the next message. Returns an error once the connection has ended and all
    /// messages were returned.
    pub(crate) fn poll_received(&self, direction: Direction, cx: &Context<'_>) -> Poll<Result<Received>> {
        {
            let mut state = self.state();
            if let Some(received) = state.next_received() {
                return Poll::Ready(received);
            }
            if state.stream_receivers.will_wake(direction, cx.waker()) {
                return Poll::Pending;
            }
        }
        self.let_wake(|state| &mut state.stream_receivers, direction, cx.waker());
        // A message may have arrived before the waker was registered.
        let received = self.state().next_received();
        received.map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits for a received message, for any task, and returns the oldest message. The task polls the engine
    /// for a moment before it sleeps.
    pub(crate) async fn received(&self, engine: &Served) -> Result<Received> {
        let mut receiver = Receiver { router: self, key: None };
        let mut spin = Spin::default();
        std::future::poll_fn(|cx| {
            spin.poll(engine, cx, || self.state().next_received(), || receiver.let_wake(cx.waker()))
        })
        .await
    }
}

impl State {
    fn route(&mut self, tag: Tag, completions: &[WorkCompletion], woken: &mut Wakeups) {
        for completion in completions {
            match tag.parse(completion.wr_id) {
                Some(WrId::Receive(buffer)) => {
                    self.receive(buffer, completion);
                    // All receivers are woken, since a receiver may be dropped before it takes the message.
                    woken.wakers.extend(self.receivers.iter_mut().filter_map(|(_, waker)| waker.take()));
                    woken.wakers.extend(self.stream_receivers.take().into_iter().flatten());
                }
                Some(WrId::Request(key)) => {
                    woken.places += 1;
                    woken.wakers.extend(self.complete(key, completion));
                }
                // The program itself has posted this request, which has no reserved place.
                None => {}
            }
        }
    }

    fn receive(&mut self, buffer: usize, completion: &WorkCompletion) {
        if completion.status == WcStatus::WrFlushError {
            self.ended.get_or_insert(completion.cause);
        } else {
            // The status of a failed receive says why the connection ends, for instance because a message did
            // not fit.
            self.received.push_back((buffer, *completion));
        }
    }

    fn next_received(&mut self) -> Option<Result<Received>> {
        if let Some((buffer, completion)) = self.received.pop_front() {
            return Some(match completion.status {
                WcStatus::Success => Ok((buffer, completion)),
                status => Err(Error::Request(status)),
            });
        }
        self.ended.map(|cause| Err(cause.map_or(Error::Closed, Error::Connection)))
    }

    /// Removes and returns a request that has completed; `None` if the request has not completed.
    fn take_done(&mut self, key: usize) -> Option<(WorkCompletion, Pinned)> {
        let Some(Request::Done { .. }) = self.requests.get(key) else { return None };
        let Request::Done { completion, pinned } = self.requests.remove(key) else {
            unreachable!("matched above")
        };
        Some((completion, pinned))
    }

    /// Registers the task to be woken by the completion of a request. Returns the previous waker.
    fn let_wake(&mut self, key: usize, waker: Waker) -> Option<Waker> {
        match self.requests.get_mut(key) {
            Some(Request::Open { waker: place, .. }) => place.replace(waker),
            _ => Some(waker),
        }
    }

    /// Keeps the memory of a request that is over until a later call releases it. A buffer of the connection
    /// is free at once.
    fn keep(&mut self, pinned: Pinned) {
        match pinned {
            Pinned::Buffer(buffer) => self.buffers.push(buffer),
            Pinned::Memory { .. } => self.released.push(pinned),
            Pinned::Nothing => {}
        }
    }

    /// Records the completion of a request. Returns the waker of the task that waits for the request, if
    /// there is one.
    fn complete(&mut self, key: usize, completion: &WorkCompletion) -> Option<Waker> {
        let request = self.requests.get_mut(key)?;
        let placeholder = Request::Abandoned { pinned: Pinned::Nothing };
        match std::mem::replace(request, placeholder) {
            Request::Open { waker, pinned } => {
                *request = Request::Done { completion: *completion, pinned };
                return waker;
            }
            Request::Abandoned { pinned } => self.keep(pinned),
            Request::Done { .. } => debug_assert!(false, "a request completes once"),
        }
        self.requests.remove(key);
        None
    }
}

/// A future that waits for a place in the send queue holds this value. If the future is dropped after a place
/// was assigned to it, the place is offered to a stream.
struct PassedOn<'a>(&'a Router);

impl Drop for PassedOn<'_> {
    fn drop(&mut self) {
        self.0.wake_for_places();
    }
}

/// A future that waits for a message. The future has an entry in `State::receivers` once it has slept.
struct Receiver<'a> {
    router: &'a Router,
    key: Option<usize>,
}

impl Receiver<'_> {
    /// Registers the task to be woken by the next message.
    fn let_wake(&mut self, waker: &Waker) {
        let waker = Some(waker.clone());
        let mut state = self.router.state();
        let before = match self.key.and_then(|key| state.receivers.get_mut(key)) {
            Some(place) => std::mem::replace(place, waker),
            None => {
                self.key = Some(state.receivers.insert(waker));
                None
            }
        };
        drop(state);
        drop(before);
    }
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        let removed = self.key.and_then(|key| self.router.state().receivers.try_remove(key));
        drop(removed);
    }
}

/// A future that waits for the completion of a request.
pub(crate) struct Wait<'a> {
    router: &'a Router,
    engine: &'a Served,
    key: usize,
    spin: Spin,
    done: bool,
}

impl Future for Wait<'_> {
    type Output = (WorkCompletion, Pinned);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (router, key) = (this.router, this.key);
        let register = || {
            let waker = cx.waker().clone();
            let before = router.state().let_wake(key, waker);
            drop(before);
        };
        let polled = this.spin.poll(this.engine, cx, || router.state().take_done(key), register);
        this.done = polled.is_ready();
        polled
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.router.abandon(self.key);
        }
    }
}
