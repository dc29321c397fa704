//! The pages of one connection: the page to which its next segment is written, and the number of its small
//! pages. The connection's share limits this number. `pages.rs` has the pages of all connections.

use dp::Mempool;

use super::pages::{BulkPool, PageKey, PageKind};
use super::segment::SegmentSlab;
use crate::invariant::{Check, ensure};
use crate::tcp::info::SendError;

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct ConnectionPages {
    /// The page to which the next segment is written, if the segment fits.
    open: Option<PageKey>,
    /// Number of pages from the pool of small buffers, including the open page.
    small: u32,
    /// Maximum number of bytes of a segment in the open page: the number of bytes of an empty page. A segment
    /// of EMSS bytes may need a large buffer.
    segment_bytes: u32,
}

impl ConnectionPages {
    /// The page to which the next segment is written; `None` if no page is open.
    #[inline]
    pub(in crate::tcp) fn open(&self) -> Option<PageKey> {
        self.open
    }

    /// The page to which the next segment of up to `bytes` bytes is written, and the maximum number of bytes
    /// of this segment: `bytes`, or fewer if a small buffer is shorter. If needed, opens a new page from one
    /// of the pools `(small, bulk)`. `queued` is the number of unacknowledged bytes of the connection, and
    /// `following` the number of bytes that its user is known to write next.
    ///
    /// # Errors
    /// [`SendError::BufferFull`] if the connection already has its share of the small buffers.
    /// [`SendError::NoMbuf`] if no buffer is free, or if the number of small pages of all connections is at
    /// its limit.
    #[inline]
    pub(in crate::tcp) fn page(
        &mut self,
        slab: &mut SegmentSlab,
        (small, bulk): (&Mempool, Option<&BulkPool>),
        bytes: usize,
        (queued, following): (u64, impl FnOnce() -> usize),
    ) -> Result<(PageKey, usize), SendError> {
        if let Some(open) = self.open {
            let most = bytes.min(self.segment_bytes as usize);
            if slab.has_room(open, most) {
                return Ok((open, most));
            }
        }
        // The previous page is freed when its last segment is freed.
        let bulk = bulk.filter(|bulk| bulk.is_for(bytes, queued, following)).map(|bulk| &bulk.pool);
        let (page, kind) = slab.open_page((small, bulk), bytes, self.small)?;
        let segment_bytes = match kind {
            PageKind::Small => small.data_bytes(),
            PageKind::Bulk => bytes,
        };
        self.small += u32::from(kind == PageKind::Small);
        self.open = Some(page);
        self.segment_bytes = segment_bytes as u32;
        Ok((page, bytes.min(segment_bytes)))
    }

    /// Whether [`page`](Self::page) has space for `bytes` bytes, so that `page` does not return
    /// [`SendError::BufferFull`].
    pub(in crate::tcp) fn may_have_page(
        &self,
        slab: &SegmentSlab,
        bulk: Option<&BulkPool>,
        bytes: usize,
        queued: u64,
    ) -> bool {
        let bulk = bulk.filter(|bulk| bulk.is_for(bytes, queued, || 0)).map(|bulk| &bulk.pool);
        let most = bytes.min(self.segment_bytes as usize);
        self.open.is_some_and(|open| slab.has_room(open, most)) || slab.may_open_page(bulk, bytes, self.small)
    }

    /// Called if nothing was written to the open page: frees the page if it is empty.
    pub(in crate::tcp) fn close_if_empty(&mut self, slab: &mut SegmentSlab) {
        if let Some(open) = self.open
            && let Some(kind) = slab.close_page_if_empty(open)
        {
            self.on_freed(open, kind);
        }
    }

    /// Called when a page was freed together with its last segment.
    #[inline]
    pub(in crate::tcp) fn on_freed(&mut self, page: PageKey, kind: PageKind) {
        self.small -= u32::from(kind == PageKind::Small);
        if self.open == Some(page) {
            self.open = None;
        }
    }

    /// Checks the number of small pages. `pages` has the page of each segment of the connection, in the order
    /// of the queue.
    pub(in crate::tcp) fn check(&self, slab: &SegmentSlab, pages: impl Iterator<Item = PageKey>) -> Check {
        let (mut last, mut small) = (None, 0);
        for page in pages {
            if last.replace(page) != Some(page) {
                small += u32::from(slab.page_kind(page) == PageKind::Small);
            }
        }
        let unused = self.open.filter(|open| last != Some(*open));
        small += u32::from(unused.is_some_and(|open| slab.page_kind(open) == PageKind::Small));
        ensure!(self.small == small, "{} small pages of {small}", self.small);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;
    use crate::tcp::slabs::SegmentKey;

    const BYTES: usize = 1000;

    /// The pages of one connection, and its segments of 1000 bytes each.
    struct Connection {
        slab: SegmentSlab,
        pools: [Mempool; 2],
        own: ConnectionPages,
        segments: Vec<SegmentKey>,
        long_message: Option<usize>,
    }

    impl Connection {
        fn new() -> Self {
            let pools = [Mempool::heap("small", 8, 2048), Mempool::heap("bulk", 1, 1 << 14)];
            Self {
                slab: SegmentSlab::new(16, 8),
                pools,
                own: ConnectionPages::default(),
                segments: Vec::new(),
                long_message: None,
            }
        }

        /// Writes a segment while `queued` bytes are queued. Returns the kind of its page.
        fn write(&mut self, queued: u64) -> PageKind {
            self.write_of(BYTES, (queued, BYTES)).0
        }

        /// Writes a segment of up to `bytes` bytes, which is as long as possible. The user is known to write
        /// `following` bytes, and `queued` bytes are queued. Returns the kind of the segment's page, and the
        /// length of the segment.
        fn write_of(&mut self, bytes: usize, (queued, following): (u64, usize)) -> (PageKind, usize) {
            let [small, bulk] = &self.pools;
            let bulk = BulkPool { pool: bulk.clone(), long_message: self.long_message };
            assert!(self.own.may_have_page(&self.slab, Some(&bulk), bytes, queued));
            let pools = (small, Some(&bulk));
            let place = self.own.page(&mut self.slab, pools, bytes, (queued, || following));
            let (page, bytes) = place.expect("a page");
            self.segments.push(self.slab.insert(page, bytes, 1, None));
            self.check().expect("invariants");
            (self.slab.page_kind(page), bytes)
        }

        fn free(&mut self) {
            let key = self.segments.remove(0);
            if let Some((page, kind)) = self.slab.release(key) {
                self.own.on_freed(page, kind);
            }
            self.slab.free(key, key, 1);
            self.check().expect("invariants");
        }

        fn check(&self) -> Check {
            self.own.check(&self.slab, self.segments.iter().map(|key| self.slab.get(*key).page))
        }
    }

    #[test]
    fn a_page_is_filled_before_the_next_is_opened() {
        let mut connection = Connection::new();
        for small in [1, 1, 2, 2, 3] {
            assert_eq!(connection.write(0), PageKind::Small);
            assert_eq!(connection.own.small, small);
        }
        let open = connection.own.open();
        for (left, small) in [(4, 3), (3, 2), (2, 2), (1, 1)] {
            connection.free();
            assert_eq!((connection.segments.len(), connection.own.small), (left, small));
            assert_eq!(connection.own.open(), open);
        }
        connection.free();
        assert_eq!((connection.own.open(), connection.own.small), (None, 0), "freed with its last segment");
    }

    #[test]
    fn large_buffers_are_for_a_connection_with_many_bytes_queued() {
        let mut connection = Connection::new();
        let bulk = 4 * BYTES as u64;
        assert_eq!(connection.write(bulk - 1), PageKind::Small);
        assert_eq!(connection.write(bulk), PageKind::Small, "the open page has room");
        assert_eq!(connection.write(bulk), PageKind::Bulk);
        assert_eq!(connection.own.small, 1);
        for _ in 0..2 {
            connection.free();
        }
        assert_eq!(connection.own.small, 0);
        assert!(connection.own.open().is_some(), "the large one");
    }

    #[test]
    fn a_long_message_has_a_large_buffer_if_the_port_lends_it() {
        for (long_message, following, kind) in [
            (None, usize::MAX, PageKind::Small),
            (Some(5000), 4999, PageKind::Small),
            (Some(5000), 5000, PageKind::Bulk),
        ] {
            let mut connection = Connection { long_message, ..Connection::new() };
            assert_eq!(connection.write_of(BYTES, (0, following)), (kind, BYTES), "{long_message:?}");
        }
    }

    /// A small buffer may be shorter than EMSS. Then it has shorter segments, one after the other.
    #[test]
    fn a_segment_is_no_longer_than_its_buffer() {
        let mut connection = Connection { long_message: Some(5000), ..Connection::new() };
        assert_eq!(connection.write_of(5000, (0, 100)), (PageKind::Small, 2048));
        assert_eq!(connection.write_of(5000, (0, 4000)), (PageKind::Small, 2048));
        assert_eq!(connection.write_of(5000, (0, 5000)), (PageKind::Bulk, 5000));
        assert_eq!(connection.write_of(5000, (0, 100)), (PageKind::Bulk, 5000), "the open page has room");
        assert_eq!(connection.write_of(5000, (0, 5000)), (PageKind::Bulk, 5000));
        assert_eq!(connection.write_of(5000, (0, 5000)), (PageKind::Small, 2048), "no large buffer is free");
        assert_eq!(connection.own.small, 3);
    }

    /// Otherwise the page would have no segment, and nothing would ever free it.
    #[test]
    fn an_empty_page_that_is_shorter_than_a_segment_is_used_again() {
        let mut connection = Connection::new();
        for _ in 0..2 {
            assert_eq!(connection.write_of(5000, (0, 0)), (PageKind::Small, 2048));
        }
        let Connection { slab, pools: [small, _], own, .. } = &mut connection;
        let mut page = || own.page(slab, (small, None), 5000, (0, || 0)).expect("a page");
        let first = page();
        assert_eq!((first.1, page()), (2048, first));
        assert_eq!(own.small, 3);
        assert!(own.may_have_page(slab, None, 5000, 0), "the share is used up, but the page is open");
    }

    #[test]
    fn a_page_that_nothing_was_written_to_is_freed() {
        let mut connection = Connection::new();
        connection.write(0);
        connection.own.close_if_empty(&mut connection.slab);
        assert!(connection.own.open().is_some(), "it has a segment");
        connection.free();
        let [small, bulk] = &connection.pools;
        let bulk = BulkPool { pool: bulk.clone(), long_message: None };
        connection.own.page(&mut connection.slab, (small, Some(&bulk)), BYTES, (0, || 0)).expect("a page");
        connection.own.close_if_empty(&mut connection.slab);
        assert_eq!((connection.own.open(), connection.own.small), (None, 0));
    }

    #[test]
    fn a_wrong_number_of_small_pages_is_found() {
        for (added, what) in [(1, "2 small pages of 1"), (-1, "0 small pages of 1")] {
            let mut connection = Connection::new();
            connection.write(0);
            connection.own.small = connection.own.small.wrapping_add_signed(added);
            assert_found(connection.check(), what);
        }
    }
}
