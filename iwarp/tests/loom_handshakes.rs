//! Every interleaving of the handshakes without locks: arming and completing, sleeping and waking.
//!
//! The files of the crate are compiled here with loom's atomics, so these tests run with all others. Beside
//! each is the same handshake without its fences, which loom has to catch: otherwise the test would prove
//! nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

/// The module that the files of the crate import.
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
}

#[path = "../src/queues/arm.rs"]
mod arm;

#[path = "../src/queues/doze.rs"]
mod doze;

use arm::Arm;
use doze::Doze;

/// One thread arms and polls, several complete: the handshake of the completion queue.
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

/// The negative control: the same without fences.
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

/// Each of `producers` enters a completion and checks whether it makes an event. The owner arms and polls
/// once more. It may sleep only if that poll saw everything, or an event was made.
fn no_completion_is_slept_through<A: Arming>(producers: usize) {
    loom::model(move || {
        let arm = Arc::new(A::create());
        let entered = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let (arm, entered) = (Arc::clone(&arm), Arc::clone(&entered));
                thread::spawn(move || {
                    // The weakest ordering that the queue may have.
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

// Proves RDMAP-042: exactly one event, and never none, for an arming that a completion meets.
#[test]
fn arming_never_misses_a_completion() {
    no_completion_is_slept_through::<Arm>(1);
    no_completion_is_slept_through::<Arm>(2);
}

/// Solicited-only arming: a plain completion neither fires nor takes the arming away from a solicited one.
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

/// The handshake of the engine.
trait Dozing: Send + Sync + 'static {
    fn create() -> Self;
    fn prepare(&self, idle: impl FnOnce() -> bool) -> bool;
    fn must_wake(&self) -> bool;
}

impl Dozing for Doze {
    fn create() -> Self {
        Self::new()
    }
    fn prepare(&self, idle: impl FnOnce() -> bool) -> bool {
        Self::prepare(self, idle)
    }
    fn must_wake(&self) -> bool {
        Self::must_wake(self)
    }
}

/// The negative control: the same without fences.
struct UnfencedDoze(AtomicBool);

impl Dozing for UnfencedDoze {
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

/// Each of `posters` posts work and checks whether the engine has to be woken. The engine prepares to sleep.
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
        // The engine found no work, so all of it was posted later: each post has to wake it.
        assert!(!sleeps || wakes == posters, "the engine sleeps with work left for it");
    });
}

#[test]
fn a_sleeping_engine_is_always_woken() {
    no_work_is_slept_through::<Doze>(1);
    no_work_is_slept_through::<Doze>(2);
}

/// After waking up it is not woken without need, and the next sleep is as safe.
#[test]
fn sleep_after_sleep_is_as_safe() {
    loom::model(|| {
        let doze = Arc::new(Doze::new());
        let work = Arc::new(AtomicBool::new(false));
        let poster = {
            let (doze, work) = (Arc::clone(&doze), Arc::clone(&work));
            thread::spawn(move || {
                work.store(true, Ordering::Release);
                doze.must_wake()
            })
        };
        doze.prepare(|| !work.load(Ordering::Acquire));
        doze.end();
        let sleeps = doze.prepare(|| !work.load(Ordering::Acquire));
        let woken = poster.join().unwrap();
        assert!(!sleeps || woken, "the second sleep misses the work");
        doze.end();
        assert!(!doze.must_wake(), "an engine that is awake is woken");
    });
}

#[test]
fn loom_catches_a_sleep_without_fences() {
    caught(no_work_is_slept_through::<UnfencedDoze>);
}

/// The model has to fail.
fn caught(model: fn(usize)) {
    assert!(catch_unwind(AssertUnwindSafe(|| model(1))).is_err(), "loom found nothing wrong");
}
