//! The events of a process that ends.
//!
//! When a process ends, the kernel closes its connections, but no thread of the process gets the events of
//! this closing. This library closes the connections in a handler of `exit`, while the program's threads
//! still run. Such a thread may use memory that the program has freed (libiscsi). So a thread that waits for
//! an event is not woken by an event of the closing, and a thread that polls gets no completion of the
//! closing: UCX's thread for datagrams aborts if its receives are flushed. If the ending thread calls the
//! library again, for example in a destructor that disconnects and joins a thread, the threads are woken
//! after all, and all threads get completions again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

/// Whether the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);
static ENDING: Mutex<Option<Ending>> = Mutex::new(None);

struct Ending {
    /// The thread that has called `exit`.
    thread: ThreadId,
    /// The addresses of the counters whose threads were not woken.
    counters: Vec<usize>,
}

fn ending() -> MutexGuard<'static, Option<Ending>> {
    ENDING.lock().expect("no holder of this lock panics")
}

/// From now on, the threads that wait are not woken.
pub(crate) fn begin() {
    *ending() = Some(Ending { thread: thread::current().id(), counters: Vec::new() });
    ENDS.store(true, Ordering::SeqCst);
}

/// Returns true if the process ends. In this case the threads that wait at the counter are woken later, if
/// at all.
pub(crate) fn withholds(counter: &AtomicU32) -> bool {
    if !ENDS.load(Ordering::SeqCst) {
        return false;
    }
    let mut ending = ending();
    let withheld = ending.as_mut().map(|ending| ending.counters.push(&raw const *counter as usize));
    withheld.is_some()
}

/// Whether the process ends. Until the ending thread calls the library again, the program gets no
/// asynchronous event.
pub(crate) fn has_begun() -> bool {
    ENDS.load(Ordering::Relaxed)
}

/// Whether the calling thread gets no completions, because another thread ends the process.
#[inline]
pub(crate) fn hides_completions() -> bool {
    on_call();
    has_begun()
}

/// Called at the beginning of each call of the program. If the calling thread is the one that ends the
/// process, wakes all threads that were not woken.
#[inline]
pub(crate) fn on_call() {
    if ENDS.load(Ordering::Relaxed) {
        wake();
    }
}

#[cold]
fn wake() {
    let mut ending = ending();
    if ending.as_ref().is_some_and(|ending| ending.thread == thread::current().id()) {
        ENDS.store(false, Ordering::SeqCst);
        for counter in ending.take().into_iter().flat_map(|ending| ending.counters) {
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the kernel does not access the memory at the address, so the queue may be freed.
            unsafe { libc::syscall(libc::SYS_futex, counter, operation, libc::c_int::MAX) };
        }
    }
}
