//! Tests of the router, most of them with artificial completions: which tasks are woken, and that no waker
//! runs under a lock.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::Listener;
use crate::tests::{PORT, connected, endpoints, in_time};

/// A task that counts how often it is woken. Its waker checks that the router's lock is free, both when it is
/// called and when it is dropped.
struct Task {
    router: Weak<Router>,
    woken: AtomicUsize,
}

impl Task {
    fn new(router: &Arc<Router>) -> Arc<Self> {
        Arc::new(Self { router: Arc::downgrade(router), woken: AtomicUsize::new(0) })
    }

    fn waker(self: &Arc<Self>) -> Waker {
        Arc::new(TaskWaker(Arc::clone(self))).into()
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::Relaxed)
    }

    fn look(&self) {
        let Some(router) = self.router.upgrade() else { return };
        assert!(router.state.try_lock().is_ok(), "a waker runs under the lock");
    }
}

struct TaskWaker(Arc<Task>);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.woken.fetch_add(1, Ordering::Relaxed);
        self.0.look();
    }
}

impl Drop for TaskWaker {
    fn drop(&mut self) {
        self.0.look();
    }
}

/// Delivers completions, like the thread that completes requests.
fn complete(router: &Router, wr_ids: &[u64]) {
    let completion = |&wr_id: &u64| {
        let mut completion = WorkCompletion::default();
        completion.wr_id = wr_id;
        completion
    };
    let completions: Vec<_> = wr_ids.iter().map(completion).collect();
    let mut woken = Wakeups::default();
    router.state().route(router.tag, &completions, &mut woken);
    router.wake(woken);
}

fn received(router: &Router, direction: Direction, waker: &Waker) -> Poll<Result<Received>> {
    router.poll_received(direction, &Context::from_waker(waker))
}

fn place(router: &Router, direction: Direction, waker: &Waker) -> bool {
    router.poll_place(direction, &Context::from_waker(waker)).is_ready()
}

/// A queue with a completion that arrives right after a poll has found nothing.
#[derive(Default)]
struct LateQueue {
    is_armed: Cell<bool>,
    events: Cell<usize>,
    waiting: RefCell<Vec<WorkCompletion>>,
    late: Cell<usize>,
}

impl Completions for LateQueue {
    fn arm(&self) {
        self.is_armed.set(true);
    }

    fn take(&self, out: &mut [WorkCompletion]) -> usize {
        let found: Vec<_> = self.waiting.borrow_mut().drain(..).collect();
        out[..found.len()].copy_from_slice(&found);
        if found.is_empty() && self.late.get() > 0 {
            self.late.set(self.late.get() - 1);
            self.waiting.borrow_mut().push(WorkCompletion::default());
            self.events.set(self.events.get() + usize::from(self.is_armed.replace(false)));
        }
        found.len()
    }
}

/// A completion that arrives after the last poll of the queue causes an event.
#[test]
fn no_completion_comes_between_the_last_look_and_the_next_event() {
    for first in [0, 1, BATCH] {
        let router = Router::new(1);
        let queue = LateQueue::default();
        queue.late.set(1);
        queue.waiting.borrow_mut().resize(first, WorkCompletion::default());
        router.take_all(&queue, &mut Wakeups::default());
        assert!(queue.waiting.borrow().is_empty() || queue.events.get() == 1, "nobody looks again");
        assert_eq!(queue.waiting.borrow().len(), 1, "it came late");
    }
}

/// A message wakes all waiting futures, since one of these futures may be dropped before it takes the
/// message.
#[tokio::test(crate = "crate::limited")]
async fn a_message_wakes_all_that_wait() {
    let (client, server) = endpoints();
    let (a, b) = in_time(connected(&client, &Listener::bind(&server, PORT).unwrap())).await;
    let router = a.router();
    let tasks = [(); 3].map(|()| Task::new(router));
    {
        let mut first = Box::pin(router.received(a.engine()));
        let mut second = pin!(router.received(a.engine()));
        for (future, task) in [(first.as_mut(), &tasks[0]), (second.as_mut(), &tasks[1])] {
            sleep_by(future, &task.waker(), router).await;
        }
        assert!(received(router, Direction::Read, &tasks[2].waker()).is_pending());
        // Tasks that poll the engine are woken to poll it again.
        tokio::task::yield_now().await;
        let before = tasks.each_ref().map(|task| task.woken());
        let woken = || std::array::from_fn(|at| tasks[at].woken() - before[at]);
        b.send(b"message").await.unwrap();
        in_time(async {
            while woken().contains(&0) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(woken(), [1; 3]);
        // The first future does not take the message.
        drop(first);
        let waker = tasks[1].waker();
        let polled = second.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(polled, Poll::Ready(Ok(_))));
    }
    assert!(router.state().receivers.is_empty());
}

/// Polls a future until the future sleeps: before that, the future polls the engine.
async fn sleep_by(mut future: Pin<&mut impl Future>, waker: &Waker, router: &Router) {
    let before = sleeping(router);
    while sleeping(router) == before {
        assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        tokio::task::yield_now().await;
    }
}

fn sleeping(router: &Router) -> usize {
    router.state().receivers.iter().filter(|(_, waker)| waker.is_some()).count()
}

/// Cancelled receives, each with its own waker, leave nothing behind.
#[tokio::test(crate = "crate::limited")]
async fn cancelled_receives_leave_no_wakers() {
    let (client, server) = endpoints();
    let (a, _b) = in_time(connected(&client, &Listener::bind(&server, PORT).unwrap())).await;
    let router = a.router();
    for _ in 0..20 {
        let task = Task::new(router);
        let mut future = Box::pin(a.recv());
        sleep_by(future.as_mut(), &task.waker(), router).await;
        // After a poll by another task, the future has one entry, with that task's waker.
        let other = Task::new(router);
        assert!(future.as_mut().poll(&mut Context::from_waker(&other.waker())).is_pending());
        let wakers = || [&task, &other].map(|task| Arc::strong_count(task) - 1);
        assert_eq!((router.state().receivers.len(), wakers()), (1, [0, 1]));
        drop(future);
        assert_eq!((router.state().receivers.len(), wakers()), (0, [0, 0]));
    }
}

/// A stream that many tasks poll one after another keeps only the last waker of each direction.
#[test]
fn a_half_of_a_stream_keeps_one_waker() {
    let router = Router::new(0);
    let mut tasks = Vec::new();
    for _ in 0..10 {
        for direction in [Direction::Read, Direction::Write] {
            let task = Task::new(&router);
            for _ in 0..2 {
                assert!(received(&router, direction, &task.waker()).is_pending());
                assert!(!place(&router, direction, &task.waker()));
            }
            tasks.push(task);
        }
    }
    let wakers = |tasks: &[Arc<Task>]| tasks.iter().map(|task| Arc::strong_count(task) - 1).sum::<usize>();
    let (old, last) = tasks.split_at(18);
    assert_eq!((wakers(old), wakers(last)), (0, 4));
    complete(&router, &[router.tag.receive(0)]);
    assert_eq!((wakers(last), last[0].woken(), last[1].woken()), (2, 1, 1));
    router.free_places(1);
    assert_eq!((wakers(last), last[0].woken(), last[1].woken()), (0, 2, 2));
    assert!(old.iter().all(|task| task.woken() == 0));
}

/// A waker that is registered already stays registered, even after a later poll.
#[test]
fn a_task_that_polls_again_is_woken_once() {
    let router = Router::new(0);
    let task = Task::new(&router);
    let waker = task.waker();
    for _ in 0..3 {
        assert!(
            received(&router, Direction::Write, &waker).is_pending()
                && !place(&router, Direction::Write, &waker)
        );
    }
    complete(&router, &[router.tag.receive(3), router.tag.receive(4)]);
    assert_eq!(task.woken(), 1);
    for buffer in [3, 4] {
        let Poll::Ready(Ok((taken, _))) = received(&router, Direction::Write, &waker) else {
            panic!("a message")
        };
        assert_eq!(taken, buffer);
    }
    assert!(received(&router, Direction::Write, &waker).is_pending());
    assert_eq!(task.woken(), 1);
}

/// A stream that waits for a place is woken, whichever event frees the place.
#[test]
fn a_place_that_becomes_free_wakes_the_stream() {
    let ways: [fn(&Router, u64); 3] = [
        |router, wr_id| complete(router, &[wr_id]),
        |router, wr_id| router.cancel(wr_id),
        |router, _| router.free_places(1),
    ];
    for free in ways {
        let router = Router::new(1);
        let task = Task::new(&router);
        let waker = task.waker();
        assert!(place(&router, Direction::Write, &waker) && !place(&router, Direction::Write, &waker));
        let wr_id = router.open(Pinned::Nothing);
        free(&router, wr_id);
        assert_eq!(task.woken(), 1);
        assert!(place(&router, Direction::Write, &waker) && !router.take_place());
    }
}

/// A waker may poll at once, as the waker of a runtime may. So the place has to be free before the waker is
/// called.
#[test]
fn a_place_is_free_before_the_stream_is_woken() {
    struct Inline {
        router: Arc<Router>,
        taken: AtomicUsize,
    }

    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            let is_taken = place(&self.router, Direction::Write, Waker::noop());
            self.taken.fetch_add(usize::from(is_taken), Ordering::Relaxed);
        }
    }

    let router = Router::new(0);
    let inline = Arc::new(Inline { router: Arc::clone(&router), taken: AtomicUsize::new(0) });
    for freed in 1..4 {
        assert!(!place(&router, Direction::Write, &Arc::clone(&inline).into()));
        let wr_id = router.open(Pinned::Nothing);
        match freed {
            1 => complete(&router, &[wr_id]),
            2 => router.cancel(wr_id),
            _ => router.free_places(1),
        }
        assert_eq!(inline.taken.load(Ordering::Relaxed), freed);
    }
}

/// A place is assigned to a future that waited earlier. The future is then dropped, and the stream gets the
/// place.
#[test]
fn a_place_of_a_dropped_future_goes_to_the_stream() {
    let router = Router::new(0);
    let [task, stream] = [(); 2].map(|()| Task::new(&router));
    let (waker, of_stream) = (task.waker(), stream.waker());
    let mut future = Box::pin(router.place());
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    router.free_places(1);
    assert_eq!(task.woken(), 1);
    assert!(!place(&router, Direction::Read, &of_stream), "it is the future's");
    drop(future);
    assert_eq!(stream.woken(), 1);
    assert!(place(&router, Direction::Read, &of_stream));
}

/// A buffer is reused, however its request ends. Memory of the user is kept until its request completes, and
/// is then released in a call of the user.
#[tokio::test(crate = "crate::limited")]
async fn buffers_are_used_again_and_memory_is_released() {
    let (client, server) = endpoints();
    let (a, _b) = in_time(connected(&client, &Listener::bind(&server, PORT).unwrap())).await;
    let register = || a.register(8, iwarp::memory::Access::LOCAL_WRITE).unwrap();
    let router = Router::new(4);
    let ends: [fn(&Router, u64, &Served); 3] = [
        |router, wr_id, _| router.cancel(wr_id),
        |router, wr_id, _| {
            router.forget(wr_id);
            assert!(router.free_buffer().is_none(), "the request is under way");
            complete(router, &[wr_id]);
        },
        |router, wr_id, engine| {
            let wait = router.wait(wr_id, engine);
            complete(router, &[wr_id]);
            assert!(router.free_buffer().is_none(), "nobody has looked at the result");
            drop(wait);
        },
    ];
    for end in ends {
        let wr_id = router.open(Pinned::Buffer(register()));
        end(&router, wr_id, a.engine());
        assert!(router.free_buffer().is_some() && router.free_buffer().is_none());
        assert!(router.state().requests.is_empty());
    }
    let used = || client.context().usage().mr.used;
    for is_forgotten in [true, false] {
        let before = used();
        let memory = register();
        let wr_id = router.open(Pinned::Memory { _slice: (&memory).into() });
        drop(memory);
        let wait = if is_forgotten { None } else { Some(router.wait(wr_id, a.engine())) };
        if is_forgotten {
            router.forget(wr_id);
        }
        assert_eq!(used(), before + 1, "the request is under way");
        complete(&router, &[wr_id]);
        // A waker may drop the future on the thread that completes requests.
        drop(wait);
        assert_eq!(used(), before + 1, "not by the thread that completes requests");
        let next = router.open(Pinned::Nothing);
        assert_eq!(used(), before);
        router.cancel(next);
    }
}

/// Completions with a `wr_id` of the program wake no task and free no place.
#[test]
fn completions_of_the_program_change_nothing() {
    let router = Router::new(0);
    let wr_id = router.open(Pinned::Nothing);
    let key = Tag::number(wr_id) as u64;
    complete(&router, &[key, key | 1 << 63, u64::MAX, wr_id ^ 1 << 32, router.tag.receive(0) ^ 1 << 62]);
    assert!(!router.take_place() && router.state().received.is_empty());
    assert!(matches!(router.state().requests.get(key as usize), Some(Request::Open { .. })));
    complete(&router, &[wr_id]);
    assert!(router.take_place() && !router.take_place());
    assert!(matches!(router.state().requests.get(key as usize), Some(Request::Done { .. })));
}

/// The waker of a request that is polled by another task, dropped while it waits, or completed, is dropped
/// without the lock.
#[tokio::test(crate = "crate::limited")]
async fn wakers_of_requests_are_dropped_without_a_lock() {
    let (client, server) = endpoints();
    let (a, _b) = in_time(connected(&client, &Listener::bind(&server, PORT).unwrap())).await;
    let router = Router::new(4);
    for ends in ["dropped", "completed", "dropped when completed"] {
        let wr_id = router.open(Pinned::Nothing);
        let tasks = [(); 2].map(|()| Task::new(&router));
        let mut wait = Box::pin(router.wait(wr_id, a.engine()));
        for task in &tasks {
            let waker = task.waker();
            let sleeps = || {
                matches!(&router.state().requests[Tag::number(wr_id)],
                Request::Open { waker: Some(there), .. } if there.will_wake(&waker))
            };
            while !sleeps() {
                assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                tokio::task::yield_now().await;
            }
        }
        tokio::task::yield_now().await;
        assert_eq!(tasks.each_ref().map(Arc::strong_count), [1, 2], "the last one is kept");
        let before = tasks.each_ref().map(|task| task.woken());
        if ends != "dropped" {
            complete(&router, &[wr_id]);
            assert_eq!(tasks.each_ref().map(|task| task.woken()), [before[0], before[1] + 1]);
        }
        if ends == "completed" {
            let waker = tasks[1].waker();
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        }
        drop(wait);
        assert_eq!(tasks.each_ref().map(Arc::strong_count), [1, 1]);
        // A request whose future was dropped completes without the future.
        assert_eq!(router.state().requests.len(), usize::from(ends == "dropped"));
        if ends == "dropped" {
            complete(&router, &[wr_id]);
            assert!(router.state().requests.is_empty());
        }
    }
}
