//! Octets with gaps between them at regular distances: content of a stream that has markers, as it lies in a buffer.
//!
//! Lengths only; what is in the gaps is for others to know ([`mpa::marker`](crate::mpa::marker)).

/// Where the gaps are in a buffer: behind its first `front` octets, and from there on behind every `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    front: usize,
    run: usize,
    gap: usize,
}

impl Stride {
    /// No gaps.
    pub const NONE: Self = Self { front: usize::MAX, run: usize::MAX, gap: 0 };

    /// Gaps of `gap` octets: behind `front` octets, and then behind every `run`.
    ///
    /// ```
    /// # use iwarp::memory::Stride;
    /// let runs: Vec<&[u8]> = Stride::new(1, 3, 2).runs(b"a--bcd--ef").collect();
    /// assert_eq!(runs, [b"a".as_slice(), b"bcd", b"ef"]);
    /// ```
    ///
    /// # Panics
    /// When `front` or `run` is 0.
    pub const fn new(front: usize, run: usize, gap: usize) -> Self {
        assert!(front > 0 && run > 0, "a run of no octets");
        Self { front, run, gap }
    }

    /// How many of the first `octets` are not in gaps.
    pub const fn content(&self, octets: usize) -> usize {
        if octets <= self.front {
            return octets;
        }
        let behind = octets - self.front;
        let (runs, rest) = (behind / (self.gap + self.run), behind % (self.gap + self.run));
        self.front + runs * self.run + rest.saturating_sub(self.gap)
    }

    /// How many octets `content` takes with the gaps in front of and between its octets; none is behind the last.
    pub const fn span(&self, content: usize) -> usize {
        if content <= self.front {
            return content;
        }
        content + (content - self.front).div_ceil(self.run) * self.gap
    }

    /// Where gaps begin in a buffer of `octets`.
    pub fn gaps(&self, octets: usize) -> impl Iterator<Item = usize> + use<> {
        (self.front..octets).step_by(self.run.saturating_add(self.gap))
    }

    /// The runs of `octets`, in order, none empty.
    pub const fn runs(self, octets: &[u8]) -> Runs<'_> {
        Runs { octets, front: self.front, stride: self }
    }

    pub(super) const fn front(&self) -> usize {
        self.front
    }

    pub(super) const fn run(&self) -> usize {
        self.run
    }

    pub(super) const fn gap(&self) -> usize {
        self.gap
    }
}

/// What is left of a buffer to be read around its gaps.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    octets: &'a [u8],
    /// Octets in front of the next gap.
    front: usize,
    stride: Stride,
}

impl<'a> Runs<'a> {
    /// Octets of content.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        Stride { front: self.front, ..self.stride }.content(self.octets.len())
    }

    /// What lies in one run of the next `max` octets: none when nothing is left.
    #[inline]
    pub(super) fn next_of(&mut self, max: usize) -> Option<&'a [u8]> {
        if self.front == 0 {
            self.octets = self.octets.get(self.stride.gap..).unwrap_or_default();
            self.front = self.stride.run;
        }
        let (now, rest) = self.octets.split_at(max.min(self.front).min(self.octets.len()));
        self.octets = rest;
        self.front -= now.len();
        Some(now).filter(|now| !now.is_empty())
    }

    /// The octets that are left, how many of them are in front of the next gap, and how it goes on.
    pub(super) const fn parts(&self) -> (&'a [u8], usize, Stride) {
        (self.octets, self.front, self.stride)
    }

    /// Leaves out `octets`, gaps among them; behind these, `front` are in front of the next gap.
    #[inline]
    pub(super) fn advance(&mut self, octets: usize, front: usize) {
        self.octets = &self.octets[octets..];
        self.front = front;
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

    /// Each octet's own account of whether it is content.
    fn is_content(front: usize, run: usize, gap: usize, at: usize) -> bool {
        at < front || (at - front) % (gap + run) >= gap
    }

    proptest! {
        #[test]
        fn lengths_and_runs_are_those_of_the_octets_counted_one_by_one(
            front in 1_usize..40, run in 1_usize..60, gap in 1_usize..9, len in 0_usize..300,
        ) {
            let stride = Stride::new(front, run, gap);
            let octets: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let content: Vec<u8> =
                octets.iter().enumerate().filter(|(at, _)| is_content(front, run, gap, *at)).map(|(_, octet)| *octet).collect();
            prop_assert_eq!(stride.content(len), content.len());
            prop_assert!(stride.runs(&octets).flatten().eq(&content));
            prop_assert!(stride.runs(&octets).all(|run| !run.is_empty()));
            // The shortest buffer with as much content.
            let span = stride.span(content.len());
            prop_assert!(span <= len && stride.content(span) == content.len());
            prop_assert!(span == 0 || is_content(front, run, gap, span - 1));
            let gaps: Vec<usize> = (1..len)
                .filter(|at| !is_content(front, run, gap, *at) && is_content(front, run, gap, at - 1))
                .collect();
            prop_assert_eq!(stride.gaps(len).collect::<Vec<_>>(), gaps);
        }
    }

    #[test]
    fn without_gaps_all_is_content() {
        assert_eq!([0, 1, 9000, usize::MAX].map(|len| Stride::NONE.content(len)), [0, 1, 9000, usize::MAX]);
        assert_eq!([0, 1, 9000, usize::MAX].map(|len| Stride::NONE.span(len)), [0, 1, 9000, usize::MAX]);
        assert_eq!(Stride::NONE.runs(b"octets").collect::<Vec<_>>(), [b"octets"]);
        assert_eq!(Stride::NONE.gaps(9000).count(), 0);
    }
}
