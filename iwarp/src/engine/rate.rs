//! What an address may have of a listener in a second: connections that are taken on
//! (`ListenOptions::rate_per_address`), and connections that fail by its fault
//! (`ListenOptions::failures_per_address`). Startup and teardown are dear beside frames, and whoever
//! connects, fails and connects again asks for nothing else.
//!
//! Each engine counts by itself, in its own time. A forged SYN uses up nobody's share: taken on is who
//! answered our SYN-ACK, to blame who got further than that.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tcp_lite::{Duration, Instant};

/// What an address had in this second.
#[derive(Clone, Copy, Default)]
struct Used {
    begun: u32,
    failed: u32,
}

/// Connections of this second by address.
pub(super) struct Rate {
    /// Of one address; `None`: as many as come.
    begun_limit: Option<u32>,
    failed_limit: Option<u32>,
    second: i64,
    /// No more entries than connections were taken on, where that is bounded, and failed, in this second.
    used: BTreeMap<IpAddr, Used>,
}

/// Why a connection is not taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// As many were taken on as may be.
    Begun,
    /// As many failed as may.
    Failed,
}

impl Rate {
    pub(super) fn new(begun_limit: Option<u32>, failed_limit: Option<u32>) -> Self {
        Self { begun_limit, failed_limit, second: 0, used: BTreeMap::new() }
    }

    /// Whether one more of `address` is within its limits; then it counts.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> Result<(), Exhausted> {
        self.turn_over(now);
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

    /// One of `address` has failed by its fault. `Some`: no more of them until then.
    pub(super) fn blame(&mut self, now: Instant, address: IpAddr) -> Option<Instant> {
        self.turn_over(now);
        let limit = self.failed_limit?;
        let used = self.used.entry(address).or_default();
        used.failed += 1;
        (used.failed >= limit).then(|| Instant::from_secs(self.second) + Duration::from_secs(1))
    }

    fn turn_over(&mut self, now: Instant) {
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
        assert_eq!(rate.blame(at(1500), address(1)), None);
        assert_eq!(rate.admit(at(1500), address(1)), Ok(()));
        assert_eq!(rate.blame(at(1700), address(1)), Some(at(2000)));
        assert_eq!(rate.admit(at(1999), address(1)), Err(Exhausted::Failed));
        assert_eq!(rate.admit(at(1999), address(2)), Ok(()), "another address");
        assert_eq!(rate.admit(at(2000), address(1)), Ok(()), "the next second");
        assert_eq!(rate.blame(at(2000), address(1)), None, "counted anew");
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let mut rate = Rate::new(None, None);
        assert_eq!(rate.admit(Instant::ZERO, address(1)), Ok(()));
        assert_eq!(rate.blame(Instant::ZERO, address(1)), None);
        assert!(rate.used.is_empty());
    }
}
