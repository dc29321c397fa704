//! An optional instant in eight bytes.

use std::fmt;

use crate::facade::Instant;

/// An optional instant. An `Option<Instant>` takes sixteen bytes, and each connection has many deadlines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deadline(i64);

impl Deadline {
    /// No instant.
    pub const NONE: Self = Self(i64::MAX);

    /// The instant; `None` if no instant is set. The last instant that 64 bits of microseconds can express,
    /// in 292,000 years, counts as no instant.
    #[inline]
    pub const fn get(self) -> Option<Instant> {
        match self.0 {
            i64::MAX => None,
            at => Some(Instant::from_micros_const(at)),
        }
    }

    /// Whether there is an instant.
    #[inline]
    pub const fn is_set(self) -> bool {
        self.0 != Self::NONE.0
    }

    /// Whether the deadline is set and is not later than `now`.
    #[inline]
    pub const fn has_passed(self, now: Instant) -> bool {
        self.0 <= now.total_micros() && self.is_set()
    }

    /// The earlier of two deadlines.
    #[inline]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// Returns the instant. If no instant is set, stores `at` first.
    #[inline]
    pub fn get_or_insert(&mut self, at: Instant) -> Instant {
        if !self.is_set() {
            *self = at.into();
        }
        self.get().unwrap_or(at)
    }
}

impl Default for Deadline {
    fn default() -> Self {
        Self::NONE
    }
}

impl From<Instant> for Deadline {
    #[inline]
    fn from(at: Instant) -> Self {
        Self(at.total_micros())
    }
}

impl From<Option<Instant>> for Deadline {
    #[inline]
    fn from(at: Option<Instant>) -> Self {
        at.map_or(Self::NONE, Self::from)
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_instant_or_none() {
        let at = Instant::from_micros(5_i64);
        let (some, none) = (Deadline::from(at), Deadline::from(None));
        assert_eq!((some.get(), none.get(), none), (Some(at), None, Deadline::default()));
        assert_eq!((some.min(none), none.min(some), some.is_set(), none.is_set()), (some, some, true, false));
        let (before, end) = (Instant::from_micros(4_i64), Instant::from_micros(i64::MAX));
        assert_eq!([before, at, end].map(|now| some.has_passed(now)), [false, true, true]);
        assert!(!none.has_passed(end));
        let mut set = none;
        assert_eq!((set.get_or_insert(at), set.get_or_insert(before), set), (at, at, some));
        assert_eq!(format!("{some:?} {none:?}"), format!("{:?} {:?}", Some(at), None::<Instant>));
    }
}
