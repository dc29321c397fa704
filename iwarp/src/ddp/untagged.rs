//! The receive state of one untagged queue: which message sequence numbers have a buffer (RFC 5041 sections
//! 5.2, 7.1).
//!
//! The queue counts, it holds no buffers. Its owner keeps them in order and is told the index of the one that
//! a segment belongs to: index 0 is the buffer of [`UntaggedQueue::first_msn`]. The window of legal MSNs is
//! `first_msn .. first_msn + posted`, circular. Its upper bound moves when buffers are posted, its lower
//! bound when messages are delivered.
//!
//! Segments of a message may be placed in any order. At delivery they are in order, and each has to begin
//! where the one before it ended, the first at offset 0: else the message would hold bytes that nobody has
//! sent. RFC 5041 section 5.2 does not ask for that of a sink, but any source sends so (section 5.3), and
//! Linux's siw looks as well.

use crate::ddp::error::DdpError;
use crate::ddp::header::UntaggedHeader;

/// Window and counters of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedQueue {
    first_msn: u32,
    posted: u32,
    /// Bytes of the oldest message that are delivered: the offset of its next segment.
    next_mo: u32,
}

/// Where a segment's payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedSlot {
    /// Which posted buffer, counted from the oldest.
    pub index: u32,
    /// Where in that buffer.
    pub offset: u32,
}

/// A message that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Its number.
    pub msn: u32,
    /// Its length: message offset plus payload of the last segment.
    pub len: u32,
}

impl UntaggedQueue {
    /// Buffers a queue may have posted: beyond half the number space, old and new MSNs look the same.
    pub const MAX_POSTED: u32 = 1 << 31;

    /// An open queue without buffers; its first message will have MSN 1.
    pub const fn new() -> Self {
        Self::starting_at(1)
    }

    /// An open queue whose first message will have MSN `first_msn`.
    pub const fn starting_at(first_msn: u32) -> Self {
        Self { first_msn, posted: 0, next_mo: 0 }
    }

    /// Counts `buffers` more at the end. Returns whether there was room below [`UntaggedQueue::MAX_POSTED`];
    /// nothing is counted when there was not.
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

    /// MSN of the oldest message that is not delivered.
    pub const fn first_msn(&self) -> u32 {
        self.first_msn
    }

    /// Buffers that wait for messages, a message under way included.
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// The index of the buffer of message `msn`.
    ///
    /// # Errors
    /// [`DdpError::NoBuffer`] when it lies ahead of the last buffer, [`DdpError::MsnRange`] when it was
    /// delivered.
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

    /// Checks a segment of this queue before its placement: MSN, then MO, then length. An empty segment is
    /// checked like any other. `buffer_len` gives the bytes of the buffer with an index below
    /// [`UntaggedQueue::posted`].
    ///
    /// # Errors
    /// The first check that fails, as [`DdpError`] 0x2/0x02 to 0x2/0x05.
    pub fn check(
        &self,
        header: &UntaggedHeader,
        payload_len: usize,
        buffer_len: impl FnOnce(u32) -> u64,
    ) -> Result<UntaggedSlot, DdpError> {
        let index = self.index_of(header.msn)?;
        let room = buffer_len(index);
        let offset = u64::from(header.mo);
        if offset > room {
            return Err(DdpError::InvalidMo);
        }
        if payload_len as u64 > room - offset {
            return Err(DdpError::TooLong);
        }
        Ok(UntaggedSlot { index, offset: header.mo })
    }

    /// Checks that a segment at the in-order frontier begins where the one before it ended. One that is not
    /// of the oldest message has other errors.
    ///
    /// # Errors
    /// [`DdpError::InvalidMo`].
    pub fn check_next(&self, header: &UntaggedHeader) -> Result<(), DdpError> {
        match self.index_of(header.msn) {
            Ok(0) if header.mo != self.next_mo => Err(DdpError::InvalidMo),
            _ => Ok(()),
        }
    }

    /// Delivers a segment that is placed and at the in-order frontier. With the last segment of the oldest
    /// message, that message is complete: its buffer leaves the queue and the window moves.
    ///
    /// # Errors
    /// [`DdpError::MsnRange`] when the segment is not of the oldest message: messages of one queue come in
    /// order, so one was left out or repeated. [`DdpError::InvalidMo`] as [`UntaggedQueue::check_next`].
    /// [`DdpError::NoBuffer`] when no buffer is posted for it, and [`DdpError::TooLong`] when its end lies
    /// beyond 2^32 - 1; [`UntaggedQueue::check`] excludes both.
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
        self.first_msn = self.first_msn.wrapping_add(1);
        self.posted -= 1;
        Ok(Some(Delivered { msn: header.msn, len }))
    }
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}
