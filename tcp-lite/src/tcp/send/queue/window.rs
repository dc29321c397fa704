//! The peer's receive window, which limits what may be sent (RFC 9293 sections 3.8.6 and 3.10.7.4,
//! SND.WND, SND.WL1, SND.WL2).

/// The peer's window. Positions as in `seq.rs`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerWindow {
    /// First position that must not be sent.
    edge: u64,
    /// The largest window seen, bytes.
    max: u64,
    /// The peer's position and our acknowledged one at the last update (SND.WL1, SND.WL2).
    wl1: i64,
    wl2: u64,
}

impl PeerWindow {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self { edge: 1, max: 0, wl1: 0, wl2: 0 }
    }

    /// The peer's SYN announces `bytes`.
    pub(super) fn on_syn(&mut self, bytes: u64) {
        self.max = bytes;
    }

    /// The segment at `pos` that establishes the connection announces `bytes`.
    pub(super) fn establish(&mut self, pos: i64, bytes: u64) {
        *self = Self { edge: 1 + bytes, max: self.max.max(bytes), wl1: pos, wl2: 1 };
    }

    /// A segment at `pos` acknowledges up to `ack` and announces `bytes`; SND.UNA is `una`. Older
    /// segments change nothing. Returns whether the edge moved.
    #[inline]
    pub(super) fn update(&mut self, pos: i64, ack: u64, una: u64, bytes: u64) -> bool {
        let newer = self.wl1 < pos || self.wl1 == pos && self.wl2 <= ack;
        if ack < una || !newer {
            return false;
        }
        let edge = ack + bytes;
        let moved = edge != self.edge;
        *self = Self { edge, max: self.max.max(bytes), wl1: pos, wl2: ack };
        moved
    }

    /// First position that must not be sent.
    #[inline]
    pub(super) fn edge(&self) -> u64 {
        self.edge
    }

    /// The largest window seen, bytes.
    #[inline]
    pub(super) fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(test)]
impl PeerWindow {
    /// Moves the edge, for tests of what lies far ahead.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.edge += bytes;
    }
}
