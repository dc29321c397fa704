//! A buffer that is filled piece by piece, while filled pieces are already in use.

use std::fmt;
use std::ops::Range;

use crate::Mbuf;
use crate::mbuf::Raw;

/// One packet buffer that only its owner fills, from the front. There may be any number of
/// [`view`](Self::view)s of its filled bytes, so one buffer serves many small pieces, or many that are
/// sent together.
///
/// ```
/// # use dp::{Mempool, Page};
/// let pool = Mempool::heap("pages", 2, 2048);
/// let mut page = Page::new(pool.alloc().unwrap()).unwrap();
/// page.room()[..5].copy_from_slice(b"first");
/// page.fill(5);
/// let view = page.view(1..5).unwrap();
/// page.room()[..6].copy_from_slice(b"second");
/// page.fill(6);
/// assert_eq!((view.head(), page.filled()), (&b"irst"[..], &b"firstsecond"[..]));
/// ```
pub struct Page {
    /// A chain of one segment with storage of its pool; its data are the filled bytes.
    raw: Raw,
}

impl Page {
    /// A page in `buffer`, whose data count as filled. Returns the buffer if it is a chain, or if its
    /// storage is shared.
    ///
    /// # Errors
    /// Returns `buffer` in these cases.
    pub fn new(buffer: Mbuf) -> Result<Self, Mbuf> {
        if buffer.segment_count() != 1 || buffer.is_shared() {
            return Err(buffer);
        }
        Ok(Self { raw: buffer.into_raw() })
    }

    /// The bytes filled so far, those that the buffer had at the start included. They do not change any more.
    pub fn filled(&self) -> &[u8] {
        match &self.raw {
            Raw::Heap(chain) => chain.head(),
            #[cfg(dpdk)]
            Raw::Dpdk(chain) => chain.head(),
        }
    }

    /// The rest of the buffer, for writing (it has old contents). Bytes written there are visible to
    /// nobody before they are [`fill`](Self::fill)ed.
    pub fn room(&mut self) -> &mut [u8] {
        match &mut self.raw {
            // SAFETY: `new` took a buffer whose storage had no other view. Every other view was made by
            // `view`, covers only filled bytes, and cannot grow while the page exists, since a view grows
            // only if it is the only one. So none covers the bytes behind the filled ones.
            Raw::Heap(chain) => unsafe { chain.room() },
            #[cfg(dpdk)]
            // SAFETY: `new` took a buffer whose storage had no other view. Every other view was made by
            // `view`, covers only filled bytes, and cannot grow while the page exists, since a view grows
            // only if it is the only one. So none covers the bytes behind the filled ones.
            Raw::Dpdk(chain) => unsafe { chain.room() },
        }
    }

    /// Bytes that can still be filled: the length of [`room`](Self::room).
    pub fn room_bytes(&self) -> usize {
        match &self.raw {
            Raw::Heap(chain) => chain.tailroom(),
            #[cfg(dpdk)]
            Raw::Dpdk(chain) => chain.tailroom(),
        }
    }

    /// Marks the next `bytes` bytes as filled; they do not change any more.
    ///
    /// # Panics
    /// If fewer bytes are left.
    #[inline]
    pub fn fill(&mut self, bytes: usize) {
        assert!(bytes <= self.room_bytes(), "{bytes} bytes filled of {}", self.room_bytes());
        match &mut self.raw {
            Raw::Heap(chain) => chain.grow(bytes),
            #[cfg(dpdk)]
            Raw::Dpdk(chain) => chain.grow(bytes),
        }
    }

    /// A view of filled bytes, which may outlive the page; `None` if a pool has no free descriptor.
    ///
    /// # Panics
    /// If `bytes` are not all filled.
    pub fn view(&self, bytes: Range<usize>) -> Option<Mbuf> {
        let filled = self.filled().len();
        assert!(bytes.start <= bytes.end && bytes.end <= filled, "{bytes:?} of {filled}");
        let mut view = match &self.raw {
            Raw::Heap(chain) => Mbuf::from_raw(Raw::Heap(chain.share()?)),
            #[cfg(dpdk)]
            Raw::Dpdk(chain) => Mbuf::from_raw(Raw::Dpdk(chain.share()?)),
        };
        view.truncate(bytes.end);
        view.advance(bytes.start);
        Some(view)
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("filled", &self.filled().len())
            .field("room", &self.room_bytes())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{ExtBuf, Mempool};

    #[test]
    fn only_a_buffer_of_ones_own_is_made_a_page() {
        let pool = Mempool::heap("pages", 8, 256);
        let mut buffer = pool.alloc().unwrap();
        assert!(buffer.append_slice(b"head"));
        let view = buffer.share().unwrap();
        let buffer = Page::new(buffer).expect_err("somebody else sees it");
        drop(view);
        assert_eq!(Page::new(buffer).unwrap().filled(), b"head");
        let mut chain = pool.alloc().unwrap();
        chain.chain(pool.alloc().unwrap()).unwrap();
        assert!(Page::new(chain).is_err());
        let external = Mbuf::external(&pool, ExtBuf::new(Arc::new(vec![1, 2, 3]))).unwrap();
        assert!(Page::new(external).is_err());
    }

    #[test]
    fn its_buffer_is_free_when_page_and_views_are_gone() {
        let pool = Mempool::heap("pages", 1, 256);
        let mut page = Page::new(pool.alloc().unwrap()).unwrap();
        page.fill(100);
        let mut view = page.view(10..100).unwrap();
        assert!(view.append(1).is_none() && view.prepend(1).is_none(), "it would show what the page writes");
        drop(page);
        assert_eq!((pool.available(), view.len()), (0, 90));
        drop(view);
        assert_eq!(pool.available(), 1);
    }

    #[test]
    #[should_panic(expected = "of 5")]
    fn what_is_not_filled_has_no_view() {
        let pool = Mempool::heap("pages", 1, 256);
        let mut page = Page::new(pool.alloc().unwrap()).unwrap();
        page.fill(5);
        let _ = page.view(2..6);
    }

    proptest! {
        /// Views show for good what was in the page when they were made.
        #[test]
        fn views_keep_their_bytes(pieces in prop::collection::vec((1_usize..40, any::<u8>(), any::<prop::sample::Index>()), 1..40)) {
            let pool = Mempool::heap("pages", 64, 512);
            let mut page = Page::new(pool.alloc().unwrap()).unwrap();
            let (mut model, mut views) = (Vec::new(), Vec::new());
            for (bytes, value, from) in pieces {
                let bytes = bytes.min(page.room_bytes());
                page.room().fill(!value);
                page.room()[..bytes].fill(value);
                page.fill(bytes);
                model.resize(model.len() + bytes, value);
                let from = from.index(model.len() + 1);
                views.push((page.view(from..model.len()).unwrap(), model[from..].to_vec()));
                prop_assert_eq!(page.filled(), &model[..]);
            }
            for (view, bytes) in &views {
                prop_assert_eq!(view.head(), &bytes[..]);
            }
        }
    }
}
