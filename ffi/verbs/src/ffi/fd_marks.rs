//! Which descriptors of the process are channels of this library, or epoll instances with such channels.
//!
//! The marks are hints. If the program closes a descriptor behind the library's back, and the kernel gives
//! its number to another file, a thread that waits for this file serves the engine for nothing. A descriptor
//! beyond the table has no mark, so its waits are left to the engine's thread.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of descriptors in a table.
pub(crate) const FDS: usize = 1 << 16;

/// A mark for each descriptor.
pub(crate) struct Marks([AtomicU64; FDS / 64]);

/// The descriptors of channels.
pub(crate) static CHANNELS: Marks = Marks::new();

/// The descriptors of channels for which the program waits in calls that this library stands in front of.
pub(crate) static WAITED: Marks = Marks::new();

/// The epoll instances with a channel.
pub(crate) static SETS: Marks = Marks::new();

/// True after the process has made its first channel.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether this process has ever made a channel.
#[inline]
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

impl Marks {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; FDS / 64])
    }

    fn place(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    pub(crate) fn set(&self, fd: c_int) {
        if let Some((word, bit)) = self.place(fd)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear(&self, fd: c_int) {
        if let Some((word, bit)) = self.place(fd)
            && word.load(Ordering::Relaxed) & bit != 0
        {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn has(&self, fd: c_int) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// The marks of 64 descriptors, beginning with number `64 * at`.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.0.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// Called when a channel with this descriptor is made.
pub(crate) fn channel_made(fd: c_int) {
    CHANNELS.set(fd);
    WAITED.clear(fd);
    ANY.store(true, Ordering::Relaxed);
}

/// Called before the descriptor of a channel is closed.
pub(crate) fn channel_closes(fd: c_int) {
    CHANNELS.clear(fd);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_one_descriptor_and_the_table_has_an_end() {
        let marks = Marks::new();
        for fd in [0, 63, 64, 65_535] {
            marks.set(fd);
            assert_eq!([fd - 1, fd, fd + 1].map(|fd| marks.has(fd)), [false, true, false]);
            assert_eq!(marks.word(fd as usize / 64), 1 << (fd % 64));
            marks.clear(fd);
            assert!(!marks.has(fd));
        }
        for fd in [-1, 65_536, c_int::MAX, c_int::MIN] {
            marks.set(fd);
            assert!(!marks.has(fd));
            marks.clear(fd);
        }
        assert_eq!(marks.word(1024), 0);
    }
}
