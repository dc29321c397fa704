//! The wires of one queue. This module chooses the wire for a frame to send, and finds the wires with frames
//! to receive.
//!
//! A receiving queue has a wire from each queue that may send to it. If there is more than one wire, each
//! sender sets the sender's bit in the inbox of the receiving queue. So a poll reads one word, and then only
//! the wires with frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wire::{Receiver, Sender};
use crate::rss::RSS_KEY_BYTES;
use crate::{Burst, Flow, Mbuf, Rss, RssFields};

/// Maximum number of queues of an end. Each queue has one bit of a 64-bit word.
pub const MAX_QUEUES: usize = 64;

/// Number of entries of the redirection table. Many NICs have the same number.
const TABLE_ENTRIES: usize = 128;

/// How a link with [several queues](super::queues) chooses the receiving queue of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSteering {
    /// A hash of addresses and TCP ports chooses the queue, as in a NIC: [`Rss`]. Frames without a flow
    /// ([`Flow::of_frame`]) are sent to the first queue.
    #[default]
    Rss,
    /// The receiving queue has the same number as the sending queue, as with vhost-user. The ports announce
    /// no rule.
    SenderQueue,
}

impl LinkSteering {
    /// The rule that the ports of both ends announce. `None` if the ports announce no rule.
    pub(super) fn announced(self, queues: usize) -> Option<Rss> {
        if self == Self::SenderQueue || queues == 1 {
            return None;
        }
        // An arbitrary key that has no regular pattern.
        let key: Vec<u8> = (0..RSS_KEY_BYTES).map(|at| (at as u8).wrapping_mul(167) ^ 0x6d).collect();
        let table: Vec<u16> = (0..TABLE_ENTRIES).map(|entry| (entry % queues) as u16).collect();
        Rss::new(&key, &table, RssFields::Ports, RssFields::Ports)
    }
}

/// A word with a bit for each sending queue. The bit is set if the sending queue has put frames on its wire
/// to this receiving queue. The receiving queue clears the bits when it reads the word. The word has its own
/// cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Inbox(AtomicU64);

/// The wires of one queue, in both directions.
pub(super) trait Wires: Send {
    /// Returns the number of the wire for the first of `frames`, and the number of frames at the beginning of
    /// `frames` that use the same wire.
    fn choose(&mut self, frames: &Burst) -> (usize, usize);

    fn sender(&self, wire: usize) -> &Sender;

    fn sender_mut(&mut self, wire: usize) -> &mut Sender;

    /// Makes the frames that were sent since the last call visible to the receiving queues.
    fn flush(&mut self);

    /// The receiving ends of the wires to this queue.
    fn receivers(&self) -> &[Receiver];

    /// Passes due frames to `deliver`, at most `room` frames. Returns the number of passed frames.
    fn receive(&mut self, now_us: u64, room: usize, deliver: impl FnMut(Mbuf)) -> usize;

    /// The earliest time at which the next frame may be due. `None` if no frame is in flight.
    fn next_due_us(&self) -> Option<u64>;
}

/// One wire in each direction.
pub(super) struct Single {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

impl Wires for Single {
    #[inline(always)]
    fn choose(&mut self, frames: &Burst) -> (usize, usize) {
        (0, frames.len())
    }

    #[inline(always)]
    fn sender(&self, _wire: usize) -> &Sender {
        &self.sender
    }

    #[inline(always)]
    fn sender_mut(&mut self, _wire: usize) -> &mut Sender {
        &mut self.sender
    }

    #[inline(always)]
    fn flush(&mut self) {}

    fn receivers(&self) -> &[Receiver] {
        std::slice::from_ref(&self.receiver)
    }

    #[inline(always)]
    fn receive(&mut self, now_us: u64, room: usize, deliver: impl FnMut(Mbuf)) -> usize {
        self.receiver.receive(now_us, room, deliver)
    }

    fn next_due_us(&self) -> Option<u64> {
        self.receiver.next_due_us()
    }
}

/// The wires to and from each queue of the other end.
pub(super) struct Mesh {
    senders: Box<[Sender]>,
    receivers: Box<[Receiver]>,
    rss: Rss,
    /// The number of the queue that has these wires.
    index: usize,
    /// The flow of the last sent frame, and the flow's queue. For further frames of this flow no hash is
    /// computed.
    last: Option<(Flow, usize)>,
    /// The inboxes of the queues of this end, and of the queues of the other end.
    inboxes: [Arc<[Inbox]>; 2],
    /// A bit for each queue to which frames were sent since the last flush.
    unflushed: u64,
    /// A bit for each wire on which frames may wait, as of the last reading of the inbox.
    unread: u64,
    /// The wire that is read first.
    turn: u32,
}

impl Mesh {
    pub(super) fn new(
        senders: Vec<Sender>,
        receivers: Vec<Receiver>,
        rss: Rss,
        index: usize,
        inboxes: [Arc<[Inbox]>; 2],
    ) -> Self {
        Self {
            senders: senders.into(),
            receivers: receivers.into(),
            rss,
            index,
            last: None,
            inboxes,
            unflushed: 0,
            unread: 0,
            turn: 0,
        }
    }

    fn queue(&mut self, frame: &Mbuf) -> usize {
        let Some(flow) = Flow::of_frame(frame.head()) else { return 0 };
        match self.last {
            Some((last, queue)) if last == flow => queue,
            _ => {
                let queue = usize::from(self.rss.queue(&flow));
                self.last = Some((flow, queue));
                queue
            }
        }
    }

    fn inbox(&self) -> &AtomicU64 {
        &self.inboxes[0][self.index].0
    }
}

impl Wires for Mesh {
    fn choose(&mut self, frames: &Burst) -> (usize, usize) {
        let queue = frames.first().map_or(0, |first| self.queue(first));
        let run = frames.iter().take_while(|frame| self.queue(frame) == queue).count();
        self.unflushed |= 1 << queue;
        (queue, run)
    }

    fn sender(&self, wire: usize) -> &Sender {
        &self.senders[wire]
    }

    fn sender_mut(&mut self, wire: usize) -> &mut Sender {
        &mut self.senders[wire]
    }

    fn flush(&mut self) {
        for to in bits(std::mem::take(&mut self.unflushed)) {
            self.inboxes[1][to].0.fetch_or(1 << self.index, Ordering::Release);
        }
    }

    fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    fn receive(&mut self, now_us: u64, room: usize, mut deliver: impl FnMut(Mbuf)) -> usize {
        // The word is loaded first: a swap in each poll would take the cache line away from the senders.
        if self.inbox().load(Ordering::Relaxed) != 0 {
            self.unread |= self.inbox().swap(0, Ordering::Acquire);
        }
        let mut taken = 0;
        for from in bits(self.unread.rotate_right(self.turn)) {
            let from = (from as u32 + self.turn) % u64::BITS;
            if taken == room {
                // The next burst begins with the first wire that was not read for this burst.
                self.turn = from;
                break;
            }
            let wire = &mut self.receivers[from as usize];
            taken += wire.receive(now_us, room - taken, &mut deliver);
            if wire.is_empty() {
                self.unread &= !(1 << from);
            }
        }
        taken
    }

    fn next_due_us(&self) -> Option<u64> {
        let unread = self.unread | self.inbox().load(Ordering::Acquire);
        bits(unread).filter_map(|from| self.receivers[from].next_due_us()).min()
    }
}

/// The indexes of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        first
    })
}
