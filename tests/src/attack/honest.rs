//! The honest connections: Writes, Reads and Sends between a client's engine and the victim's, with every
//! byte checked.

use std::collections::VecDeque;

use iwarp::memory::Access;
use iwarp::verbs::{
    CmId, CompletionQueue, ConnParam, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest,
    RemoteAddr, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus, WorkCompletion,
};

use crate::pattern::Pattern;

/// Length in bytes of a Write, and of the Read that reads the written bytes.
const WRITE: usize = 8192;
/// Length in bytes of the Send after the Write and the Read.
const SEND: usize = 1024;
/// Maximum number of batches in flight on a connection.
const SLOTS: usize = 2;
/// Length in bytes of a slot in each region: the written bytes and the sent bytes.
const SLOT: usize = WRITE + SEND;

/// Number of payload bytes of one batch, in both directions.
pub const BATCH_BYTES: u64 = (2 * WRITE + SEND) as u64;

/// The victim's endpoint of a connection.
pub struct Served {
    qp: QueuePair,
    _id: CmId,
    cq: CompletionQueue,
    region: MemoryRegion,
}

/// The parts of a batch that have not happened yet.
#[derive(Clone, Copy, Default)]
struct Batch {
    seed: u64,
    /// Number of completions that the client still waits for.
    completions: usize,
    /// Whether the victim still waits for the message.
    message: bool,
}

/// An honest connection.
pub struct Honest {
    qp: QueuePair,
    _id: CmId,
    cq: CompletionQueue,
    region: MemoryRegion,
    served: Served,
    /// The pattern. The contents of a batch are a part of the pattern.
    bytes: Vec<u8>,
    batches: [Batch; SLOTS],
    /// Slots whose message is in flight, in order.
    messages: VecDeque<usize>,
    /// Number of the last batch that was begun.
    next_seed: u64,
    /// Number of batches that are done.
    pub done: u64,
}

impl Served {
    /// Accepts a client. The region and the queue pair for the client are in `domain`.
    pub fn accept(domain: &ProtectionDomain, cq: CompletionQueue, id: CmId) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = domain.reg_mr(SLOTS * SLOT, access).expect("a region");
        let qp = domain.create_qp(&QpInit::new(&cq)).expect("a queue pair");
        for slot in 0..SLOTS {
            receive(&qp, &region, slot);
        }
        id.accept(&qp, &ConnParam::default()).expect("the request was just made");
        Self { qp, _id: id, cq, region }
    }
}

fn receive(qp: &QueuePair, region: &MemoryRegion, slot: usize) {
    let buffer = region.sge(slot * SLOT + WRITE, SEND);
    qp.post_recv(&RecvRequest::new(slot as u64, buffer)).expect("the queue has space for it");
}

impl Honest {
    /// Creates the two endpoints of a connection. `number` distinguishes the batches of this connection from
    /// those of other connections.
    pub fn new(
        domain: &ProtectionDomain,
        qp: QueuePair,
        id: CmId,
        cq: CompletionQueue,
        served: Served,
        number: u64,
    ) -> Self {
        let region = domain.reg_mr(2 * SLOTS * SLOT, Access::LOCAL_WRITE).expect("a region");
        let batches = [Batch::default(); SLOTS];
        let mut bytes = vec![0; (1 << 16) + SLOT];
        Pattern::new(number).fill(0, &mut bytes);
        Self {
            qp,
            _id: id,
            cq,
            region,
            served,
            bytes,
            batches,
            messages: VecDeque::new(),
            next_seed: number << 32,
            done: 0,
        }
    }

    /// Posts as many batches as there are free slots.
    pub fn post(&mut self) {
        for slot in 0..SLOTS {
            if self.batches[slot].completions == 0 && !self.batches[slot].message {
                self.begin(slot);
            }
        }
    }

    fn begin(&mut self, slot: usize) {
        self.next_seed += 1;
        let at = slot * SLOT;
        self.region.write_at(at, self.expected(self.next_seed)).expect("within the region");
        let there = &self.served.region;
        let remote = RemoteAddr { addr: there.addr() + at as u64, rkey: there.rkey() };
        let id = slot as u64;
        let sink = self.region.sge(SLOTS * SLOT + at, WRITE);
        let requests = [
            SendRequest::new(id, SendOp::Write { remote }, self.region.sge(at, WRITE)),
            SendRequest::new(id, SendOp::Read { remote }, sink),
            SendRequest::new(id, SendOp::Send, self.region.sge(at + WRITE, SEND)),
        ]
        .map(|request| request.flags(SendFlags::SIGNALED));
        self.qp.post_send_list(&requests).expect("room in the queue");
        self.messages.push_back(slot);
        self.batches[slot] = Batch { seed: self.next_seed, completions: requests.len(), message: true };
    }

    /// Polls the completions of both endpoints, and checks their data.
    ///
    /// # Errors
    /// The first error found.
    pub fn check_completions(&mut self) -> Result<(), String> {
        while let Some(wc) = self.cq.poll_one() {
            let slot = self.slot(&wc)?;
            self.batches[slot].completions -= 1;
            if wc.opcode == WcOpcode::Read {
                self.check(slot, &self.region, (SLOTS + slot) * SLOT, 0..WRITE, "read")?;
            }
            self.finish(slot);
        }
        while let Some(wc) = self.served.cq.poll_one() {
            let buffer = self.slot(&wc)?;
            let slot = self.messages.pop_front().ok_or("a message arrived that was not sent")?;
            // The message follows the Write, so both have arrived.
            self.check(slot, &self.served.region, slot * SLOT, 0..WRITE, "written")?;
            self.check(slot, &self.served.region, buffer * SLOT + WRITE, WRITE..SLOT, "received")?;
            receive(&self.served.qp, &self.served.region, buffer);
            self.batches[slot].message = false;
            self.finish(slot);
        }
        Ok(())
    }

    fn slot(&self, wc: &WorkCompletion) -> Result<usize, String> {
        match (wc.status, usize::try_from(wc.wr_id)) {
            (WcStatus::Success, Ok(slot)) if slot < SLOTS => Ok(slot),
            _ => Err(format!("an honest request failed: {wc:?}")),
        }
    }

    fn check(
        &self,
        slot: usize,
        region: &MemoryRegion,
        at: usize,
        range: std::ops::Range<usize>,
        what: &str,
    ) -> Result<(), String> {
        let mut bytes = vec![0; range.len()];
        region.read_at(at, &mut bytes).map_err(|error| error.to_string())?;
        let expected = &self.expected(self.batches[slot].seed)[range];
        if bytes == expected { Ok(()) } else { Err(format!("the bytes {what} are wrong")) }
    }

    /// Returns the bytes of a batch, which are one of 2^16 parts of the pattern. The seed selects the part.
    fn expected(&self, seed: u64) -> &[u8] {
        let at = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize;
        &self.bytes[at..at + SLOT]
    }

    fn finish(&mut self, slot: usize) {
        let Batch { completions, message, .. } = self.batches[slot];
        self.done += u64::from(completions == 0 && !message);
    }

    /// Whether neither endpoint has reported an error.
    pub fn is_established(&self) -> bool {
        self.qp.error().is_none() && self.served.qp.error().is_none()
    }
}
