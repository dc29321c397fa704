//! The buffers of queued segments: pages. A page holds consecutive bytes of one or more segments of one
//! connection.
//!
//! A connection fills one page at a time. Small buffers are allocated from the port's own pool and hold one
//! or a few segments. A connection with many queued bytes gets large buffers, if the bulk pool has any. With
//! large buffers, a train of segments needs only a few views of pages.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::ops::Range;

use dp::{Mbuf, Mempool, Page};

use crate::invariant::{Check, ensure};
use crate::tcp::info::SendError;

/// A connection gets large buffers if its unacknowledged bytes would fill at least this number of segments.
/// With fewer bytes, most of a large buffer would stay empty.
pub(in crate::tcp) const BULK_SEGMENTS: u64 = 4;

/// A buffer is kept as the spare page only if the limit of small pages is at least this number.
const SPARE_MIN: usize = 64;

/// The pool of large buffers.
#[derive(Debug)]
pub(crate) struct BulkPool {
    pub(crate) pool: Mempool,
    /// Minimum number of bytes of a message for which a connection gets a large buffer although it has little
    /// to send otherwise. `None` if the length of a message does not matter.
    pub(crate) long_message: Option<usize>,
}

impl BulkPool {
    /// Whether a connection writes its next segment of at most `bytes` bytes to a large buffer. The
    /// connection has `queued` unacknowledged bytes, and its user is known to write `following` bytes next.
    #[inline]
    pub(in crate::tcp) fn is_for(
        &self,
        bytes: usize,
        queued: u64,
        following: impl FnOnce() -> usize,
    ) -> bool {
        queued >= BULK_SEGMENTS * bytes as u64 || self.long_message.is_some_and(|long| following() >= long)
    }
}

/// The key of a page: the slab index plus one, so that an `Option` of a key is no larger than a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageKey(NonZeroU32);

impl PageKey {
    #[inline]
    fn of(record: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(record as u32))
    }

    #[inline]
    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The pool that a page is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum PageKind {
    Small,
    Bulk,
}

struct PageRecord {
    /// The page; `None` if the record is not in use.
    page: Option<Page>,
    segments: u32,
    kind: PageKind,
    /// The next record that is not in use.
    next: Option<PageKey>,
}

pub(in crate::tcp) struct Pages {
    records: Vec<PageRecord>,
    /// The first record that is not in use.
    free: Option<PageKey>,
    /// An unused small page that is kept for the next page to be opened; `None` if no page is kept. Without a
    /// spare page, each single small message would allocate and free a buffer.
    spare: Option<PageKey>,
    /// Number of small pages in use, and the limit of this number. The limit exists because received frames
    /// need small buffers as well.
    small: usize,
    small_limit: usize,
}

impl Pages {
    /// A slab with memory for `limit` pages, of which at most `small_limit` are small.
    pub(in crate::tcp) fn new(limit: usize, small_limit: usize) -> Self {
        Self { records: Vec::with_capacity(limit), free: None, spare: None, small: 0, small_limit }
    }

    /// Opens a page for a segment of up to `bytes` bytes of a connection that has `own` small pages. The page
    /// is from the bulk pool if this pool has a free buffer, and its buffers are large enough.
    ///
    /// # Errors
    /// Returns [`SendError::BufferFull`] if the connection already has its share of the small buffers
    /// ([`has_share`](Self::has_share)). Returns [`SendError::NoMbuf`] if no buffer is free, or if the number
    /// of small pages is at its limit.
    #[inline]
    pub(in crate::tcp) fn open(
        &mut self,
        (small, bulk): (&Mempool, Option<&Mempool>),
        bytes: usize,
        own: u32,
    ) -> Result<(PageKey, PageKind), SendError> {
        let large = bulk.filter(|pool| pool.data_bytes() >= bytes).and_then(Page::alloc);
        let kind = if large.is_none() { PageKind::Small } else { PageKind::Bulk };
        if kind == PageKind::Small {
            if self.has_share(own) {
                return Err(SendError::BufferFull);
            }
            if self.small >= self.small_limit {
                return Err(SendError::NoMbuf);
            }
        }
        if kind == PageKind::Small
            && let Some(spare) = self.spare.take()
        {
            self.small += 1;
            return Ok((spare, kind));
        }
        let page = large.or_else(|| Page::alloc(small)).ok_or(SendError::NoMbuf)?;
        self.small += usize::from(kind == PageKind::Small);
        let record = PageRecord { page: Some(page), segments: 0, kind, next: None };
        Ok((self.take(record), kind))
    }

    #[inline]
    fn take(&mut self, page: PageRecord) -> PageKey {
        let Some(key) = self.free else {
            self.records.push(page);
            return PageKey::of(self.records.len() - 1);
        };
        let record = &mut self.records[key.record()];
        self.free = record.next;
        *record = page;
        key
    }

    /// The page with this key. The key must be in use.
    #[inline]
    fn page(&self, key: PageKey) -> &Page {
        let Some(page) = &self.records[key.record()].page else { not_in_use(key) };
        page
    }

    /// Like [`page`](Self::page), but mutable and with the number of the page's segments.
    #[inline]
    fn page_mut(&mut self, key: PageKey) -> (&mut Page, &mut u32) {
        let record = &mut self.records[key.record()];
        let Some(page) = &mut record.page else { not_in_use(key) };
        (page, &mut record.segments)
    }

    /// Whether a connection that has `own` small pages already has its share of the small buffers. The share
    /// is half of the number of small buffers that are left.
    #[inline]
    fn has_share(&self, own: u32) -> bool {
        own > 0 && 2 * own as usize >= self.small_limit.saturating_sub(self.small)
    }

    /// Whether [`open`](Self::open) would not return [`SendError::BufferFull`].
    pub(in crate::tcp) fn may_open(&self, bulk: Option<&Mempool>, bytes: usize, own: u32) -> bool {
        bulk.is_some_and(|pool| pool.data_bytes() >= bytes && pool.available() > 0) || !self.has_share(own)
    }

    pub(in crate::tcp) fn small(&self) -> usize {
        self.small
    }

    /// The unwritten rest of the page.
    #[inline]
    pub(in crate::tcp) fn room(&mut self, key: PageKey) -> &mut [u8] {
        self.page_mut(key).0.room()
    }

    /// Number of bytes in the unwritten rest of the page.
    #[inline]
    pub(in crate::tcp) fn room_bytes(&self, key: PageKey) -> usize {
        self.page(key).room_bytes()
    }

    /// Turns the next `bytes` bytes of the page into a segment. Returns their offset.
    #[inline]
    pub(in crate::tcp) fn fill(&mut self, key: PageKey, bytes: usize) -> u32 {
        let (page, segments) = self.page_mut(key);
        *segments += 1;
        page.fill(bytes) as u32
    }

    /// Called when a segment in the page was split in two: counts one more segment of the page.
    pub(in crate::tcp) fn share(&mut self, key: PageKey) {
        self.records[key.record()].segments += 1;
    }

    /// Called when a segment in the page was removed. If it was the last segment, frees the page and returns
    /// the page's kind. Otherwise returns `None`.
    #[inline]
    pub(in crate::tcp) fn leave(&mut self, key: PageKey) -> Option<PageKind> {
        let record = &mut self.records[key.record()];
        record.segments -= 1;
        (record.segments == 0).then(|| self.close(key))
    }

    /// If the page has no segment, frees the page and returns the page's kind. Otherwise returns `None`.
    pub(in crate::tcp) fn close_if_empty(&mut self, key: PageKey) -> Option<PageKind> {
        (self.records[key.record()].segments == 0).then(|| self.close(key))
    }

    /// Frees a page without segments, or keeps it as the spare page. Returns the page's kind.
    #[inline(always)]
    fn close(&mut self, key: PageKey) -> PageKind {
        let record = &mut self.records[key.record()];
        debug_assert!(record.page.is_some(), "{key:?} is not in use");
        let kind = record.kind;
        if kind == PageKind::Small {
            self.small -= 1;
            if self.spare.is_none()
                && self.small_limit >= SPARE_MIN
                && record.page.as_mut().is_some_and(Page::rewind)
            {
                self.spare = Some(key);
                return kind;
            }
        }
        record.page = None;
        record.next = self.free.replace(key);
        kind
    }

    /// Frees the buffer that is kept for the next page.
    pub(in crate::tcp) fn free_spare(&mut self) {
        if let Some(key) = self.spare.take() {
            let record = &mut self.records[key.record()];
            record.page = None;
            record.next = self.free.replace(key);
        }
    }

    pub(in crate::tcp) fn kind(&self, key: PageKey) -> PageKind {
        self.records[key.record()].kind
    }

    /// The bytes of a segment.
    #[inline(always)]
    pub(in crate::tcp) fn bytes(&self, key: PageKey, place: Range<usize>) -> &[u8] {
        &self.page(key).filled()[place]
    }

    /// The bytes of a segment as a buffer; `None` if no descriptor is free.
    pub(in crate::tcp) fn view(&self, key: PageKey, place: Range<usize>) -> Option<Mbuf> {
        self.page(key).view(place)
    }

    /// A buffer with `head` bytes that `write` fills in, followed by the first `bytes` bytes of the page.
    /// Returns `None` under the conditions of [`Page::headed`], for example if an earlier such buffer still
    /// exists.
    #[inline]
    pub(in crate::tcp) fn headed(
        &mut self,
        key: PageKey,
        head: usize,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<Mbuf> {
        self.page_mut(key).0.headed(head, bytes, write)
    }

    /// Checks that the pages, their numbers of segments and the free records are consistent, and that each
    /// page has a segment or is open. `places` has the places of all segments, and `open` has the pages to
    /// which connections write.
    pub(in crate::tcp) fn check(
        &self,
        places: impl Iterator<Item = (PageKey, Range<usize>)>,
        open: &[PageKey],
    ) -> Check {
        let mut segments = HashMap::new();
        for (key, place) in places {
            let page = self.records.get(key.record()).and_then(|record| record.page.as_ref());
            let holds = page.is_some_and(|page| place.end <= page.filled().len());
            ensure!(holds, "a segment at {place:?} of {key:?}, which has no such bytes");
            *segments.entry(key.record()).or_insert(0) += 1;
        }
        for (nr, record) in self.used() {
            let found = segments.get(&nr).copied().unwrap_or(0);
            ensure!(record.segments == found, "page {nr} counts {} segments of {found}", record.segments);
            let is_open = open.iter().any(|key| key.record() == nr);
            ensure!(found > 0 || is_open, "page {nr} has no segment and is not open");
        }
        let small = self.used().filter(|(_, record)| record.kind == PageKind::Small).count();
        ensure!(self.small == small, "{} small pages counted of {small}", self.small);
        let lost = open.iter().find(|open| !self.used().any(|(nr, _)| nr == open.record()));
        ensure!(lost.is_none(), "open page {lost:?} is not in the slab");
        self.check_free()
    }

    /// Checks that each record is either in use or linked as free.
    fn check_free(&self) -> Check {
        let (mut cursor, mut free) = (self.free, 0);
        while let Some(key) = cursor {
            let record = self.records.get(key.record()).filter(|record| record.page.is_none());
            let Some(record) = record else { return Err(format!("{key:?} is linked as free")) };
            free += 1;
            ensure!(free <= self.records.len(), "free pages are linked in a circle");
            cursor = record.next;
        }
        let is_empty = |record: &PageRecord| {
            record.kind == PageKind::Small
                && record.segments == 0
                && record.page.as_ref().is_some_and(|page| page.filled().is_empty())
        };
        let is_kept = self.spare.is_none_or(|key| self.records.get(key.record()).is_some_and(is_empty));
        ensure!(is_kept, "the spare page is used, or is none");
        let unused = self.records.len() - self.used().count() - usize::from(self.spare.is_some());
        ensure!(free == unused, "{free} pages are linked as free of {unused}");
        Ok(())
    }

    /// The records in use, with their numbers.
    fn used(&self) -> impl Iterator<Item = (usize, &PageRecord)> {
        let spare = self.spare.map(PageKey::record);
        self.records
            .iter()
            .enumerate()
            .filter(move |(nr, record)| record.page.is_some() && spare != Some(*nr))
    }

    #[cfg(test)]
    pub(in crate::tcp) fn len(&self) -> usize {
        self.used().count()
    }
}

/// Panics. This function is never inlined, because callers with a loop would otherwise build the panic
/// message before the loop.
#[cold]
#[inline(never)]
fn not_in_use(key: PageKey) -> ! {
    unreachable!("{key:?} is not in use")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;

    #[test]
    fn small_buffers_are_left_for_what_arrives_and_large_ones_taken_first() {
        let (small, large) = (Mempool::heap("small", 4, 2048), Mempool::heap("large", 1, 16_384));
        let pools = (&small, Some(&large));
        let mut pages = Pages::new(8, 2);
        let (first, kind) = pages.open(pools, 1460, 9).unwrap();
        assert_eq!((pages.room_bytes(first), kind), (16_384, PageKind::Bulk));
        assert!(pages.may_open(Some(&small), 1460, 9) && !pages.may_open(Some(&large), 1460, 9));
        let rest = [(); 3].map(|()| pages.open(pools, 1460, 0));
        assert_eq!(rest.map(|page| page.err()), [None, None, Some(SendError::NoMbuf)]);
        assert_eq!(small.available(), 2);
        assert_eq!(pages.close_if_empty(rest[0].unwrap().0), Some(PageKind::Small));
        assert!(pages.open((&small, None), 1460, 0).is_ok());
        assert_eq!(pages.close_if_empty(first), Some(PageKind::Bulk));
        assert!(pages.may_open(Some(&large), 1460, 9));
        assert_eq!(pages.open(pools, 20_000, 0), Err(SendError::NoMbuf));
        assert!(pages.open(pools, 1460, 9).is_ok(), "a large one is free again");
    }

    #[test]
    fn of_the_small_buffers_a_connection_gets_its_share() {
        let small = Mempool::heap("small", 16, 2048);
        let mut pages = Pages::new(16, 8);
        let taken = (0..8).take_while(|&own| pages.open((&small, None), 1460, own).is_ok()).count();
        assert_eq!(taken, 3, "half as many as are left");
        assert_eq!(pages.open((&small, None), 1460, 3), Err(SendError::BufferFull));
        assert!(pages.open((&small, None), 1460, 0).is_ok(), "another one finds room");
    }

    #[test]
    fn a_page_goes_with_its_last_segment() {
        let pool = Mempool::heap("small", 1, 2048);
        let mut pages = Pages::new(1, 1);
        let (page, _) = pages.open((&pool, None), 1460, 0).unwrap();
        pages.room(page)[..3].copy_from_slice(b"one");
        assert_eq!(pages.fill(page, 3), 0);
        pages.room(page)[..3].copy_from_slice(b"two");
        assert_eq!(pages.fill(page, 3), 3);
        pages.share(page);
        assert_eq!(pages.bytes(page, 3..6), b"two");
        assert_eq!(pages.view(page, 2..4).unwrap().head(), b"et");
        assert_eq!([(); 3].map(|()| pages.leave(page)), [None, None, Some(PageKind::Small)]);
        assert_eq!((pages.len(), pool.available()), (0, 1));
    }

    #[test]
    fn the_buffer_of_a_page_serves_the_next_one_if_nobody_has_a_view_of_it() {
        let (small, large) = (Mempool::heap("small", 4, 2048), Mempool::heap("large", 1, 2048));
        let mut pages = Pages::new(8, SPARE_MIN);
        let pools = (&small, None);
        let open = |pages: &mut Pages| pages.open(pools, 1460, 0).unwrap().0;
        let (first, second) = (open(&mut pages), open(&mut pages));
        pages.fill(first, 3);
        pages.leave(first);
        pages.check(std::iter::empty(), &[second]).unwrap();
        assert_eq!((pages.small(), pages.len(), small.available()), (1, 1, 2), "the buffer is kept");
        pages.close_if_empty(second);
        assert_eq!((pages.small(), small.available()), (0, 3), "one is enough");
        let again = open(&mut pages);
        assert_eq!((again, pages.room_bytes(again), small.available()), (first, 2048, 3));
        pages.fill(again, 3);
        let view = pages.view(again, 0..3).unwrap();
        pages.leave(again);
        assert_eq!((pages.len(), small.available()), (0, 3), "a view of it is left");
        drop(view);
        let (bulk, _) = pages.open((&small, Some(&large)), 1460, 0).unwrap();
        pages.close_if_empty(bulk);
        assert_eq!((small.available(), large.available()), (4, 1), "a large one is not kept");
        let last = open(&mut pages);
        pages.close_if_empty(last);
        pages.free_spare();
        pages.free_spare();
        pages.check(std::iter::empty(), &[]).unwrap();
        assert_eq!(small.available(), 4);
    }

    #[test]
    fn a_spare_page_that_is_in_use_is_found() {
        type Break = fn(&mut Pages);
        let broken: [Break; 5] = [
            |pages| pages.spare = Some(PageKey::of(7)),
            |pages| pages.records[0].segments = 1,
            |pages| pages.records[0].kind = PageKind::Bulk,
            |pages| pages.records[0].page = None,
            |pages| _ = pages.page_mut(PageKey::of(0)).0.fill(1),
        ];
        let pool = Mempool::heap("small", 2, 2048);
        for break_it in broken {
            let mut pages = Pages::new(8, SPARE_MIN);
            let page = pages.open((&pool, None), 1460, 0).unwrap().0;
            pages.close_if_empty(page);
            pages.check(std::iter::empty(), &[]).unwrap();
            break_it(&mut pages);
            assert!(pages.check(std::iter::empty(), &[]).is_err());
        }
    }

    #[test]
    fn pages_that_do_not_fit_their_segments_are_found() {
        type Break = fn(&mut Pages, &mut Vec<(PageKey, Range<usize>)>, &mut Vec<PageKey>);
        let broken: [(Break, &str); 12] = [
            (|_, places, _| places[1].1.end = 7, "a segment at 3..7 of PageKey(1), which has no such bytes"),
            (|pages, _, _| pages.records[0].page = None, "which has no such bytes"),
            (
                |pages, _, open| {
                    pages.records[1].page = None;
                    open.clear();
                    pages.small -= 1;
                },
                "0 pages are linked as free of 1",
            ),
            (|pages, _, _| pages.free = Some(PageKey::of(0)), "PageKey(1) is linked as free"),
            (
                |pages, _, open| {
                    pages.close_if_empty(open.remove(0));
                    pages.records[1].next = Some(PageKey::of(1));
                },
                "free pages are linked in a circle",
            ),
            (|pages, _, _| pages.records[0].segments += 1, "page 0 counts 3 segments of 2"),
            (|_, places, _| _ = places.pop(), "page 0 counts 2 segments of 1"),
            (|_, _, open| open.clear(), "page 1 has no segment and is not open"),
            (|pages, _, _| pages.small += 1, "3 small pages counted of 2"),
            (|pages, _, _| pages.small -= 1, "1 small pages counted of 2"),
            (|pages, _, _| pages.records[0].kind = PageKind::Bulk, "2 small pages counted of 1"),
            (
                |pages, _, _| _ = pages.close_if_empty(PageKey(NonZeroU32::MIN.saturating_add(1))),
                "is not in the slab",
            ),
        ];
        let pool = Mempool::heap("small", 2, 2048);
        for (break_it, what) in broken {
            let mut pages = Pages::new(8, 8);
            let [full, open] = [(); 2].map(|()| pages.open((&pool, None), 1460, 0).unwrap().0);
            let ends = [pages.fill(full, 3), pages.fill(full, 3)].map(|start| start as usize + 3);
            let mut places = ends.map(|end| (full, end - 3..end)).to_vec();
            let mut open = vec![open];
            pages.check(places.iter().cloned(), &open).unwrap();
            break_it(&mut pages, &mut places, &mut open);
            assert_found(pages.check(places.into_iter(), &open), what);
        }
    }
}
