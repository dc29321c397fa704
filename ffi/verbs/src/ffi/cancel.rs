//! Calls that wait for an event, and in which `pthread_cancel(3)` ends the calling thread.
//!
//! With the kernel's channels, such a call reads or writes a descriptor, which is a cancellation point.
//! Programs cancel the thread that waits for events, and then free what the thread uses (libiscsi, rping).
//!
//! libc ends a cancelled thread by unwinding its stack, and Rust allows this only through functions that own
//! nothing. So while a thread can be cancelled, none of its functions here owns anything: the queue for which
//! the thread waits is in a thread-local variable, which is dropped when the thread has ended.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::ffi::abi::{self, Errno, Outcome};
use crate::ffi::ending;
use crate::ffi::event_fd::{EventQueue, Seen, Waited};
use crate::ffi::waits::{self, Readable, Served, system_call};

/// The time after which a thread that waits looks whether the process still ends.
const ENDING_PAUSE: Duration = Duration::from_millis(10);

// The functions of libc that may unwind the thread.
unsafe extern "C-unwind" {
    fn pause() -> c_int;
}

/// What a call does after it has looked for an item.
#[derive(Clone, Copy)]
enum Step {
    /// Returns this value.
    Return(c_int),
    /// Waits until the queue may have an item.
    Wait(Seen),
    /// Waits for ever, since the channel is destroyed.
    Never,
}

/// The queue for which a thread waits.
struct Held(Arc<dyn Waited>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.leave();
    }
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Runs an exported call that delivers an item of a queue to the program. `find` returns the queue, or `None`
/// if the channel is destroyed. `next` delivers an item, or returns what it has seen if there is none.
///
/// The thread can be cancelled while it waits, and before it looks for an item. So no item is lost.
pub(crate) fn call<T, F, N>(find: F, next: N) -> c_int
where
    T: Send + 'static,
    F: Fn() -> Outcome<Option<Arc<EventQueue<T>>>> + Copy,
    N: Fn(&EventQueue<T>) -> Outcome<Result<(), Seen>> + Copy,
{
    loop {
        // SAFETY: no function of this library on this thread's stack owns anything: closures that are `Copy`
        // have no destructor.
        unsafe { waits::pthread_testcancel() };
        match step(find, next) {
            Step::Return(status) => return status,
            Step::Wait(seen) => {
                let number = serve_or_wait(seen);
                if number != 0 {
                    return give_up(number);
                }
            }
            Step::Never => loop {
                // SAFETY: as above. `pause` returns after a signal, so it is called in a loop.
                unsafe { pause() };
            },
        }
    }
}

/// Looks for an item once. The thread cannot be cancelled in this function, which owns the queue.
#[inline(never)]
fn step<T, F, N>(find: F, next: N) -> Step
where
    T: Send + 'static,
    F: Fn() -> Outcome<Option<Arc<EventQueue<T>>>>,
    N: Fn(&EventQueue<T>) -> Outcome<Result<(), Seen>>,
{
    let outcome = abi::guarded(|| {
        // A thread that has waited looks into the same queue again, even if the channel is destroyed.
        let Some(queue) = release().map_or_else(find, |queue| Ok(Some(queue)))? else {
            return Ok(Step::Never);
        };
        Ok(match next(&queue)? {
            Ok(()) => Step::Return(0),
            Err(seen) => {
                hold(queue);
                Step::Wait(seen)
            }
        })
    });
    outcome.unwrap_or_else(|error| {
        abi::set_errno(error);
        Step::Return(-1)
    })
}

/// Keeps the queue for which this thread is going to wait.
fn hold(queue: Arc<dyn Waited>) {
    let mut held = Some(Held(queue));
    if HELD.try_with(|place| *place.borrow_mut() = held.take()).is_err() {
        // The thread is ending and its variables are dropped already, so the queue is leaked.
        std::mem::forget(held);
    }
}

/// Returns the queue for which this thread has waited, if any.
fn release<T: Send + 'static>() -> Option<Arc<EventQueue<T>>> {
    let held = HELD.try_with(|place| place.borrow_mut().take()).ok().flatten()?;
    let queue: Arc<dyn Any + Send + Sync> = held.0.clone();
    queue.downcast().ok()
}

/// Ends a call whose wait has failed with this error number.
#[inline(never)]
fn give_up(number: c_int) -> c_int {
    drop(HELD.try_with(|place| place.borrow_mut().take()));
    abi::set_errno(Errno(number));
    -1
}

/// Waits until the queue may have an item. Meanwhile, this thread serves the engine if it may. Returns 0, or
/// an error number.
#[inline(never)]
fn serve_or_wait(seen: Seen) -> c_int {
    if ending::has_begun() || !waits::may_serve() {
        seen.engine.hand_over();
        return wait(seen);
    }
    let served = waits::serve_channel(seen.engine, Readable { fd: seen.fd, is_cancellable: true });
    match served {
        // An event of the closing is not for this thread.
        Served::Result(0..) => wait_while_ending(),
        Served::Result(error) => -error,
        Served::NotServed => wait(seen),
    }
}

/// Waits while the process ends.
#[inline(never)]
fn wait_while_ending() -> c_int {
    while ending::has_begun() {
        // SAFETY: no function of this library on this thread's stack owns anything.
        unsafe { waits::cancellable(|| waits::pause(ENDING_PAUSE)) };
    }
    0
}

/// Waits until the counter has changed. Returns 0, or an error number, for example if a signal has ended the
/// wait.
///
/// The wait is a call of the kernel that is no cancellation point by itself. So the thread can be cancelled
/// at any instruction during the wait, as in the cancellation points of libc. This function has no destructor
/// to run, since the compiler must not give it a table of destructors.
#[inline(never)]
fn wait(seen: Seen) -> c_int {
    seen.will_wait();
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let no_limit = ptr::null::<libc::timespec>();
    // The counter is in a queue that this thread holds.
    let call = || system_call!(libc::SYS_futex, seen.counter, operation, seen.value, no_limit);
    // SAFETY: no function of this library on this thread's stack owns anything.
    let waited = unsafe { waits::cancellable(call) };
    // `EAGAIN` means that an item was added before the wait began.
    if waited == -libc::EAGAIN { 0 } else { -waited }
}
