//! Slabs of records that connections borrow from their stack, so that an idle connection holds none:
//! queued segments and their pages, ranges ahead of a frontier, and path MTU searches.
//!
//! Here is only the storage, with its limits and its sharing between connections. The records' meaning
//! is in `send` and `receive`.

mod pages;
mod ranges;
mod reorder;
mod search;
mod segment;

pub(super) use pages::BULK_SEGMENTS;
pub(crate) use pages::PageKey;
pub(super) use pages::PageKind;
pub(crate) use reorder::{MAX_ASKED, ReorderSlab};
pub(super) use reorder::{RangesKey, Room};
pub(crate) use search::SearchSlab;
pub(super) use search::{Probe, Search, SearchKey, SearchStage};
pub(crate) use segment::{MAX_TRAIN, SegmentSlab};
pub(super) use segment::{Marks, Segment, SegmentKey, Sent};
