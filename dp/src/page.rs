//! A buffer that is filled piece by piece while earlier pieces are already in use.

use std::fmt;
use std::ops::Range;

use crate::mbuf::Raw;
use crate::{Mbuf, Mempool};

/// A packet buffer that its owner fills from the front. There may be any number of [`view`](Self::view)s of
/// the filled bytes. So one buffer can be used for many small pieces, or for pieces that are sent together.
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
    /// A chain of one segment with storage of its pool. The data of the chain are the filled bytes.
    raw: Raw,
}

impl Page {
    /// Makes a page from `buffer`, whose data count as filled. Fails if the buffer is a chain of several
    /// segments, or if its storage is shared.
    ///
    /// # Errors
    /// Returns `buffer` if it cannot be a page.
    pub fn new(buffer: Mbuf) -> Result<Self, Mbuf> {
        if buffer.segment_count() != 1 || buffer.is_shared() {
            return Err(buffer);
        }
        Ok(Self { raw: buffer.into_raw() })
    }

    /// Makes an empty page. If `pool` is empty, counts the failure and returns `None`.
    #[inline]
    pub fn alloc(pool: &Mempool) -> Option<Self> {
        // A new buffer has one segment and no other view.
        pool.alloc().map(|buffer| Self { raw: buffer.into_raw() })
    }

    /// Empties the page and returns `true`. Returns `false` if there is a view of the page.
    #[inline]
    pub fn rewind(&mut self) -> bool {
        match &mut self.raw {
            Raw::Heap(chain) => chain.rewind(),
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => chain.rewind(),
        }
    }

    /// The filled bytes, including the data that the buffer had at the start. Filled bytes do not change
    /// until the page is emptied.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        match &self.raw {
            Raw::Heap(chain) => chain.head(),
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => chain.head(),
        }
    }

    /// The rest of the buffer, for writing. The contents of these bytes are unspecified. Only a view that is
    /// made after a call of [`fill`](Self::fill) can include the written bytes.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        match &mut self.raw {
            // SAFETY: the page was made from a buffer whose storage had no other view. All other views were
            // made by `view` or `headed`, so they cover only filled bytes and bytes in front of the filled
            // bytes. These views cannot grow while the page exists, since a view can grow only if it is the
            // only view. So no other view covers bytes behind the filled bytes.
            Raw::Heap(chain) => unsafe { chain.room() },
            #[cfg(feature = "dpdk")]
            // SAFETY: the page was made from a buffer whose storage had no other view. All other views were
            // made by `view` or `headed`, so they cover only filled bytes and bytes in front of the filled
            // bytes. These views cannot grow while the page exists, since a view can grow only if it is the
            // only view. So no other view covers bytes behind the filled bytes.
            Raw::Dpdk(chain) => unsafe { chain.room() },
        }
    }

    /// Number of bytes that can still be filled: the length of [`room`](Self::room).
    #[inline]
    pub fn room_bytes(&self) -> usize {
        match &self.raw {
            Raw::Heap(chain) => chain.tailroom(),
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => chain.tailroom(),
        }
    }

    /// Marks the next `bytes` bytes as filled. From now on these bytes do not change until the page is
    /// emptied. Returns the number of bytes that were filled before.
    ///
    /// # Panics
    /// If fewer bytes are left.
    #[inline]
    pub fn fill(&mut self, bytes: usize) -> usize {
        match &mut self.raw {
            Raw::Heap(chain) => chain.grow(bytes),
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => chain.grow(bytes),
        }
    }

    /// Makes a frame in one segment: `head` bytes that `write` fills in, followed by the first `bytes` filled
    /// bytes. The frame uses the page's headroom and no other buffer. Returns `None` if there is a view of
    /// the page, for instance an earlier frame. Also returns `None` if the headroom is shorter than `head`,
    /// or if the pool has no free descriptor.
    ///
    /// ```
    /// # use dp::{Mempool, Page};
    /// let pool = Mempool::heap("pages", 2, 2048);
    /// let mut page = Page::alloc(&pool).unwrap();
    /// page.room()[..7].copy_from_slice(b"payload");
    /// page.fill(7);
    /// let frame = page.headed(5, 7, |head| head.copy_from_slice(b"head ")).unwrap();
    /// assert_eq!((frame.head(), page.filled()), (&b"head payload"[..], &b"payload"[..]));
    /// assert!(page.headed(5, 7, |_| ()).is_none(), "the frame would change");
    /// ```
    ///
    /// # Panics
    /// If fewer than `bytes` bytes are filled.
    #[inline]
    pub fn headed(&mut self, head: usize, bytes: usize, write: impl FnOnce(&mut [u8])) -> Option<Mbuf> {
        let raw = match &mut self.raw {
            Raw::Heap(chain) => {
                assert!(bytes <= chain.len(), "{bytes} of {}", chain.len());
                write(chain.front(head)?);
                Raw::Heap(chain.share_from(head, bytes)?)
            }
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => {
                assert!(bytes <= chain.len(), "{bytes} of {}", chain.len());
                write(chain.front(head)?);
                Raw::Dpdk(chain.share_from(head, bytes)?)
            }
        };
        Some(Mbuf::from_raw(raw))
    }

    /// Makes a view of filled bytes. The view may be used after the page is dropped. Returns `None` if the
    /// pool has no free descriptor.
    ///
    /// # Panics
    /// If some of `bytes` are not filled.
    pub fn view(&self, bytes: Range<usize>) -> Option<Mbuf> {
        let filled = self.filled().len();
        assert!(bytes.start <= bytes.end && bytes.end <= filled, "{bytes:?} of {filled}");
        let mut view = match &self.raw {
            Raw::Heap(chain) => Mbuf::from_raw(Raw::Heap(chain.share()?)),
            #[cfg(feature = "dpdk")]
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
    use crate::ExtBuf;
    use crate::mbuf::HEADROOM;

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
    fn a_frame_has_the_bytes_in_front_for_itself() {
        let pool = Mempool::heap("pages", 2, 256);
        let mut page = Page::alloc(&pool).unwrap();
        page.room()[..5].copy_from_slice(b"first");
        assert_eq!((page.fill(5), page.fill(3)), (0, 5));
        assert!(page.headed(HEADROOM + 1, 5, |_| panic!("no room")).is_none());
        let view = page.view(0..8).unwrap();
        assert!(page.headed(4, 5, |_| panic!("seen by others")).is_none());
        drop(view);
        let mut frame = page.headed(4, 5, |head| head.copy_from_slice(b"one ")).unwrap();
        assert_eq!((frame.head(), frame.len(), frame.segment_count()), (&b"one first"[..], 9, 1));
        assert_eq!((frame.headroom(), page.filled().len(), page.room_bytes()), (HEADROOM - 4, 8, 248));
        assert!(frame.head_mut().is_none() && frame.prepend(1).is_none() && frame.append(1).is_none());
        assert!(page.headed(4, 5, |_| panic!("the frame would change")).is_none());
        drop(frame);
        let frame = page.headed(HEADROOM, 8, |head| head.fill(2)).unwrap();
        drop(page);
        assert_eq!(
            (&frame.head()[..HEADROOM], frame.len(), pool.available()),
            (&[2; HEADROOM][..], HEADROOM + 8, 1)
        );
        drop(frame);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_page_without_views_is_filled_anew() {
        let pool = Mempool::heap("pages", 2, 256);
        let mut page = Page::alloc(&pool).unwrap();
        page.room()[..5].copy_from_slice(b"first");
        page.fill(5);
        let view = page.view(0..5).unwrap();
        assert!(!page.rewind(), "the view would change");
        assert_eq!((view.head(), page.filled()), (&b"first"[..], &b"first"[..]));
        drop(view);
        page.fill(251);
        assert!(page.rewind());
        assert_eq!((page.filled().len(), page.room_bytes(), pool.available()), (0, 256, 1));
        page.room()[..6].copy_from_slice(b"second");
        assert_eq!((page.fill(6), page.filled()), (0, &b"second"[..]));
        drop(page);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_frame_needs_a_descriptor() {
        let pool = Mempool::heap("pages", 1, 256);
        let mut page = Page::alloc(&pool).unwrap();
        assert!(Page::alloc(&pool).is_none());
        page.fill(5);
        let spare = Mbuf::external(&pool, ExtBuf::new(Arc::new(vec![1])));
        assert!(spare.is_some() && page.headed(4, 5, |head| head.fill(0)).is_none());
        drop(spare);
        assert!(page.headed(4, 5, |head| head.fill(0)).is_some());
    }

    #[test]
    #[should_panic(expected = "6 of 5")]
    fn a_frame_shows_only_what_is_filled() {
        let pool = Mempool::heap("pages", 1, 256);
        let mut page = Page::alloc(&pool).unwrap();
        page.fill(5);
        let _ = page.headed(2, 6, |_| ());
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
        /// A view keeps the bytes that were in the page when the view was made.
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
