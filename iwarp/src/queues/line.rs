//! The line of queue pairs whose messages wait for a request of a shared receive queue.
//!
//! A request that is posted while queue pairs wait is reserved for the first queue pair in the line, whose
//! engine is notified. This queue pair takes the request when its engine visits the queue pair. Until then no
//! other queue pair that may wait takes the request. A queue pair with further messages enters the line again
//! at the end. (A queue pair without InfiniBand's semantics cannot wait, and takes any posted request, even
//! if the request is reserved. The queue pair for which the request was reserved then waits again.)
//!
//! A queue pair enters the line, *then* checks for requests. A thread posts a request, *then* checks the
//! line. Each side executes a sequentially consistent fence between its two steps, so at least one side sees
//! what the other side has done. If a queue pair leaves the line without taking its reserved request, the
//! request is reserved for the next queue pair.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Whether a message of a queue pair waits for a receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Turn {
    /// No message waits.
    Out,
    /// A message waits.
    Waits,
    /// A message has waited, and a request of the shared receive queue is reserved for the message.
    Granted,
}

/// The turn of a queue pair. If the queue pair has a shared receive queue, its turn changes only under the
/// lock of the line.
pub(super) struct TurnCell(AtomicU8);

/// A queue pair whose messages may wait.
pub(super) trait Waiter: Send + Sync {
    /// The turn of the queue pair.
    fn turn(&self) -> &TurnCell;

    /// Notifies the queue pair that a request is reserved for it.
    fn call(&self);
}

pub(super) struct RecvLine {
    inner: Mutex<Inner>,
    /// Number of queue pairs that wait or that have a reserved request.
    contenders: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    /// The waiting queue pairs. Each queue pair is identified by the address of its turn.
    waiting: VecDeque<(usize, Weak<dyn Waiter>)>,
    /// Number of queue pairs that have a reserved request.
    granted: usize,
    /// Number of queue pairs that may wait.
    members: usize,
}

impl TurnCell {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(Turn::Out as u8))
    }

    pub(super) fn get(&self) -> Turn {
        turn_of(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, turn: Turn) {
        self.0.store(turn as u8, Ordering::Release);
    }

    /// Sets the turn, and returns the previous turn.
    pub(super) fn replace(&self, turn: Turn) -> Turn {
        turn_of(self.0.swap(turn as u8, Ordering::AcqRel))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

fn turn_of(value: u8) -> Turn {
    match value {
        0 => Turn::Out,
        1 => Turn::Waits,
        _ => Turn::Granted,
    }
}

impl RecvLine {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::default(), contenders: AtomicUsize::new(0) }
    }

    /// Adds a queue pair that may wait. Allocates memory for its entry in the line.
    pub(super) fn join(&self) {
        let mut inner = self.inner();
        inner.members += 1;
        let places = inner.members.saturating_sub(inner.waiting.len());
        inner.waiting.reserve(places);
    }

    /// Removes a queue pair that was added by `join`. Called when the queue pair is destroyed.
    pub(super) fn quit(&self) {
        self.inner().members -= 1;
    }

    #[cfg(test)]
    pub(super) fn members(&self) -> usize {
        self.inner().members
    }

    /// Whether the queue pair with this turn may take a request now. `posted` returns the number of requests
    /// in the queue. If a request was reserved for the queue pair, its turn is over after this call.
    pub(super) fn take_turn(&self, turn: &TurnCell, posted: impl Fn() -> usize) -> bool {
        if self.contenders.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut inner = self.inner();
        if turn.get() == Turn::Granted {
            turn.set(Turn::Out);
            inner.granted -= 1;
            self.contenders.fetch_sub(1, Ordering::AcqRel);
            return true;
        }
        inner.waiting.is_empty() && posted() > inner.granted
    }

    /// Adds `who` to the line, unless `who` is in the line. When a request is reserved for `who`, which may
    /// happen during this call, [`Waiter::call`] is called. `posted` returns the number of requests in the
    /// queue.
    pub(super) fn enter(&self, who: Weak<dyn Waiter>, turn: &TurnCell, posted: impl Fn() -> usize) {
        {
            let mut inner = self.inner();
            if turn.get() == Turn::Out {
                turn.set(Turn::Waits);
                inner.waiting.push_back((turn.address(), who));
                self.contenders.fetch_add(1, Ordering::AcqRel);
            }
        }
        fence(Ordering::SeqCst);
        self.serve(posted);
    }

    /// Removes a queue pair from the line. If a request was reserved for this queue pair, the request is
    /// reserved for the next queue pair.
    pub(super) fn leave(&self, turn: &TurnCell, posted: impl Fn() -> usize) {
        {
            let mut inner = self.inner();
            match turn.replace(Turn::Out) {
                Turn::Out => return,
                Turn::Waits => inner.waiting.retain(|(address, _)| *address != turn.address()),
                Turn::Granted => inner.granted -= 1,
            }
            self.contenders.fetch_sub(1, Ordering::AcqRel);
        }
        self.serve(posted);
    }

    /// Reserves requests for waiting queue pairs. Called after a request was posted.
    pub(super) fn posted(&self, posted: impl Fn() -> usize) {
        fence(Ordering::SeqCst);
        if self.contenders.load(Ordering::Relaxed) != 0 {
            self.serve(posted);
        }
    }

    /// Reserves the free requests for the queue pairs that have waited longest.
    #[cold]
    fn serve(&self, posted: impl Fn() -> usize) {
        while let Some(next) = self.grant(&posted) {
            // This thread does not hold the lock during the call: if it has the last reference to the queue
            // pair, dropping the reference takes the lock.
            next.call();
        }
    }

    fn grant(&self, posted: impl Fn() -> usize) -> Option<Arc<dyn Waiter>> {
        let mut inner = self.inner();
        while posted() > inner.granted {
            let (_, next) = inner.waiting.pop_front()?;
            if let Some(next) = next.upgrade() {
                next.turn().set(Turn::Granted);
                inner.granted += 1;
                return Some(next);
            }
            self.contenders.fetch_sub(1, Ordering::AcqRel);
        }
        None
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Caller {
        turn: TurnCell,
        calls: AtomicUsize,
    }

    impl Waiter for Caller {
        fn turn(&self) -> &TurnCell {
            &self.turn
        }

        fn call(&self) {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn callers<const N: usize>(line: &RecvLine) -> [Arc<Caller>; N] {
        [(); N].map(|()| {
            line.join();
            Arc::new(Caller { turn: TurnCell::new(), calls: AtomicUsize::new(0) })
        })
    }

    fn enter(line: &RecvLine, who: &Arc<Caller>, posted: usize) {
        let waiter: Weak<dyn Waiter> = Arc::<Caller>::downgrade(who);
        line.enter(waiter, &who.turn, || posted);
    }

    fn calls(callers: &[Arc<Caller>]) -> Vec<usize> {
        callers.iter().map(|caller| caller.calls.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn those_that_wait_get_their_requests_in_order() {
        let line = RecvLine::new();
        let all @ [a, b, c] = &callers::<3>(&line);
        assert!(line.take_turn(&a.turn, || 0), "nobody waits: the queue itself says whether one is there");
        enter(&line, a, 0);
        enter(&line, b, 0);
        assert!(!line.take_turn(&c.turn, || 1), "others wait longer");
        enter(&line, c, 0);
        line.posted(|| 2);
        assert_eq!(calls(all), [1, 1, 0]);
        assert!(!line.take_turn(&c.turn, || 2), "both are reserved");
        assert!(line.take_turn(&b.turn, || 2) && !line.take_turn(&b.turn, || 1), "once");
        // When `a` leaves the line, its request is reserved for the next queue pair.
        line.leave(&a.turn, || 1);
        assert_eq!(calls(all), [1, 1, 1]);
        assert!(line.take_turn(&c.turn, || 1));
        assert_eq!(line.contenders.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_request_that_is_there_already_calls_at_once() {
        let line = RecvLine::new();
        let all @ [a, b] = &callers::<2>(&line);
        enter(&line, a, 1);
        assert_eq!(calls(all), [1, 0]);
        // A queue pair that already waits keeps its place.
        enter(&line, b, 1);
        enter(&line, b, 1);
        enter(&line, a, 1);
        assert_eq!((calls(all), line.inner().waiting.len()), (vec![1, 0], 1));
        // Another queue pair has taken the request: `a` waits again, behind the other queue pairs.
        assert!(line.take_turn(&a.turn, || 0));
        enter(&line, a, 0);
        line.posted(|| 1);
        assert_eq!(calls(all), [1, 1]);
    }

    /// No other queue pair takes a reserved request, even if no other queue pair waits.
    #[test]
    fn others_leave_a_reserved_request_alone() {
        let line = RecvLine::new();
        let [a, b] = &callers::<2>(&line);
        enter(&line, a, 1);
        assert!(!line.take_turn(&b.turn, || 1), "the only one is reserved");
        assert!(line.take_turn(&b.turn, || 2));
        assert!(line.take_turn(&a.turn, || 1));
    }

    #[test]
    fn whoever_is_gone_is_passed_over() {
        let line = RecvLine::new();
        let [a, b, c] = callers::<3>(&line);
        for caller in [&a, &b, &c] {
            enter(&line, caller, 0);
        }
        drop(a);
        line.leave(&b.turn, || 0);
        line.posted(|| 1);
        assert_eq!(calls(&[b, Arc::clone(&c)]), [0, 1]);
        line.leave(&c.turn, || 1);
        line.leave(&c.turn, || 1);
        let inner = line.inner();
        assert_eq!((inner.waiting.len(), inner.granted), (0, 0));
        assert_eq!(line.contenders.load(Ordering::Relaxed), 0);
    }
}
