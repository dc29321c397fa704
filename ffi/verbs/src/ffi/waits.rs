//! Calls of the program that wait for descriptors, and serve the engine meanwhile.
//!
//! If the engine's thread served a program that waits, each message would cost two wake-ups. So the waiting
//! thread of the program itself polls the engine ([`SharedEngine::begin_wait`]). If its last wait was short,
//! the thread first polls for up to 50 us without sleeping. Then the thread sleeps until one of its own
//! descriptors or one of the engine's descriptors is readable.
//!
//! The thread reports the events that it finds itself from memory (`unwritten.rs`). In this case, and in a
//! row of waits that find nothing else, it looks at the program's descriptors every 25 us.
//!
//! The thread may be cancelled while it sleeps (`cancel.rs`). So no function here that sleeps, and no
//! function that calls such a function, owns anything. The wait of a cancelled thread ends when the
//! thread-local variable `OWN` is dropped.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_short};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use iwarp::engine::{SharedEngine, Sleep, Waiting};
use libc::{pollfd, sigset_t, timespec};

use crate::ffi::signals::{self, Restart};
use crate::ffi::{abi, fd_marks, unwritten};

// The functions of libc that may unwind the thread.
unsafe extern "C-unwind" {
    pub(crate) fn pthread_testcancel();
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    pub(crate) fn syscall(number: c_long, ...) -> c_long;
}

/// The kind of cancellation that may happen at any instruction (`PTHREAD_CANCEL_ASYNCHRONOUS`).
const ASYNCHRONOUS: c_int = 1;

/// The size of the kernel's set of signals.
pub(crate) const SIGNALS_BYTES: usize = 8;

/// How long a call polls the engine before it sleeps. A sleeping peer wakes and answers within this time. So
/// if one side polls, it soon has the answer, and sends its next message. Then the other side finds this
/// message while it polls. If both sides polled for a shorter time, each would sleep when the other answers.
const SPIN: Duration = Duration::from_micros(50);

/// A wait that has taken longer than this is not expected to be followed by a short one.
const SHORT: Duration = Duration::from_micros(200);

/// How often a call that polls the engine looks at the program's other descriptors.
const LOOK: Duration = Duration::from_micros(25);

/// If so many looks in a row have found nothing, a call that follows a look within [`LOOK`] does not look
/// again at its start.
const QUIET_LOOKS: u32 = 8;

/// If a thread needs this time between two polls, other threads use its CPU.
const DISPLACED: Duration = Duration::from_micros(200);

/// After so many refused sleeps in a row, a call yields the CPU: another thread may hold the lock of the
/// engine, and need this CPU.
const PATIENCE: u32 = 3;

/// If so many waits in a row have polled and found nothing, waits sleep at once. Of each [`ROUND`] waits, the
/// first [`TRIES`] poll nevertheless.
const MISSES: u32 = 4;
const ROUND: u32 = 256;
const TRIES: u32 = 8;

/// A number that changes when an event is queued for the program.
static QUEUED: AtomicU64 = AtomicU64::new(0);

/// The number of waits in a row that have polled and found nothing.
static MISSED: AtomicU32 = AtomicU32::new(0);
static WAITS: AtomicU32 = AtomicU32::new(0);

/// True if the last wait that found nothing at first took less than [`SHORT`].
static IS_SHORT: AtomicBool = AtomicBool::new(true);

/// Called when an event is queued for the program.
#[inline]
pub(crate) fn on_event() {
    QUEUED.fetch_add(1, Ordering::Relaxed);
}

/// The system call of a wait. The results are those of a system call: a negative result is an error number.
pub(crate) trait Wait: Copy {
    /// The channel for which the call waits, if it waits for one event of the channel. Other calls wait for a
    /// set of descriptors.
    fn channel(&self) -> Option<c_int> {
        None
    }

    /// Returns at once: how many descriptors are ready, and writes which for the program.
    fn look(&self) -> c_int;

    /// Adds the descriptors whose events are not counted ([`unwritten`]) to the `found` descriptors of a
    /// look, or reports only them if there was no look. Returns how many are ready, and writes which.
    fn report(&self, found: Option<c_int>) -> c_int;

    /// Sleeps until one of the call's descriptors or one of `more` is readable, for at most `limit` with the
    /// signals of `mask` blocked. Writes nothing for the program.
    fn sleep(&self, more: Option<[c_int; 2]>, limit: Option<Duration>, mask: &sigset_t) -> Slept;
}

/// How a sleep has ended.
#[derive(Clone, Copy)]
pub(crate) struct Slept {
    /// The result of the system call.
    pub(crate) result: c_int,
    /// Whether a look may find one of the call's own descriptors ready.
    pub(crate) is_own: bool,
}

/// The result of [`serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The result of the call, or a negative error number.
    Result(c_int),
    /// Callers cannot serve the engine. Its thread does so from now on.
    NotServed,
}

/// The wait of this thread, which ends at the latest when the thread ends.
struct Own(Cell<Option<Begun>>);

#[derive(Clone, Copy)]
struct Begun {
    engine: &'static SharedEngine,
    wait: Waiting,
    /// Whether the thread waits for a set of descriptors.
    is_set: bool,
}

impl Begun {
    fn end(self) {
        if self.is_set {
            unwritten::ends();
        }
        self.engine.end_wait(self.wait);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(begun) = self.0.take() {
            begun.engine.end_sleep(begun.wait);
            begun.end();
        }
    }
}

/// The looks of a thread.
#[derive(Clone, Copy)]
struct Looks {
    last: Option<Instant>,
    /// The value of [`QUEUED`] before the last look.
    queued: u64,
    /// The number of looks in a row that have found nothing.
    quiet: u32,
}

thread_local! {
    static OWN: Own = const { Own(Cell::new(None)) };
    static LOOKS: Cell<Looks> = const { Cell::new(Looks { last: None, queued: 0, quiet: 0 }) };
}

/// How the last handlers that were looked at end a wait for a channel, as a [`Restart`]; looked at again at
/// every 256th wait.
static RESTART: AtomicU8 = AtomicU8::new(0);
static CHANNEL_WAITS: AtomicU32 = AtomicU32::new(0);

/// Whether a thread that waits for a channel may serve the engine. `ppoll(2)` does not tell which handler has
/// ended the sleep. So a thread does not serve if only some of the program's handlers have `SA_RESTART`.
pub(crate) fn may_serve() -> bool {
    let waits = CHANNEL_WAITS.fetch_add(1, Ordering::Relaxed);
    if waits.is_multiple_of(256) {
        look_at_handlers();
    }
    RESTART.load(Ordering::Relaxed) != Restart::Some as u8
}

#[cold]
fn look_at_handlers() -> Restart {
    let restart = signals::restart();
    RESTART.store(restart as u8, Ordering::Relaxed);
    restart
}

/// Serves the engine until a channel's descriptor is readable. Signals end the wait like a `read(2)`.
pub(crate) fn serve_channel(engine: &'static SharedEngine, call: Readable) -> Served {
    fd_marks::WAITED.set(call.fd);
    loop {
        let served = serve(engine, call, None, None);
        if served != Served::Result(-libc::EINTR) || look_at_handlers() != Restart::All {
            return served;
        }
    }
}

/// Waits as the program's call does, and serves the engine meanwhile. `mask` blocks the signals of its set
/// while the call sleeps.
pub(crate) fn serve(
    engine: &'static SharedEngine,
    call: impl Wait,
    timeout: Option<Duration>,
    mask: Option<sigset_t>,
) -> Served {
    if timeout == Some(Duration::ZERO) {
        turn(engine, &call);
        return Served::Result(find(&call, Instant::now(), false));
    }
    let Some((own, before)) = begin(engine, &call) else { return Served::NotServed };
    let wait = own.wait;
    let begun = Instant::now();
    let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
    poll_at_start(engine, wait);
    let mut found = find(&call, begun, true);
    if found == 0 {
        // Until the sleep, a signal stays pending. So a signal that arrives after the call has begun ends
        // the sleep, as it would end the system call.
        let before = signals::block_all();
        found = wait_blocked(engine, wait, call, (begun, deadline), &mask.unwrap_or(before));
        signals::restore(&before);
        IS_SHORT.store(begun.elapsed() < SHORT, Ordering::Relaxed);
    }
    end(own, before);
    Served::Result(found)
}

/// Continues the call with all signals blocked.
fn wait_blocked(
    engine: &'static SharedEngine,
    wait: Waiting,
    call: impl Wait,
    (begun, deadline): (Instant, Option<Instant>),
    mask: &sigset_t,
) -> c_int {
    let mut spins = spins();
    let mut worked = begun;
    let mut refused = 0;
    loop {
        let (found, now) = poll_and_look(engine, wait, call, (worked, deadline), spins);
        if found != 0 {
            if spins {
                MISSED.store(0, Ordering::Relaxed);
            }
            return found;
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            return 0;
        }
        let (more, limit) = match sleep_of(engine, wait) {
            Sleep::Busy => {
                refused += 1;
                if refused > PATIENCE {
                    std::thread::yield_now();
                }
                worked = now;
                continue;
            }
            Sleep::OfOthers => (None, None),
            Sleep::OfEngine { fds, limit } => (Some(fds.map(|fd| fd.as_raw_fd())), Some(limit)),
        };
        if std::mem::take(&mut spins) {
            MISSED.fetch_add(1, Ordering::Relaxed);
        }
        refused = 0;
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let limit = [rest, limit].into_iter().flatten().min();
        unwritten::write_all();
        let slept = call.sleep(more, limit, mask);
        end_sleep(engine, wait);
        poll(engine, wait);
        worked = Instant::now();
        if !slept.is_own {
            looked(worked, QUEUED.load(Ordering::Relaxed), 0);
        }
        let found = find(&call, worked, true);
        if found != 0 {
            return found;
        }
        // A result of other errors would repeat for ever.
        if slept.result < 0 {
            return slept.result;
        }
    }
}

/// What the call finds ready now. If `may_skip` is true, the call does not look at the program's descriptors
/// if a look a short time ago has found nothing.
fn find(call: &impl Wait, now: Instant, may_skip: bool) -> c_int {
    let looks = looks();
    let queued = QUEUED.load(Ordering::Relaxed);
    let is_recent = looks.last.is_some_and(|last| now.saturating_duration_since(last) < LOOK);
    let any_kept = unwritten::any();
    if any_kept {
        let found = if is_recent { report(call, None) } else { 0 };
        if found != 0 {
            return found;
        }
    } else if may_skip && is_recent && looks.quiet >= QUIET_LOOKS && looks.queued == queued {
        return 0;
    }
    let mut found = call.look();
    looked(now, queued, found);
    if found >= 0 && unwritten::any() {
        found = report(call, Some(found));
        if found == 0 {
            // These events are not for this call.
            unwritten::write_all();
        }
    }
    if found == 0 && any_kept {
        // Another thread may have counted the events after the look.
        found = call.look();
    }
    found
}

fn looks() -> Looks {
    LOOKS.try_with(Cell::get).unwrap_or(Looks { last: None, queued: 0, quiet: 0 })
}

/// Called after a look that has found so many descriptors ready.
fn looked(now: Instant, queued: u64, found: c_int) {
    let quiet = if found == 0 { looks().quiet.saturating_add(1) } else { 0 };
    let _ = LOOKS.try_with(|looks| looks.set(Looks { last: Some(now), queued, quiet }));
}

/// Whether this wait polls before it sleeps.
fn spins() -> bool {
    let waits = WAITS.load(Ordering::Relaxed).wrapping_add(1);
    WAITS.store(waits, Ordering::Relaxed);
    IS_SHORT.load(Ordering::Relaxed) && (MISSED.load(Ordering::Relaxed) < MISSES || waits % ROUND < TRIES)
}

/// Polls the engine until the call finds something, the deadline has passed, or the engine had no work for
/// some time. Returns what the call has found, and the time.
fn poll_and_look(
    engine: &'static SharedEngine,
    wait: Waiting,
    call: impl Wait,
    (mut worked, deadline): (Instant, Option<Instant>),
    spins: bool,
) -> (c_int, Instant) {
    let mut now = worked;
    let mut looked = looks().last.unwrap_or(worked);
    loop {
        let queued = QUEUED.load(Ordering::Relaxed);
        let is_busy = poll(engine, wait);
        let before = std::mem::replace(&mut now, Instant::now());
        if is_busy {
            worked = now;
        }
        if QUEUED.load(Ordering::Relaxed) != queued || now.saturating_duration_since(looked) >= LOOK {
            let found = find(&call, now, false);
            if found != 0 {
                return (found, now);
            }
            looked = now;
        }
        if now.duration_since(before) >= DISPLACED {
            MISSED.store(MISSES, Ordering::Relaxed);
            return (0, now);
        }
        let limit = if spins { SPIN } else { Duration::ZERO };
        let is_over = deadline.is_some_and(|deadline| deadline <= now);
        if is_over || (!is_busy && now.duration_since(worked) >= limit) {
            return (if is_over { find(&call, now, false) } else { 0 }, now);
        }
        std::hint::spin_loop();
    }
}

// ---- steps during which the thread cannot be cancelled, and out of which no panic unwinds ----

#[inline(never)]
fn turn(engine: &'static SharedEngine, call: &impl Wait) {
    let _ = abi::guarded(|| {
        unwritten::enter(call.channel());
        engine.turn();
        unwritten::leave();
        Ok(())
    });
}

/// Begins a wait. Also returns the wait that a handler of a signal has interrupted, if any.
#[inline(never)]
fn begin(engine: &'static SharedEngine, call: &impl Wait) -> Option<(Begun, Option<Begun>)> {
    let begun = abi::guarded(|| {
        let Some(wait) = engine.begin_wait() else { return Ok(None) };
        let channel = call.channel();
        let begun = Begun { engine, wait, is_set: channel.is_none() };
        if begun.is_set {
            unwritten::begins();
        }
        let Ok(before) = OWN.try_with(|own| own.0.replace(Some(begun))) else {
            // The thread is ending.
            begun.end();
            return Ok(None);
        };
        unwritten::enter(channel);
        Ok(Some((begun, before)))
    });
    begun.ok().flatten()
}

#[inline(never)]
fn report(call: &impl Wait, found: Option<c_int>) -> c_int {
    abi::guarded(|| Ok(call.report(found))).unwrap_or(found.unwrap_or(0))
}

#[inline(never)]
fn poll(engine: &'static SharedEngine, wait: Waiting) -> bool {
    abi::guarded(|| Ok(engine.poll_waiting(wait))).unwrap_or(false)
}

#[inline(never)]
fn poll_at_start(engine: &'static SharedEngine, wait: Waiting) -> bool {
    abi::guarded(|| Ok(engine.poll_at_start(wait))).unwrap_or(false)
}

#[inline(never)]
fn sleep_of(engine: &'static SharedEngine, wait: Waiting) -> Sleep<'static> {
    abi::guarded(|| Ok(engine.begin_sleep(wait))).unwrap_or(Sleep::OfOthers)
}

#[inline(never)]
fn end_sleep(engine: &'static SharedEngine, wait: Waiting) {
    let _ = abi::guarded(|| {
        engine.end_sleep(wait);
        Ok(())
    });
}

#[inline(never)]
fn end(begun: Begun, before: Option<Begun>) {
    let _ = abi::guarded(|| {
        let _ = OWN.try_with(|own| own.0.set(before));
        begun.end();
        unwritten::leave();
        Ok(())
    });
}

// ---- system calls ----

/// Makes a system call that is no cancellation point. Returns the result, or a negative error number.
macro_rules! system_call {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        // SAFETY: the caller of the macro passes the arguments of this system call.
        let result = unsafe { $crate::ffi::waits::syscall($number $(, $argument)*) };
        $crate::ffi::waits::outcome(result)
    }};
}
pub(crate) use system_call;

/// The result of a system call, or a negative error number.
pub(crate) fn outcome(result: c_long) -> c_int {
    if result >= 0 {
        return result as c_int;
    }
    // SAFETY: the function has no precondition, and returns the address of the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid in this thread.
    -unsafe { *errno }
}

/// Runs a system call during which the thread can be cancelled, as in libc's call.
///
/// # Safety
/// No function of this library on this thread's stack owns anything.
#[inline(never)]
pub(crate) unsafe fn cancellable(call: impl FnOnce() -> c_int) -> c_int {
    let mut before = 0;
    // SAFETY: `before` is writable. If the thread is cancelled, no function of this library on its stack owns
    // anything.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    let result = call();
    // SAFETY: `pthread_setcanceltype` accepts null for the old kind.
    unsafe { pthread_setcanceltype(before, ptr::null_mut()) };
    result
}

pub(crate) fn timespec_of(limit: Duration) -> timespec {
    let tv_sec = libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
    timespec { tv_sec, tv_nsec: c_long::from(limit.subsec_nanos() as i32) }
}

pub(crate) fn readable(fd: c_int) -> pollfd {
    pollfd { fd, events: libc::POLLIN as c_short, revents: 0 }
}

/// Sleeps for this time, or until a signal arrives.
pub(crate) fn pause(time: Duration) -> c_int {
    let time = timespec_of(time);
    system_call!(libc::SYS_nanosleep, &raw const time, ptr::null_mut::<timespec>())
}

/// Sleeps in `ppoll(2)` until a descriptor is ready.
fn poll_fds(fds: &mut [pollfd], limit: Option<Duration>, mask: &sigset_t) -> c_int {
    let mut limit = limit.map(timespec_of);
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let (at, count, mask) = (fds.as_mut_ptr(), fds.len(), ptr::from_ref(mask));
    system_call!(libc::SYS_ppoll, at, count, limit, mask, SIGNALS_BYTES)
}

/// As [`poll_fds`], but the thread can be cancelled.
///
/// # Safety
/// As [`cancellable`].
pub(crate) unsafe fn cancellable_poll(fds: &mut [pollfd], limit: Option<Duration>, mask: &sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { cancellable(|| poll_fds(fds, limit, mask)) }
}

/// A wait for one descriptor, which ends when the descriptor is readable.
#[derive(Clone, Copy)]
pub(crate) struct Readable {
    pub(crate) fd: c_int,
    /// Whether the thread can be cancelled while it sleeps. If so, no function of this library on the
    /// thread's stack owns anything.
    pub(crate) is_cancellable: bool,
}

impl Wait for Readable {
    fn channel(&self) -> Option<c_int> {
        Some(self.fd)
    }

    fn report(&self, found: Option<c_int>) -> c_int {
        if unwritten::has(self.fd) { 1 } else { found.unwrap_or(0) }
    }

    fn look(&self) -> c_int {
        let mut fds = [readable(self.fd)];
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        let mask = ptr::null::<sigset_t>();
        system_call!(libc::SYS_ppoll, fds.as_mut_ptr(), 1usize, &raw const now, mask, SIGNALS_BYTES)
    }

    fn sleep(&self, more: Option<[c_int; 2]>, limit: Option<Duration>, mask: &sigset_t) -> Slept {
        let [first, second] = more.unwrap_or([-1; 2]);
        // The kernel skips negative descriptors.
        let mut fds = [self.fd, first, second].map(readable);
        let result = if self.is_cancellable {
            // SAFETY: the field's promise.
            unsafe { cancellable_poll(&mut fds, limit, mask) }
        } else {
            poll_fds(&mut fds, limit, mask)
        };
        Slept { result, is_own: fds[0].revents != 0 }
    }
}

#[cfg(test)]
mod tests;
