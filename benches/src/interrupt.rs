//! Two flags that end a run early. A signal sets the first flag. The failure of another endpoint in this
//! process sets the second flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::errors::Error;

/// Two flags: Ctrl-C and SIGTERM set the first flag, and an endpoint that fails sets the second flag. Every
/// poll checks the flags.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    by_signal: Arc<AtomicBool>,
    by_failure: Arc<AtomicBool>,
}

impl Interrupt {
    /// Makes an interrupt that SIGINT and SIGTERM set. A second signal ends the process at once.
    ///
    /// # Errors
    /// Returns the error of a system call that failed.
    pub fn on_signals() -> Result<Self, Error> {
        let interrupt = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let flag = || Arc::clone(&interrupt.by_signal);
            signal_hook::flag::register_conditional_shutdown(signal, 130, flag())?;
            signal_hook::flag::register(signal, flag())?;
        }
        Ok(interrupt)
    }

    /// Sets the interrupt, because another endpoint in this process has failed.
    pub fn raise(&self) {
        self.by_failure.store(true, Ordering::Relaxed);
    }

    /// Whether the interrupt was set.
    pub fn is_raised(&self) -> bool {
        self.by_signal.load(Ordering::Relaxed) || self.by_failure.load(Ordering::Relaxed)
    }

    /// Whether a signal has set the interrupt, and no failed endpoint has set the interrupt.
    pub fn is_signal(&self) -> bool {
        self.by_signal.load(Ordering::Relaxed) && !self.by_failure.load(Ordering::Relaxed)
    }

    /// Returns the cause of `error`. If a signal has arrived, an ended connection is only an effect of the
    /// signal, so the cause is [`Error::Interrupted`]. Any other error is its own cause.
    pub fn explain(&self, error: Error) -> Error {
        match error {
            Error::Disconnected { .. } | Error::PeerInterrupted { .. }
                if self.by_signal.load(Ordering::Relaxed) =>
            {
                Error::Interrupted
            }
            error => error,
        }
    }

    /// Makes an interrupt that signals do not set, for an endpoint that learns from another endpoint of this
    /// process when the test is over.
    pub fn of_failures_only(&self) -> Self {
        Self { by_signal: Arc::default(), by_failure: Arc::clone(&self.by_failure) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_no_signal() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.is_raised());
        interrupt.by_signal.store(true, Ordering::Relaxed);
        assert!(interrupt.is_raised() && interrupt.is_signal());
        let lost = || Error::Disconnected { doing: "measuring", error: None };
        assert!(matches!(interrupt.explain(lost()), Error::Interrupted));
        let by_peer = Error::PeerInterrupted { doing: "measuring" };
        assert!(matches!(interrupt.explain(by_peer), Error::Interrupted));
        let other = interrupt.of_failures_only();
        assert!(matches!(other.explain(lost()), Error::Disconnected { .. }));
        assert!(!other.is_raised());
        interrupt.raise();
        assert!(other.is_raised() && !other.is_signal() && !interrupt.is_signal());
    }
}
