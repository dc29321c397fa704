//! Describes a buffer with a part of a stream: the content, and a gap for each marker of the stream.
//!
//! This module computes lengths and splits buffers at the gaps. [`mpa::marker`](crate::mpa::marker) defines
//! the bytes in the gaps.

/// The gaps in a buffer. The first gap follows `front` bytes of content, and each further gap follows another
/// 508 bytes of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    front: usize,
}

impl Stride {
    /// Number of bytes of a gap.
    pub const GAP: usize = 4;

    /// Number of bytes of content between two gaps.
    pub const RUN: usize = Self::PERIOD - Self::GAP;

    /// Number of bytes from the start of a gap to the start of the next gap.
    pub const PERIOD: usize = 512;

    /// A buffer without gaps.
    pub const NONE: Self = Self { front: usize::MAX };

    /// Returns the gaps of a buffer whose first gap follows `front` bytes.
    ///
    /// ```
    /// # use iwarp::memory::Stride;
    /// let runs: Vec<&[u8]> = Stride::new(2).runs(b"ab----cdef").collect();
    /// assert_eq!(runs, [b"ab".as_slice(), b"cdef"]);
    /// ```
    pub const fn new(front: usize) -> Self {
        Self { front }
    }

    /// Returns how many of the first `bytes` bytes of the buffer are content.
    pub const fn content(&self, bytes: usize) -> usize {
        if bytes <= self.front {
            return bytes;
        }
        let behind = bytes - self.front;
        let (runs, rest) = (behind / Self::PERIOD, behind % Self::PERIOD);
        self.front + runs * Self::RUN + rest.saturating_sub(Self::GAP)
    }

    /// Returns the length of the shortest buffer that has `content` bytes of content. Gaps before and between
    /// these bytes count; a gap after the last byte does not.
    pub const fn span(&self, content: usize) -> usize {
        if content <= self.front {
            return content;
        }
        content + (content - self.front).div_ceil(Self::RUN) * Self::GAP
    }

    /// The offsets of the gaps in a buffer of `bytes` bytes.
    pub fn gaps(&self, bytes: usize) -> impl Iterator<Item = usize> + use<> {
        (self.front..bytes).step_by(Self::PERIOD)
    }

    /// The runs of content in `bytes`, in order. No run is empty.
    pub const fn runs(self, bytes: &[u8]) -> Runs<'_> {
        Runs { bytes, stride: self }
    }

    /// Number of bytes before the first gap.
    pub(super) const fn front(&self) -> usize {
        self.front
    }
}

/// The unread rest of a buffer with gaps.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
    stride: Stride,
}

impl<'a> Runs<'a> {
    /// Number of bytes of content.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.stride.content(self.bytes.len())
    }

    /// Returns the next bytes of the current run, at most `max` bytes. Returns `None` if no content is left.
    #[inline]
    pub(super) fn next_of(&mut self, max: usize) -> Option<&'a [u8]> {
        if self.stride.front == 0 {
            self.advance(Stride::GAP.min(self.bytes.len()), Stride::RUN);
        }
        let (now, _) = self.bytes.split_at(max.min(self.stride.front).min(self.bytes.len()));
        self.advance(now.len(), self.stride.front - now.len());
        Some(now).filter(|now| !now.is_empty())
    }

    /// Returns the bytes that are left, and the number of bytes before the next gap.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn parts(&self) -> (&'a [u8], usize) {
        (self.bytes, self.stride.front)
    }

    /// Skips `bytes` bytes, including the bytes of gaps. `front` is the number of bytes that then precede the
    /// next gap.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize, front: usize) {
        self.bytes = &self.bytes[bytes..];
        self.stride = Stride { front };
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.next_of(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Stride;

    proptest! {
        // Compares the results with those of a slow method that decides for each byte whether the byte is
        // content.
        #[test]
        fn lengths_and_runs_are_those_of_the_bytes_counted_one_by_one(front in 0_usize..600, len in 0_usize..2200) {
            let is_content = |at: usize| at < front || (at - front) % 512 >= 4;
            let stride = Stride::new(front);
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let content: Vec<u8> = (0..len).filter(|at| is_content(*at)).map(|at| bytes[at]).collect();
            prop_assert_eq!(stride.content(len), content.len());
            prop_assert!(stride.runs(&bytes).flatten().eq(&content));
            prop_assert!(stride.runs(&bytes).all(|run| !run.is_empty()));
            prop_assert_eq!(stride.runs(&bytes).len(), content.len());
            // The span is the length of the shortest buffer with this much content.
            let span = stride.span(content.len());
            prop_assert!(span <= len && stride.content(span) == content.len());
            prop_assert!(span == 0 || is_content(span - 1));
            let begins = |at: &usize| !is_content(*at) && (*at == 0 || is_content(at - 1));
            prop_assert!(stride.gaps(len).eq((0..len).filter(begins)));
        }
    }

    #[test]
    fn without_gaps_all_is_content() {
        assert_eq!([0, 1, 9000, usize::MAX].map(|len| Stride::NONE.content(len)), [0, 1, 9000, usize::MAX]);
        assert_eq!([0, 1, 9000, usize::MAX].map(|len| Stride::NONE.span(len)), [0, 1, 9000, usize::MAX]);
        assert_eq!(Stride::NONE.runs(b"bytes").collect::<Vec<_>>(), [b"bytes"]);
        assert_eq!(Stride::NONE.gaps(9000).count(), 0);
    }
}
