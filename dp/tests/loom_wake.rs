//! Tries every interleaving of writers that publish and a reader that goes to sleep (`local/wake.rs`).
//!
//! This test compiles the crate's file with loom's atomics. Another test runs a copy of the handshake that
//! lacks the fences, and expects loom to find the race. Otherwise the first test would prove nothing.
#![cfg(target_os = "linux")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The module that `local/wake.rs` imports.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../src/local/wake.rs"]
mod wake;

/// The words of one ring.
struct Words {
    tail: AtomicU64,
    sleeper: AtomicU64,
    /// Number of wake-ups that were sent. The counter takes the place of the socket.
    sent: AtomicU64,
}

trait Handshake: 'static {
    fn publish(words: &Words, tail: u64) -> bool;
    /// Announces that the reader is about to sleep.
    fn mark_sleeping(words: &Words);
    fn settle();
    fn mark_awake(words: &Words);
}

struct Ours;

impl Handshake for Ours {
    fn publish(words: &Words, tail: u64) -> bool {
        wake::publish(&words.tail, tail, &words.sleeper)
    }
    fn mark_sleeping(words: &Words) {
        wake::mark_sleeping(&words.sleeper);
    }
    fn settle() {
        wake::settle();
    }
    fn mark_awake(words: &Words) {
        wake::mark_awake(&words.sleeper);
    }
}

/// The handshake without fences, in which loom must find the race.
struct Unfenced;

impl Handshake for Unfenced {
    fn publish(words: &Words, tail: u64) -> bool {
        words.tail.store(tail, Ordering::Release);
        words.sleeper.load(Ordering::Relaxed) != 0 && words.sleeper.swap(0, Ordering::Relaxed) != 0
    }
    fn mark_sleeping(words: &Words) {
        words.sleeper.store(1, Ordering::Relaxed);
    }
    fn settle() {}
    fn mark_awake(words: &Words) {
        words.sleeper.store(0, Ordering::Relaxed);
    }
}

/// Each of `writers` writers publishes `records` records in its own ring. Meanwhile the reader goes to sleep,
/// unless it finds a record. The test checks that a sleeping reader receives a wake-up, and that each writer
/// sends at most one wake-up.
fn no_record_is_slept_through<H: Handshake>(writers: usize, records: u64) {
    loom::model(move || {
        let rings: Vec<Arc<Words>> = (0..writers)
            .map(|_| {
                Arc::new(Words {
                    tail: AtomicU64::new(0),
                    sleeper: AtomicU64::new(0),
                    sent: AtomicU64::new(0),
                })
            })
            .collect();
        let threads: Vec<_> = rings
            .iter()
            .map(|ring| {
                let ring = Arc::clone(ring);
                thread::spawn(move || {
                    for tail in 1..=records {
                        if H::publish(&ring, tail) {
                            ring.sent.fetch_add(1, Ordering::Release);
                        }
                    }
                })
            })
            .collect();
        rings.iter().for_each(|ring| H::mark_sleeping(ring));
        H::settle();
        let seen: Vec<u64> = rings.iter().map(|ring| ring.tail.load(Ordering::Acquire)).collect();
        let sleeps = seen.iter().all(|tail| *tail == 0);
        if !sleeps {
            rings.iter().for_each(|ring| H::mark_awake(ring));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let sent: u64 = rings.iter().map(|ring| ring.sent.load(Ordering::Acquire)).sum();
        assert!(!sleeps || sent > 0, "records came and nobody woke the reader");
        assert!(sent <= writers as u64, "{sent} wake-ups for one sleep");
    });
}

#[test]
fn a_reader_that_sleeps_is_woken_by_whoever_writes() {
    no_record_is_slept_through::<Ours>(1, 1);
    no_record_is_slept_through::<Ours>(1, 2);
    no_record_is_slept_through::<Ours>(2, 1);
}

#[test]
fn loom_catches_a_handshake_without_fences() {
    let outcome = catch_unwind(AssertUnwindSafe(|| no_record_is_slept_through::<Unfenced>(1, 1)));
    assert!(outcome.is_err(), "loom found nothing wrong");
}
