//! Timeouts of queue pairs whose peer does not connect: requests fail after the time that the program has
//! set, but not before a minimum time ([`LEAST`]).
//!
//! On InfiniBand, a request is sent again if the peer's queue pair does not answer, for instance because it
//! is not in RTR. The request is sent `retry_cnt + 1` times, and the device waits `4.096 us * 2^timeout` for
//! an answer each time. Then the request and the queue pair fail. In this library, a request waits for the
//! connection as long as all these waits would take. In a connection, TCP retransmits by its own rules.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use iwarp::verbs::{QpState, QueuePair};

use crate::ffi::sys;

/// Time between two checks of the queue pairs.
const INTERVAL: Duration = Duration::from_millis(20);

/// The number of our limit on the engine's sleep.
const SLEEP_LIMIT: usize = 0;

/// The minimum wait for a peer. On hardware the peer's device answers, but here the peer's process may have
/// to wait for a processor.
const LEAST: Duration = Duration::from_secs(2);

/// The maximum wait after a peer has ended the connection, since the peer does not connect again. UCX retries
/// for 8.6 s by default. On a busy machine, a program may need seconds until it closes its side as well.
const MOST: Duration = Duration::from_secs(10);

/// The queue pairs that have no connection yet, and whose requests fail after a time limit.
#[derive(Default)]
pub(crate) struct RetryTimeouts {
    waiting: Mutex<Waiting>,
    count: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    all: Vec<Unreached>,
    next: Option<Instant>,
}

/// A queue pair that has no connection yet, and whose requests fail after a time limit.
struct Unreached {
    number: u32,
    qp: QueuePair,
    limit: Limit,
    /// The time of the first check that found a posted request.
    since: Option<Instant>,
}

/// What limits the time for which the requests of a queue pair wait for a peer that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// After this time the oldest request fails.
    Fail(Duration),
    /// After the minimum time the requests are dropped. Later requests wait again, since the peer may still
    /// connect.
    OfUc,
}

impl Limit {
    /// The limit that the program has set for a queue pair of type RC. `None` means that requests wait for
    /// ever.
    pub(crate) fn of(attr: &sys::ibv_qp_attr) -> Option<Self> {
        tries_of(attr).map(|time| Self::Fail(time.max(LEAST)))
    }

    fn time(self) -> Duration {
        match self {
            Self::Fail(time) => time,
            Self::OfUc => LEAST,
        }
    }
}

/// The time that all tries of a request take on InfiniBand. `None` means that the tries do not end.
fn tries_of(attr: &sys::ibv_qp_attr) -> Option<Duration> {
    let once = Duration::from_nanos(4096 << attr.timeout.min(31));
    (attr.timeout != 0).then(|| once * (u32::from(attr.retry_cnt) + 1))
}

/// The time from the end of the connection by the peer until waiting requests fail. A program that ends first
/// may leave the last requests of its peer without an answer. If these requests failed at once, the peer's
/// program could see a failure before its last completions. Programs usually ignore a failure after their
/// last completion.
pub(crate) fn after_the_end(attr: &sys::ibv_qp_attr) -> Duration {
    tries_of(attr).map_or(MOST, |time| time.min(MOST))
}

impl RetryTimeouts {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Starts the timeout of a queue pair that enters RTS, unless the timeout is infinite or the peer has
    /// already connected. The program's send requests are posted to `sender`.
    pub(crate) fn insert(
        &self,
        engine: &SharedEngine,
        number: u32,
        sender: &QueuePair,
        limit: Option<Limit>,
    ) {
        let Some(limit) = limit else { return };
        if sender.state() != QpState::Idle {
            return;
        }
        let mut waiting = self.waiting();
        waiting.all.push(Unreached { number, qp: sender.clone(), limit, since: None });
        self.count.store(waiting.all.len(), Ordering::Release);
        // The lock is held, since another thread that removes the last queue pair also removes the limit.
        engine.limit_sleep(SLEEP_LIMIT, Some(INTERVAL));
    }

    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Ends the timeout of a queue pair. This function is called when the queue pair is reset or destroyed.
    pub(crate) fn remove(&self, engine: &SharedEngine, number: u32) {
        if !self.has_waiting() {
            return;
        }
        let mut waiting = self.waiting();
        let (gone, rest): (Vec<_>, Vec<_>) = waiting.all.drain(..).partition(|other| other.number == number);
        self.keep(&mut waiting, rest, engine);
        drop(waiting);
        // `gone` is dropped after the lock is released, since it may have the last handle of a queue pair.
        drop(gone);
    }

    /// Fails the queue pairs whose peers have not connected in time. This function is called after a poll,
    /// with the engine locked.
    pub(crate) fn sweep(&self, engine: &SharedEngine) {
        if !self.has_waiting() {
            return;
        }
        let now = Instant::now();
        let mut waiting = self.waiting();
        if waiting.next.is_some_and(|next| next > now) {
            return;
        }
        waiting.next = Some(now + INTERVAL);
        let (over, mut rest): (Vec<_>, Vec<_>) =
            waiting.all.drain(..).map(|one| one.look(now)).partition(Unreached::is_over(now));
        let again = |one: &&Unreached| one.limit == Limit::OfUc && one.qp.state() == QpState::Idle;
        rest.extend(over.iter().filter(again).map(Unreached::begin_again));
        self.keep(&mut waiting, rest, engine);
        drop(waiting);
        for Unreached { qp, .. } in over {
            qp.give_up();
        }
    }

    /// Keeps only the queue pairs of `rest`. If `rest` is empty, the engine's sleep is no longer limited.
    fn keep(&self, waiting: &mut Waiting, rest: Vec<Unreached>, engine: &SharedEngine) {
        waiting.all = rest;
        self.count.store(waiting.all.len(), Ordering::Release);
        if waiting.all.is_empty() {
            engine.limit_sleep(SLEEP_LIMIT, None);
        }
    }
}

impl Unreached {
    /// Sets `since` to `now` if this is the first check that finds a posted request.
    fn look(mut self, now: Instant) -> Self {
        if self.since.is_none() && self.qp.query().send_open > 0 {
            self.since = Some(now);
        }
        self
    }

    /// Returns the same queue pair, which has no request any more.
    fn begin_again(&self) -> Self {
        Self { number: self.number, qp: self.qp.clone(), limit: self.limit, since: None }
    }

    /// Whether the queue pair need not be checked any more: it is connected, or has failed, or has waited for
    /// `limit`.
    fn is_over(now: Instant) -> impl Fn(&Self) -> bool {
        move |this| {
            this.qp.state() != QpState::Idle
                || this.since.is_some_and(|since| now.saturating_duration_since(since) >= this.limit.time())
        }
    }
}

#[cfg(test)]
mod tests {
    use dp::link::{LinkConfig, pair};
    use iwarp::engine::{Engine, EngineConfig, SharedOptions};
    use iwarp::verbs::{Context, ContextConfig, CqOptions, QpInit, QpType, SendOp, SendRequest, WcStatus};

    use super::*;

    /// An engine that nobody polls, and queue pairs of this engine that accept sends before they have a
    /// connection.
    fn host<const N: usize>() -> (SharedEngine, [QueuePair; N]) {
        let (port, _other) = pair(&LinkConfig::default());
        let context = Context::new(ContextConfig::default()).unwrap();
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let engine = Engine::new(&context, port, config).unwrap();
        let engine = SharedEngine::without_thread(engine, SharedOptions::default(), Box::new(|| {})).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq_with(&CqOptions::new(64)).unwrap());
        let init = QpInit { early_sends: true, ..QpInit::new(&cq) };
        (engine, std::array::from_fn(|_| pd.create_qp(&init).unwrap()))
    }

    fn attributes(timeout: u8) -> sys::ibv_qp_attr {
        sys::ibv_qp_attr { timeout, retry_cnt: 7, ..Default::default() }
    }

    fn post(qp: &QueuePair) {
        qp.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
    }

    fn numbers(retry_timeouts: &RetryTimeouts) -> Vec<u32> {
        retry_timeouts.waiting().all.iter().map(|one| one.number).collect()
    }

    #[test]
    fn the_time_begins_with_the_first_request_and_ends_with_the_connection() {
        let (engine, [qp]) = host();
        let retry_timeouts = RetryTimeouts::default();
        let now = Instant::now();
        retry_timeouts.insert(&engine, 5, &qp, Limit::of(&attributes(14)));
        let one = retry_timeouts.waiting().all.pop().unwrap().look(now);
        assert_eq!((one.number, one.since, one.limit), (5, None, Limit::Fail(LEAST)));
        assert!(!Unreached::is_over(now + LEAST)(&one), "it has no request yet");
        post(&qp);
        let one = one.look(now).look(now + LEAST);
        assert_eq!(one.since, Some(now), "the first look that finds one counts");
        assert!(!Unreached::is_over(now + LEAST - Duration::from_nanos(1))(&one));
        assert!(Unreached::is_over(now + LEAST)(&one));
        // A queue pair whose stream runs or has ended is not checked any more.
        qp.modify(QpState::Error).unwrap();
        assert!(Unreached::is_over(now)(&one));
    }

    #[test]
    fn those_without_a_limit_or_with_a_stream_are_not_watched() {
        let (engine, [patient, failed]) = host();
        let retry_timeouts = RetryTimeouts::default();
        retry_timeouts.insert(&engine, 5, &patient, Limit::of(&attributes(0)));
        failed.modify(QpState::Error).unwrap();
        retry_timeouts.insert(&engine, 6, &failed, Limit::of(&attributes(14)));
        assert!(!retry_timeouts.has_waiting() && numbers(&retry_timeouts).is_empty());
    }

    #[test]
    fn who_leaves_is_not_watched_any_more_and_others_are() {
        let (engine, [first, second]) = host();
        let retry_timeouts = RetryTimeouts::default();
        retry_timeouts.insert(&engine, 5, &first, Limit::of(&attributes(14)));
        retry_timeouts.insert(&engine, 6, &second, Limit::of(&attributes(14)));
        retry_timeouts.remove(&engine, 5);
        assert!(retry_timeouts.has_waiting());
        assert_eq!(numbers(&retry_timeouts), [6]);
        retry_timeouts.remove(&engine, 7);
        assert_eq!(numbers(&retry_timeouts), [6], "nobody's number");
        retry_timeouts.remove(&engine, 6);
        assert!(!retry_timeouts.has_waiting() && numbers(&retry_timeouts).is_empty());
    }

    #[test]
    fn a_sweep_gives_up_those_whose_time_is_up() {
        let (engine, [late, early, idle]) = host();
        let retry_timeouts = RetryTimeouts::default();
        for (number, qp) in [(5, &late), (6, &early), (7, &idle)] {
            retry_timeouts.insert(&engine, number, qp, Limit::of(&attributes(14)));
        }
        post(&late);
        post(&early);
        retry_timeouts.waiting().all[0].since = Instant::now().checked_sub(LEAST);
        retry_timeouts.sweep(&engine);
        assert_eq!(numbers(&retry_timeouts), [6, 7]);
        assert_eq!([&late, &early, &idle].map(QueuePair::state), {
            [QpState::Error, QpState::Idle, QpState::Idle]
        });
        assert!(
            retry_timeouts.waiting().all[0].since.is_some()
                && retry_timeouts.waiting().all[1].since.is_none()
        );
        // There is no check before the interval has passed.
        retry_timeouts.waiting().all[0].since = Instant::now().checked_sub(LEAST);
        retry_timeouts.waiting().next = Some(Instant::now() + LEAST);
        retry_timeouts.sweep(&engine);
        assert_eq!(numbers(&retry_timeouts), [6, 7]);
        retry_timeouts.waiting().next = None;
        retry_timeouts.sweep(&engine);
        assert_eq!((numbers(&retry_timeouts), retry_timeouts.has_waiting()), (vec![7], true));
    }

    /// A queue pair of type UC is watched until it has a connection. Its requests are dropped each time.
    #[test]
    fn a_queue_pair_of_type_uc_stays_watched() {
        let (port, _other) = pair(&LinkConfig::default());
        let context = Context::new(ContextConfig::default()).unwrap();
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let engine = Engine::new(&context, port, config).unwrap();
        let engine = SharedEngine::without_thread(engine, SharedOptions::default(), Box::new(|| {})).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq_with(&CqOptions::new(64)).unwrap());
        let init = QpInit { early_sends: true, qp_type: QpType::Uc, ..QpInit::new(&cq) };
        let qp = pd.create_qp(&init).unwrap();
        let retry_timeouts = RetryTimeouts::default();
        retry_timeouts.insert(&engine, 5, &qp, Some(Limit::OfUc));
        for _ in 0..2 {
            post(&qp);
            retry_timeouts.waiting().next = None;
            retry_timeouts.sweep(&engine);
            assert!(cq.poll_one().is_none());
            retry_timeouts.waiting().all[0].since = Instant::now().checked_sub(LEAST);
            retry_timeouts.waiting().next = None;
            retry_timeouts.sweep(&engine);
            assert_eq!(cq.poll_one().map(|wc| wc.status), Some(WcStatus::Success));
            assert_eq!((qp.state(), numbers(&retry_timeouts)), (QpState::Idle, vec![5]));
            assert!(retry_timeouts.waiting().all[0].since.is_none());
        }
        qp.modify(QpState::Error).unwrap();
        retry_timeouts.waiting().next = None;
        retry_timeouts.sweep(&engine);
        assert!(!retry_timeouts.has_waiting());
    }

    #[test]
    fn the_time_is_that_of_all_tries_and_none_without_a_timeout() {
        let of = |timeout, retry_cnt| {
            Limit::of(&sys::ibv_qp_attr { timeout, retry_cnt, ..Default::default() }).map(Limit::time)
        };
        assert_eq!(of(0, 7), None);
        assert_eq!(of(18, 5), Some(Duration::from_nanos(6 * (4096 << 18))));
        assert_eq!(of(14, 7), Some(LEAST), "perftest's");
        assert_eq!(of(1, 0), Some(LEAST));
        assert_eq!(of(255, 7), of(31, 7));
        let after = |timeout, retry_cnt| {
            after_the_end(&sys::ibv_qp_attr { timeout, retry_cnt, ..Default::default() })
        };
        assert_eq!(after(14, 7), Duration::from_nanos(8 * (4096 << 14)));
        assert_eq!(after(18, 7), Duration::from_nanos(8 * (4096 << 18)), "UCX's");
        assert_eq!(
            [(0, 7), (31, 7), (20, 5)].map(|(timeout, retry_cnt)| after(timeout, retry_cnt)),
            [MOST; 3]
        );
    }
}
