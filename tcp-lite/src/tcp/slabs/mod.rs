//! Records that connections borrow from their stack, so that an idle connection holds none: of
//! queued segments and the pages that they lie in, of ranges ahead of a frontier, and of searches
//! for larger segments.
//!
//! Here is only the storage, with its limits and who gets how much of it. What the records mean is
//! in `send` and `receive`.

mod pages;
mod ranges;
mod reorder;
mod search;
mod segment;

pub(super) use pages::BULK_SEGMENTS;
pub(crate) use pages::PageKey;
pub(crate) use reorder::{MAX_ASKED, ReorderSlab};
pub(super) use reorder::{RangesKey, Room};
pub(crate) use search::SearchSlab;
pub(super) use search::{Probe, Search, SearchKey, Stage};
pub(crate) use segment::{MAX_TRAIN, SegmentSlab};
pub(super) use segment::{Marks, Segment, SegmentKey, Sent};
