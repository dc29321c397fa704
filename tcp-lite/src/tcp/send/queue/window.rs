//! The peer's receive window, which limits what may be sent (RFC 9293 sections 3.8.6 and 3.10.7.4,
//! SND.WND, SND.WL1, SND.WL2).

/// The peer's window. Positions are defined in `seq.rs`.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp::send) struct PeerWindow {
    /// The first position that must not be sent yet.
    edge: u64,
    /// The largest window that the peer has announced, in bytes.
    max: u64,
    /// The peer's position and our acknowledged position at the last update (SND.WL1, SND.WL2).
    wl1: i64,
    wl2: u64,
}

impl PeerWindow {
    /// The state before the peer has announced a window.
    pub(super) fn new() -> Self {
        Self { edge: 1, max: 0, wl1: 0, wl2: 0 }
    }

    pub(in crate::tcp::send) fn on_syn(&mut self, bytes: u64) {
        self.max = bytes;
    }

    /// Called when the segment at `pos` that establishes the connection announces `bytes` bytes.
    pub(in crate::tcp::send) fn establish(&mut self, pos: i64, bytes: u64) {
        *self = Self { edge: 1 + bytes, max: self.max.max(bytes), wl1: pos, wl2: 1 };
    }

    /// Called when a segment at `pos` acknowledges up to `ack` and announces `bytes` bytes. `una` is SND.UNA.
    /// A segment that is older than the last update changes nothing. Returns whether the edge moved.
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

    #[inline]
    pub(super) fn edge(&self) -> u64 {
        self.edge
    }

    #[inline]
    pub(super) fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(test)]
impl PeerWindow {
    /// Moves the edge, for tests with positions that are far ahead.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.edge += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 1000 bytes, announced by a segment at position 5 that acknowledged up to 1.
    fn window() -> PeerWindow {
        let mut window = PeerWindow::new();
        window.on_syn(700);
        window.establish(5, 1000);
        window
    }

    #[test]
    fn the_window_counts_from_what_the_same_segment_acknowledges() {
        let mut window = window();
        assert_eq!((window.edge(), window.max()), (1001, 1000));
        assert!(window.update(5, 101, 1, 1000), "moved");
        assert!(!window.update(6, 301, 101, 800), "not moved");
        assert_eq!((window.edge(), window.max()), (1101, 1000));
        assert!(window.update(7, 301, 301, 100), "shrunk");
        assert_eq!((window.edge(), window.max()), (401, 1000), "the largest one seen");
        assert!(window.update(7, 301, 301, 2000));
        assert_eq!((window.edge(), window.max()), (2301, 2000));
    }

    #[test]
    fn older_segments_change_nothing() {
        let mut window = window();
        assert!(window.update(10, 101, 1, 1000));
        for (pos, ack, una) in [(9, 201, 101), (10, 100, 100), (11, 100, 101)] {
            assert!(!window.update(pos, ack, una, 5000), "{pos} {ack}");
            assert_eq!((window.edge(), window.max()), (1101, 1000));
        }
    }

    #[test]
    fn the_window_of_a_syn_may_be_the_largest() {
        let mut window = PeerWindow::new();
        window.on_syn(700);
        window.establish(1, 500);
        assert_eq!((window.edge(), window.max()), (501, 700));
    }
}
