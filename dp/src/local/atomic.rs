//! The atomics of `wake.rs`, which a test replaces.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
