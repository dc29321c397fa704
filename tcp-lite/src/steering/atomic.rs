//! The atomics of this folder. A loom test replaces these atomics with loom's atomics.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
