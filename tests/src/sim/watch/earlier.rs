//! The earlier connection on the same ports. Its segments may still be in flight, and TIME-WAIT keeps them
//! out of the new connection.

use super::Condition;
use super::half_connection::HalfConnection;
use testkit::packet::{Tcp, flag};

/// The orderly end of a connection at a host: both FINs have arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderlyEnd {
    pub(super) at_us: u64,
    /// Whether this host enters TIME-WAIT, because this host closed first or because both hosts closed at the
    /// same time. The other host keeps no state.
    pub(super) time_wait: bool,
}

/// The connection that used the same ports before.
#[derive(Debug, Default)]
pub(super) struct EarlierConnection {
    /// The last sequence number that each host used.
    used: [Option<u32>; 2],
    over: [Option<OrderlyEnd>; 2],
    /// The initial sequence numbers of this connection and of all connections before it.
    isns: [Vec<u32>; 2],
    /// Whether a RST has ended the connection at a host where the connection was not over.
    pub(super) was_reset: bool,
}

impl EarlierConnection {
    /// Returns the connection that consists of these halves, with the history of the connection before it.
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

    /// Records that a RST arrived at host `side`, which does not know the new connection yet. A RST does not
    /// end TIME-WAIT (RFC 1337 section 3, fix F1).
    pub(super) fn on_reset(&mut self, side: usize) {
        self.was_reset |= self.over[side].is_none();
    }

    /// Whether the sequence number of a SYN from host `side` is not above the sequence numbers of the earlier
    /// connection. Without timestamps, TIME-WAIT cannot tell that such a SYN is new (RFC 6191 section 2).
    pub(super) fn syn_looks_old(&self, side: usize, isn: Option<u32>) -> bool {
        isn.zip(self.used[side]).is_some_and(|(isn, used)| isn.wrapping_sub(used) as i32 <= 0)
    }

    /// Checks the answer of host `side` to a SYN, which is given by its number `isn` and by whether it has a
    /// timestamp. In TIME-WAIT a host may answer only new SYNs, and the answers must have numbers above the
    /// earlier numbers (RFC 9293 section 3.6.1). A host that has kept no state, after a RST or because of a
    /// cookie, does not know the earlier numbers.
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
