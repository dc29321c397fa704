//! The number of frames that a port receives from a device at once.

use crate::BURST;

/// Approximate maximum number of bytes of a burst. With this limit, the bytes are usually still in the core's
/// L2 cache when they are placed: 512 KiB is half of an L2 cache of 1 MiB.
const BYTES: usize = 512 << 10;

/// Minimum number of frames of a burst. Smaller bursts cost more than they save.
const LEAST: usize = 4;

/// Maximum number of frames of the next burst, derived from the frame sizes of the last burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxLimit(usize);

impl RxLimit {
    pub(super) const fn new() -> Self {
        Self(BURST)
    }

    pub(super) fn frames(self) -> usize {
        self.0
    }

    /// Updates the limit after a burst of `frames` frames (at least one) with `bytes` bytes was received.
    pub(super) fn received(&mut self, frames: usize, bytes: usize) {
        self.0 = if bytes <= BYTES / BURST * frames {
            BURST
        } else {
            (BYTES * frames / bytes).clamp(LEAST, BURST)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(frames: usize, frame_bytes: usize) -> usize {
        let mut limit = RxLimit::new();
        limit.received(frames, frames * frame_bytes);
        limit.frames()
    }

    #[test]
    fn frames_of_no_more_than_8_kib_are_taken_by_whole_bursts() {
        for frames in [1, 7, BURST] {
            assert_eq!(after(frames, 64), BURST);
            assert_eq!(after(frames, 8192), BURST);
        }
    }

    #[test]
    fn larger_ones_by_half_a_mebibyte_at_once() {
        assert_eq!(after(BURST, 16_384), 32);
        assert_eq!(after(1, 65_536), 8);
        assert_eq!(after(8, 65_536), 8);
    }

    #[test]
    fn the_largest_by_four_still() {
        assert_eq!(after(1, 1 << 20), LEAST);
    }

    #[test]
    fn small_frames_end_the_limit() {
        let mut limit = RxLimit::new();
        limit.received(2, 2 * 65_536);
        limit.received(1, 64);
        assert_eq!(limit.frames(), BURST);
    }
}
