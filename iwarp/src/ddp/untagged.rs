//! The receive state of one untagged queue: the message sequence numbers (MSNs) for which a buffer is posted
//! (RFC 5041 sections 5.2, 7.1).
//!
//! The queue only counts buffers. The owner of the queue keeps the buffers in order. A check returns the
//! index of the buffer for a segment: index 0 is the buffer of [`UntaggedQueue::first_msn`]. The window of
//! legal MSNs is `first_msn .. first_msn + posted`, modulo 2^32. Posting a buffer advances the upper bound of
//! the window, and delivering a message advances its lower bound.
//!
//! Segments of a message may be placed in any order. At delivery the segments are in order: the first segment
//! must begin at offset 0, and each later segment must begin where the previous segment ended. Without this
//! check, a message could contain bytes that were never sent. RFC 5041 section 5.2 does not require this
//! check of a sink, but every source must send in this order (section 5.3), and Linux's siw makes the same
//! check.

use crate::ddp::error::DdpError;
use crate::ddp::header::UntaggedHeader;

/// Window and counters of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedQueue {
    first_msn: u32,
    posted: u32,
    /// Message offset of the next segment of the oldest message.
    next_mo: u32,
}

/// Where the payload of a segment is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Index of the posted buffer; the oldest buffer has index 0.
    pub index: u32,
    /// Offset of the first byte of payload in that buffer. The offset is at most the buffer's length.
    pub offset: u32,
}

/// A complete message.
///
/// RFC 5041 section 5.4 (DDP-139): the length of a message is reported at delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The message sequence number.
    pub msn: u32,
    /// The length of the message: message offset plus payload length of the last segment.
    pub len: u32,
}

impl UntaggedQueue {
    /// Maximum number of posted buffers: half of all MSNs, so that old and new MSNs can be distinguished.
    pub const MAX_POSTED: u32 = 1 << 31;

    /// Returns an open queue without buffers. The first message has MSN 1.
    pub const fn new() -> Self {
        Self::starting_at(1)
    }

    /// Returns an open queue without buffers. The first message has MSN `first_msn`.
    pub const fn starting_at(first_msn: u32) -> Self {
        Self { first_msn, posted: 0, next_mo: 0 }
    }

    /// Adds `buffers` buffers at the end. Returns `false` and changes nothing if that would exceed
    /// [`UntaggedQueue::MAX_POSTED`].
    #[must_use]
    pub fn post(&mut self, buffers: u32) -> bool {
        match self.posted.checked_add(buffers) {
            Some(posted) if posted <= Self::MAX_POSTED => {
                self.posted = posted;
                true
            }
            _ => false,
        }
    }

    /// Removes the last `buffers` buffers that were posted. The caller knows that no message will use these
    /// buffers.
    pub(crate) const fn withdraw(&mut self, buffers: u32) {
        self.posted = self.posted.saturating_sub(buffers);
    }

    /// Sets the MSN of the next message. The caller guarantees that no earlier message will arrive, and that
    /// no segment of the next message has arrived.
    pub(crate) const fn skip_to(&mut self, msn: u32) {
        (self.first_msn, self.next_mo) = (msn, 0);
    }

    /// MSN of the oldest message that is not yet delivered.
    pub const fn first_msn(&self) -> u32 {
        self.first_msn
    }

    /// Number of buffers that wait for messages, including the buffer of a partly received message.
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// Returns the index of the buffer of message `msn`.
    ///
    /// # Errors
    /// [`DdpError::NoBuffer`] if no buffer is posted for the message, [`DdpError::MsnRange`] if the message
    /// was already delivered.
    ///
    /// RFC 5041 section 7.1 (DDP-165, DDP-174): the MSN must have a buffer and must be inside the legal range
    /// of its queue.
    pub const fn index_of(&self, msn: u32) -> Result<u32, DdpError> {
        let ahead = msn.wrapping_sub(self.first_msn);
        if ahead < self.posted {
            Ok(ahead)
        } else if ahead < 1 << 31 {
            Err(DdpError::NoBuffer)
        } else {
            Err(DdpError::MsnRange)
        }
    }

    /// Checks a segment of this queue before its placement: first the MSN, then MO, then the length. An empty
    /// segment is checked like any other segment. `buffer_len` returns the number of bytes of the buffer at
    /// an index below [`UntaggedQueue::posted`].
    ///
    /// RFC 5041 section 7.1 (DDP-163, DDP-170, DDP-171): MO, and the sum of MO and payload length, must not
    /// exceed the length of the buffer.
    ///
    /// # Errors
    /// The [`DdpError`] of the first check that fails: 0x2/0x02 to 0x2/0x05.
    pub fn check(
        &self,
        header: &UntaggedHeader,
        payload_len: usize,
        buffer_len: impl FnOnce(u32) -> u64,
    ) -> Result<Destination, DdpError> {
        let index = self.index_of(header.msn)?;
        let room = buffer_len(index);
        let offset = u64::from(header.mo);
        if offset > room {
            return Err(DdpError::InvalidMo);
        }
        if payload_len as u64 > room - offset {
            return Err(DdpError::TooLong);
        }
        Ok(Destination { index, offset: header.mo })
    }

    /// Checks that a segment that is next in order begins where the previous segment ended. A segment of
    /// another message than the oldest passes this check, since [`deliver`](Self::deliver) reports its error.
    ///
    /// # Errors
    /// [`DdpError::InvalidMo`] if the segment begins at another offset.
    pub fn check_next(&self, header: &UntaggedHeader) -> Result<(), DdpError> {
        match self.index_of(header.msn) {
            Ok(0) if header.mo != self.next_mo => Err(DdpError::InvalidMo),
            _ => Ok(()),
        }
    }

    /// Whether [`advance`](Self::advance) may deliver message `msn`: the message is the oldest, has a buffer,
    /// and no segment of it was delivered.
    #[inline]
    pub const fn awaits_whole(&self, msn: u32) -> bool {
        msn == self.first_msn && self.posted > 0 && self.next_mo == 0
    }

    /// Delivers the oldest message: removes its buffer and advances the window.
    /// [`awaits_whole`](Self::awaits_whole) or [`deliver`](Self::deliver) has checked the message.
    #[inline]
    pub const fn advance(&mut self) {
        // RFC 5041 section 4.3 (DDP-091): MSN 0 follows 0xFFFFFFFF.
        self.first_msn = self.first_msn.wrapping_add(1);
        self.posted -= 1;
    }

    /// Delivers a segment that is placed and next in order. The last segment of the oldest message completes
    /// this message: the queue removes its buffer and advances the window.
    ///
    /// RFC 5041 sections 5.3 and 5.4 (DDP-130, DDP-135): a message is delivered when its segment with L set
    /// is delivered. A message is delivered only once, since its MSN is no longer in the window after the
    /// delivery.
    ///
    /// # Errors
    /// [`DdpError::MsnRange`] if the segment does not belong to the oldest message: messages of one queue
    /// arrive in order, so a message is missing or repeated. [`DdpError::InvalidMo`] in the same case as
    /// [`UntaggedQueue::check_next`]. [`DdpError::NoBuffer`] if no buffer is posted for the message, and
    /// [`DdpError::TooLong`] if the segment ends beyond 2^32 - 1: these two errors cannot happen after
    /// [`UntaggedQueue::check`].
    pub fn deliver(
        &mut self,
        header: &UntaggedHeader,
        payload_len: usize,
    ) -> Result<Option<Delivered>, DdpError> {
        if self.index_of(header.msn)? != 0 {
            return Err(DdpError::MsnRange);
        }
        self.check_next(header)?;
        let len = u32::try_from(u64::from(header.mo) + payload_len as u64).map_err(|_| DdpError::TooLong)?;
        if !header.last {
            self.next_mo = len;
            return Ok(None);
        }
        self.next_mo = 0;
        self.advance();
        Ok(Some(Delivered { msn: header.msn, len }))
    }
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}
