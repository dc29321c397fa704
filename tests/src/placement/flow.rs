//! The messages of one connection: the times at which each is due, posted, placed and delivered. Every byte
//! is checked.

use std::collections::VecDeque;

use iwarp::memory::{Access, Base};
use iwarp::verbs::{MemoryRegion, MrOptions, RecvRequest, RemoteAddr, SendOp, SendRequest, WorkCompletion};

use super::follow::{Follow, Placed};
use super::hosts::{Connected, Hosts};
use super::reader::{Piece, Place};
use super::tally::Quantiles;
use super::{Traffic, text};
use crate::pattern::Pattern;
use testkit::packet::Tcp;

/// Maximum number of messages that are posted but not delivered.
const SLOTS: u64 = 16;

/// Length in bytes of the announcement of a Write. The announcement is the Write's number, which begins at 1,
/// so that the announcement differs from unwritten memory.
const NOTE: usize = 8;

/// Number of bytes at the end of a payload that identify the payload.
const PROBE: usize = 16;

/// A message in flight.
#[derive(Debug)]
struct Message {
    due_us: u64,
    /// Number of payload bytes that have not been placed.
    missing: usize,
    /// The time at which the message's last byte was placed, in microseconds.
    placed_us: u64,
}

/// The memory of both sides: a slot for each of the last `SLOTS` messages.
struct Slots {
    traffic: Traffic,
    bytes: usize,
    seed: u64,
    source: MemoryRegion,
    sink: MemoryRegion,
}

pub(super) struct Flow {
    slots: Slots,
    connected: Connected,
    pub(super) follow: Follow,
    /// Number of tagged messages whose last FPDU has been received in order.
    tagged_passed: u64,
    messages: VecDeque<Message>,
    posted: u64,
    pub(super) delivered: u64,
    /// The time at which the next message is due. The message is posted later if no slot is free.
    pub(super) due_us: u64,
    pub(super) completion_us: Quantiles,
    pub(super) placement_us: Quantiles,
}

impl Slots {
    fn new(hosts: &Hosts, traffic: Traffic, bytes: usize, seed: u64) -> Result<Self, String> {
        let options =
            MrOptions { base: Base::Zero, ..MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE) };
        let len = SLOTS as usize * (bytes + NOTE);
        let source = hosts.hosts[0].pd.reg_mr_with(len, &options).map_err(text)?;
        let sink = hosts.hosts[1].pd.reg_mr_with(len, &options).map_err(text)?;
        Ok(Self { traffic, bytes, seed, source, sink })
    }

    fn payload_at(&self, number: u64) -> usize {
        (number % SLOTS) as usize * self.bytes
    }

    fn note_at(&self, number: u64) -> usize {
        SLOTS as usize * self.bytes + (number % SLOTS) as usize * NOTE
    }

    fn pattern(&self, number: u64) -> Pattern {
        Pattern::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the receive request of message `number`.
    fn receive(&self, number: u64) -> RecvRequest {
        let (at, bytes) = match self.traffic {
            Traffic::Send => (self.payload_at(number), self.bytes),
            _ => (self.note_at(number), NOTE),
        };
        RecvRequest::new(number, self.sink.sge(at, bytes))
    }

    /// Returns the send requests of message `number`.
    fn requests(&self, number: u64) -> Result<Vec<SendRequest>, String> {
        let mut content = vec![0; self.bytes];
        self.pattern(number).fill(0, &mut content);
        let (at, note) = (self.payload_at(number), (number + 1).to_be_bytes());
        self.source.write_at(at, &content).map_err(text)?;
        let remote = RemoteAddr { addr: at as u64, rkey: self.sink.rkey() };
        let payload = |op| SendRequest::new(number, op, self.source.sge(at, self.bytes));
        Ok(match self.traffic {
            Traffic::Write => vec![payload(SendOp::Write { remote })],
            Traffic::WriteImmediate => vec![payload(SendOp::WriteImmediate { remote, data: note })],
            Traffic::Send => vec![payload(SendOp::Send)],
            Traffic::WriteSend => {
                let at = self.note_at(number);
                self.source.write_at(at, &note).map_err(text)?;
                let told = SendRequest::new(number, SendOp::Send, self.source.sge(at, NOTE));
                vec![payload(SendOp::Write { remote }), told]
            }
        })
    }

    /// Returns the number of the message that contains a payload, and the payload's offset in it; `None` for
    /// an announcement. `oldest` is the first message that is not delivered.
    fn within(&self, piece: &Piece, oldest: u64) -> Option<(u64, usize)> {
        match piece.place {
            Place::Tagged(offset) => {
                let slot = offset / self.bytes as u64;
                let number = oldest + (slot + SLOTS - oldest % SLOTS) % SLOTS;
                Some((number, (offset % self.bytes as u64) as usize))
            }
            Place::Message(number, offset) if self.traffic == Traffic::Send => {
                Some((number, offset as usize))
            }
            Place::Message(..) => None,
        }
    }

    /// Whether the end of a payload is in the receiver's memory.
    fn holds(&self, piece: &Piece, oldest: u64) -> Result<bool, String> {
        let (mut found, mut wanted) = ([0; PROBE], [0; PROBE]);
        let probe = piece.bytes.min(PROBE);
        let at = match self.within(piece, oldest) {
            Some((number, offset)) => {
                let end = offset + piece.bytes - probe;
                self.pattern(number).fill(end as u64, &mut wanted[..probe]);
                self.payload_at(number) + end
            }
            None => {
                let Place::Message(number, _) = piece.place else { return Ok(false) };
                wanted[..probe].copy_from_slice(&(number + 1).to_be_bytes()[..probe]);
                self.note_at(number)
            }
        };
        self.sink.read_at(at, &mut found[..probe]).map_err(text)?;
        Ok(found == wanted)
    }

    /// Checks that the message is complete.
    fn check(&self, number: u64) -> Result<(), String> {
        let mut content = vec![0; self.bytes];
        self.sink.read_at(self.payload_at(number), &mut content).map_err(text)?;
        match self.pattern(number).first_wrong(0, &content) {
            Some(wrong) => Err(format!("message {number} was delivered, but byte {wrong} of it is wrong")),
            None => Ok(()),
        }
    }
}

impl Flow {
    pub(super) fn new(
        hosts: &Hosts,
        connected: Connected,
        follow: Follow,
        traffic: Traffic,
        bytes: usize,
        seed: u64,
    ) -> Result<Self, String> {
        let slots = Slots::new(hosts, traffic, bytes, seed)?;
        if traffic.completes() {
            for number in 0..SLOTS {
                connected.qps[1].post_recv(&slots.receive(number)).map_err(text)?;
            }
        }
        Ok(Self {
            slots,
            connected,
            follow,
            tagged_passed: 0,
            messages: VecDeque::new(),
            posted: 0,
            delivered: 0,
            due_us: 0,
            completion_us: Quantiles::default(),
            placement_us: Quantiles::default(),
        })
    }

    /// Returns the number of the receiver's queue pair.
    pub(super) fn receiver(&self) -> u32 {
        self.connected.qps[1].qp_num()
    }

    /// Whether a slot is free, so that a message may be posted when it is due.
    pub(super) fn has_room(&self) -> bool {
        self.posted < self.delivered + SLOTS
    }

    /// Returns the number of posted messages.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// Posts the message that is due, and sets the time at which the next message is due.
    pub(super) fn post(&mut self, next_us: u64) -> Result<(), String> {
        for request in self.slots.requests(self.posted)? {
            self.connected.qps[0].post_send(&request).map_err(text)?;
        }
        let due_us = std::mem::replace(&mut self.due_us, next_us);
        self.messages.push_back(Message { due_us, missing: self.slots.bytes, placed_us: 0 });
        self.posted += 1;
        Ok(())
    }

    /// Has to be called when a segment reaches the receiver, before the receiver processes it.
    pub(super) fn arriving(&mut self, now_us: u64, tcp: &Tcp) -> Result<(), String> {
        let (slots, oldest) = (&self.slots, self.delivered);
        self.follow.arriving(now_us, tcp, &mut |piece| slots.holds(piece, oldest))
    }

    /// Has to be called after the receiver was polled. `refused`: the receiver's TCP dropped the segment.
    pub(super) fn arrived(&mut self, now_us: u64, refused: bool) -> Result<(), String> {
        let (slots, oldest) = (&self.slots, self.delivered);
        let passed = self.follow.arrived(now_us, refused, &mut |piece| slots.holds(piece, oldest))?;
        for Placed { piece, at_us } in passed {
            let Some((number, _)) = self.slots.within(&piece, oldest) else { continue };
            let message = self
                .messages
                .get_mut((number - oldest) as usize)
                .ok_or("a message was placed that was not posted")?;
            message.missing -= piece.bytes;
            message.placed_us = message.placed_us.max(at_us);
            if message.missing == 0 {
                self.placement_us.add(message.placed_us - message.due_us);
            }
            self.tagged_passed += u64::from(piece.last && matches!(piece.place, Place::Tagged(_)));
        }
        if !self.slots.traffic.completes() {
            while self.delivered < self.tagged_passed {
                self.deliver(now_us)?;
            }
        }
        Ok(())
    }

    /// Has to be called when the receiver's user gets a completion.
    pub(super) fn completed(&mut self, now_us: u64, wc: &WorkCompletion) -> Result<(), String> {
        if wc.wr_id != self.delivered {
            return Err(format!("message {} completes, {} is next", wc.wr_id, self.delivered));
        }
        self.deliver(now_us)?;
        let next = self.slots.receive(wc.wr_id + SLOTS);
        self.connected.qps[1].post_recv(&next).map_err(text)
    }

    fn deliver(&mut self, now_us: u64) -> Result<(), String> {
        self.slots.check(self.delivered)?;
        let message = self.messages.pop_front().ok_or("a message was delivered that was not posted")?;
        self.completion_us.add(now_us - message.due_us);
        self.delivered += 1;
        Ok(())
    }
}
