//! What the peer asks for on queue 1, Reads and atomics, and the buffers it may use for that.

use arrayvec::ArrayVec;

use crate::ddp::{DdpError, Delivered, Header, UntaggedHeader, UntaggedQueue};
use crate::rdmap::{AtomicRequest, Extensions, Opcode, ReadRequest, Terminate, TerminateError};

use super::Failure;

/// A request of the peer's that was checked and is to be answered in its turn.
#[derive(Clone, Debug)]
pub(super) struct PeerRequest {
    pub(super) asked: Asked,
    /// The header it came with, for a Terminate.
    pub(super) header: ArrayVec<u8, { Header::MAX_LEN }>,
    pub(super) segment_len: usize,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

impl PeerRequest {
    /// Why it cannot be answered in full, `sent` bytes of the answer being on their way. Only a Read Request
    /// is echoed, moved on by these (RFC 5040 section 4.8, RFC 7306 section 8.1).
    pub(super) fn fail(&self, error: TerminateError, sent: u32) -> Failure {
        let echoed = match self.asked {
            Asked::Read(request) => Some(request.advanced(sent)),
            Asked::Atomic(_) => None,
        };
        Failure::Local(Terminate::of_segment(error, &self.header, self.segment_len, echoed))
    }
}

/// Queue 1, with [`Extensions::request_buffers`]: neither kind may use the other's. A buffer is taken until
/// its request is answered.
#[derive(Debug)]
pub(super) struct RequestQueue {
    queue: UntaggedQueue,
    ird: u32,
    taken: ByKind,
}

/// Requests, counted by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByKind {
    pub(super) reads: u32,
    pub(super) atomics: u32,
}

impl ByKind {
    /// The count that `opcode` goes to: an Atomic Request's or, for all else, a Read Request's.
    fn of(&mut self, opcode: Opcode) -> &mut u32 {
        if opcode == Opcode::AtomicRequest { &mut self.atomics } else { &mut self.reads }
    }

    pub(super) fn count(&mut self, asked: &Asked) {
        match asked {
            Asked::Read(_) => self.reads += 1,
            Asked::Atomic(_) => self.atomics += 1,
        }
    }
}

impl RequestQueue {
    pub(super) fn new(ird: u16, extensions: Extensions) -> Self {
        let mut queue = UntaggedQueue::new();
        let posted = queue.post(extensions.request_buffers(ird));
        debug_assert!(posted, "an IRD of 16 bits is within the queue's bounds");
        Self { queue, ird: u32::from(ird), taken: ByKind::default() }
    }

    /// DDP's checks of a segment for a buffer of `room` bytes.
    pub(super) fn check(
        &self,
        header: &UntaggedHeader,
        payload_len: usize,
        room: usize,
    ) -> Result<(), DdpError> {
        self.queue.check(header, payload_len, |_| room as u64).map(drop)
    }

    /// Delivers a segment; with the last one of a message a buffer of its kind is taken.
    ///
    /// # Errors
    /// [`DdpError::NoBuffer`] where its kind has none left.
    pub(super) fn deliver(
        &mut self,
        header: &UntaggedHeader,
        payload_len: usize,
        opcode: Opcode,
    ) -> Result<Option<Delivered>, DdpError> {
        let taken = self.taken.of(opcode);
        if *taken >= self.ird {
            return Err(DdpError::NoBuffer);
        }
        let delivered = self.queue.deliver(header, payload_len)?;
        *taken += u32::from(delivered.is_some());
        Ok(delivered)
    }

    /// Requests have been answered: their buffers are posted again.
    pub(super) fn repost(&mut self, answered: ByKind) {
        let ByKind { reads, atomics } = answered;
        let posted = self.queue.post(reads + atomics);
        debug_assert!(posted, "one buffer for each that was taken");
        self.taken.reads -= reads;
        self.taken.atomics -= atomics;
    }
}
