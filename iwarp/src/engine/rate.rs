//! The limits for each address at one listener in one second: on the connections that are admitted
//! (`ListenOptions::rate_per_address`), and on those that fail through the peer's fault
//! (`ListenOptions::failures_per_address`). At either limit, the listener admits no more connections of the
//! address in this second. Startup and teardown cost much more than frames do, so a peer that repeatedly
//! connects and fails could use up the CPU.
//!
//! Each engine counts separately, in seconds of its own time. A forged SYN counts against no address: a
//! connection counts as admitted only when the peer has answered our SYN-ACK, and can fail only later.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tcp_lite::{Duration, Instant};

/// The numbers of admitted and of failed connections of an address in this second.
#[derive(Clone, Copy, Default)]
struct Used {
    begun: u32,
    failed: u32,
}

/// The limits of a listener for each address, and the numbers of admitted and of failed connections of each
/// address in the current second.
pub(super) struct Rate {
    /// Maximum number of connections that one address may begin; `None`: no limit.
    begun_limit: Option<u32>,
    failed_limit: Option<u32>,
    second: i64,
    /// The numbers of connections of each address. There is at most one entry per connection that was
    /// admitted under a limit, or has failed, in this second.
    used: BTreeMap<IpAddr, Used>,
}

/// Why a connection is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// The address has reached its limit of connections.
    Begun,
    /// The address has reached its limit of failures.
    Failed,
}

impl Rate {
    pub(super) fn new(begun_limit: Option<u32>, failed_limit: Option<u32>) -> Self {
        Self { begun_limit, failed_limit, second: 0, used: BTreeMap::new() }
    }

    /// Checks the limits of `address`. Fails with the limit that is reached, if any. Counts an admitted
    /// connection if admitted connections are limited.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> Result<(), Exhausted> {
        self.roll_over(now);
        let Used { begun, failed } = self.used.get(&address).copied().unwrap_or_default();
        if self.failed_limit.is_some_and(|limit| failed >= limit) {
            return Err(Exhausted::Failed);
        }
        let Some(limit) = self.begun_limit else { return Ok(()) };
        if begun >= limit {
            return Err(Exhausted::Begun);
        }
        self.used.entry(address).or_default().begun += 1;
        Ok(())
    }

    /// Counts a failure of `address`. If the address reaches its limit, returns the end of this second, until
    /// which the address is blocked.
    pub(super) fn count_failure(&mut self, now: Instant, address: IpAddr) -> Option<Instant> {
        self.roll_over(now);
        let limit = self.failed_limit?;
        let used = self.used.entry(address).or_default();
        used.failed += 1;
        (used.failed >= limit).then(|| Instant::from_secs(self.second) + Duration::from_secs(1))
    }

    fn roll_over(&mut self, now: Instant) {
        if now.secs() != self.second {
            self.second = now.secs();
            self.used.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn each_address_has_its_share_of_each_second() {
        let mut rate = Rate::new(Some(2), None);
        let mut admitted = |at_ms, last: u8| rate.admit(Instant::from_millis(at_ms), address(last)) == Ok(());
        assert_eq!([0, 1, 2, 999].map(|at| admitted(at, 1)), [true, true, false, false]);
        assert_eq!([999, 999, 999].map(|at| admitted(at, 2)), [true, true, false]);
        assert_eq!([1000, 1000, 1000].map(|at| admitted(at, 1)), [true, true, false]);
        assert_eq!(Rate::new(Some(0), None).admit(Instant::ZERO, address(1)), Err(Exhausted::Begun));
    }

    #[test]
    fn an_address_that_has_failed_so_often_waits_for_the_next_second() {
        let mut rate = Rate::new(None, Some(2));
        let at = Instant::from_millis;
        assert_eq!(rate.count_failure(at(1500), address(1)), None);
        assert_eq!(rate.admit(at(1500), address(1)), Ok(()));
        assert_eq!(rate.count_failure(at(1700), address(1)), Some(at(2000)));
        assert_eq!(rate.admit(at(1999), address(1)), Err(Exhausted::Failed));
        assert_eq!(rate.admit(at(1999), address(2)), Ok(()), "another address");
        assert_eq!(rate.admit(at(2000), address(1)), Ok(()), "the next second");
        assert_eq!(rate.count_failure(at(2000), address(1)), None, "counted anew");
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let mut rate = Rate::new(None, None);
        assert_eq!(rate.admit(Instant::ZERO, address(1)), Ok(()));
        assert_eq!(rate.count_failure(Instant::ZERO, address(1)), None);
        assert!(rate.used.is_empty());
    }
}
