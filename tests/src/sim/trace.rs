//! A hash of all frames with their times. Two runs with the same seed have the same hash.

/// A hash of all frames so far.
#[derive(Clone, Copy, Debug)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds a frame that passes `place` at `now_us`.
    pub fn add(&mut self, now_us: u64, place: u64, bytes: &[u8]) {
        self.mix(now_us);
        self.mix(place << 32 | bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    /// Returns the hash.
    pub fn value(self) -> u64 {
        self.0
    }
}
