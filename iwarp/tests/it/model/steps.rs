//! The steps of a run. Each step has its own random numbers, so that removing a step does not change the
//! other steps.

use testkit::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// Posts one to three requests at the same endpoint.
    Post,
    Receive,
    Store,
    Register,
    Revoke,
    Connect,
    Close,
    Drop,
    Abort,
    Arm,
    Poll,
    Rest,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) what: StepKind,
    pub(crate) dice: u64,
}

const STEPS: usize = 120;

const WEIGHTS: &[(u64, StepKind)] = &[
    (40, StepKind::Post),
    (12, StepKind::Receive),
    (10, StepKind::Store),
    (5, StepKind::Register),
    (3, StepKind::Revoke),
    (12, StepKind::Connect),
    (1, StepKind::Close),
    (1, StepKind::Drop),
    (1, StepKind::Abort),
    (2, StepKind::Arm),
    (30, StepKind::Poll),
    (5, StepKind::Rest),
];

/// Draws the steps of a run: first registrations, then connects, then more registrations, and then random
/// steps.
pub(crate) fn draw(dice: &mut Dice) -> Vec<Step> {
    let first =
        [StepKind::Register; 8].into_iter().chain([StepKind::Connect; 3]).chain([StepKind::Register; 6]);
    let rest: Vec<StepKind> = (0..STEPS).map(|_| dice.weighted(WEIGHTS)).collect();
    first.chain(rest).map(|what| Step { what, dice: dice.number() }).collect()
}
