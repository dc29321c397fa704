//! A test case and its possible outcomes.

use crate::probe::Probe;

/// The role that the endpoint under test must have for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The endpoint may have either role.
    Any,
    /// The endpoint must be the MPA responder (`iwprobe connect`).
    Responder,
    /// The endpoint must be the MPA initiator (`iwprobe listen`).
    Initiator,
}

/// A test case.
#[derive(Clone, Copy)]
pub struct Case {
    /// The unique name of the case. The name must not change, since expectation files contain it.
    pub name: &'static str,
    /// The rows of `tests/conformance/spec` that the case checks, separated by spaces.
    rows: &'static str,
    /// The role that the endpoint must have.
    pub side: Side,
    /// The behaviour of a conforming endpoint, in one line.
    pub about: &'static str,
    /// Runs the case.
    pub run: fn(&mut Probe) -> Check,
}

impl Case {
    /// Returns the rows of `tests/conformance/spec` that the case checks.
    pub fn rows(&self) -> Vec<&'static str> {
        self.rows.split_whitespace().collect()
    }
}

/// The first part of a case, which does not have its function yet.
pub(crate) struct Head {
    name: &'static str,
    rows: &'static str,
    side: Side,
    about: &'static str,
}

impl Head {
    const fn new(side: Side, name: &'static str, rows: &'static str) -> Self {
        Self { name, rows, side, about: "" }
    }

    /// Adds the behaviour of a conforming endpoint, in one line.
    pub(crate) const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    /// Adds the function that runs the case.
    pub(crate) const fn run(self, run: fn(&mut Probe) -> Check) -> Case {
        let Self { name, rows, side, about } = self;
        Case { name, rows, side, about, run }
    }
}

/// Begins a case for an endpoint in either role. `rows` are separated by spaces.
pub(crate) const fn any(name: &'static str, rows: &'static str) -> Head {
    Head::new(Side::Any, name, rows)
}

/// Begins a case for an endpoint that is the responder.
pub(crate) const fn responder(name: &'static str, rows: &'static str) -> Head {
    Head::new(Side::Responder, name, rows)
}

/// Begins a case for an endpoint that is the initiator.
pub(crate) const fn initiator(name: &'static str, rows: &'static str) -> Head {
    Head::new(Side::Initiator, name, rows)
}

/// The result of a case. `Ok` means that the endpoint conforms.
pub type Check = Result<(), CaseError>;

/// Why a case ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseError {
    /// The endpoint violated a MUST or a MUST NOT.
    Deviates(String),
    /// The case does not apply to the endpoint, for example because the endpoint lacks an optional feature.
    NotApplicable(String),
    /// The case cannot be set up or observed without a target (TARGET.md).
    NeedsTarget,
}

/// Returns a deviation, for use with `return` and `?`.
pub fn deviates<T>(what: impl Into<String>) -> Result<T, CaseError> {
    Err(CaseError::Deviates(what.into()))
}

/// Returns that the case does not apply, for use with `return` and `?`.
pub fn not_applicable<T>(why: impl Into<String>) -> Result<T, CaseError> {
    Err(CaseError::NotApplicable(why.into()))
}

/// Returns a deviation unless `held` is true.
pub fn require(held: bool, what: impl FnOnce() -> String) -> Check {
    if held { Ok(()) } else { Err(CaseError::Deviates(what())) }
}

/// The verdict on a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The endpoint does as the RFCs require.
    Conforms,
    /// The endpoint violates the RFCs.
    Deviates,
    /// The case does not apply to this endpoint.
    NotApplicable,
    /// The case needs a target.
    NeedsTarget,
}

impl Verdict {
    /// Returns the name of the verdict in tables and in JSON.
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
            Err(CaseError::Deviates(_)) => Self::Deviates,
            Err(CaseError::NotApplicable(_)) => Self::NotApplicable,
            Err(CaseError::NeedsTarget) => Self::NeedsTarget,
        }
    }
}
