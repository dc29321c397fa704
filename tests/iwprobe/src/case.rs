//! What a case is, and how it can end.

use crate::probe::Probe;

/// Which end of a connection the endpoint under test has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Either.
    Any,
    /// It answers: the MPA responder (`iwprobe connect`).
    Responder,
    /// It asks: the MPA initiator (`iwprobe listen`).
    Initiator,
}

/// One thing that is tried.
#[derive(Clone, Copy)]
pub struct Case {
    /// Unique, and stable: expectation files name it.
    pub name: &'static str,
    /// The rows of `tests/conformance/spec` that it shows.
    pub rows: &'static [&'static str],
    /// Where the endpoint has to stand.
    pub side: Side,
    /// What a conforming endpoint does, in one line.
    pub about: &'static str,
    /// Does it.
    pub run: fn(&mut Probe) -> Check,
}

/// `Ok`: conforms.
pub type Check = Result<(), Stop>;

/// Why a case ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The endpoint did what it must not, or did not what it must.
    Deviates(String),
    /// The endpoint has not, or need not have, what is tried.
    NotApplicable(String),
    /// Cannot be arranged or seen without a target (TARGET.md).
    NeedsTarget,
}

/// A deviation, for `return` and `?`.
pub fn deviates<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Deviates(what.into()))
}

/// Not applicable, for `return` and `?`.
pub fn not_applicable<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::NotApplicable(why.into()))
}

/// Deviates unless `held`.
pub fn require(held: bool, what: impl FnOnce() -> String) -> Check {
    if held { Ok(()) } else { Err(Stop::Deviates(what())) }
}

/// What is said of a case at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the documents want it.
    Conforms,
    /// Not as the documents want it.
    Deviates,
    /// Not for this endpoint.
    NotApplicable,
    /// Not without a target.
    NeedsTarget,
}

impl Verdict {
    /// Its name in tables, JSON and expectation files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conforms => "conforms",
            Self::Deviates => "deviates",
            Self::NotApplicable => "not applicable",
            Self::NeedsTarget => "needs target",
        }
    }
}

impl From<&Check> for Verdict {
    fn from(check: &Check) -> Self {
        match check {
            Ok(()) => Self::Conforms,
            Err(Stop::Deviates(_)) => Self::Deviates,
            Err(Stop::NotApplicable(_)) => Self::NotApplicable,
            Err(Stop::NeedsTarget) => Self::NeedsTarget,
        }
    }
}
