//! The atomics that `wake.rs` uses; a test replaces them with loom's.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
