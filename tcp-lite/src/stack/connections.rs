//! The slots of connections. The number of a slot is part of its connection's id, and names the connection in
//! the table, in the timer wheel and in the queues.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use super::arming::Unarmed;
use super::headers::LatestHeaders;
use crate::Deadline;
use crate::facade::IpAddress;
use crate::four_tuple::{FourTuple, Ipv4Key};
use crate::invariant::{Check, ensure};
use crate::secrets::KeyedState;
use crate::stack::{ConnId, ListenerId, SPARE_EVENTS, Stack};
use crate::table::{ConnTable, TupleHash};
use crate::tcp::{EVENTS_PER_CONNECTION, State, Tcb};
use crate::timer_wheel::TimerWheel;

pub(crate) struct Conn {
    pub(crate) tcb: Tcb,
    pub(crate) tuple: FourTuple,
    /// The neighbour to which the connection's frames are sent.
    pub(crate) next_hop: IpAddress,
    /// The listener that accepted the connection; `None` if we opened the connection.
    pub(crate) listener: Option<ListenerId>,
    /// True if the connection counts in the listener's backlog.
    pub(crate) half_open: bool,
    /// True if the connection is in `Connections::time_waits`.
    pub(crate) in_time_wait: bool,
    /// The time since which the Ethernet address of the next hop is unknown; no instant if it is known.
    pub(crate) unresolved_since: Deadline,
}

impl Conn {
    /// Whether calls on this connection can change only its timer and its queue, so that the timer may be set
    /// later.
    #[inline]
    pub(super) fn may_arm_later(&self) -> bool {
        self.tcb.state() == State::Established && !self.half_open
    }
}

/// The queue that the slot is in. The queue entry belongs to the slot, not to the connection: after a
/// connection has ended, the entry serves the slot's next connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    None,
    /// The connection has something to send.
    Ready,
    /// The connection has something to send, but the Ethernet address of the next hop is not known, or the
    /// local address is still being probed.
    Waiting,
}

#[derive(Default)]
struct ConnSlot {
    generation: u32,
    queue: Queue,
    /// True if the slot is in `Connections::unarmed`.
    unarmed: bool,
    /// The key of the connection; `None` over IPv6.
    key: Option<Ipv4Key>,
    conn: Option<Conn>,
}

/// Number of slots in one allocation. The number is large enough that allocations are rare, and small enough
/// that few slots of the last chunk are unused.
const CHUNK: usize = 64;

/// Slots in chunks that never move. A single array would have to be copied when it grows, and would be half
/// empty afterwards.
#[derive(Default)]
struct ConnSlots {
    chunks: Vec<Box<[ConnSlot; CHUNK]>>,
    /// The number of slots that were ever in use. The rest of the last chunk is unused.
    len: usize,
}

impl ConnSlots {
    fn len(&self) -> usize {
        self.len
    }

    /// Adds one slot, and allocates a chunk if the last chunk is full.
    fn grow(&mut self) {
        if self.len.is_multiple_of(CHUNK) {
            let chunk: Vec<_> = (0..CHUNK).map(|_| ConnSlot::default()).collect();
            self.chunks.extend(chunk.into_boxed_slice().try_into());
        }
        self.len += 1;
    }

    #[inline]
    fn get(&self, at: usize) -> Option<&ConnSlot> {
        Some(&self.chunks.get(at / CHUNK)?[at % CHUNK])
    }

    #[inline]
    fn get_mut(&mut self, at: usize) -> Option<&mut ConnSlot> {
        Some(&mut self.chunks.get_mut(at / CHUNK)?[at % CHUNK])
    }

    fn iter(&self) -> impl Iterator<Item = &ConnSlot> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).take(self.len)
    }
}

impl Index<usize> for ConnSlots {
    type Output = ConnSlot;

    #[inline]
    fn index(&self, at: usize) -> &ConnSlot {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl IndexMut<usize> for ConnSlots {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut ConnSlot {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

pub(crate) struct Connections {
    slots: ConnSlots,
    free: Vec<u32>,
    limit: usize,
    table: ConnTable,
    /// The slot that the next lookup tries first: usually the slot that was looked up last, because the next
    /// segment is often for the same connection.
    latest: u32,
    /// The headers of the connection over IPv4 that was served last; `None` before the first such connection.
    latest_headers: Option<LatestHeaders>,
    pub(crate) wheel: TimerWheel,
    ready: VecDeque<u32>,
    waiting: Vec<u32>,
    pub(super) unarmed: Unarmed,
    /// Connections in TIME-WAIT, oldest first. Entries of ended connections are removed only when they reach
    /// the front or when the queue is purged.
    time_waits: VecDeque<ConnId>,
}

/// A connection that was looked up, with the entries of its slot in the queues.
pub(crate) struct FoundConn<'a> {
    pub(crate) id: ConnId,
    pub(crate) conn: &'a mut Conn,
    queue: &'a mut Queue,
    is_unarmed: &'a mut bool,
    unarmed: &'a mut Unarmed,
    ready: &'a mut VecDeque<u32>,
}

impl FoundConn<'_> {
    /// Called after a call that left the connection in ESTABLISHED. If the connection has something to send,
    /// queues it now. The connection's timer is set later (`arming.rs`).
    #[inline]
    pub(crate) fn settle_and_arm_later(mut self) {
        debug_assert!(self.conn.may_arm_later(), "something else may follow");
        self.arm_later();
        if *self.queue == Queue::None && self.conn.tcb.wants_transmit() {
            self.make_ready();
        }
    }

    /// Called after segments were queued, like [`settle_and_arm_later`](Self::settle_and_arm_later), but in
    /// any state. The congestion window is checked when the connection is served.
    #[inline]
    pub(super) fn follow_up_push(&mut self) {
        self.arm_later();
        if *self.queue == Queue::None && (self.conn.tcb.may_send_pushed() || self.conn.tcb.wants_transmit()) {
            self.make_ready();
        }
    }

    /// Notes that the timer has to be set. A [short timer](Tcb::has_short_timer) is set at the end of the
    /// turn.
    #[inline]
    pub(super) fn arm_later(&mut self) {
        self.unarmed.add(self.id.slot, self.is_unarmed, self.conn.tcb.has_short_timer());
    }

    #[inline]
    fn make_ready(&mut self) {
        *self.queue = Queue::Ready;
        self.ready.push_back(self.id.slot);
    }
}

impl Connections {
    pub(crate) fn new(limit: usize, keyed: KeyedState) -> Self {
        Self {
            slots: ConnSlots::default(),
            free: Vec::new(),
            limit,
            table: ConnTable::new(keyed),
            latest: 0,
            latest_headers: None,
            wheel: TimerWheel::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            unarmed: Unarmed::default(),
            time_waits: VecDeque::new(),
        }
    }

    pub(crate) fn prefetch(&self, slot: usize) {
        if let Some(slot) = self.slots.get(slot) {
            dp::prefetch(slot);
        }
    }

    /// Whether a slot is free, or the limit allows another slot.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.limit
    }

    /// The id of the next connection in a free slot; `None` at the limit. Allocates memory if more
    /// connections exist than ever before.
    pub(crate) fn reserve(&mut self) -> Option<ConnId> {
        if !self.has_free() {
            return None;
        }
        if self.free.is_empty() {
            self.free.push(self.slots.len() as u32);
            self.slots.grow();
            self.reserve_queues(self.slots.len());
        }
        let slot = *self.free.last()?;
        Some(ConnId { slot, generation: self.slots[slot as usize].generation })
    }

    /// Allocates the queues for `count` slots.
    fn reserve_queues(&mut self, count: usize) {
        // If the capacity of the queues were doubled, half of it would stay unused.
        let most = count + (count / 16).max(CHUNK);
        if self.waiting.capacity() < count {
            self.wheel.reserve(most);
            self.ready.reserve_exact(most - self.ready.len());
            self.waiting.reserve_exact(most - self.waiting.len());
            self.unarmed.reserve(most);
            self.free.reserve_exact(most - self.free.len());
            // The queue has room for twice as many entries as there are slots, because it may contain stale
            // entries (see `enter_time_wait`).
            self.time_waits.reserve_exact(2 * most - self.time_waits.len());
        }
        self.wheel.grow(count);
    }

    /// Puts a connection into the slot that [`reserve`](Self::reserve) returned.
    pub(crate) fn insert(&mut self, id: ConnId, conn: Conn) {
        debug_assert_eq!(self.free.last(), Some(&id.slot));
        self.free.pop();
        self.table.insert(self.table.hash(&conn.tuple), id.slot);
        let place = &mut self.slots[id.slot as usize];
        place.key = Ipv4Key::of(&conn.tuple);
        place.conn = Some(conn);
    }

    /// Removes and returns a connection; `None` if the slot is free. The id of the connection is not valid
    /// any more.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<Conn> {
        let place = &mut self.slots[slot as usize];
        let conn = place.conn.take()?;
        place.key = None;
        place.generation = place.generation.wrapping_add(1);
        self.table.remove(self.table.hash(&conn.tuple), slot);
        self.wheel.set(slot, None);
        self.free.push(slot);
        Some(conn)
    }

    /// Notes that a connection is in TIME-WAIT. Called once for each connection.
    pub(crate) fn enter_time_wait(&mut self, id: ConnId) {
        if self.time_waits.len() >= 2 * self.slots.len() {
            // At least half of the entries are stale, so the cost of this pass is low for each entry that it
            // removes.
            let slots = &self.slots;
            self.time_waits.retain(|id| slots[id.slot as usize].generation == id.generation);
        }
        self.time_waits.push_back(id);
    }

    /// The slot of the connection that has been in TIME-WAIT for the longest time; `None` if no connection is
    /// in TIME-WAIT. Removes stale entries from the queue.
    pub(crate) fn oldest_time_wait(&mut self) -> Option<u32> {
        while let Some(id) = self.time_waits.front() {
            let slot = &self.slots[id.slot as usize];
            if slot.generation == id.generation && slot.conn.is_some() {
                return Some(id.slot);
            }
            self.time_waits.pop_front();
        }
        None
    }

    /// The slot of the connection with this 4-tuple; `None` if there is no such connection.
    pub(crate) fn find(&self, tuple: &FourTuple) -> Option<u32> {
        self.table.find(self.table.hash(tuple), |slot| self.has(slot, tuple))
    }

    /// Like [`find`](Self::find), for a received segment. The next call tries the same slot first, because
    /// more segments of the connection are likely to follow.
    pub(crate) fn find_next(&mut self, tuple: &FourTuple) -> Option<u32> {
        if !self.has(self.latest, tuple) {
            self.latest = self.find(tuple)?;
        }
        Some(self.latest)
    }

    /// Like [`find_next`](Self::find_next), for the key of a frame, but returns the connection.
    #[inline]
    pub(crate) fn find_next_ipv4(&mut self, key: &Ipv4Key) -> Option<FoundConn<'_>> {
        if self.slots.get(self.latest as usize).is_none_or(|place| place.key != Some(*key)) {
            self.latest = self.find(&key.tuple())?;
        }
        let place = &mut self.slots[self.latest as usize];
        let id = ConnId { slot: self.latest, generation: place.generation };
        let ConnSlot { conn: Some(conn), queue, unarmed: is_unarmed, .. } = place else { return None };
        Some(FoundConn { id, conn, queue, is_unarmed, unarmed: &mut self.unarmed, ready: &mut self.ready })
    }

    /// Whether the connection in `slot` has this 4-tuple.
    fn has(&self, slot: u32, tuple: &FourTuple) -> bool {
        let conn = self.slots.get(slot as usize).and_then(|slot| slot.conn.as_ref());
        conn.is_some_and(|conn| conn.tuple == *tuple)
    }

    /// Prefetches the table entry of a 4-tuple; returns the hash to pass to [`guess`](Self::guess).
    pub(crate) fn prefetch_slot_of(&self, tuple: &FourTuple) -> TupleHash {
        let hash = self.table.hash(tuple);
        self.table.prefetch(hash);
        hash
    }

    /// The slot of the connection that most likely has this hash; `None` if there is certainly no such
    /// connection.
    pub(crate) fn guess(&self, hash: TupleHash) -> Option<u32> {
        self.table.find(hash, |_| true)
    }

    /// Announces that the next segment probably belongs to the connection in `slot`.
    pub(crate) fn expect_next(&mut self, slot: u32) {
        self.latest = slot;
    }

    /// The slot of the connection with this id; `None` if the id is no longer valid for the user.
    pub(crate) fn live(&self, id: ConnId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize).filter(|s| s.generation == id.generation)?;
        slot.conn.as_ref().filter(|c| !c.tcb.is_closed_for_user()).map(|_| id.slot)
    }

    /// Like [`live`](Self::live), but returns the connection.
    #[inline]
    pub(super) fn find_live(&mut self, id: ConnId) -> Option<FoundConn<'_>> {
        let ConnSlot { generation, conn: Some(conn), queue, unarmed: is_unarmed, .. } =
            self.slots.get_mut(id.slot as usize)?
        else {
            return None;
        };
        if *generation != id.generation || conn.tcb.is_closed_for_user() {
            return None;
        }
        Some(FoundConn { id, conn, queue, is_unarmed, unarmed: &mut self.unarmed, ready: &mut self.ready })
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Conn> {
        self.slots[slot as usize].conn.as_ref()
    }

    /// The connection in a slot, with its id; `None` if the slot is free.
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<(ConnId, &mut Conn)> {
        let place = &mut self.slots[slot as usize];
        let id = ConnId { slot, generation: place.generation };
        place.conn.as_mut().map(|c| (id, c))
    }

    /// The connection in a slot, with the headers of the connection that was served last; `None` if the slot
    /// is free.
    #[inline]
    pub(super) fn get_to_serve(&mut self, slot: u32) -> Option<(FoundConn<'_>, &mut Option<LatestHeaders>)> {
        let Self { slots, unarmed, ready, latest_headers, .. } = self;
        let ConnSlot { generation, conn: Some(conn), queue, unarmed: is_unarmed, .. } =
            &mut slots[slot as usize]
        else {
            return None;
        };
        let id = ConnId { slot, generation: *generation };
        Some((FoundConn { id, conn, queue, is_unarmed, unarmed, ready }, latest_headers))
    }

    /// The id of the present connection in a slot.
    pub(super) fn id(&self, slot: u32) -> ConnId {
        ConnId { slot, generation: self.slots[slot as usize].generation }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The slots in use, with their connections. The iterator visits every slot, so this function is only for
    /// rare calls.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (u32, &Conn)> {
        self.slots.iter().enumerate().filter_map(|(n, s)| s.conn.as_ref().map(|c| (n as u32, c)))
    }

    /// Number of slots, in use or not.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Appends a slot to the ready queue, unless the slot is already in the ready queue or in the waiting
    /// queue.
    pub(crate) fn make_ready(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if place.queue == Queue::None {
            place.queue = Queue::Ready;
            self.ready.push_back(slot);
        }
    }

    /// Like [`FoundConn::settle_and_arm_later`]. If the slot is free, or the timer [must not be set
    /// later](Conn::may_arm_later), does nothing and returns `false`.
    pub(crate) fn settle_and_arm_later(&mut self, slot: u32) -> bool {
        let ConnSlot { generation, conn: Some(conn), queue, unarmed: is_unarmed, .. } =
            &mut self.slots[slot as usize]
        else {
            return false;
        };
        if !conn.may_arm_later() {
            return false;
        }
        let id = ConnId { slot, generation: *generation };
        FoundConn { id, conn, queue, is_unarmed, unarmed: &mut self.unarmed, ready: &mut self.ready }
            .settle_and_arm_later();
        true
    }

    /// Removes and returns the first slot of the ready queue; `None` if the queue is empty.
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        let slot = self.ready.pop_front()?;
        self.slots[slot as usize].queue = Queue::None;
        Some(slot)
    }

    /// Puts a slot that could not send back to the front of the ready queue.
    pub(crate) fn requeue_front(&mut self, slot: u32) {
        self.slots[slot as usize].queue = Queue::Ready;
        self.ready.push_front(slot);
    }

    /// Adds a slot to the waiting slots, where it stays until [`wake_waiting`](Self::wake_waiting) is called.
    pub(crate) fn wait(&mut self, slot: u32) {
        self.slots[slot as usize].queue = Queue::Waiting;
        self.waiting.push(slot);
    }

    /// Moves all waiting slots to the ready queue, because the connections may be able to send now.
    pub(crate) fn wake_waiting(&mut self) {
        for slot in self.waiting.drain(..) {
            self.slots[slot as usize].queue = Queue::Ready;
            self.ready.push_back(slot);
        }
    }

    /// Notes that the timer of a slot has to be set later (`arming.rs`). If the slot is free, or the timer
    /// [must not be set later](Conn::may_arm_later), changes nothing and returns `false`.
    #[inline]
    pub(crate) fn arm_later(&mut self, slot: u32) -> bool {
        let place = &mut self.slots[slot as usize];
        let Some(conn) = place.conn.as_ref().filter(|conn| conn.may_arm_later()) else { return false };
        self.unarmed.add(slot, &mut place.unarmed, conn.tcb.has_short_timer());
        true
    }

    /// Whether the timer of this slot still has to be set.
    pub(crate) fn is_unarmed(&self, slot: u32) -> bool {
        self.slots[slot as usize].unarmed
    }

    /// Removes and returns a slot whose timer has to be set; `None` if there is none.
    pub(crate) fn next_unarmed(&mut self) -> Option<u32> {
        let slot = self.unarmed.take()?;
        self.slots[slot as usize].unarmed = false;
        Some(slot)
    }

    /// Checks that the slots, the table, the queues and the timers are consistent.
    pub(super) fn check(&self) -> Check {
        let occupied = self.occupied().count();
        self.table.check(occupied)?;
        self.wheel.check()?;
        ensure!(self.free.len() + occupied == self.slots.len(), "{} free slots", self.free.len());
        let twice = self.free.iter().any(|slot| self.slots[*slot as usize].conn.is_some());
        ensure!(!twice, "a slot is free and in use");
        let (ready, waiting) = (self.queued(Queue::Ready), self.queued(Queue::Waiting));
        let queues = (self.ready.len(), self.waiting.len());
        ensure!(queues == (ready, waiting), "{queues:?} queued of {:?}", (ready, waiting));
        let is = |slot: &u32, queue| self.slots[*slot as usize].queue == queue;
        let fit = self.ready.iter().all(|slot| is(slot, Queue::Ready))
            && self.waiting.iter().all(|slot| is(slot, Queue::Waiting));
        ensure!(fit, "a slot in another queue than it says");
        let marked = self.slots.iter().filter(|slot| slot.unarmed).count();
        let fit = self.unarmed.iter().all(|slot| self.slots[slot as usize].unarmed);
        ensure!(fit && marked == self.unarmed.iter().len(), "{marked} slots are marked as unarmed");
        let wrong = self
            .slots
            .iter()
            .position(|slot| slot.key != slot.conn.as_ref().and_then(|conn| Ipv4Key::of(&conn.tuple)));
        ensure!(wrong.is_none(), "slot {wrong:?} has the key of another connection");
        for (slot, conn) in self.occupied() {
            ensure!(self.find(&conn.tuple) == Some(slot), "slot {slot} is not found");
            let deadline = conn.tcb.deadline().map(|at| u64::try_from(at.total_micros()).unwrap_or(0));
            let set = self.wheel.deadline_us(slot);
            let unarmed = self.slots[slot as usize].unarmed;
            ensure!(unarmed || set == deadline, "the timer of slot {slot} is at {set:?}, not {deadline:?}");
            let state = conn.tcb.state();
            ensure!(!conn.half_open || state == State::SynReceived, "half-open in {state:?}");
            ensure!(conn.in_time_wait == (state == State::TimeWait), "slot {slot} in {state:?}");
            ensure!(!conn.tcb.is_droppable(), "slot {slot} has a dead connection");
        }
        Ok(())
    }

    fn queued(&self, queue: Queue) -> usize {
        self.slots.iter().filter(|slot| slot.queue == queue).count()
    }

    pub(crate) fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl Stack {
    /// Whether the event queue has capacity for another connection. The connections of one slot may have
    /// queued many events since the user last took events. Therefore no connection starts while
    /// `Limits::events` events wait. In this case, each existing connection may add at most
    /// [`EVENTS_PER_CONNECTION`] events, apart from [`Event::Evict`](crate::Event::Evict).
    pub(super) fn takes_connections(&self) -> bool {
        self.events.len() < self.config.limits.events
    }

    /// Whether [`reserve`](Self::reserve) would return a slot.
    pub(super) fn has_place(&mut self) -> bool {
        self.takes_connections()
            && (self.connections.has_free() || self.connections.oldest_time_wait().is_some())
    }

    /// Reserves a slot for a new connection, with capacity for its events. If no slot is free, drops the
    /// oldest connection in TIME-WAIT. Without this rule, a peer could use up all slots by making us close
    /// many connections. Returns `None` if too many events wait, or if no connection can be dropped.
    pub(super) fn reserve(&mut self) -> Option<ConnId> {
        if !self.takes_connections() {
            return None;
        }
        let id = self.reserve_slot()?;
        let slots = self.connections.slots() as usize;
        let most = |slots: usize, each: usize| self.config.limits.events + SPARE_EVENTS + slots * each;
        if self.events.capacity() < most(slots, EVENTS_PER_CONNECTION) {
            // The queue grows by one chunk at a time. If it doubled its size, half of the queue would be
            // empty.
            let slots = slots + CHUNK;
            self.events.grow(most(slots, EVENTS_PER_CONNECTION), most(slots, 1));
        }
        Some(id)
    }

    fn reserve_slot(&mut self) -> Option<ConnId> {
        let free = self.connections.reserve();
        if free.is_some() {
            return free;
        }
        let oldest = self.connections.oldest_time_wait()?;
        self.counters.time_wait_recycled += 1;
        self.forget(self.now, oldest);
        self.connections.reserve()
    }
}
