//! The receive state of one untagged queue: which message sequence numbers have a buffer (RFC 5041 sections
//! 5.2, 7.1).
//!
//! The queue counts buffers and holds none. Its owner keeps the buffers in order. A check returns the index
//! of the buffer that a segment belongs to: index 0 is the buffer of [`UntaggedQueue::first_msn`]. The window
//! of legal MSNs is `first_msn .. first_msn + posted`, modulo 2^32. Posting a buffer moves its upper bound,
//! delivering a message its lower bound.
//!
//! Segments of a message may be placed in any order. At delivery they are in order: the first segment begins
//! at offset 0, and each later segment begins where the previous segment ended. Otherwise the message would
//! contain bytes that were never sent. RFC 5041 section 5.2 does not require this check of a sink, but every
//! source sends so (section 5.3), and Linux's siw checks it as well.

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

/// Where the payload of a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Index of the posted buffer, counted from the oldest.
    pub index: u32,
    /// Offset of the first byte of payload in that buffer; at most its length.
    pub offset: u32,
}

/// A complete message.
///
/// RFC 5041 section 5.4 (DDP-139): its length is reported at delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The message sequence number.
    pub msn: u32,
    /// The length of the message: message offset plus payload of the last segment.
    pub len: u32,
}

impl UntaggedQueue {
    /// Largest number of posted buffers: half of the number space, so that old and new MSNs can be told
    /// apart.
    pub const MAX_POSTED: u32 = 1 << 31;

    /// An open queue without buffers. Its first message has MSN 1.
    pub const fn new() -> Self {
        Self::starting_at(1)
    }

    /// An open queue without buffers whose first message has MSN `first_msn`.
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

    /// Takes back the `buffers` that were posted last. The caller knows that no message will use them.
    pub(crate) const fn withdraw(&mut self, buffers: u32) {
        self.posted = self.posted.saturating_sub(buffers);
    }

    /// Sets the MSN of the next message: earlier messages will not arrive. No segment of the next message has
    /// arrived.
    pub(crate) const fn skip_to(&mut self, msn: u32) {
        (self.first_msn, self.next_mo) = (msn, 0);
    }

    /// MSN of the oldest message that is not yet delivered.
    pub const fn first_msn(&self) -> u32 {
        self.first_msn
    }

    /// Buffers that wait for messages, including the buffer of a partly received message.
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// The index of the buffer of message `msn`.
    ///
    /// # Errors
    /// [`DdpError::NoBuffer`] when it lies past the last buffer, [`DdpError::MsnRange`] when it was
    /// delivered.
    ///
    /// RFC 5041 section 7.1 (DDP-165, DDP-174): MSN has a buffer and is inside the legal range of its queue.
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
    /// checked like any other. `buffer_len` returns the bytes of the buffer at an index below
    /// [`UntaggedQueue::posted`].
    ///
    /// RFC 5041 section 7.1 (DDP-163, DDP-170, DDP-171): MO, and MO plus payload length, lie within the
    /// buffer.
    ///
    /// # Errors
    /// The first check that fails, as [`DdpError`] 0x2/0x02 to 0x2/0x05.
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

    /// Checks that a segment at the in-order frontier begins where the previous segment ended. A segment of a
    /// message other than the oldest passes here; [`deliver`](Self::deliver) reports its error.
    ///
    /// # Errors
    /// [`DdpError::InvalidMo`].
    pub fn check_next(&self, header: &UntaggedHeader) -> Result<(), DdpError> {
        match self.index_of(header.msn) {
            Ok(0) if header.mo != self.next_mo => Err(DdpError::InvalidMo),
            _ => Ok(()),
        }
    }

    /// Whether [`deliver_whole`](Self::deliver_whole) may deliver message `msn`: it is the oldest one, has a
    /// buffer, and nothing of it was delivered.
    #[inline]
    pub const fn awaits_whole(&self, msn: u32) -> bool {
        msn == self.first_msn && self.posted > 0 && self.next_mo == 0
    }

    /// As [`deliver`](Self::deliver), for the only segment of a message that it
    /// [`awaits`](Self::awaits_whole).
    #[inline]
    pub const fn deliver_whole(&mut self) {
        // RFC 5041 section 4.3 (DDP-091): MSN 0 follows 0xFFFFFFFF.
        self.first_msn = self.first_msn.wrapping_add(1);
        self.posted -= 1;
    }

    /// Delivers a segment that is placed and at the in-order frontier. The last segment of the oldest message
    /// completes it: its buffer leaves the queue and the window moves.
    ///
    /// RFC 5041 sections 5.3 and 5.4 (DDP-130, DDP-135): a message is delivered by the segment with L set,
    /// and once, since its MSN then leaves the window.
    ///
    /// # Errors
    /// [`DdpError::MsnRange`] when the segment is not of the oldest message: messages of one queue arrive in
    /// order, so one is missing or repeated. [`DdpError::InvalidMo`] as [`UntaggedQueue::check_next`].
    /// [`DdpError::NoBuffer`] when no buffer is posted for it, and [`DdpError::TooLong`] when its end lies
    /// past 2^32 - 1; [`UntaggedQueue::check`] excludes both.
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
        self.deliver_whole();
        Ok(Some(Delivered { msn: header.msn, len }))
    }
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}
