//! The bytes that the peer writes to our ring.

use tokio::io::ReadBuf;

use super::protocol::Progress;
use crate::error::{Error, Result};
use crate::region::Region;

pub(super) struct Incoming {
    ring: Region,
    /// Maximum number of Writes that the peer may have in flight without a credit.
    window: u64,
    arrived: Progress,
    /// Bytes that the program has read.
    read: u64,
    credited: Progress,
    is_ended: bool,
}

impl Incoming {
    pub(super) fn new(ring: Region, window: u64) -> Self {
        let nothing = Progress::default();
        Self { ring, window, arrived: nothing, read: 0, credited: nothing, is_ended: false }
    }

    /// Called when the peer has written `bytes` bytes.
    pub(super) fn written(&mut self, bytes: u64) -> Result<()> {
        let room = self.ring.len() as u64 - (self.arrived.bytes - self.read);
        if bytes > room || self.is_ended {
            return Err(Error::Protocol("it has written more than it had credits for"));
        }
        self.arrived.bytes += bytes;
        self.arrived.writes += 1;
        Ok(())
    }

    /// Called when the peer has ended its direction.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether the peer has ended its direction, and all bytes were read.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended && self.read == self.arrived.bytes
    }

    /// Copies bytes that have arrived to `out`.
    pub(super) fn copy_to(&mut self, out: &mut ReadBuf<'_>) -> Result<()> {
        let size = self.ring.len();
        while out.remaining() > 0 && self.read < self.arrived.bytes {
            let at = (self.read % size as u64) as usize;
            // The value is at most the size of the ring.
            let arrived = (self.arrived.bytes - self.read) as usize;
            let count = out.remaining().min(arrived).min(size - at);
            self.ring.read_at(at, out.initialize_unfilled_to(count))?;
            out.advance(count);
            self.read += count as u64;
        }
        Ok(())
    }

    /// Returns the credit to give to the peer, or `None` while too little credit has accumulated. A Write is
    /// credited before its bytes are read, since its receive is posted again as soon as the Write is handled.
    pub(super) fn credit_due(&self) -> Option<Progress> {
        let writes = self.arrived.writes - self.credited.writes;
        let bytes = self.read - self.credited.bytes;
        let is_due = writes >= self.window.div_ceil(4) || bytes >= (self.ring.len() as u64).div_ceil(4);
        is_due.then_some(Progress { bytes: self.read, writes: self.arrived.writes })
    }

    /// Called when this credit was given to the peer.
    pub(super) fn credited(&mut self, credit: Progress) {
        self.credited = credit;
    }
}
