//! The steps of a run. Each has its own random numbers, so that the others stay the same when one is
//! removed.

use super::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// One to three requests of the same end.
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
    pub(crate) what: What,
    pub(crate) dice: u64,
}

const STEPS: usize = 120;

const WEIGHTS: &[(usize, What)] = &[
    (40, What::Post),
    (12, What::Receive),
    (10, What::Store),
    (5, What::Register),
    (3, What::Revoke),
    (12, What::Connect),
    (1, What::Close),
    (1, What::Drop),
    (1, What::Abort),
    (2, What::Arm),
    (30, What::Poll),
    (5, What::Rest),
];

/// A run begins with memory and a connection, then memory for that connection only. Random steps follow.
pub(crate) fn draw(dice: &mut Dice) -> Vec<Step> {
    let first = [What::Register; 8].into_iter().chain([What::Connect; 3]).chain([What::Register; 6]);
    let rest: Vec<What> = (0..STEPS).map(|_| dice.weighted(WEIGHTS)).collect();
    first.chain(rest).map(|what| Step { what, dice: dice.seed() }).collect()
}
