//! The atomics of this folder. A test with loom replaces them with loom's atomics.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
