//! The atomics of this folder. A test with loom puts its own in their place.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
