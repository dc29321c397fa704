//! A caller that cannot take the next ULPDU yet, since it has no buffer for it. The ULPDU and all later
//! bytes are held, and nothing is handed up, until the caller can continue.
//!
//! Otherwise bytes in order do not count as held, even while their FPDU is incomplete. While the caller
//! waits they do: TCP's window closes, which limits the memory of a waiting connection.

use dp::Mbuf;

use super::held::NoSlot;
use super::ulpdus::FpduSource;
use super::{Deframer, HeldSlab, Ulpdus};

/// Why a caller does not take a ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untaken<E> {
    /// The caller cannot take the ULPDU now. It is handed up again after [`Deframer::resume`].
    NotYet,
    /// The stream has failed.
    Failed(E),
}

impl<E> From<E> for Untaken<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

impl Deframer {
    /// Whether the caller waits with the next ULPDU.
    #[inline]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// While the caller waits: the stream offset of the first byte that is not taken.
    pub fn waits_from(&self) -> Option<u64> {
        self.waits.then_some(self.origin + self.next)
    }

    /// Called when the caller can take the next ULPDU. Returns that ULPDU and all that were held behind it.
    /// If the caller cannot take it after all, it calls [`Ulpdus::wait`] again.
    pub fn resume<'a>(&'a mut self, slab: &'a mut HeldSlab) -> Ulpdus<'a> {
        self.waits = false;
        Ulpdus::new(self, slab, FpduSource::Held)
    }

    /// Bytes in order that are held since the last call, for `tcp_lite::Stack::hold`. They are among those
    /// that [`Ulpdus::finish`] and [`clear`](Self::clear) return later.
    pub fn take_kept(&mut self) -> usize {
        std::mem::take(&mut self.kept)
    }

    /// Called when the FPDU that begins at `start` was handed up in order, and not taken.
    #[cold]
    pub(super) fn put_back(&mut self, start: u64) {
        self.next = start;
        self.counters.fpdus -= 1;
        self.waits = true;
    }

    /// As [`receive`](Self::receive), while the caller waits: holds the buffer.
    #[cold]
    pub(super) fn keep<'a>(
        &'a mut self,
        offset: u64,
        buf: Mbuf,
        frontier: u64,
        slab: &'a mut HeldSlab,
    ) -> Ulpdus<'a> {
        let ahead = offset >= frontier;
        self.counters.ahead_buffers += u64::from(ahead);
        let before = buf.len();
        let new = self.cut_known(offset, buf, slab);
        let bytes = new.as_ref().map_or(0, |(_, buf)| buf.len());
        self.frontier = self.frontier.max(frontier.saturating_sub(self.origin));
        // TCP counts bytes ahead of the frontier as held already.
        self.released += if ahead { before - bytes } else { 0 };
        self.kept += if ahead { 0 } else { bytes };
        let source = match new.map(|(start, buf)| self.held.hold(slab, start, buf, true)) {
            None | Some(Ok(())) => FpduSource::Nothing,
            Some(Err(NoSlot)) => {
                self.released += bytes;
                FpduSource::Lost
            }
        };
        Ulpdus::new(self, slab, source)
    }

    /// The caller begins to wait: counts all buffers in order as held.
    pub(super) fn count_held(&mut self, slab: &mut HeldSlab) {
        self.kept += self.held.count_in_order(slab);
    }
}
