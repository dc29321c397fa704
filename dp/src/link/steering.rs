//! The wires of one end: chooses the wire of a frame to send, and finds the wires with frames to receive.
//!
//! A receiving queue has a wire from each queue that may send to it. With more than one wire, each sender
//! sets its bit in the inbox of the receiving queue. So a poll reads one word, and then only the wires with
//! frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wire::{Receiver, Sender};
use crate::rss::RSS_KEY_BYTES;
use crate::{Burst, Flow, Mbuf, Rss, RssFields};

/// Maximum queues of an end: each has one bit of a word.
pub const MAX_QUEUES: usize = 64;

/// Entries of the redirection table: a common number for NICs.
const TABLE_ENTRIES: usize = 128;

/// How a link with [several queues](super::queues) chooses the receiving queue of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSteering {
    /// By a hash of addresses and TCP ports, as a NIC does: [`Rss`]. Frames without a TCP segment go to the
    /// first queue.
    #[default]
    Rss,
    /// To the queue with the same number as the sending queue, as vhost-user does. The ports announce no
    /// rule.
    SenderQueue,
}

impl LinkSteering {
    /// The rule that both ends announce.
    pub(super) fn announced(self, queues: usize) -> Option<Rss> {
        if self == Self::SenderQueue || queues == 1 {
            return None;
        }
        // An arbitrary key without regularity.
        let key: Vec<u8> = (0..RSS_KEY_BYTES).map(|at| (at as u8).wrapping_mul(167) ^ 0x6d).collect();
        let table: Vec<u16> = (0..TABLE_ENTRIES).map(|entry| (entry % queues) as u16).collect();
        Rss::new(&key, &table, RssFields::Ports, RssFields::Ports)
    }
}

/// A bit for each sending queue that has put frames on its wire to this receiving queue. In its own cache
/// line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Inbox(AtomicU64);

/// The wires of one queue, in both directions.
pub(super) trait Wires: Send {
    /// The number of the wire for the first of these frames, and how many of the leading frames use the same
    /// wire.
    fn choose(&mut self, frames: &Burst) -> (usize, usize);

    /// The sending end of a wire.
    fn sender(&self, wire: usize) -> &Sender;

    /// The sending end of a wire, mutable.
    fn sender_mut(&mut self, wire: usize) -> &mut Sender;

    /// Shows the receiving queues the frames sent since the last call.
    fn flush(&mut self);

    /// The receiving ends.
    fn receivers(&self) -> &[Receiver];

    /// Passes due frames to `deliver`, at most `room` frames.
    fn receive(&mut self, now_us: u64, room: usize, deliver: impl FnMut(Mbuf)) -> usize;

    /// When the next frame may be due.
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

/// Wires to and from each queue of the other end.
pub(super) struct Mesh {
    senders: Box<[Sender]>,
    receivers: Box<[Receiver]>,
    rss: Rss,
    /// The number of our queue.
    index: usize,
    /// The flow of the last frame sent, and its queue: saves the hash for further frames of the flow.
    last: Option<(Flow, usize)>,
    /// The inboxes of both ends, our end's first.
    inboxes: [Arc<[Inbox]>; 2],
    /// The queues that frames were sent to since the last flush, as bits.
    unflushed: u64,
    /// The wires on which frames may wait, as bits, from the inbox's last reading.
    unread: u64,
    /// The wire that is read first.
    turn: u32,
}

impl Mesh {
    /// The wires of the queue `index`.
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
        // Load first: a swap in each poll would take the cache line away from the senders.
        if self.inbox().load(Ordering::Relaxed) != 0 {
            self.unread |= self.inbox().swap(0, Ordering::Acquire);
        }
        let mut taken = 0;
        for from in bits(self.unread.rotate_right(self.turn)) {
            let from = (from as u32 + self.turn) % u64::BITS;
            if taken == room {
                // The first wire that was not read for this burst.
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

/// The positions of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        first
    })
}
