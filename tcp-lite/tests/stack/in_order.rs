//! Puts a stream back in order, as a reader of a plain byte stream does.

use std::collections::VecDeque;
use std::ops::Range;
use std::slice;

use dp::Mbuf;
use tcp_lite::Received;

/// Accepts [`Received`] in any order, and returns the bytes in stream order. Holds a limited number of
/// buffers.
pub(crate) struct InOrder {
    next: u64,
    limit: usize,
    /// The held buffers, sorted by offset. The buffers are disjoint, because the stack passes on each byte
    /// only once.
    held: VecDeque<Received>,
}

/// Bytes that are next in order.
pub(crate) struct Ordered {
    /// Stream offset of the first byte.
    pub(crate) offset: u64,
    /// The buffer that contains the bytes.
    pub(crate) buf: Mbuf,
    /// Number of bytes to pass to [`Stack::release`](tcp_lite::Stack::release) after `buf` was consumed. The
    /// number is that of all bytes if `buf` arrived beyond a hole, and otherwise 0.
    pub(crate) release: usize,
}

impl InOrder {
    /// Returns an `InOrder` that starts at stream offset `next` and holds at most `limit` buffers.
    pub(crate) fn new(next: u64, limit: usize) -> Self {
        Self { next, limit, held: VecDeque::new() }
    }

    /// Stream offset of the byte that [`pop`](Self::pop) returns next.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// Returns `received` if the limit is reached.
    pub(crate) fn push(&mut self, received: Received) -> Result<(), Received> {
        if self.held.len() >= self.limit {
            return Err(received);
        }
        let at = self.held.partition_point(|held| held.offset < received.offset);
        self.held.insert(at, received);
        Ok(())
    }

    /// Discards buffers, starting with the highest stream offset, until at least `bytes` bytes are freed or
    /// `may` refuses a range of the stream. Used for [`Event::Evict`](tcp_lite::Event::Evict), with
    /// [`Stack::evict`](tcp_lite::Stack::evict).
    pub(crate) fn give_up(&mut self, bytes: usize, mut may: impl FnMut(&[Range<u64>]) -> bool) {
        let mut given_up = 0;
        while given_up < bytes
            && let Some(last) = self.held.back()
            && may(slice::from_ref(&(last.offset..last.offset + last.buf.len() as u64)))
            && let Some(gone) = self.held.pop_back()
        {
            given_up += gone.buf.len();
        }
    }

    /// Returns the next bytes in order, if they have arrived.
    pub(crate) fn pop(&mut self) -> Option<Ordered> {
        let first = self.held.front()?;
        if first.offset != self.next {
            return None;
        }
        let Received { offset, buf, frontier } = self.held.pop_front()?;
        let bytes = buf.len();
        self.next += bytes as u64;
        let release = if self.next > frontier { bytes } else { 0 };
        Some(Ordered { offset, buf, release })
    }
}

#[test]
fn order_comes_back_and_the_limit_holds() {
    let pool = dp::Mempool::heap("in-order", 8, 64);
    let received = |offset: u64, bytes: &[u8], frontier| {
        let mut buf = pool.alloc().unwrap();
        assert!(buf.append_slice(bytes));
        Received { offset, buf, frontier }
    };
    let mut stream = InOrder::new(0, 2);
    assert!(stream.push(received(6, b"c", 0)).is_ok());
    assert!(stream.push(received(3, b"bbb", 0)).is_ok());
    assert!(stream.push(received(7, b"d", 0)).is_err());
    assert!(stream.pop().is_none());
    let mut stream2 = InOrder::new(0, 4);
    for r in [received(3, b"bbb", 0), received(0, b"aaa", 6)] {
        assert!(stream2.push(r).is_ok());
    }
    let (a, b) = (stream2.pop().unwrap(), stream2.pop().unwrap());
    assert_eq!((a.buf.head(), a.release), (&b"aaa"[..], 0));
    assert_eq!((b.buf.head(), b.offset, b.release), (&b"bbb"[..], 3, 3));
    assert_eq!(stream2.next_offset(), 6);
}
