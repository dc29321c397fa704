//! When a peer counts as silent: nothing has come from it for the time-out, although we kept looking.

use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;
use crate::errors::Error;

/// Watches for silence. Cheap enough to ask in every idle poll.
#[derive(Debug)]
pub struct Patience {
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

/// The system's clock is read in one of so many calls.
const CALLS_PER_LOOK: u32 = 64;

/// Looks at the counters in one time-out.
const LOOKS: u32 = 20;

impl Patience {
    /// With the time-out of `end`.
    pub fn new(end: &Endpoint) -> Self {
        Self { timeout: end.timeout, asked: 0, silence: None, segments_seen: u64::MAX }
    }

    /// Something was done: the peer is alive.
    #[inline]
    pub fn renew(&mut self) {
        self.silence = None;
    }

    /// To be called when nothing was done. Returns true now and then: time to look at what else costs
    /// something.
    ///
    /// # Errors
    /// [`Error::Silent`] when no TCP segment came for the time-out.
    #[inline]
    pub fn check(&mut self, end: &Endpoint, doing: &'static str) -> Result<bool, Error> {
        self.asked += 1;
        // A thread that sleeps between polls asks seldom, and must look each time.
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
        // Data may have come that completes nothing here: Writes do not.
        let segments = end.driver.counters().stack.rx_segments;
        if segments != self.segments_seen {
            (self.segments_seen, silence.since) = (segments, now);
        } else if now - silence.since >= self.timeout - period {
            return Err(Error::Silent { doing, after: self.timeout });
        }
        Ok(())
    }
}
