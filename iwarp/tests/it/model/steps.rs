//! The steps of a run. Each has dice of its own, so that one can be left out and the others stay what they
//! are.

use super::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// One request or a few, by the same end.
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
    Turn,
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
    (30, What::Turn),
    (5, What::Rest),
];

/// A run: memory and a connection to begin with, memory for that connection alone, then whatever comes.
pub(crate) fn draw(dice: &mut Dice) -> Vec<Step> {
    let first = [What::Register; 8].into_iter().chain([What::Connect; 3]).chain([What::Register; 6]);
    let rest: Vec<What> = (0..STEPS).map(|_| dice.weighted(WEIGHTS)).collect();
    first.chain(rest).map(|what| Step { what, dice: dice.seed() }).collect()
}
