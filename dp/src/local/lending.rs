//! Frames that are lent instead of copied: the reader reads their bytes in the pages of the writer's port.
//!
//! The pages of a port are in memory that its peers map read-only ([`pool`](super::pool)). The record of a
//! lent frame has the first bytes of the frame, with all headers, and references to the pages that have the
//! other bytes. The reader copies the first bytes, and makes views of the pages. When nobody uses these views
//! any more, the reader returns the frame, by counting it. Until then the writer keeps the frame, and so its
//! pages are not used for other bytes.
//!
//! Frames are returned in the order in which they were lent. A reader that keeps a frame does not stop the
//! writer: if [`MAX_LENT`] frames or a quarter of the pages are lent to one peer, the writer copies further
//! frames to the ring. A reader that returns a frame too early gets other bytes in this frame. A reader that
//! returns a frame that was not lent breaks the rules, which ends the pair.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::pool::{PeerPool, PoolMemory};
use super::ring::{self, Broken, Consumer, MAX_HEAD_BYTES, MAX_REFERENCES, Producer, Record, Reference};
use crate::{Checksum, ExtBuf, Mbuf, Mempool};

/// Maximum number of frames that are lent to a peer.
const MAX_LENT: usize = 64;

/// Minimum number of bytes of a lent frame. To lend a shorter frame costs more than to copy it.
pub(super) const MIN_LENT_BYTES: usize = 4 << 10;

/// The frames that a port has lent to one peer.
pub(super) struct Lender {
    pool: Arc<PoolMemory>,
    /// The frames that the peer has not returned, the oldest first.
    lent: VecDeque<Mbuf>,
    /// Number of bytes of these frames.
    lent_bytes: usize,
    /// Number of frames that the peer has returned.
    returned: u64,
}

impl Lender {
    pub(super) fn new(pool: Arc<PoolMemory>) -> Self {
        Self { pool, lent: VecDeque::with_capacity(MAX_LENT), lent_bytes: 0, returned: 0 }
    }

    /// Returns whether a frame has at least [`MIN_LENT_BYTES`] and needs no TCP checksum, and whether the
    /// limits of lent frames and bytes allow this frame.
    #[inline]
    pub(super) fn takes(&self, frame: &Mbuf) -> bool {
        let bytes = frame.len();
        bytes >= MIN_LENT_BYTES
            && frame.tx_offload().tcp_checksum
            && self.lent.len() < MAX_LENT
            && self.lent_bytes + bytes <= self.pool.len() / 4
    }

    /// Writes the record of a frame that [`takes`](Self::takes) accepts, and keeps the frame. Returns the
    /// frame if the ring is full, or if some of its bytes are neither at the front nor in the pages. In the
    /// latter case, the caller copies the frame to the ring.
    ///
    /// # Errors
    /// [`Broken`] if the reader has published an impossible position.
    #[inline]
    pub(super) fn lend(&mut self, tx: &mut Producer, frame: Mbuf) -> Result<Lent, Broken> {
        let mut head = ArrayVec::<u8, MAX_HEAD_BYTES>::new();
        let mut references = ArrayVec::<Reference, MAX_REFERENCES>::new();
        for segment in frame.segments() {
            let (front, rest) = segment.split_at(segment.len().min(head.remaining_capacity()));
            // The slice fits, so this call does not fail.
            let _ = head.try_extend_from_slice(front);
            if rest.is_empty() {
                continue;
            }
            let Some(offset) = self.pool.offset_of(rest) else { return Ok(Lent::Elsewhere(frame)) };
            // The offset and the length fit, since the pool has less than 4 GiB.
            let reference = Reference { offset: offset as u32, bytes: rest.len() as u32 };
            if references.try_push(reference).is_err() {
                return Ok(Lent::Elsewhere(frame));
            }
        }
        if references.is_empty() {
            return Ok(Lent::Elsewhere(frame));
        }
        if !tx.write_lent(&head, ring::PARTIAL_CHECKSUM, &references)? {
            return Ok(Lent::RingFull(frame));
        }
        let bytes = frame.len() - head.len();
        self.lent_bytes += frame.len();
        self.lent.push_back(frame);
        Ok(Lent::Written(bytes))
    }

    /// Frees the frames that the peer has returned.
    ///
    /// # Errors
    /// [`Broken`] if the peer has returned a frame that was not lent, or has taken back what it returned.
    #[inline]
    pub(super) fn reclaim(&mut self, tx: &Producer) -> Result<(), Broken> {
        if self.lent.is_empty() {
            return Ok(());
        }
        let returned = tx.returned();
        let count = returned.wrapping_sub(self.returned);
        if count > self.lent.len() as u64 {
            return Err(Broken);
        }
        for frame in self.lent.drain(..count as usize) {
            self.lent_bytes -= frame.len();
        }
        self.returned = returned;
        Ok(())
    }
}

/// The result of [`Lender::lend`].
pub(super) enum Lent {
    /// The frame is lent, and this number of bytes was not copied.
    Written(usize),
    /// The ring has no space.
    RingFull(Mbuf),
    /// Some bytes of the frame are not in the pages.
    Elsewhere(Mbuf),
}

/// The frames that a port has borrowed from one peer.
pub(super) struct Borrower {
    /// The peer's whole pool, once for each frame that can be borrowed at a time. The frame with number n
    /// uses the value at n modulo [`MAX_LENT`]. When no view of this value exists, the frame is not used any
    /// more.
    slots: Box<[ExtBuf]>,
    /// Number of bytes of the pool.
    bytes: usize,
    /// Number of frames that were borrowed, and that were returned.
    borrowed: u64,
    returned: u64,
}

impl Borrower {
    pub(super) fn new(pool: PeerPool) -> Self {
        let (start, bytes) = (pool.start(), pool.len());
        let pool = Arc::new(pool);
        let slots = (0..MAX_LENT).map(|_| {
            // Each slot has a reference count of its own, since `is_unique` has to see the views of this slot
            // alone.
            let owner: Arc<dyn Send + Sync> = Arc::new(Arc::clone(&pool));
            // SAFETY: the mapping has `bytes` readable and initialised bytes while its owner exists. This
            // process only reads them, by raw copies. The other process may write to them: see the module
            // documentation of `memory`.
            unsafe { ExtBuf::from_raw(start, bytes, owner) }
        });
        Self { slots: slots.collect(), bytes, borrowed: 0, returned: 0 }
    }

    /// Number of frames that are borrowed and not returned.
    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        (self.borrowed - self.returned) as usize
    }

    /// Makes the frame of the oldest record, which is a lent frame: a buffer of `pool` with the first bytes,
    /// and views of the pages with descriptors of `views`. Returns `None` if a pool has nothing left. If the
    /// caller takes the frame, it calls [`keep`](Self::keep) and advances the ring.
    ///
    /// # Errors
    /// [`Broken`] if the references are invalid, or if too many frames are lent.
    #[inline]
    pub(super) fn borrow(
        &self,
        rx: &Consumer,
        record: Record,
        (pool, views): (&Mempool, &Mempool),
    ) -> Result<Option<Mbuf>, Broken> {
        if self.outstanding() >= MAX_LENT {
            return Err(Broken);
        }
        let Some(mut frame) = pool.alloc_filled(0, record.bytes) else { return Ok(None) };
        // A new buffer has no other view, so `head_mut` succeeds.
        let Some(head) = frame.head_mut() else { return Ok(None) };
        rx.copy(record, 0, head);
        let slot = &self.slots[(self.borrowed % MAX_LENT as u64) as usize];
        for nr in 0..record.references {
            let Reference { offset, bytes } = rx.reference(nr);
            let (start, end) = (offset as usize, offset as usize + bytes as usize);
            if bytes == 0 || end > self.bytes || frame.len() + bytes as usize > ring::MAX_FRAME_BYTES {
                return Err(Broken);
            }
            let view = slot.slice(start..end).and_then(|memory| Mbuf::external(views, memory));
            // A frame has at most `MAX_REFERENCES` views, so they fit a chain.
            let Some(()) = view.and_then(|view| frame.chain(view).ok()) else { return Ok(None) };
        }
        frame.set_rx_checksum(Checksum::Partial);
        Ok(Some(frame))
    }

    /// Counts the frame that [`borrow`](Self::borrow) has made as borrowed, until its views are dropped.
    #[inline]
    pub(super) fn keep(&mut self) {
        self.borrowed += 1;
    }

    /// Returns the frames that nobody uses any more to the peer. Returns their number.
    #[inline]
    pub(super) fn give_back(&mut self, rx: &Consumer) -> usize {
        let before = self.returned;
        while self.returned < self.borrowed
            && self.slots[(self.returned % MAX_LENT as u64) as usize].is_unique()
        {
            self.returned += 1;
        }
        let count = (self.returned - before) as usize;
        if count > 0 {
            rx.publish_returned(self.returned);
        }
        count
    }
}
