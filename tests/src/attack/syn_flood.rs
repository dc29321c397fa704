//! SYNs from addresses that do not exist (RFC 4987). The victim answers each SYN beyond the backlog with a
//! cookie, which uses no memory. Honest clients can still connect.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use super::arena::{Actor, Arena, Scene};
use super::segment::{Segment, syn_options};
use super::victim::{PORT, VICTIM};
use super::{Attack, Scenario, as_it_is, check};
use crate::sim::dice::Part;
use testkit::dice::Dice;
use testkit::packet::flag;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "syn-flood",
    about: "SYNs from addresses that do not exist",
    configure: as_it_is,
    attack: |arena| {
        let frame_of = SynFlood {
            macs: arena.macs(),
            options: syn_options(1460, Some(7)),
            dice: Part::Setup.dice(1),
            sent: 0,
        };
        Box::new(frame_of)
    },
};

/// Default limit on the number of half-open connections of a listener ([`tcp_lite::Limits::backlog`]).
const BACKLOG: u64 = 1024;

struct SynFlood {
    macs: [[u8; 6]; 2],
    options: Vec<u8>,
    dice: Dice,
    sent: u64,
}

impl Actor for SynFlood {
    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        self.sent += 1;
        let (address, seq) = (self.dice.below(1 << 17) as u32, self.dice.below(1 << 32) as u32);
        let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + address);
        let syn = Segment {
            from: SocketAddrV4::new(from, 1024 + self.dice.below(60_000) as u16),
            to: SocketAddrV4::new(VICTIM, PORT),
            seq,
            ack: None,
            flags: flag::SYN,
            window: 0xffff,
            options: &self.options,
            payload: &[],
        };
        Some(syn.frame(self.macs))
    }
}

impl Attack for SynFlood {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        let stack = arena.victim.host.engine.counters().stack;
        check(self.sent > 2 * BACKLOG, || "too few SYNs for a flood".into())?;
        let half_open = arena.victim.context().usage().half_open;
        check(half_open.used <= half_open.limit, || format!("{half_open:?}"))?;
        check(half_open.limit as u64 == BACKLOG, || format!("the limit is {half_open:?}"))?;
        // Fewer than one in a hundred SYNs repeats the 4-tuple of an earlier SYN.
        let cookies = stack.tx_syn_cookies;
        check(cookies * 100 >= self.sent.saturating_sub(BACKLOG) * 99, || {
            format!("{cookies} cookies for {} SYNs", self.sent)
        })?;
        check(stack.rx_syn_dropped == 0, || format!("{} SYNs were dropped", stack.rx_syn_dropped))?;
        let begin_us = arena.now_us();
        check(arena.connect(self, Duration::from_secs(4)), || "an honest client cannot connect".into())?;
        let took = arena.now_us() - begin_us;
        let stack = arena.victim.host.engine.counters().stack;
        check(stack.rx_syn_cookies == 1, || "the honest client did not use a cookie".into())?;
        Ok(format!(
            "{} half-open, {cookies} cookies; an honest connect took {took} us, with a cookie",
            half_open.used
        ))
    }
}
