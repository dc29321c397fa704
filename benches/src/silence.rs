//! Detects a peer from which nothing arrives within the time limit, although this side keeps polling.

use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;
use crate::errors::Error;

/// Detects a silent peer. A check is cheap enough for every idle poll.
#[derive(Debug)]
pub struct SilenceDetector {
    timeout: Duration,
    asked: u32,
    silence: Option<Silence>,
    segments_seen: u64,
}

#[derive(Debug)]
struct Silence {
    since: Instant,
    next_look: Instant,
}

/// The system's clock is read in one of this many checks.
const CALLS_PER_LOOK: u32 = 64;

/// Number of times that the counters are read within one time limit.
const LOOKS: u32 = 20;

impl SilenceDetector {
    /// Makes a detector with the time limit of `end`.
    pub fn new(end: &Endpoint) -> Self {
        Self { timeout: end.timeout, asked: 0, silence: None, segments_seen: u64::MAX }
    }

    /// Restarts the time limit. Called on progress, which shows that the peer is alive.
    #[inline]
    pub fn renew(&mut self) {
        self.silence = None;
    }

    /// Checks for silence. Call this after each idle poll. Returns true from time to time, and the caller
    /// should then make its expensive checks.
    ///
    /// # Errors
    /// Returns [`Error::Silent`] if no TCP segment arrived within the time limit.
    #[inline]
    pub fn check(&mut self, end: &Endpoint, doing: &'static str) -> Result<bool, Error> {
        self.asked += 1;
        // A thread that sleeps between polls makes few calls, so every call reads the clock.
        if !self.asked.is_multiple_of(CALLS_PER_LOOK) && !end.driver.sleeps() {
            return Ok(false);
        }
        self.look(end, doing).map(|()| true)
    }

    fn look(&mut self, end: &Endpoint, doing: &'static str) -> Result<(), Error> {
        let (now, period) = (Instant::now(), self.timeout / LOOKS);
        let silence = self.silence.get_or_insert(Silence { since: now, next_look: now + period });
        if now < silence.next_look {
            return Ok(());
        }
        silence.next_look = now + period;
        // Data may have arrived without a completion on this side, since Writes cause no completion here.
        let segments = end.driver.counters().stack.rx_segments;
        if segments != self.segments_seen {
            (self.segments_seen, silence.since) = (segments, now);
        } else if now - silence.since >= self.timeout - period {
            return Err(Error::Silent { doing, after: self.timeout });
        }
        Ok(())
    }
}
