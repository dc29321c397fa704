//! An engine without a thread: one of the waiting callers does the work of the thread.
//!
//! The other callers only wait for their descriptors. When the serving caller returns, another caller begins
//! to serve.
//!
//! The waits of an engine with a thread (`waiters.rs`) differ in both respects, so they have other code.
//! There the last caller serves, and a caller that leaves wakes no other caller, since the thread steps in.
//! Here each caller has to wake another one, which would cost a program with an idle second caller two
//! wake-ups per message. Here the port needs no descriptor, since the serving caller takes naps as the
//! thread does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::{SharedOptions, Turned};
use crate::queues::{Notifier, wait_any};

pub(super) struct Callers {
    options: SharedOptions,
    port: Option<OwnedFd>,
    /// Whether a caller serves.
    is_served: AtomicBool,
    /// Notifies waiting callers that there may be no serving caller.
    vacancy: Notifier,
}

impl Callers {
    pub(super) fn new(options: SharedOptions, port: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self { options, port, is_served: AtomicBool::new(false), vacancy: Notifier::new()? })
    }
}

/// Whether a read from `fd` would return at once, with data or an error.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    wait_any(&mut fds, Some(Duration::ZERO)).unwrap_or(true)
}

impl Turned {
    /// Serves until `fd` is readable. While another caller serves, only waits for `fd`.
    pub(super) fn serve_until_readable(&self, callers: &Callers, fd: BorrowedFd<'_>) -> io::Result<()> {
        while !self.stop.load(Ordering::SeqCst) && !is_readable(fd) {
            if !callers.is_served.swap(true, Ordering::SeqCst) {
                self.serve(callers.options, callers.port.as_ref(), Some(fd));
                callers.is_served.store(false, Ordering::SeqCst);
                break;
            }
            let mut fds = [
                PollFd::from_borrowed_fd(fd, PollFlags::IN),
                PollFd::from_borrowed_fd(callers.vacancy.as_fd(), PollFlags::IN),
            ];
            wait_any(&mut fds, None)?;
            callers.vacancy.take()?;
        }
        // This caller has served, or may have consumed the notification of a caller that served.
        callers.vacancy.notify();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use dp::link::{LinkConfig, pair};

    use super::super::SharedEngine;
    use super::*;
    use crate::engine::{Engine, EngineConfig};
    use crate::verbs::{Context, ContextConfig};

    const LIMIT: Duration = Duration::from_secs(30);

    fn until(what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < LIMIT, "{what}");
            std::thread::yield_now();
        }
    }

    /// Each caller waits for its own descriptor and returns when this descriptor is readable. One of the
    /// remaining callers continues to serve.
    #[test]
    fn of_the_callers_that_wait_one_serves_until_the_last_has_left() {
        let (port, _other) = pair(&LinkConfig::default());
        let context = Context::new(ContextConfig::default()).unwrap();
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let engine = Engine::new(&context, port, config).unwrap();
        let nothing = Box::new(|| {});
        let engine = SharedEngine::without_thread(engine, SharedOptions::default(), nothing).unwrap();
        assert!(!engine.has_thread());
        let is_served = || engine.inner.callers.as_ref().unwrap().is_served.load(Ordering::SeqCst);
        let fds: [Arc<Notifier>; 3] = std::array::from_fn(|_| Arc::new(Notifier::new().unwrap()));
        std::thread::scope(|scope| {
            let mut waits = Vec::new();
            for fd in &fds {
                let waiting = scope.spawn(|| engine.wait_readable(fd.as_fd()).unwrap());
                until("nobody serves", is_served);
                waits.push(waiting);
            }
            // The first caller serves, and returns first.
            for (fd, waiting) in fds.iter().zip(waits) {
                assert!(!waiting.is_finished(), "it waits for its own descriptor");
                fd.notify();
                waiting.join().unwrap();
                let is_last = Arc::ptr_eq(fd, &fds[2]);
                until("nobody takes its place", || is_served() != is_last);
            }
        });
        // A descriptor that is readable already needs no service.
        engine.wait_readable(fds[0].as_fd()).unwrap();
    }
}
