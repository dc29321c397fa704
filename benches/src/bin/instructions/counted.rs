//! The functions in which instructions are counted, by their names: callgrind's profile has the instructions
//! of each function.
//!
//! These functions only call the work. Each function contains a different number, since the compiler would
//! merge identical functions.

use std::hint::black_box;

/// The side whose instructions are counted. Each side has its own function below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side that sends FPDUs. The posts and polls of the side's program and the polls of the side's
    /// engine are counted.
    Sent,
    /// The side that receives FPDUs.
    Received,
    /// TCP's sender, which processes acknowledgements.
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

    /// The name of the function, which is a part of the mangled name.
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
