//! Checks how many pairs of queues may be used on a device.

use super::drivers::Driver;
use crate::Offloads;

/// The reason why the requested number of queue pairs cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The requested number is 0, or larger than this maximum of the device.
    Most(u16),
    /// The device spreads no received flows over several queues, so only one pair of queues works.
    Unspread,
}

/// Checks that `asked` pairs of queues can be used on a device that has `most` pairs, with these offloads in
/// use. If flows are not spread, all frames arrive on the first queue, and the other queues would receive no
/// frames.
pub(super) fn check(asked: u16, most: u16, offloads: Offloads, driver: &Driver) -> Result<(), Refusal> {
    if asked == 0 || asked > most {
        Err(Refusal::Most(most))
    } else if asked > 1 && !offloads.contains(Offloads::RX_RSS) && !driver.spreads {
        Err(Refusal::Unspread)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dpdk::drivers::find;

    #[test]
    fn queues_are_granted_where_flows_are_spread_over_them() {
        let (none, rss) = (Offloads::empty(), Offloads::RX_RSS);
        for (driver, asked, most, offloads, expected) in [
            ("net_e1000_em", 1, 2, none, Ok(())),
            ("net_e1000_em", 2, 2, none, Err(Refusal::Unspread)),
            ("net_e1000_em", 3, 2, none, Err(Refusal::Most(2))),
            ("net_e1000_igb", 4, 8, rss, Ok(())),
            ("net_e1000_igb", 4, 8, none, Err(Refusal::Unspread)),
            ("net_of_tomorrow", 2, 8, none, Err(Refusal::Unspread)),
            ("net_vhost", 2, 2, none, Ok(())),
            ("net_virtio_user", 2, 2, none, Ok(())),
            ("net_virtio", 2, 4, none, Ok(())),
            ("net_af_packet", 4, 4, none, Ok(())),
            ("net_tap", 2, 16, none, Ok(())),
            ("net_vhost", 0, 2, none, Err(Refusal::Most(2))),
        ] {
            assert_eq!(check(asked, most, offloads, &find(driver)), expected, "{driver} {asked}");
        }
    }
}
