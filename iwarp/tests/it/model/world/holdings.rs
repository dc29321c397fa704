//! The objects and buffers that hosts hold. A host never exceeds its limits, and holds nothing when its users
//! have dropped everything.

use super::{Done, REST_POLLS, REST_US, World};
use crate::common::Host;

/// The invariants are checked after every `CHECK_EVERY`th poll, because the check takes longer than a poll.
const CHECK_EVERY: u64 = 4;

/// Numbers of the objects of a host's context, and number of the free packet buffers of its port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holdings {
    used: [usize; 11],
    buffers: usize,
}

impl Holdings {
    pub(super) fn of(host: &Host) -> Self {
        Self { used: host.context.usage().all().map(|usage| usage.used), buffers: host.pool.available() }
    }
}

impl World {
    /// Polls both engines. After every `CHECK_EVERY`th poll, checks that the engines' invariants hold and
    /// that no limit is exceeded.
    pub(super) fn poll_engines(&mut self) -> Done {
        self.pair.poll();
        self.polls += 1;
        if !self.polls.is_multiple_of(CHECK_EVERY) {
            return Ok(());
        }
        for host in [&self.pair.a, &self.pair.b] {
            host.engine.check_invariants()?;
            if let Some(usage) = host.context.usage().all().iter().find(|usage| usage.used > usage.limit) {
                return Err(format!("a limit is exceeded: {usage:?}"));
            }
        }
        Ok(())
    }

    /// Destroys all objects of the run. Checks that the hosts then hold what they held before the run.
    pub(super) fn let_go(&mut self) -> Done {
        self.listeners.clear();
        let _leaked = self.sabotage.leaks().then(|| self.windows.pop());
        self.live_ends.clear();
        self.windows.clear();
        self.memory.clear();
        self.shared.clear();
        let (end, last_poll) = (self.pair.now_us + REST_US, self.polls + REST_POLLS);
        while self.pair.now_us < end && !self.pair.is_asleep() {
            if self.polls > last_poll {
                return Err("the engines find no rest with nothing to do".into());
            }
            self.poll_engines()?;
        }
        let now = [&self.pair.a, &self.pair.b].map(Holdings::of);
        if now == self.holdings {
            Ok(())
        } else {
            Err(format!("the hosts hold {now:?} at the end, and held {:?} before", self.holdings))
        }
    }
}
