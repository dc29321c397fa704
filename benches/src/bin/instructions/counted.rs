//! The functions in which instructions are counted, by name. Callgrind's profile has the instructions of each
//! function.
//!
//! These functions only call the work. Each contains a different number, since the compiler would merge
//! identical functions.

use std::hint::black_box;

/// The side whose instructions are counted, by one of the functions below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The end that sends FPDUs: posts and polls of its program, and polls of its engine.
    Sent,
    /// The end that receives FPDUs.
    Received,
    /// TCP's sender, processing an acknowledgement.
    Acknowledged,
}

impl Side {
    /// The name of the side in the names of rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Acknowledged => "acknowledged",
        }
    }

    /// The name of the function, part of the mangled name.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::Sent => "count_as_sent",
            Self::Received => "count_as_received",
            Self::Acknowledged => "count_as_acknowledged",
        }
    }

    /// Counts the instructions of `act`.
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
