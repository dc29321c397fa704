//! Congestion marks and their echo (RFC 3168 section 6.1), on connections that agreed on them.

use crate::sim::packet::flag;

/// New segments that may go out before one says that an echo was heard: a window is smaller.
const PATIENCE_SEGMENTS: u32 = 256;

/// Marks and echoes of one host on one connection.
#[derive(Debug, Default)]
pub(super) struct Ecn {
    /// Its SYN asked for it, or agreed to it.
    willing: bool,
    /// One of its SYNs did not: then nobody may count on it (RFC 3168 section 6.1.1).
    unwilling: bool,
    /// Where the first octets began that have arrived marked since the last echo.
    owed: Option<u64>,
    /// What had been sent when CWR was last: echoes up to there are of the same congestion.
    reduced: u64,
    /// An echo has arrived here; so many new segments went out since without CWR.
    heard: Option<u32>,
}

impl Ecn {
    /// A SYN of this host's.
    pub(super) fn on_syn(&mut self, flags: u8) {
        let asks = flags & (flag::ECE | flag::CWR);
        let answers = flags & flag::ACK != 0;
        self.willing = if answers { asks == flag::ECE } else { asks == flag::ECE | flag::CWR };
        self.unwilling |= !self.willing;
    }

    /// Whether both hosts want it.
    pub(super) fn agreed(pair: &[Self; 2]) -> bool {
        pair.iter().all(|ecn| ecn.willing && !ecn.unwilling)
    }

    /// A segment arrives that acknowledges up to `ack`; `marked`: with new octets from there on, and a mark.
    pub(super) fn on_arrival(&mut self, flags: u8, ack: u64, marked: Option<u64>) {
        if flags & flag::CWR != 0 {
            // What was marked before belongs to the congestion that the sender has heard of.
            self.owed = None;
        }
        self.owed = self.owed.into_iter().chain(marked).min();
        if flags & flag::ECE != 0 && flags & flag::SYN == 0 && ack > self.reduced {
            self.heard.get_or_insert(0);
        }
    }

    /// The host sends a segment that acknowledges up to `ack`, and has sent up to `high`; `fresh` with new octets. What is acknowledged in front of a
    /// mark need not echo it (RFC 8257 section 3.2).
    ///
    /// # Errors
    /// What it should have said.
    pub(super) fn on_sent(&mut self, flags: u8, ack: u64, high: u64, fresh: bool) -> Result<(), String> {
        if flags & flag::ECE != 0 {
            self.owed = None;
        } else if self.owed.is_some_and(|start| ack > start) {
            return Err("octets arrived with a congestion mark and are acknowledged without an echo".into());
        }
        if flags & flag::CWR != 0 {
            self.heard = None;
            self.reduced = high;
        } else if let Some(segments) = &mut self.heard {
            *segments += u32::from(fresh);
            if *segments > PATIENCE_SEGMENTS {
                return Err("congestion was echoed and the sender never says that it heard (CWR)".into());
            }
        }
        Ok(())
    }
}
