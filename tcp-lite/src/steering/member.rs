//! The state of one of the stacks of a host: its rings to the other stacks, and the state that all stacks
//! share. The *leader* is the stack that answers for the whole host, for example to ARP. The leader also
//! defends the host's addresses, and publishes the states of the addresses to the other stacks.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32};

use dp::{Mbuf, Queue};
use rtrb::{Consumer, Producer, RingBuffer};

use super::MAX_MEMBERS;
use super::atomic::{AtomicU64, Ordering};
use super::flow_table::{ClaimError, FlowHash, FlowTable};
use crate::StackConfig;
use crate::discovery::Heard;
use crate::four_tuple::FourTuple;
use crate::secrets::{KeyedState, Secrets};
use crate::udp::MAX_UDP_PORTS;

/// Maximum number of frames that wait in a ring from one stack to another. The number is the default size of
/// a device's receive ring. So this ring overflows only if the receiving stack is not polled for so long that
/// the device's receive ring would overflow as well.
const RING_FRAMES: usize = 1024;

/// The value of `Group::addresses` until the leader publishes the states of our addresses for the first time.
const UNSAID: u32 = u32::MAX;

/// An item that one stack hands to another.
#[derive(Debug)]
pub(crate) enum Handed {
    Frame(Mbuf),
    /// A neighbour that the leader has found.
    Heard(Heard),
}

/// Nothing was handed over: the ring is full, or the receiving stack is gone.
pub(crate) struct NotHanded;

/// The state that all stacks of one host share. [`Member::group`] creates it.
struct Group {
    keyed: KeyedState,
    flows: FlowTable,
    /// A bit for each stack that still exists.
    present: AtomicU64,
    /// The states of our addresses that the leader published last.
    addresses: AtomicU32,
    inboxes: Box<[Inbox]>,
    /// The UDP ports that each stack has open; 0 for no port.
    udp_ports: Box<[UdpPorts]>,
}

type UdpPorts = [AtomicU16; MAX_UDP_PORTS];

/// A bit for each stack that has put something into its ring to this stack. The bits have their own cache
/// line, because this stack reads them in each poll.
#[derive(Default)]
#[repr(align(128))]
struct Inbox(AtomicU64);

/// The state of one of several stacks of a host.
pub struct Member {
    index: u8,
    group: Arc<Group>,
    /// The rings to the other stacks, indexed by the stacks' numbers; `None` at our own number.
    to: Vec<Option<Producer<Handed>>>,
    from: Vec<Option<Consumer<Handed>>>,
    /// A bit for each stack to which something was handed since the last [`flush`](Self::flush).
    unflushed: u64,
    /// A bit for each stack whose ring to this stack may still have items that were visible when this stack
    /// last read its inbox.
    unread: u64,
    /// The number from which the search for the next ring to read starts.
    turn: u32,
    queue: Queue,
    /// The values of `present` and `addresses` at the last call of [`note_news`](Self::note_news).
    seen: (u64, u32),
}

impl Member {
    /// Creates the members of one host, one member for each queue of a device. All stacks have to have the
    /// same `config`.
    ///
    /// # Panics
    /// If there are no queues, or more than [`MAX_MEMBERS`] queues.
    pub fn group(config: &StackConfig, queues: &[Queue]) -> Vec<Self> {
        let count = queues.len();
        assert!((1..=MAX_MEMBERS).contains(&count), "a host has 1 to {MAX_MEMBERS} stacks");
        let group = Arc::new(Group {
            keyed: Secrets::new(config.seed).table_state(),
            flows: FlowTable::new(count * config.limits.connections),
            present: AtomicU64::new(u64::MAX >> (MAX_MEMBERS - count)),
            addresses: AtomicU32::new(UNSAID),
            inboxes: (0..count).map(|_| Inbox::default()).collect(),
            udp_ports: (0..count).map(|_| UdpPorts::default()).collect(),
        });
        let mut members: Vec<Self> = (0..count)
            .map(|index| Self {
                index: index as u8,
                group: Arc::clone(&group),
                to: Vec::with_capacity(count),
                from: Vec::with_capacity(count),
                unflushed: 0,
                unread: 0,
                turn: 0,
                queue: queues[index].clone(),
                seen: (u64::MAX >> (MAX_MEMBERS - count), UNSAID),
            })
            .collect();
        for from in 0..count {
            for to in 0..count {
                let ring = (from != to).then(|| RingBuffer::new(RING_FRAMES));
                let (producer, consumer) = ring.unzip();
                members[from].to.push(producer);
                members[to].from.push(consumer);
            }
        }
        members
    }

    /// The number of this stack, from 0.
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// Whether this stack is the leader of the host's stacks.
    pub(crate) fn leads(&self) -> bool {
        self.leader() == self.index
    }

    /// Whether this stack was the leader of the host's stacks at the last call of
    /// [`note_news`](Self::note_news).
    fn led(&self) -> bool {
        self.seen.0.trailing_zeros() as u8 == self.index
    }

    /// Whether a stack was removed, or the leader published other states of our addresses, since the last
    /// call of [`note_news`](Self::note_news).
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news() != self.seen
    }

    /// Resets [`has_news`](Self::has_news). Returns whether this stack has become the leader since the last
    /// call.
    pub(crate) fn note_news(&mut self) -> bool {
        let led = self.led();
        self.seen = self.news();
        self.led() && !led
    }

    #[inline]
    fn news(&self) -> (u64, u32) {
        let Group { present, addresses, .. } = &*self.group;
        (present.load(Ordering::Relaxed), addresses.load(Ordering::Relaxed))
    }

    /// The number of the stack that is the leader.
    pub(crate) fn leader(&self) -> u8 {
        // Relaxed is enough. If the leader was just removed, a frame for the leader is lost, as if the device
        // had dropped the frame.
        self.group.present.load(Ordering::Relaxed).trailing_zeros() as u8
    }

    // ---- connections ----

    /// The other stack that has this connection; `None` if no other stack has it.
    pub(crate) fn elsewhere(&self, tuple: &FourTuple) -> Option<u8> {
        self.group.flows.owner(self.hash(tuple)).filter(|owner| *owner != self.index)
    }

    /// Whether this stack has claimed the connection.
    pub(crate) fn has(&self, tuple: &FourTuple) -> bool {
        self.group.flows.owner(self.hash(tuple)) == Some(self.index)
    }

    /// Adds a connection of this stack to the flow table ([`FlowTable::claim`]).
    pub(crate) fn claim(&self, tuple: &FourTuple) -> Result<(), ClaimError> {
        self.group.flows.claim(self.hash(tuple), self.index)
    }

    /// Removes a connection of this stack from the flow table.
    pub(crate) fn release(&self, tuple: &FourTuple) {
        self.group.flows.release(self.hash(tuple), self.index);
    }

    /// Whether the device is expected to put the frames of this connection into the queue of this stack. True
    /// if the device's rule is not known.
    pub(crate) fn arrives_here(&self, tuple: &FourTuple) -> bool {
        let flow = || dp::Flow {
            src: (tuple.remote.into(), tuple.remote_port),
            dst: (tuple.local.into(), tuple.local_port),
        };
        self.queue.rss.as_ref().is_none_or(|rss| rss.queue(&flow()) == self.queue.index)
    }

    fn hash(&self, tuple: &FourTuple) -> FlowHash {
        FlowHash::new(self.group.keyed.hash_one(tuple))
    }

    // ---- the states of our addresses ----

    /// The states of our addresses that the leader published last; `None` if the leader has not published any
    /// states.
    pub(crate) fn addresses(&self) -> Option<u32> {
        Some(self.group.addresses.load(Ordering::Relaxed)).filter(|states| *states != UNSAID)
    }

    /// Publishes the states of our addresses to all stacks.
    pub(crate) fn publish_addresses(&self, states: u32) {
        if self.addresses() != Some(states) {
            self.group.addresses.store(states, Ordering::Relaxed);
        }
    }

    // ---- UDP ports ----

    /// The first of the other stacks that has this UDP port open; `None` if no other stack has it open.
    pub(crate) fn udp_owner(&self, port: u16) -> Option<u8> {
        let has = |ports: &UdpPorts| ports.iter().any(|open| open.load(Ordering::Relaxed) == port);
        if port == 0 {
            return None;
        }
        let all = self.group.udp_ports.iter().zip(0_u8..);
        all.filter(|(_, index)| *index != self.index).find(|(ports, _)| has(ports)).map(|(_, index)| index)
    }

    /// Tells the other stacks which UDP ports this stack has open; 0 for no port. A port keeps its place
    /// while it is open.
    pub(crate) fn publish_ports(&self, open: &[u16; MAX_UDP_PORTS]) {
        // Relaxed is enough. If a frame arrives while its port is opened or closed, the frame is handled as
        // if it had arrived a moment earlier or later.
        for (place, port) in self.group.udp_ports[usize::from(self.index)].iter().zip(open) {
            place.store(*port, Ordering::Relaxed);
        }
    }

    // ---- rings ----

    /// Puts `what` into the ring to stack `to`, which can read `what` after [`flush`](Self::flush). Returns
    /// an error if the ring is full or the stack is gone.
    pub(crate) fn hand(&mut self, to: u8, what: Handed) -> Result<(), NotHanded> {
        let ring = self.to.get_mut(usize::from(to)).and_then(Option::as_mut).ok_or(NotHanded)?;
        if ring.is_abandoned() {
            return Err(NotHanded);
        }
        ring.push(what).map_err(|_full| NotHanded)?;
        self.unflushed |= 1 << to;
        Ok(())
    }

    /// Reports a neighbour to all other stacks, except stacks that are gone or whose ring is full. A stack
    /// whose ring is full has to query the neighbour itself.
    pub(crate) fn publish(&mut self, heard: Heard) {
        for to in 0..self.to.len() {
            let _asks_by_itself = self.hand(to as u8, Handed::Heard(heard));
        }
    }

    /// Makes all items that were handed over visible to their receivers. Returns a mask of the stacks to wake
    /// if they sleep.
    pub(crate) fn flush(&mut self) -> u64 {
        let receivers = std::mem::take(&mut self.unflushed);
        let mut left = receivers;
        while left != 0 {
            let to = left.trailing_zeros() as usize;
            left &= left - 1;
            self.group.inboxes[to].0.fetch_or(1 << self.index, Ordering::Release);
        }
        receivers
    }

    /// Whether an item was handed to other stacks since the last [`flush`](Self::flush).
    #[inline]
    pub(crate) fn is_unflushed(&self) -> bool {
        self.unflushed != 0
    }

    /// Whether an item from another stack waits.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.unread != 0 || self.group.inboxes[usize::from(self.index)].0.load(Ordering::Acquire) != 0
    }

    /// Removes and returns the next item that another stack handed to this stack; `None` if no item waits.
    pub(crate) fn next_handed(&mut self) -> Option<Handed> {
        if self.unread == 0 {
            self.unread = self.group.inboxes[usize::from(self.index)].0.swap(0, Ordering::Acquire);
        }
        while self.unread != 0 {
            let from = self.first_unread();
            let handed = self.from[from as usize].as_mut().and_then(|ring| ring.pop().ok());
            if handed.is_some() {
                return handed;
            }
            self.unread &= !(1 << from);
        }
        None
    }

    /// Advances to the next stack, so that all stacks whose rings are not empty are served in turn.
    pub(crate) fn next_turn(&mut self) {
        if self.unread != 0 {
            self.turn = (self.first_unread() + 1) % u64::BITS;
        }
    }

    /// The first stack with a ring to read, searched from `turn` on.
    fn first_unread(&self) -> u32 {
        (self.unread.rotate_right(self.turn).trailing_zeros() + self.turn) % u64::BITS
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.publish_ports(&Default::default());
        self.group.flows.release_all(self.index);
        self.group.present.fetch_and(!(1 << self.index), Ordering::Relaxed);
    }
}
