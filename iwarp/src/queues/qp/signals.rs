//! Signals between users and the engine of a queue pair, other than posts and completions.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::queues::{AsyncEventKind, AsyncEvents, ConnectionError, EventSource};

/// What another thread asks the engine of a queue pair to do, other than posted requests: to end the
/// connection, or to check for a receive request again. If two values are pending, the higher value replaces
/// the lower value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Ask {
    Nothing,
    /// Check for a receive request: a request was posted, and a message waits for a request. Every higher
    /// value implies this `Ask`.
    Receive,
    /// Send the posted requests, and then the FIN.
    Close,
    /// Send a Terminate for a local catastrophic error, and flush.
    Terminate,
    /// The user has dropped the queue pair: reset the connection and flush, unless the connection is already
    /// ending.
    Abandon,
    /// Reset the connection and flush.
    Abort,
}

pub(crate) struct Signals {
    events: EventSource,
    /// Number of handles that users have. The engine's references to the queue pair do not count as handles.
    handles: AtomicU32,
    /// The pending [`Ask`].
    asked: AtomicU8,
    /// Whether the user has requested a graceful close. If so, the send queue accepts no further requests,
    /// whatever the state.
    close_asked: AtomicBool,
}

impl Signals {
    /// Creates the signals of queue pair `num`. The user has one handle of the queue pair.
    pub(super) fn new(events: &AsyncEvents, num: u32) -> Self {
        Self {
            events: EventSource::new(events, num),
            handles: AtomicU32::new(1),
            asked: AtomicU8::new(Ask::Nothing as u8),
            close_asked: AtomicBool::new(false),
        }
    }

    /// Adds a handle, which is a clone of a handle or is made from a connection. Returns `false` if no user
    /// has a handle any more.
    pub(crate) fn add_handle(&self) -> bool {
        let more = |handles: u32| (handles > 0).then_some(handles + 1);
        self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Drops a handle. Returns whether this was the last handle.
    pub(crate) fn drop_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Leaves an `Ask` for the engine. The caller must ring the doorbell.
    pub(super) fn leave(&self, what: Ask) {
        self.asked.fetch_max(what as u8, Ordering::AcqRel);
    }

    /// Returns the pending `Ask`, which stays pending.
    pub(crate) fn asked(&self) -> Ask {
        ask_of(self.asked.load(Ordering::Acquire))
    }

    /// Removes and returns the pending `Ask`.
    #[inline]
    pub(crate) fn take_asked(&self) -> Ask {
        if self.asked() == Ask::Nothing {
            return Ask::Nothing;
        }
        ask_of(self.asked.swap(Ask::Nothing as u8, Ordering::AcqRel))
    }

    /// Makes the send queue refuse further requests. Called when the user requests a graceful close, before
    /// the engine is notified. So the engine finds only requests that were posted before this call, and
    /// possibly requests whose posts were in progress.
    pub(crate) fn refuse_sends(&self) {
        self.close_asked.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_close_asked(&self) -> bool {
        self.close_asked.load(Ordering::SeqCst)
    }

    /// Generates an asynchronous event.
    pub(super) fn report(&self, kind: AsyncEventKind, cause: Option<ConnectionError>) {
        self.events.push(kind, cause);
    }
}

fn ask_of(value: u8) -> Ask {
    match value {
        0 => Ask::Nothing,
        1 => Ask::Receive,
        2 => Ask::Close,
        3 => Ask::Terminate,
        4 => Ask::Abandon,
        _ => Ask::Abort,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Ask; 6] = [Ask::Nothing, Ask::Receive, Ask::Close, Ask::Terminate, Ask::Abandon, Ask::Abort];

    /// If users leave two values of `Ask` in either order, the engine receives only the higher value, and
    /// receives it once.
    #[test]
    fn the_stronger_ask_counts() {
        let events = AsyncEvents::new(1).unwrap();
        for first in ALL {
            for second in ALL {
                let signals = Signals::new(&events, 1);
                signals.leave(first);
                signals.leave(second);
                let stronger = first.max(second);
                assert_eq!((signals.asked(), signals.take_asked()), (stronger, stronger));
                assert_eq!((signals.asked(), signals.take_asked()), (Ask::Nothing, Ask::Nothing));
            }
        }
    }

    /// After the last handle is dropped, no new handle can be added.
    #[test]
    fn a_queue_pair_without_a_handle_gets_none_again() {
        let signals = Signals::new(&AsyncEvents::new(1).unwrap(), 1);
        assert!(signals.add_handle() && !signals.drop_handle());
        assert!(signals.drop_handle());
        assert!(!signals.add_handle() && !signals.add_handle());
    }

    /// After the engine has taken the `Ask`, the request for a graceful close is still set.
    #[test]
    fn a_close_stays_asked_for() {
        let signals = Signals::new(&AsyncEvents::new(1).unwrap(), 1);
        assert!(!signals.is_close_asked());
        signals.refuse_sends();
        assert_eq!((signals.is_close_asked(), signals.take_asked()), (true, Ask::Nothing));
        signals.leave(Ask::Close);
        assert_eq!((signals.take_asked(), signals.is_close_asked()), (Ask::Close, true));
    }
}
