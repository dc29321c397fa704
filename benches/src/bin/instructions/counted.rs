//! Where instructions are counted: callgrind's profile has what was spent inside each of these functions, by
//! its name.
//!
//! They do nothing themselves. Each has a number of its own, or the compiler would make one function of the
//! three.

use std::hint::black_box;

/// What is counted for: a function below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The end that sends FPDUs: what its program posts and polls for, and its engine's polls.
    Sent,
    /// The end that receives them.
    Received,
    /// TCP's sender, for an acknowledgement that arrives.
    Acknowledged,
}

impl Side {
    /// As in the names of rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Acknowledged => "acknowledged",
        }
    }

    /// In the name of the function, mangled or not.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::Sent => "count_as_sent",
            Self::Received => "count_as_received",
            Self::Acknowledged => "count_as_acknowledged",
        }
    }

    /// Counts what `act` does.
    pub(crate) fn count(self, act: &mut dyn FnMut()) {
        match self {
            Self::Sent => count_as_sent(act),
            Self::Received => count_as_received(act),
            Self::Acknowledged => count_as_acknowledged(act),
        }
    }
}

#[inline(never)]
fn count_as_sent(act: &mut dyn FnMut()) {
    act();
    black_box(1_u8);
}

#[inline(never)]
fn count_as_received(act: &mut dyn FnMut()) {
    act();
    black_box(2_u8);
}

#[inline(never)]
fn count_as_acknowledged(act: &mut dyn FnMut()) {
    act();
    black_box(3_u8);
}
