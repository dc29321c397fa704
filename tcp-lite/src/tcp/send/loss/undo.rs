//! Detects and undoes spurious recoveries, in which the original segments were not lost.
//!
//! A recovery was spurious if an acknowledgement of a retransmitted segment echoes a timestamp from before
//! the retransmission (Eifel, RFC 3522), or if D-SACKs report all retransmitted bytes as duplicates (RFC 3708
//! section 2). Without timestamps, F-RTO also detects spurious timeouts (`frto.rs`).
//!
//! The response follows RFC 4015. Segments that were marked lost count as in flight again. To avoid a burst,
//! the window is at first limited to the bytes in flight and the newly acknowledged bytes (of these at most
//! an initial window). Then slow start restores the former window.
//!
//! Our timestamps tick in milliseconds. A tick of a millisecond is short enough to detect spurious timeouts:
//! with the default configuration, the RTO has many ticks, so an original segment and its retransmission
//! after a timeout never have the same timestamp. A fast retransmission may have the same timestamp as its
//! original. D-SACK detects this case. The timestamps of a finer clock would wrap within the 24 days for
//! which a peer remembers the timestamp of an idle connection (RFC 7323 section 5.5).

use crate::Instant;
use crate::tcp::congestion::saturated;
use crate::tcp::send::ack_sample::{AckSample, is_before};
use crate::tcp::send::rate::Reduction;

/// A recovery that may prove to be spurious.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    /// SND.UNA and SND.NXT when the recovery began.
    from: u64,
    until: u64,
    /// True if the recovery began with a timeout.
    pub(super) timeout: bool,
    /// The reduction before this recovery's reduction. `None` if the recovery did not reduce the window, or
    /// if congestion was confirmed since.
    pub(super) reduced: Option<Reduction>,
    /// Time of the first retransmission (`RetransmitTS`) in milliseconds, because timestamps tick in
    /// milliseconds; `None` if nothing was retransmitted yet.
    retransmitted_ms: Option<u32>,
    /// Number of retransmitted bytes that the peer has not reported as duplicate.
    unreported: u32,
}

/// Maximum number of recoveries in progress that are undone in one flight. A flight ends when all segments
/// that were in flight at the first undo are acknowledged. The limit exists because each undo visits all
/// segments in flight, and the peer's next acknowledgement may start another recovery whose undo costs as
/// much. Further recoveries keep their reduced window.
const MAX_UNDONE: u8 = 4;

/// The last recovery of a connection, as long as it may be undone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    episode: Option<Episode>,
    /// Until this position is acknowledged, at most [`MAX_UNDONE`] recoveries in progress are undone.
    round_end: u64,
}

impl Undo {
    /// Called when a recovery begins, or when a timeout restarts a recovery. `reduced` is the reduction
    /// before this recovery's reduction; `None` if the recovery does not reduce the window.
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

    /// Forgets the episode. Called when the window was reduced for a reason other than this recovery, because
    /// congestion control can then no longer restore the state before the recovery.
    pub(super) fn forget(&mut self) {
        self.episode = None;
    }

    /// Called when the recovery was spurious: returns the episode and forgets it; `None` if there is no
    /// episode to undo.
    pub(super) fn take(&mut self) -> Option<Episode> {
        self.episode.take()
    }

    /// Like [`take`](Self::take), for a recovery in progress. Also returns `None` if [`MAX_UNDONE`]
    /// recoveries of this flight were undone. `undone` is the number of this flight's recoveries that were
    /// undone. This function updates `undone`, and sets `undone` to zero when a new flight begins.
    pub(super) fn take_in_progress(&mut self, una: u64, nxt: u64, undone: &mut u8) -> Option<Episode> {
        if una >= self.round_end {
            (*undone, self.round_end) = (0, nxt);
        }
        let taken = if *undone < MAX_UNDONE { self.take() } else { None };
        *undone += u8::from(taken.is_some());
        taken
    }

    pub(super) fn on_retransmitted(&mut self, now: Instant, len: u32) {
        if let Some(episode) = &mut self.episode {
            episode.retransmitted_ms.get_or_insert(now.total_millis() as u32);
            episode.unreported = episode.unreported.saturating_add(len);
        }
    }

    /// Called when bytes were reported as duplicate. Returns whether all retransmitted bytes have been
    /// reported by now.
    pub(super) fn on_dsack(&mut self, (start, end): (u64, u64)) -> bool {
        let Some(episode) = &mut self.episode else { return false };
        if episode.retransmitted_ms.is_none() || start < episode.from || end > episode.until {
            return false;
        }
        episode.unreported = episode.unreported.saturating_sub(saturated(end - start));
        episode.unreported == 0
    }

    /// Whether an acknowledgement of a retransmitted segment answers an earlier transmission of that segment.
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
