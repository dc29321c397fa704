//! The completions of a connection, and the futures that wait for them.
//!
//! The completion queue calls [`Router::drain`] on the thread that completes a request: one that polls the
//! engine, its own or that of a task that waits. It wakes the future of the request. A future that was
//! dropped leaves its memory here until the request completes. That memory is never released in a poll of the
//! engine, since to deregister memory is to wait for the engine: it waits in `State::released` for another
//! call.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use iwarp::engine::SharedEngine;
use iwarp::verbs::{CompletionQueue, ConnectionError, VerbsError, WcStatus, WorkCompletion};
use slab::Slab;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::region::{Region, Slice};
use crate::spin::Spin;

/// In the `wr_id` of a receive; the other bits are the number of its buffer.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Completions that are taken from the queue at once.
const BATCH: usize = 16;

/// What a request under way needs.
#[derive(Debug)]
pub(crate) enum Pinned {
    /// Nothing: its bytes were copied.
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

#[derive(Default)]
struct State {
    requests: Slab<Request>,
    /// Completed receives, oldest first.
    received: VecDeque<WorkCompletion>,
    receivers: Vec<Waker>,
    /// No message arrives any more: a receive was flushed, for this cause.
    ended: Option<Option<ConnectionError>>,
    /// Buffers of the connection that no request uses.
    buffers: Vec<Region>,
    /// Memory whose last request has completed.
    released: Vec<Pinned>,
    /// Tasks that found no place in the send queue, of those that do not wait for `Router::places`.
    place_waiters: Vec<Waker>,
}

/// The tasks that completions wake, and the places in the send queue that they free.
#[derive(Default)]
struct Woken {
    wakers: Vec<Waker>,
    places: usize,
}

pub(crate) struct Router {
    /// Taken out when the connection is dropped: the queue refers to the router.
    cq: Mutex<Option<CompletionQueue>>,
    state: Mutex<State>,
    /// Free places of the send queue.
    pub(crate) places: Semaphore,
}

impl Router {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            cq: Mutex::new(None),
            state: Mutex::new(State::default()),
            places: Semaphore::new(places),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Takes completions of `cq` from now on.
    pub(crate) fn start(&self, cq: &CompletionQueue) -> Result<(), VerbsError> {
        *self.cq.lock().expect("no holder of this lock panics") = Some(cq.clone());
        cq.req_notify(false)
    }

    /// Takes no more completions, and releases all memory. The queue pair is gone.
    pub(crate) fn stop(&self) {
        // Each is dropped without its lock.
        let cq = self.cq.lock().expect("no holder of this lock panics").take();
        let state = std::mem::take(&mut *self.state());
        drop((cq, state));
    }

    // ---- on the thread that completes requests ----

    /// Moves completions to those that wait for them. Threads that complete requests at the same time take
    /// turns, so that messages stay in order and come before the flush behind them.
    pub(crate) fn drain(&self) {
        let mut woken = Woken::default();
        {
            let cq = self.cq.lock().expect("no holder of this lock panics");
            let Some(cq) = &*cq else { return };
            // Armed before the last look: a completion that comes later makes an event.
            let armed = cq.req_notify(false);
            debug_assert!(armed.is_ok(), "the queue has a handler");
            let mut batch = [WorkCompletion::default(); BATCH];
            loop {
                let count = cq.poll(&mut batch);
                if count == 0 {
                    break;
                }
                self.state().route(&batch[..count], &mut woken);
            }
        }
        // Without a lock: to wake a task is to run code of its runtime.
        self.places.add_permits(woken.places);
        woken.wakers.into_iter().for_each(Waker::wake);
    }

    // ---- requests ----

    /// Notes a request that is about to be posted; returns its `wr_id`. Its place in the send queue is taken.
    pub(crate) fn open(&self, pinned: Pinned) -> u64 {
        let mut state = self.state();
        let released = std::mem::take(&mut state.released);
        let key = state.requests.insert(Request::Open { waker: None, pinned });
        drop(state);
        // On a thread of the user.
        drop(released);
        key as u64
    }

    /// The request was not posted.
    pub(crate) fn cancel(&self, wr_id: u64) {
        let request = self.state().requests.remove(wr_id as usize);
        self.places.add_permits(1);
        if let Request::Open { pinned, .. } = request {
            self.release(pinned);
        }
    }

    /// Nobody waits for the request.
    pub(crate) fn forget(&self, wr_id: u64) {
        self.abandon(wr_id as usize);
    }

    /// Waits for the completion of a request. A dropped wait leaves the request under way.
    pub(crate) fn wait<'a>(&'a self, wr_id: u64, engine: &'a SharedEngine) -> Wait<'a> {
        Wait { router: self, engine, key: wr_id as usize, spin: Spin::default(), done: false }
    }

    /// A buffer of the connection, if one is free.
    pub(crate) fn free_buffer(&self) -> Option<Region> {
        self.state().buffers.pop()
    }

    /// Gives back what a completed request needed. On a thread of the user.
    pub(crate) fn release(&self, pinned: Pinned) {
        if let Pinned::Buffer(buffer) = pinned {
            self.state().buffers.push(buffer);
        }
    }

    /// Lets the request end by itself.
    fn abandon(&self, key: usize) {
        let mut state = self.state();
        if let Some(Request::Open { pinned, .. }) = state.requests.get_mut(key) {
            let pinned = std::mem::replace(pinned, Pinned::Nothing);
            state.requests[key] = Request::Abandoned { pinned };
        } else if let Some(Request::Done { pinned, .. }) = state.requests.try_remove(key) {
            drop(state);
            self.release(pinned);
        }
    }

    /// Takes a place in the send queue, if one is free.
    pub(crate) fn take_place(&self) -> bool {
        self.places.try_acquire().is_ok_and(|place| {
            place.forget();
            true
        })
    }

    /// Takes a place in the send queue, or lets the task be woken when one is free.
    pub(crate) fn poll_place(&self, cx: &Context<'_>) -> Poll<()> {
        // Asks once more after the waker is there: a place may have become free in between.
        for registered in [false, true] {
            if self.take_place() {
                return Poll::Ready(());
            }
            if !registered {
                add_waker(&mut self.state().place_waiters, cx.waker());
            }
        }
        Poll::Pending
    }

    // ---- receives ----

    /// The oldest message that was received; an error once the connection has ended and all are taken.
    pub(crate) fn poll_received(&self, cx: &Context<'_>) -> Poll<Result<WorkCompletion>> {
        let mut state = self.state();
        match state.next_received() {
            Some(received) => Poll::Ready(received),
            None => {
                add_waker(&mut state.receivers, cx.waker());
                Poll::Pending
            }
        }
    }

    /// The same; polls the engine for a moment before it sleeps.
    pub(crate) async fn received(&self, engine: &SharedEngine) -> Result<WorkCompletion> {
        let mut spin = Spin::default();
        std::future::poll_fn(|cx| {
            let register = || add_waker(&mut self.state().receivers, cx.waker());
            spin.poll(engine, cx, || self.state().next_received(), register)
        })
        .await
    }
}

impl State {
    fn route(&mut self, completions: &[WorkCompletion], woken: &mut Woken) {
        for completion in completions {
            if completion.wr_id & RECEIVE != 0 {
                self.receive(completion);
                woken.wakers.append(&mut self.receivers);
            } else {
                woken.places += 1;
                woken.wakers.extend(self.complete(completion));
                woken.wakers.append(&mut self.place_waiters);
            }
        }
    }

    fn receive(&mut self, completion: &WorkCompletion) {
        if completion.status == WcStatus::WrFlushError {
            self.ended.get_or_insert(completion.cause);
        } else {
            // A failed one is the cause of the end: a message that did not fit, for instance.
            self.received.push_back(*completion);
        }
    }

    fn next_received(&mut self) -> Option<Result<WorkCompletion>> {
        if let Some(completion) = self.received.pop_front() {
            return Some(match completion.status {
                WcStatus::Success => Ok(completion),
                status => Err(Error::Request(status)),
            });
        }
        self.ended.map(|cause| Err(cause.map_or(Error::Closed, Error::Connection)))
    }

    /// Removes a request that has completed.
    fn take_done(&mut self, key: usize) -> Option<(WorkCompletion, Pinned)> {
        let Some(Request::Done { .. }) = self.requests.get(key) else { return None };
        let Request::Done { completion, pinned } = self.requests.remove(key) else {
            unreachable!("matched above")
        };
        Some((completion, pinned))
    }

    /// The completion of a request wakes the task.
    fn let_wake(&mut self, key: usize, cx: &Context<'_>) {
        if let Some(Request::Open { waker, .. }) = self.requests.get_mut(key) {
            waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        }
    }

    /// Notes the end of a request; returns the task that waits for it.
    fn complete(&mut self, completion: &WorkCompletion) -> Option<Waker> {
        let request = self.requests.get_mut(completion.wr_id as usize)?;
        let placeholder = Request::Abandoned { pinned: Pinned::Nothing };
        match std::mem::replace(request, placeholder) {
            Request::Open { waker, pinned } => {
                *request = Request::Done { completion: *completion, pinned };
                return waker;
            }
            Request::Abandoned { pinned: Pinned::Buffer(buffer) } => self.buffers.push(buffer),
            Request::Abandoned { pinned } => self.released.push(pinned),
            Request::Done { .. } => debug_assert!(false, "a request completes once"),
        }
        self.requests.remove(completion.wr_id as usize);
        None
    }
}

fn add_waker(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|other| other.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

/// The completion of a request.
pub(crate) struct Wait<'a> {
    router: &'a Router,
    engine: &'a SharedEngine,
    key: usize,
    spin: Spin,
    done: bool,
}

impl Future for Wait<'_> {
    type Output = (WorkCompletion, Pinned);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (router, key) = (this.router, this.key);
        let register = || router.state().let_wake(key, cx);
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
