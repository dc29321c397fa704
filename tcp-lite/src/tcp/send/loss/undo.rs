//! Detection and undo of spurious recoveries: the originals arrived after all.
//!
//! A recovery is spurious if an acknowledgement of a retransmitted segment echoes a timestamp from
//! before the retransmission (Eifel, RFC 3522), or if D-SACK reports everything that was retransmitted
//! as duplicate (RFC 3708 section 2). Without timestamps a timeout is also examined by F-RTO
//! (`frto.rs`). The response is that of RFC 4015: segments marked lost are in flight again, and the
//! window grows back to its former value by slow start from what is in flight, so that there is no
//! burst.
//!
//! Our timestamps tick in milliseconds. That is enough: a timeout takes at least the RTO's floor of many
//! ticks, so an original and its retransmission never share a tick. A fast retransmission that does is
//! left to D-SACK. A finer clock would wrap within the idle times that RFC 7323 section 5.4 wants to
//! survive.

use crate::Instant;
use crate::tcp::congestion::saturated;
use crate::tcp::send::ack_sample::{AckSample, is_before};
use crate::tcp::send::rate::Reduction;

/// A recovery that may turn out to be spurious.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    /// SND.UNA and SND.NXT when it began.
    from: u64,
    until: u64,
    /// It began with a timeout.
    pub(super) timeout: bool,
    /// If it reduced the window and nothing has confirmed congestion since: the reduction before it.
    pub(super) reduced: Option<Reduction>,
    /// Time of the first retransmission (`RetransmitTS`), in milliseconds, as timestamps tick.
    retransmitted_ms: Option<u32>,
    /// Retransmitted bytes that were not reported as duplicate.
    unreported: u32,
}

/// Maximum recoveries in progress that are undone until all segments are acknowledged that were in flight at
/// the first undo. Each undo walks along all segments in flight, and the peer's next acknowledgement may
/// start another recovery with an equally long walk. Further recoveries keep their reduced window.
const MAX_UNDONE: u8 = 4;

/// The last recovery of a connection, until it is undone or confirmed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    episode: Option<Episode>,
    /// At most [`MAX_UNDONE`] recoveries in progress are undone until this position is acknowledged.
    round_end: u64,
}

impl Undo {
    /// A recovery begins, or a timeout restarts it. `reduced`: it reduces the window, and this was the
    /// reduction before.
    pub(super) fn start(&mut self, una: u64, nxt: u64, timeout: bool, reduced: Option<Reduction>) {
        self.episode =
            Some(Episode { from: una, until: nxt, timeout, reduced, retransmitted_ms: None, unreported: 0 });
    }

    /// Called when congestion is confirmed: the reduction stays even if the recovery is undone.
    pub(super) fn keep_reduction(&mut self) {
        if let Some(episode) = &mut self.episode {
            episode.reduced = None;
        }
    }

    /// The window was reduced for another reason, so congestion control no longer has the state before
    /// the recovery.
    pub(super) fn forget(&mut self) {
        self.episode = None;
    }

    /// The recovery was spurious: ends it.
    pub(super) fn take(&mut self) -> Option<Episode> {
        self.episode.take()
    }

    /// As [`take`](Self::take), for a recovery in progress. Also `None` if [`MAX_UNDONE`] recoveries of this
    /// flight were undone; `undone` counts them.
    pub(super) fn take_in_progress(&mut self, una: u64, nxt: u64, undone: &mut u8) -> Option<Episode> {
        if una >= self.round_end {
            (*undone, self.round_end) = (0, nxt);
        }
        let taken = if *undone < MAX_UNDONE { self.take() } else { None };
        *undone += u8::from(taken.is_some());
        taken
    }

    /// A segment was retransmitted.
    pub(super) fn on_retransmitted(&mut self, now: Instant, len: u32) {
        if let Some(episode) = &mut self.episode {
            episode.retransmitted_ms.get_or_insert(now.total_millis() as u32);
            episode.unreported = episode.unreported.saturating_add(len);
        }
    }

    /// Bytes were reported as duplicate. Returns whether all retransmitted bytes have been reported by now.
    pub(super) fn on_dsack(&mut self, (start, end): (u64, u64)) -> bool {
        let Some(episode) = &mut self.episode else { return false };
        if episode.retransmitted_ms.is_none() || start < episode.from || end > episode.until {
            return false;
        }
        episode.unreported = episode.unreported.saturating_sub(saturated(end - start));
        episode.unreported == 0
    }

    /// Whether an acknowledgement of a retransmitted segment answers an earlier transmission.
    pub(super) fn is_original(&self, sample: &AckSample) -> bool {
        let retransmitted_ms = self.episode.and_then(|episode| episode.retransmitted_ms);
        match (retransmitted_ms, sample.echo_ms()) {
            (Some(retransmitted_ms), Some(echo_ms)) => {
                sample.retransmitted && is_before(echo_ms, retransmitted_ms)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::send::ack_sample::RetransmitFilter;

    fn echo(ms: u32, retransmitted: bool) -> AckSample {
        let filter = RetransmitFilter { echo_ms: Some(ms), horizon: Instant::ZERO };
        AckSample { retransmitted, ..AckSample::new(filter) }
    }

    #[test]
    fn an_echo_from_before_the_first_retransmission_is_the_originals() {
        let mut undo = Undo::default();
        assert!(!undo.is_original(&echo(1, true)), "no recovery");
        undo.start(100, 900, true, None);
        assert!(!undo.is_original(&echo(1, true)), "nothing sent again");
        undo.on_retransmitted(Instant::from_millis(50), 100);
        undo.on_retransmitted(Instant::from_millis(90), 100);
        assert!(undo.is_original(&echo(49, true)));
        assert!(!undo.is_original(&echo(50, true)), "the same tick may be either");
        assert!(!undo.is_original(&echo(49, false)), "an acknowledgement of something else");
        assert!(undo.take().is_some_and(|episode| episode.timeout));
        assert!(!undo.is_original(&echo(49, true)), "once");
    }

    #[test]
    fn recoveries_of_one_flight_are_undone_a_few_times() {
        let (mut undo, mut count) = (Undo::default(), 0);
        let mut undone = |una, nxt| {
            undo.start(una, nxt, false, None);
            undo.take_in_progress(una, nxt, &mut count).is_some()
        };
        assert_eq!([100, 200, 300, 899].map(|una| undone(una, una + 800)), [true; 4]);
        assert!(!undone(899, 2000), "bytes are in flight that were at the first");
        assert_eq!([(); 5].map(|()| undone(900, 1000)), [true, true, true, true, false]);
        assert!(undone(1000, 1000));
    }

    #[test]
    fn duplicates_undo_when_they_are_all_that_was_sent_again() {
        let mut undo = Undo::default();
        undo.start(100, 900, false, None);
        assert!(!undo.on_dsack((100, 200)), "nothing sent again");
        undo.on_retransmitted(Instant::ZERO, 100);
        undo.on_retransmitted(Instant::ZERO, 150);
        assert!(!undo.on_dsack((100, 200)));
        assert!(!undo.on_dsack((0, 150)), "of an earlier time");
        assert!(!undo.on_dsack((800, 950)), "of a later time");
        assert!(undo.on_dsack((200, 350)));
        undo.forget();
        assert!(!undo.on_dsack((200, 350)));
    }
}
