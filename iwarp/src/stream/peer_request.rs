//! The peer's requests on queue 1 (Reads and atomics), and the buffers for them.

use arrayvec::ArrayVec;
use dp::invariant::{Check, ensure};

use crate::ddp::{DdpError, Delivered, Header, UntaggedHeader, UntaggedQueue};
use crate::queues::request_buffers;
use crate::rdmap::{AtomicRequest, Extensions, Opcode, ReadRequest, Terminate, TerminateError};

/// A checked request of the peer that waits for its response. The request's memory was accessible at the time
/// of the check. If the memory is not accessible when the response is sent, it was revoked in between
/// ([`Failure::User`](super::Failure::User)).
#[derive(Clone, Debug)]
pub(super) struct PeerRequest {
    pub(super) op: PeerOp,
    /// The request's DDP header, for a Terminate.
    pub(super) header: ArrayVec<u8, { Header::MAX_LEN }>,
    pub(super) segment_len: usize,
}

/// The operation that the peer requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerOp {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

impl PeerRequest {
    /// Returns the Terminate for the case that the request cannot be answered completely, and that `sent`
    /// bytes of the response were sent. For a Read Request, the Terminate contains the header of the request,
    /// advanced by these bytes. For an Atomic Request, the Terminate does not contain the header of the
    /// request (RFC 5040 section 4.8, RFC 7306 section 8.1).
    pub(super) fn terminate(&self, error: TerminateError, sent: u32) -> Terminate {
        let echoed = match self.op {
            PeerOp::Read(request) => Some(request.advanced(sent)),
            PeerOp::Atomic(_) => None,
        };
        Terminate::of_segment(error, &self.header, self.segment_len, echoed)
    }
}

/// Queue 1 and its buffers (see [`request_buffers`]). There are separate buffers for Reads and for atomics. A
/// buffer is in use until its request is answered.
#[derive(Debug)]
pub(super) struct RequestQueue {
    queue: UntaggedQueue,
    ird: u32,
    taken: ByKind,
}

/// The number of requests of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByKind {
    pub(super) reads: u32,
    pub(super) atomics: u32,
}

impl ByKind {
    /// Returns the count for `opcode`: that of atomics for an Atomic Request, otherwise that of Reads.
    fn of(&mut self, opcode: Opcode) -> &mut u32 {
        if opcode == Opcode::AtomicRequest { &mut self.atomics } else { &mut self.reads }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads + self.atomics == 0
    }

    pub(super) fn count(&mut self, op: &PeerOp) {
        match op {
            PeerOp::Read(_) => self.reads += 1,
            PeerOp::Atomic(_) => self.atomics += 1,
        }
    }
}

impl RequestQueue {
    pub(super) fn new(ird: u16, extensions: Extensions) -> Self {
        // RFC 5040 sections 5.2.2, 6.1 and 8.1.2 (RDMAP-226, RDMAP-301, RDMAP-370): each stream has its own
        // buffers. The number of buffers for Reads, and the number for atomics, is the negotiated IRD.
        let mut queue = UntaggedQueue::new();
        let posted = queue.post(request_buffers(extensions, ird));
        debug_assert!(posted, "an IRD of 16 bits is within the queue's bounds");
        // RFC 5042 section 6.4.3.3 and appendix A (SEC-148, SEC-186): each stream has its own Read Request
        // queue.
        Self { queue, ird: u32::from(ird), taken: ByKind::default() }
    }

    /// Returns the number of buffers, including those in use.
    pub(super) fn buffers(&self, extensions: Extensions) -> u32 {
        request_buffers(extensions, self.ird)
    }

    /// Makes DDP's checks of a segment, for a buffer of `room` bytes.
    pub(super) fn check(
        &self,
        header: &UntaggedHeader,
        payload_len: usize,
        room: usize,
    ) -> Result<(), DdpError> {
        self.queue.check(header, payload_len, |_| room as u64).map(drop)
    }

    /// Delivers a segment. The last segment of a message consumes a buffer for Reads or for atomics.
    ///
    /// RFC 5040 sections 5.2.1 and 6.1 (RDMAP-208, RDMAP-306): a request consumes one buffer, and at most IRD
    /// requests of each kind are accepted at a time.
    ///
    /// # Errors
    /// [`DdpError::NoBuffer`] if no buffer is left for this kind of message.
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
        // RFC 7306 section 5.2.1 (EXT-083): a request consumes one buffer of queue 1.
        *taken += u32::from(delivered.is_some());
        Ok(delivered)
    }

    /// Sets the MSN of the next request, because the requests before it were dropped.
    pub(super) fn skip_to(&mut self, msn: u32) {
        self.queue.skip_to(msn);
    }

    /// Posts the buffers of answered requests again.
    pub(super) fn repost(&mut self, answered: ByKind) {
        let ByKind { reads, atomics } = answered;
        let posted = self.queue.post(reads + atomics);
        debug_assert!(posted, "one buffer for each that was taken");
        self.taken.reads -= reads;
        self.taken.atomics -= atomics;
    }

    /// Checks that each buffer is posted or taken; for tests.
    pub(super) fn check_buffers(&self, extensions: Extensions) -> Check {
        let (posted, ByKind { reads, atomics }) = (self.queue.posted(), self.taken);
        let most = self.ird;
        ensure!(reads.max(atomics) <= most, "{reads} Reads and {atomics} atomics of the peer's, {most} may");
        let all = request_buffers(extensions, most as u16);
        ensure!(
            posted + reads + atomics == all,
            "{posted} buffers for requests posted, {reads} and {atomics} taken of {all}"
        );
        Ok(())
    }

    /// Counts a posted buffer as taken, so that a check fails.
    #[cfg(test)]
    pub(super) fn lose_buffer(&mut self) {
        self.taken.reads += 1;
    }
}
