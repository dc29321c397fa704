//! The earlier connection on the same ports. Its segments may still be in flight. TIME-WAIT keeps them out of
//! the new connection.

use super::Condition;
use super::half_connection::HalfConnection;
use testkit::packet::{Tcp, flag};

/// When a connection was over for a host in an orderly way: both FINs have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderlyEnd {
    pub(super) at_us: u64,
    /// This host closed first, or both closed at once, so it enters TIME-WAIT. The other host keeps no state.
    pub(super) time_wait: bool,
}

/// The earlier connection.
#[derive(Debug, Default)]
pub(super) struct EarlierConnection {
    /// The last sequence numbers that its hosts used.
    used: [Option<u32>; 2],
    over: [Option<OrderlyEnd>; 2],
    /// The initial sequence numbers of this connection and of all earlier ones.
    isns: [Vec<u32>; 2],
    /// A RST has ended the connection at a host where it was not over.
    pub(super) was_reset: bool,
}

impl EarlierConnection {
    /// The connection with these halves, and the history of the connection before it.
    pub(super) fn of(halves: &[HalfConnection; 2], earlier: Option<Self>) -> Self {
        let mut isns = earlier.unwrap_or_default().isns;
        for (isns, half) in isns.iter_mut().zip(halves) {
            isns.extend(half.isn);
        }
        let used = [0, 1].map(|side: usize| halves[side].last_number());
        Self { used, over: [0, 1].map(|side: usize| halves[side].ended), isns, was_reset: false }
    }

    /// Whether host `side` has used this number as an initial sequence number.
    pub(super) fn has_begun(&self, side: usize, isn: u32) -> bool {
        self.isns[side].contains(&isn)
    }

    /// A RST arrives at host `side`, which does not know the new connection yet. A RST does not end TIME-WAIT
    /// (RFC 1337 section 3, fix F1).
    pub(super) fn on_reset(&mut self, side: usize) {
        self.was_reset |= self.over[side].is_none();
    }

    /// Whether the number of a SYN from host `side` is not above those of the earlier connection. Without
    /// timestamps, TIME-WAIT cannot tell that such a SYN is new (RFC 6191 section 2).
    pub(super) fn syn_looks_old(&self, side: usize, isn: Option<u32>) -> bool {
        isn.zip(self.used[side]).is_some_and(|(isn, used)| isn.wrapping_sub(used) as i32 <= 0)
    }

    /// Host `side` answers the SYN with the number `isn`, with a timestamp or without. In TIME-WAIT it may
    /// answer only new SYNs, and with numbers above the earlier ones (RFC 9293 section 3.6.1). A host that
    /// has kept no state, after a RST or with a cookie, does not know these numbers.
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
        if self.syn_looks_old(1 - side, isn) && !has_time {
            return match self.over[side] {
                Some(OrderlyEnd { at_us, time_wait: true })
                    if now_us < at_us + condition.time_wait.total_micros() =>
                {
                    Err(format!(
                        "a SYN with an old number ended the TIME-WAIT that began at {at_us} us: {answer:?}"
                    ))
                }
                _ => Ok(()),
            };
        }
        match self.used[side].filter(|_| !self.was_reset && !condition.cookies) {
            Some(used) if answer.seq.wrapping_sub(used) as i32 <= 0 => Err(format!(
                "a SYN-ACK reuses sequence numbers: the earlier connection used them up to {used}: {answer:?}"
            )),
            _ => Ok(()),
        }
    }
}
