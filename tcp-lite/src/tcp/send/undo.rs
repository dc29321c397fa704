//! Whether a recovery was for nothing: the originals arrived after all.
//!
//! Told by timestamps when an acknowledgement of what was sent again echoes one from before it was
//! (Eifel, RFC 3522), or by D-SACK when all that was sent again is reported to have arrived twice
//! (RFC 3708 section 2). Where there are no timestamps a timeout is examined by F-RTO, too
//! (`frto.rs`). The response is that of RFC 4015: what was marked lost is in flight, and the window
//! grows back to what it was before, by slow start from what is in flight, so that nothing leaves
//! in a burst.
//!
//! Our timestamps tick in milliseconds. That is enough: a timeout comes no sooner than its floor of
//! many ticks, so original and retransmission never share one; a fast retransmission that does is
//! left to D-SACK. A finer clock would wrap within the pauses that RFC 7323 section 5.4 wants to
//! survive.

use super::ack_sample::{AckSample, is_before};
use super::reduction::Reduction;
use crate::Instant;
use crate::tcp::congestion::saturated;

/// A recovery that may turn out to be spurious.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    /// SND.UNA and SND.NXT when it began.
    from: u64,
    until: u64,
    /// The timer began it.
    pub(super) timeout: bool,
    /// It reduced the window, for nothing that is known to be true. The reduction before that.
    pub(super) reduced: Option<Reduction>,
    /// When the first segment was sent again (`RetransmitTS`), in milliseconds, as timestamps tick.
    resent_ms: Option<u32>,
    /// Bytes sent again and not reported to have arrived twice.
    unreported: u32,
}

/// The last recovery of a connection, until it is taken back or cannot be any more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    episode: Option<Episode>,
}

impl Undo {
    /// A recovery begins, or a timeout starts it anew; `reduced`: and reduces the window, which was
    /// reduced so before.
    pub(super) fn start(&mut self, una: u64, nxt: u64, timeout: bool, reduced: Option<Reduction>) {
        self.episode =
            Some(Episode { from: una, until: nxt, timeout, reduced, resent_ms: None, unreported: 0 });
    }

    /// There was congestion, whatever becomes of the episode.
    pub(super) fn keep_reduction(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.reduced = None;
        }
    }

    /// Congestion control was told of congestion by other means: what is remembered there is no
    /// longer what was before the episode.
    pub(super) fn forget(&mut self) {
        self.episode = None;
    }

    /// The recovery was for nothing: ends it.
    pub(super) fn take(&mut self) -> Option<Episode> {
        self.episode.take()
    }

    /// A segment was sent again.
    pub(super) fn on_resent(&mut self, now: Instant, len: u32) {
        if let Some(episode) = &mut self.episode {
            episode.resent_ms.get_or_insert(now.total_millis() as u32);
            episode.unreported = episode.unreported.saturating_add(len);
        }
    }

    /// Bytes arrived twice. Returns whether everything that was sent again did.
    pub(super) fn on_dsack(&mut self, (start, end): (u64, u64)) -> bool {
        let Some(episode) = &mut self.episode else { return false };
        if episode.resent_ms.is_none() || start < episode.from || end > episode.until {
            return false;
        }
        episode.unreported = episode.unreported.saturating_sub(saturated(end - start));
        episode.unreported == 0
    }

    /// Whether an acknowledgement of what was sent again answers an earlier transmission.
    pub(super) fn is_original(&self, sample: &AckSample) -> bool {
        let resent_ms = self.episode.and_then(|episode| episode.resent_ms);
        match (resent_ms, sample.echo_ms()) {
            (Some(resent_ms), Some(echo_ms)) => sample.repaired && is_before(echo_ms, resent_ms),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ack_sample::RetransmitFilter;
    use super::*;

    fn echo(ms: u32, repaired: bool) -> AckSample {
        let filter = RetransmitFilter { echo_ms: Some(ms), horizon: Instant::ZERO };
        AckSample { repaired, ..AckSample::new(filter) }
    }

    #[test]
    fn an_echo_from_before_the_first_retransmission_is_the_originals() {
        let mut undo = Undo::default();
        assert!(!undo.is_original(&echo(1, true)), "no recovery");
        undo.start(100, 900, true, None);
        assert!(!undo.is_original(&echo(1, true)), "nothing sent again");
        undo.on_resent(Instant::from_millis(50), 100);
        undo.on_resent(Instant::from_millis(90), 100);
        assert!(undo.is_original(&echo(49, true)));
        assert!(!undo.is_original(&echo(50, true)), "the same tick may be either");
        assert!(!undo.is_original(&echo(49, false)), "an acknowledgement of something else");
        assert!(undo.take().is_some_and(|episode| episode.timeout));
        assert!(!undo.is_original(&echo(49, true)), "once");
    }

    #[test]
    fn duplicates_undo_when_they_are_all_that_was_sent_again() {
        let mut undo = Undo::default();
        undo.start(100, 900, false, None);
        assert!(!undo.on_dsack((100, 200)), "nothing sent again");
        undo.on_resent(Instant::ZERO, 100);
        undo.on_resent(Instant::ZERO, 150);
        assert!(!undo.on_dsack((100, 200)));
        assert!(!undo.on_dsack((0, 150)), "of an earlier time");
        assert!(!undo.on_dsack((800, 950)), "of a later time");
        assert!(undo.on_dsack((200, 350)));
        undo.forget();
        assert!(!undo.on_dsack((200, 350)));
    }
}
