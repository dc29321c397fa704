//! How many connections an address has had taken on in this second: what `ListenOptions::rate_per_address` bounds. Peers that
//! connect and fail, over and over, cost startups, which are dear beside frames.
//!
//! Each engine counts by itself, in its own time. Asked when TCP has its connection: a forged SYN uses up nobody's share.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tcp_lite::Instant;

/// Connections of this second by address.
pub(super) struct Rate {
    limit: Option<u32>,
    second: i64,
    /// No more entries than connections were taken on in this second.
    begun: BTreeMap<IpAddr, u32>,
}

impl Rate {
    /// At most `limit` a second for each address; `None`: as many as come.
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit, second: 0, begun: BTreeMap::new() }
    }

    /// Whether one more of `address` is within its limit; then it counts.
    pub(super) fn admits(&mut self, now: Instant, address: IpAddr) -> bool {
        let Some(limit) = self.limit else { return true };
        if now.secs() != self.second {
            self.second = now.secs();
            self.begun.clear();
        }
        let begun = self.begun.get(&address).copied().unwrap_or(0);
        let admitted = begun < limit;
        if admitted {
            self.begun.insert(address, begun + 1);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_share_of_each_second() {
        let mut rate = Rate::new(Some(2));
        let mut admitted =
            |at_ms, last: u8| rate.admits(Instant::from_millis(at_ms), [10, 0, 0, last].into());
        assert_eq!([0, 1, 2, 999].map(|at| admitted(at, 1)), [true, true, false, false]);
        assert_eq!([999, 999, 999].map(|at| admitted(at, 2)), [true, true, false]);
        assert_eq!([1000, 1000, 1000].map(|at| admitted(at, 1)), [true, true, false]);
        assert!(Rate::new(None).begun.is_empty());
        assert!(!Rate::new(Some(0)).admits(Instant::ZERO, [10, 0, 0, 1].into()));
    }
}
