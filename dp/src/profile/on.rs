//! The functions with the feature `profile`. Each thread has the last time stamp, the current layer, and the
//! sums.

use std::cell::Cell;

use super::cost::{Cost, Layer, Profile};
use crate::Clock;

const LAYERS: usize = Layer::ALL.len();

struct Stamps {
    counting: Cell<bool>,
    layer: Cell<Layer>,
    since: Cell<u64>,
    costs: [Cell<Cost>; LAYERS],
    /// The costs at the last mark.
    marked: Cell<[Cost; LAYERS]>,
}

const NOTHING: Cost = Cost { cycles: 0, scopes: 0 };

thread_local! {
    static STAMPS: Stamps = const {
        Stamps {
            counting: Cell::new(false),
            layer: Cell::new(Layer::User),
            since: Cell::new(0),
            costs: [const { Cell::new(NOTHING) }; LAYERS],
            marked: Cell::new([NOTHING; LAYERS]),
        }
    };
}

/// A scope. When the scope is dropped, the following cycles count for the outer layer again.
#[must_use = "a scope lasts as long as its value"]
#[derive(Debug)]
pub struct Scope {
    /// The outer layer. `None` if the thread is not counting.
    outer: Option<Layer>,
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        if let Some(outer) = self.outer {
            STAMPS.with(|stamps| stamps.enter(outer));
        }
    }
}

impl Stamps {
    /// Adds the cycles since the last time stamp to the current layer, and switches to `layer`. Returns the
    /// previous layer.
    #[inline]
    fn enter(&self, layer: Layer) -> Layer {
        let now = Clock::cycles();
        let before = self.layer.replace(layer);
        // If the thread has moved, the counters of the two cores may differ by a few cycles.
        let spent = now.saturating_sub(self.since.replace(now));
        self.charge(before, spent, 0);
        before
    }

    #[inline]
    fn charge(&self, layer: Layer, cycles: u64, scopes: u64) {
        let cost = &self.costs[layer as usize];
        let Cost { cycles: before, scopes: entered } = cost.get();
        cost.set(Cost { cycles: before + cycles, scopes: entered + scopes });
    }

    fn all(&self) -> [Cost; LAYERS] {
        std::array::from_fn(|layer| self.costs[layer].get())
    }
}

#[inline]
pub(super) fn scope(layer: Layer) -> Scope {
    STAMPS.with(|stamps| {
        if !stamps.counting.get() {
            return Scope { outer: None };
        }
        stamps.charge(layer, 0, 1);
        Scope { outer: Some(stamps.enter(layer)) }
    })
}

pub(super) fn start() {
    STAMPS.with(|stamps| {
        stamps.costs.iter().for_each(|cost| cost.set(NOTHING));
        stamps.marked.set([NOTHING; LAYERS]);
        stamps.layer.set(Layer::User);
        stamps.since.set(Clock::cycles());
        stamps.counting.set(true);
    });
}

pub(super) fn stop() -> Profile {
    STAMPS.with(|stamps| {
        if !stamps.counting.replace(false) {
            return Profile::default();
        }
        stamps.enter(Layer::User);
        Profile { costs: stamps.all() }
    })
}

#[inline]
pub(super) fn mark(idle: bool) {
    STAMPS.with(|stamps| {
        if !stamps.counting.get() {
            return;
        }
        stamps.enter(Layer::User);
        if idle {
            let (now, before) = (stamps.all(), stamps.marked.get());
            let spent: u64 = now.iter().zip(&before).map(|(now, before)| now.cycles - before.cycles).sum();
            stamps.costs.iter().zip(before).for_each(|(cost, before)| cost.set(before));
            stamps.charge(Layer::Idle, spent, 0);
        }
        stamps.marked.set(stamps.all());
    });
}
