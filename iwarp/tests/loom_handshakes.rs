//! Tries the interleavings of the lock-free handshakes, such as arming and completing, sleeping and waking,
//! ringing and answering a doorbell, adding to a ring and removing from it, and handing the polling over to
//! another thread. In the largest models, interleavings with more than three preemptions are left out.
//!
//! The source files of the crate are compiled here with loom's atomics, so that `cargo test` runs these tests
//! together with the others. For most handshakes, another test runs a copy that lacks the fences or
//! orderings, and expects loom to find an error. Otherwise the test of the handshake would prove nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

/// The module that the crate's source files import.
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
}

/// The crate's `SharedCell`, built on loom's cell. Loom's cell detects an access that is not ordered with an
/// access of another thread.
mod shared_cell {
    pub(crate) struct SharedCell<T>(loom::cell::UnsafeCell<T>);

    impl<T> SharedCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }
        pub(crate) fn for_reading(&self) -> *const T {
            self.0.with(|value| value)
        }
        pub(crate) fn for_writing(&self) -> *mut T {
            self.0.with_mut(|value| value)
        }
    }
}

#[path = "../src/queues/arm.rs"]
mod arm;

#[allow(dead_code, reason = "a shared engine uses more of it")]
#[path = "../src/engine/shared_engine/handover.rs"]
mod handover;

#[allow(dead_code, reason = "the consumer of a queue pair uses more of it")]
#[path = "../src/queues/request_ring.rs"]
mod request_ring;

#[path = "../src/queues/rung.rs"]
mod rung;

#[path = "../src/engine/shared_engine/service.rs"]
mod service;

#[path = "../src/queues/work_list.rs"]
mod work_list;

use arm::Arm;
use handover::Handover;
use rung::Rung;
use service::Service;
use work_list::WorkList;

/// The handshake of the completion queue: one thread arms and polls, and other threads complete.
trait Arming: Send + Sync + 'static {
    fn create() -> Self;
    fn arm(&self, solicited_only: bool);
    fn fires(&self, solicited: bool) -> bool;
}

impl Arming for Arm {
    fn create() -> Self {
        Self::new()
    }
    fn arm(&self, solicited_only: bool) {
        Self::arm(self, solicited_only);
    }
    fn fires(&self, solicited: bool) -> bool {
        Self::fires(self, solicited)
    }
}

/// The negative control: the same handshake without fences.
struct UnfencedArm(AtomicBool);

impl Arming for UnfencedArm {
    fn create() -> Self {
        Self(AtomicBool::new(false))
    }
    fn arm(&self, _: bool) {
        self.0.store(true, Ordering::Release);
    }
    fn fires(&self, _: bool) -> bool {
        self.0.load(Ordering::Acquire) && self.0.swap(false, Ordering::AcqRel)
    }
}

/// Each of `producers` adds a completion and checks whether the completion causes an event. The owner arms
/// the queue and polls once more. The owner may sleep only if this poll saw all completions or an event was
/// generated.
fn no_completion_is_slept_through<A: Arming>(producers: usize) {
    loom::model(move || {
        let arm = Arc::new(A::create());
        let entered = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let (arm, entered) = (Arc::clone(&arm), Arc::clone(&entered));
                thread::spawn(move || {
                    // This is the weakest ordering with which the queue may add a completion.
                    entered.fetch_add(1, Ordering::Release);
                    usize::from(arm.fires(false))
                })
            })
            .collect();
        arm.arm(false);
        let polled = entered.load(Ordering::Acquire);
        let events: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(polled == producers || events > 0, "a completion came and nobody was told");
        assert!(events <= 1, "one arming, {events} events");
    });
}

// Proves RDMAP-042: if a completion occurs while the queue is armed, this arming gives exactly one event.
#[test]
fn arming_never_misses_a_completion() {
    no_completion_is_slept_through::<Arm>(1);
    no_completion_is_slept_through::<Arm>(2);
}

/// If the queue is armed for solicited completions, a plain completion causes no event and does not disarm
/// the queue.
#[test]
fn a_plain_completion_never_takes_the_event_of_a_solicited_one() {
    loom::model(|| {
        let arm = Arc::new(Arm::new());
        let solicited = Arc::new(AtomicBool::new(false));
        let plain = {
            let arm = Arc::clone(&arm);
            thread::spawn(move || arm.fires(false))
        };
        let asked = {
            let (arm, solicited) = (Arc::clone(&arm), Arc::clone(&solicited));
            thread::spawn(move || {
                solicited.store(true, Ordering::Release);
                arm.fires(true)
            })
        };
        arm.arm(true);
        let polled = solicited.load(Ordering::Acquire);
        let (plain, asked) = (plain.join().unwrap(), asked.join().unwrap());
        assert!(!plain, "a plain completion made an event that was not asked for");
        assert!(polled || asked, "a solicited completion came and nobody was told");
    });
}

#[test]
fn loom_catches_an_arming_without_fences() {
    caught(no_completion_is_slept_through::<UnfencedArm>);
}

/// The handshake of an engine that goes to sleep.
trait Dozing: Send + Sync + 'static {
    fn create() -> Self;
    fn prepare(&self, idle: impl FnOnce() -> bool) -> bool;
    fn must_wake(&self) -> bool;
}

impl Dozing for WorkList {
    fn create() -> Self {
        Self::new(2)
    }
    fn prepare(&self, idle: impl FnOnce() -> bool) -> bool {
        self.prepare_sleep(idle)
    }
    fn must_wake(&self) -> bool {
        self.announce()
    }
}

/// The negative control: the same handshake without atomic exchanges.
struct UnorderedDoze(AtomicBool);

impl Dozing for UnorderedDoze {
    fn create() -> Self {
        Self(AtomicBool::new(false))
    }
    fn prepare(&self, idle: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Release);
        idle()
    }
    fn must_wake(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Each of `posters` adds work and announces it. The engine prepares to sleep, and sleeps only if it has seen
/// no work. If it sleeps although work was added, a poster wakes it.
fn no_work_is_slept_through<D: Dozing>(posters: usize) {
    loom::model(move || {
        let doze = Arc::new(D::create());
        let work = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..posters)
            .map(|_| {
                let (doze, work) = (Arc::clone(&doze), Arc::clone(&work));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Release);
                    doze.must_wake()
                })
            })
            .collect();
        let sleeps = doze.prepare(|| work.load(Ordering::Acquire) == 0);
        let wakes = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&wakes| wakes).count();
        assert!(!sleeps || wakes > 0, "the engine sleeps with work left for it");
    });
}

#[test]
fn a_sleeping_engine_is_always_woken() {
    no_work_is_slept_through::<WorkList>(1);
    no_work_is_slept_through::<WorkList>(2);
}

#[test]
fn loom_catches_a_sleep_without_exchanges() {
    caught(no_work_is_slept_through::<UnorderedDoze>);
}

/// The handshake between a caller that stops polling and the thread that is about to wait.
trait Giving: Send + Sync + 'static {
    fn create() -> Self;
    fn give(&self) -> bool;
    fn step_back(&self) -> bool;
}

impl Giving for Handover {
    fn create() -> Self {
        Self::new()
    }
    fn give(&self) -> bool {
        self.give()
    }
    fn step_back(&self) -> bool {
        self.step_back()
    }
}

/// The negative control: the same handshake without fences.
struct UnfencedGiving([AtomicBool; 2]);

impl Giving for UnfencedGiving {
    fn create() -> Self {
        Self([AtomicBool::new(false), AtomicBool::new(false)])
    }
    fn give(&self) -> bool {
        self.0[0].store(true, Ordering::Release);
        self.0[1].load(Ordering::Acquire)
    }
    fn step_back(&self) -> bool {
        self.0[1].store(true, Ordering::Release);
        !self.0[0].load(Ordering::Acquire)
    }
}

/// Callers stop polling. The thread either does not wait, or is woken by one of the callers.
fn nobody_waits_for_callers_that_left<G: Giving>(callers: usize) {
    loom::model(move || {
        let handover = Arc::new(G::create());
        let threads: Vec<_> = (0..callers)
            .map(|_| {
                let handover = Arc::clone(&handover);
                thread::spawn(move || handover.give())
            })
            .collect();
        let waits = handover.step_back();
        let calls = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&calls| calls).count();
        assert!(!waits || calls > 0, "the thread waits, and nobody polls");
    });
}

#[test]
fn polling_that_is_given_away_is_taken() {
    nobody_waits_for_callers_that_left::<Handover>(1);
    nobody_waits_for_callers_that_left::<Handover>(2);
}

#[test]
fn loom_catches_a_handover_without_fences() {
    caught(nobody_waits_for_callers_that_left::<UnfencedGiving>);
}

/// The caller that serves stops, and another caller may begin. The thread is parked only if a caller still
/// serves, or if the caller that stops sets the alarm.
fn a_parked_thread_has_a_server_or_an_alarm(has_next: bool) {
    bounded(move || {
        let service = Arc::new(Service::new());
        service.begin(1);
        let first = {
            let service = Arc::clone(&service);
            thread::spawn(move || service.end(1))
        };
        let second = has_next.then(|| {
            let service = Arc::clone(&service);
            thread::spawn(move || {
                service.begin(2);
                assert!(service.is_of(2), "only the caller itself ends its service");
                service.end(2)
            })
        });
        let parks = service.park();
        let alarms = [Some(first), second].into_iter().flatten();
        let is_set = alarms.map(|caller| caller.join().unwrap()).filter(|&is_set| is_set).count() > 0;
        assert!(!service.any_serves());
        assert!(!parks || is_set, "the thread is parked, and nobody serves");
        service.unpark();
        service.begin(3);
        assert!(!service.end(3), "the thread is not parked");
        service.begin(4);
        assert!(service.park() && service.end(4), "each park needs its own alarm");
        service.begin(5);
        assert!(!service.end(5), "one alarm is enough");
    });
}

#[test]
fn the_last_caller_that_serves_sets_the_alarm_of_a_parked_thread() {
    a_parked_thread_has_a_server_or_an_alarm(false);
    a_parked_thread_has_a_server_or_an_alarm(true);
}

/// Each of two threads adds a slot. The engine takes the slots that it finds, and prepares to sleep. The
/// engine sleeps only if it has taken all slots, or if a thread wakes it. The engine is woken at most once,
/// and then finds the remaining slots.
#[test]
fn no_slot_is_slept_through_or_lost() {
    bounded(|| {
        let list = Arc::new(WorkList::new(2));
        let threads: Vec<_> = (0..2)
            .map(|slot| {
                let list = Arc::clone(&list);
                thread::spawn(move || list.add(slot).ok().expect("two slots fit"))
            })
            .collect();
        let mut taken: Vec<u32> = std::iter::from_fn(|| list.take()).collect();
        let sleeps = list.prepare_sleep(|| true);
        let wakes = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&wakes| wakes).count();
        if sleeps {
            assert_eq!(wakes, usize::from(taken.len() < 2), "the engine sleeps after {taken:?}");
            list.end_sleep();
        }
        taken.extend(std::iter::from_fn(|| list.take()));
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
    });
}

/// After an engine has woken up, it is not woken without need. The engine's next sleep also misses no work.
#[test]
fn sleep_after_sleep_is_as_safe() {
    loom::model(|| {
        let list = Arc::new(WorkList::new(2));
        let work = Arc::new(AtomicBool::new(false));
        let poster = {
            let (list, work) = (Arc::clone(&list), Arc::clone(&work));
            thread::spawn(move || {
                work.store(true, Ordering::Release);
                list.announce()
            })
        };
        list.prepare_sleep(|| !work.load(Ordering::Acquire));
        list.end_sleep();
        let sleeps = list.prepare_sleep(|| !work.load(Ordering::Acquire));
        let woken = poster.join().unwrap();
        assert!(!sleeps || woken, "the second sleep misses the work");
        list.end_sleep();
        assert!(!list.announce(), "an engine that is awake is woken");
    });
}

/// The handshake of a doorbell.
trait Ringing: Send + Sync + 'static {
    fn create() -> Self;
    fn must_ring(&self) -> bool;
    fn answer(&self);
}

impl Ringing for Rung {
    fn create() -> Self {
        Self::new()
    }
    fn must_ring(&self) -> bool {
        Self::must_ring(self)
    }
    fn answer(&self) {
        Self::answer(self);
    }
}

/// The negative control: the same handshake without fences.
struct UnfencedRung(AtomicBool);

impl Ringing for UnfencedRung {
    fn create() -> Self {
        Self(AtomicBool::new(false))
    }
    fn must_ring(&self) -> bool {
        !self.0.load(Ordering::Acquire) && {
            self.0.store(true, Ordering::Release);
            true
        }
    }
    fn answer(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Each of `posters` adds work, and rings if it must. The doorbell was rung before, and the engine has not
/// answered it yet. The engine answers and checks for work, once for the first doorbell and once for each
/// later doorbell that it finds.
fn no_work_stays_behind_a_doorbell<R: Ringing>(posters: usize) {
    bounded(move || {
        let rung = Arc::new(R::create());
        let (work, rings) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        assert!(rung.must_ring());
        let threads: Vec<_> = (0..posters)
            .map(|_| {
                let (rung, work, rings) = (Arc::clone(&rung), Arc::clone(&work), Arc::clone(&rings));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Release);
                    if rung.must_ring() {
                        rings.fetch_add(1, Ordering::Release);
                    }
                })
            })
            .collect();
        let look = || {
            rung.answer();
            work.load(Ordering::Acquire)
        };
        let mut seen = look();
        let answered = rings.load(Ordering::Acquire);
        if answered > 0 {
            seen = look();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        if rings.load(Ordering::Acquire) > answered {
            seen = look();
        }
        assert_eq!(seen, posters, "work was added and nobody rang for it");
    });
}

#[test]
fn a_post_rings_or_is_seen() {
    no_work_stays_behind_a_doorbell::<Rung>(1);
    no_work_stays_behind_a_doorbell::<Rung>(2);
}

#[test]
fn loom_catches_a_doorbell_without_fences() {
    caught(no_work_stays_behind_a_doorbell::<UnfencedRung>);
}

/// The writer and the reader of a ring, for the test and for its negative control.
trait Ring: 'static {
    type Writer: Send + 'static;
    type Reader: Send + 'static;
    fn create(capacity: usize) -> (Self::Writer, Self::Reader);
    fn push(writer: &mut Self::Writer, value: u64) -> bool;
    fn pop(reader: &mut Self::Reader) -> Option<u64>;
}

struct WorkRing;

impl Ring for WorkRing {
    type Writer = request_ring::RingWriter<u64>;
    type Reader = request_ring::RingReader<u64>;
    fn create(capacity: usize) -> (Self::Writer, Self::Reader) {
        request_ring::ring(capacity)
    }
    fn push(writer: &mut Self::Writer, value: u64) -> bool {
        writer.push_with(|entry| *entry = value)
    }
    fn pop(reader: &mut Self::Reader) -> Option<u64> {
        let value = *reader.first()?;
        reader.remove(1);
        Some(value)
    }
}

/// The negative control: a ring with one entry, whose positions do not order the accesses to it.
struct UnorderedRing;

/// The entry, the number of added entries, and the number of removed entries.
type UnorderedState = Arc<[AtomicUsize; 3]>;

impl Ring for UnorderedRing {
    type Writer = UnorderedState;
    type Reader = UnorderedState;
    fn create(_: usize) -> (Self::Writer, Self::Reader) {
        let state = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
        (Arc::clone(&state), state)
    }
    fn push(writer: &mut Self::Writer, value: u64) -> bool {
        let [entry, added, removed] = &**writer;
        let is_free = added.load(Ordering::Relaxed) == removed.load(Ordering::Relaxed);
        if is_free {
            entry.store(value as usize, Ordering::Relaxed);
            added.store(added.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        is_free
    }
    fn pop(reader: &mut Self::Reader) -> Option<u64> {
        let [entry, added, removed] = &**reader;
        let next = removed.load(Ordering::Relaxed);
        if added.load(Ordering::Relaxed) == next {
            return None;
        }
        let value = entry.load(Ordering::Relaxed);
        removed.store(next + 1, Ordering::Relaxed);
        Some(value as u64)
    }
}

/// One thread tries three times to add the next value, and the other thread removes the values that it finds.
/// Each value is removed once, complete and in order. Both threads may reuse an entry that the other thread
/// has left.
///
/// The reader has its own thread. Loom does not detect a race of a load in the main thread with a store if
/// the other thread has loaded the same atomic before the store.
fn entries_come_out_in_order<R: Ring>(capacity: usize) {
    bounded(move || {
        let (mut writer, mut reader) = R::create(capacity);
        let taking = thread::spawn(move || {
            let taken: Vec<u64> = (0..3).filter_map(|_| R::pop(&mut reader)).collect();
            (taken, reader)
        });
        let added = (0..3).fold(0, |added, _| added + u64::from(R::push(&mut writer, added + 1)));
        let (mut taken, mut reader) = taking.join().unwrap();
        taken.extend(std::iter::from_fn(|| R::pop(&mut reader)));
        assert!(taken.iter().copied().eq(1..=added), "{taken:?} of {added}");
    });
}

#[test]
fn entries_of_a_ring_come_out_whole_and_in_order() {
    entries_come_out_in_order::<WorkRing>(1);
    entries_come_out_in_order::<WorkRing>(2);
}

#[test]
fn loom_catches_a_ring_without_order() {
    caught(entries_come_out_in_order::<UnorderedRing>);
}

/// Tries every interleaving with at most three preemptions. Trying all interleavings would take hours.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Checks that loom finds an error in the model.
fn caught(model: fn(usize)) {
    assert!(catch_unwind(AssertUnwindSafe(|| model(1))).is_err(), "loom found nothing wrong");
}
