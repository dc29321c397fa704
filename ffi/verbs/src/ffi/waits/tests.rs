//! Tests with calls that record how [`serve`] looks and sleeps.

use std::sync::OnceLock;

use dp::local::{self, LocalConfig};
use iwarp::engine::{Engine, EngineConfig, SharedOptions};
use iwarp::verbs::{Context, ContextConfig};
use testkit::folder::Folder;

use super::*;
use crate::ffi::unwritten::tests::{Channel, alone};

/// An engine with a thread, alone on a local wire.
fn engine() -> &'static SharedEngine {
    static ENGINE: OnceLock<(SharedEngine, Folder)> = OnceLock::new();
    let made = ENGINE.get_or_init(|| {
        let folder = Folder::absent("uwarp-waits");
        let config = LocalConfig { station: Some(1), ..LocalConfig::new(folder.to_path_buf()) };
        let port = Box::new(local::open(&config).unwrap());
        let mut config = EngineConfig::new(&*port, &["100.64.0.1/10"]).unwrap();
        config.stack.derived_neighbors = Some([2, 0]);
        let context = Context::new(ContextConfig::default()).unwrap();
        let engine = Engine::new(&context, port, config).unwrap();
        (SharedEngine::spawn(engine, SharedOptions::default(), Box::new(|| {})).unwrap(), folder)
    });
    &made.0
}

/// A call whose looks and sleeps call these functions.
#[derive(Clone, Copy)]
struct Recorded<'a> {
    look: &'a dyn Fn() -> c_int,
    sleep: &'a dyn Fn() -> c_int,
    /// The channel whose kept events the call reports.
    kept: c_int,
}

impl Wait for Recorded<'_> {
    fn look(&self) -> c_int {
        (self.look)()
    }

    fn report(&self, found: Option<c_int>) -> c_int {
        found.unwrap_or(0) + c_int::from(unwritten::has(self.kept))
    }

    fn sleep(&self, _: Option<[c_int; 2]>, _: Option<Duration>, _: &sigset_t) -> Slept {
        Slept { result: (self.sleep)(), is_own: true }
    }
}

/// Whether this thread blocks `SIGUSR1`.
fn is_blocked() -> bool {
    // SAFETY: all bytes of a set may be zero.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable, and null leaves the mask as it is.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set) }, 0);
    // SAFETY: the set is initialized.
    unsafe { libc::sigismember(&raw const set, libc::SIGUSR1) == 1 }
}

fn never() -> c_int {
    panic!("this call is not made")
}

/// A signal that arrives after the first look ends the sleep.
#[test]
fn signals_are_blocked_from_the_second_look_until_the_sleep() {
    let _one = alone();
    let blocked = Cell::new(Vec::new());
    let record = |result| {
        let mut all = blocked.take();
        all.push(is_blocked());
        blocked.set(all);
        result
    };
    let sleep = || record(-libc::EINTR);
    let call = Recorded { look: &|| record(0), sleep: &sleep, kept: -1 };
    assert_eq!(serve(engine(), call, None, None), Served::Result(-libc::EINTR));
    let blocked = blocked.take();
    // The call looks at its start. Then it may poll for a while, and it looks after the sleep.
    assert!(!blocked[0] && blocked.len() >= 3 && blocked[1..].iter().all(|is_blocked| *is_blocked));
    assert!(!is_blocked());
}

/// If a channel has an event at each wait, the program's other descriptors are looked at nevertheless.
#[test]
fn events_of_channels_do_not_hide_other_descriptors() {
    let _one = alone();
    let channel = Channel::new();
    let looks = Cell::new(0);
    let look = || {
        looks.set(looks.get() + 1);
        0
    };
    let call = Recorded { look: &look, sleep: &never, kept: channel.fd() };
    unwritten::enter(None);
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < 100 * LOOK {
        assert!(unwritten::keep(channel.fd(), 0, 0));
        assert_eq!(serve(engine(), call, None, None), Served::Result(1));
        assert!(unwritten::take(channel.fd()));
        unwritten::enter(None);
        rounds += 1;
    }
    assert!(looks.get() >= 2 && looks.get() <= rounds, "{} looks in {rounds} waits", looks.get());
}

/// A call does not look at its start if many looks in a row have found nothing, and no event has been queued
/// since the last one.
#[test]
fn a_call_looks_before_it_blocks_signals_if_it_may_find_something() {
    let _one = alone();
    for is_queued in [false, true] {
        for _ in 0..100 {
            // The last look has found something, so a row begins.
            let found = Recorded { look: &|| 1, sleep: &never, kept: -1 };
            assert_eq!(serve(engine(), found, Some(Duration::ZERO), None), Served::Result(1));
            let nothing = Recorded { look: &|| 0, sleep: &never, kept: -1 };
            for _ in 0..if is_queued { QUIET_LOOKS } else { QUIET_LOOKS - 1 } {
                assert_eq!(serve(engine(), nothing, Some(Duration::ZERO), None), Served::Result(0));
            }
            if is_queued {
                on_event();
            }
            let look = || if is_blocked() { 2 } else { 1 };
            let call = Recorded { look: &look, sleep: &never, kept: -1 };
            assert_eq!(serve(engine(), call, None, None), Served::Result(1));
        }
    }
}

/// Another thread counts the event in the descriptor after the call has looked at the descriptor.
#[test]
fn an_event_that_is_counted_during_the_call_is_found() {
    let _one = alone();
    let channel = Channel::new();
    for writes in [true, false] {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 && writes {
                std::thread::spawn(unwritten::write_all).join().unwrap();
                return 0;
            }
            c_int::from(channel.counted() != 0)
        };
        // The call reports only the events of another channel.
        let call = Recorded { look: &look, sleep: &never, kept: -1 };
        // The last look was long ago, so the call looks.
        let begun = Instant::now();
        while begun.elapsed() < LOOK {}
        unwritten::enter(None);
        assert!(unwritten::keep(channel.fd(), 0, 0));
        assert_eq!(serve(engine(), call, Some(Duration::ZERO), None), Served::Result(1));
        assert_eq!((looks.get(), unwritten::any()), (2, false));
    }
}
