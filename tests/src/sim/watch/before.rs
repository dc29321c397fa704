//! The connection that used the same ports before. Its segments may still be in flight: TIME-WAIT keeps them
//! out of the new one.

use super::super::packet::{Tcp, flag};
use super::Condition;
use super::half::Half;

/// When a connection was over for a host, in order: both FINs have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) at_us: u64,
    /// It closed first, or both at once. The other keeps nothing.
    pub(super) waits: bool,
}

/// The connection before.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// The last sequence numbers that its hosts used.
    used: [Option<u32>; 2],
    over: [Option<Over>; 2],
    /// The initial sequence numbers of it and of all before it.
    isns: [Vec<u32>; 2],
    /// A RST has arrived where it was not over yet, and has ended it.
    pub(super) swept: bool,
}

impl Before {
    /// After a connection with these halves, and those before it.
    pub(super) fn of(halves: &[Half; 2], before: Option<Self>) -> Self {
        let mut isns = before.unwrap_or_default().isns;
        for (isns, half) in isns.iter_mut().zip(halves) {
            isns.extend(half.isn);
        }
        let used = [0, 1].map(|side: usize| halves[side].last_number());
        Self { used, over: [0, 1].map(|side: usize| halves[side].ended), isns, swept: false }
    }

    /// Whether host `side` has begun a connection by this number.
    pub(super) fn has_begun(&self, side: usize, isn: u32) -> bool {
        self.isns[side].contains(&isn)
    }

    /// A RST arrives at host `side`, which does not know the new connection yet. It does not end TIME-WAIT
    /// (RFC 1337 section 3, fix F1).
    pub(super) fn on_reset(&mut self, side: usize) {
        self.swept |= self.over[side].is_none();
    }

    /// Whether the number of a SYN from host `side` is not above those before. Without timestamps, TIME-WAIT
    /// cannot tell that such a SYN is new (RFC 6191 section 2).
    pub(super) fn looks_old(&self, side: usize, isn: Option<u32>) -> bool {
        isn.zip(self.used[side]).is_some_and(|(isn, used)| isn.wrapping_sub(used) as i32 <= 0)
    }

    /// Host `side` answers the SYN with the number `isn`, with a timestamp or without. In TIME-WAIT it
    /// answers new SYNs only, and with numbers above those before (RFC 9293 section 3.6.1). A host that has
    /// kept nothing, after a RST or with a cookie, does not know these numbers.
    pub(super) fn check_answer(
        &self,
        now_us: u64,
        side: usize,
        (isn, has_time): (Option<u32>, bool),
        answer: &Tcp,
        condition: Condition,
    ) -> Result<(), String> {
        debug_assert!(answer.has(flag::SYN | flag::ACK));
        if !condition.is_ours {
            return Ok(());
        }
        if self.looks_old(1 - side, isn) && !has_time {
            return match self.over[side] {
                Some(Over { at_us, waits: true }) if now_us < at_us + condition.time_wait.total_micros() => {
                    Err(format!(
                        "a SYN with an old number ends TIME-WAIT, which began at {at_us} us: {answer:?}"
                    ))
                }
                _ => Ok(()),
            };
        }
        match self.used[side].filter(|_| !self.swept && !condition.cookies) {
            Some(used) if answer.seq.wrapping_sub(used) as i32 <= 0 => {
                Err(format!("the connection before used numbers up to {used}: {answer:?}"))
            }
            _ => Ok(()),
        }
    }
}
