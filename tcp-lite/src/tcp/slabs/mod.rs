//! Slabs of records that connections borrow from their stack, so that an idle connection usually holds no
//! record. There are slabs for queued segments, for their pages and external memory, for ranges ahead of a
//! frontier (a connection's next expected byte), and for path MTU searches.
//!
//! This module has the storage, its limits, and the rules that concern the records of all connections. These
//! rules say how many records and buffers each connection may have (`segment.rs`, `pages.rs`,
//! `connection_pages.rs`), and which connection has to give up bytes ahead of its frontier
//! (`out_of_order.rs`). `search.rs` has the sizes that a search tries.

mod connection_pages;
mod external;
mod out_of_order;
mod pages;
mod places;
mod ranges;
mod search;
mod segment;

pub(super) use connection_pages::ConnectionPages;
pub(crate) use external::EXTERNAL_VIEWS;
pub(crate) use out_of_order::{MAX_EVICTION_REQUESTS, OutOfOrderSlab};
pub(super) use out_of_order::{RangesKey, Room};
pub(crate) use pages::{BulkPool, PageKey};
pub(super) use places::{Place, leap_number};
pub(crate) use search::SearchSlab;
pub(super) use search::{Probe, Search, SearchKey, SearchStage};
pub(crate) use segment::{MAX_TRAIN, SegmentKey, SegmentSlab};
pub(super) use segment::{Marks, RemovedRun, Segment, Sent};
