//! Bytes ahead of the frontiers (the next expected bytes) of all connections: their ranges, the memory that
//! they occupy, and the policy for giving up this memory (RFC 2018 section 8).
//!
//! The policy:
//!
//! - These limits never refuse bytes in order, and such bytes are never given up. Bytes that the user has
//!   placed are never given up either. Only bytes that are ahead of a frontier and still held can be given
//!   up.
//! - A connection at its own limit ([`TcpConfig::out_of_order_bytes`](crate::TcpConfig)) loses the bytes
//!   furthest from its frontier. The lost bytes are held bytes beyond the new segment, or else the new
//!   segment itself.
//! - At 7/8 of the stack's limit ([`Limits::out_of_order_bytes`](crate::Limits)), or with less than 3/16 of
//!   the pool's buffers free, the stack asks the connections that hold the most memory to give up bytes. The
//!   stack asks for as many bytes as have to be freed until at most 3/4 of the limit are used and a quarter
//!   of the pool is free. Each connection is asked for at most half of the memory that it holds, and gives up
//!   the bytes furthest from its frontier. If these bytes are the new segment of the connection that holds
//!   the most, the stack refuses that segment and asks no connection. Thus no connection keeps memory merely
//!   because it was the first, and a connection with a small hole makes progress. The requests free more
//!   memory than necessary, so that the next segment does not cause new requests.
//! - At the limit itself, or with less than an eighth of the buffers free, the users did not or could not
//!   give up enough. In this case, new out-of-order segments are refused, as if they had been lost.
//!
//! Bytes that were given up count as not received: they are removed from the ranges and the SACK blocks, and
//! may arrive again. Memory is counted in bytes of packet buffers if the user reports these bytes, and
//! otherwise in bytes of payload.

use std::num::NonZeroU32;

use arrayvec::ArrayVec;
use dp::Mempool;
use dp::mbuf::HEADROOM;
use slab::Slab;

use super::ranges::Ranges;
use crate::id::ConnId;
use crate::invariant::{Check, ensure};

/// Maximum number of connections that are asked at a time. The number is large enough to free the memory
/// within a few rounds, and small enough for the event queue.
pub(crate) const MAX_EVICTION_REQUESTS: usize = 8;

/// Maximum number of connections that are compared for one segment. If there are at most this many
/// connections, the connections that hold the most are found exactly. If there are more, each comparison
/// continues with the next connections, so a peer with thousands of connections cannot make each segment cost
/// a visit of all connections.
const MAX_COMPARED: usize = 256;

/// The key of a range set: the slab index plus one, so that an `Option` of a key is no larger than a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct RangesKey(NonZeroU32);

impl RangesKey {
    fn of(record: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(record as u32))
    }

    #[inline]
    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Range sets of the connections that have a hole, and the memory that those connections hold.
pub(crate) struct OutOfOrderSlab {
    records: Slab<Ranges>,
    /// The holders, with the same indices as `records`. The holder of a free record holds no bytes.
    holders: Vec<Holder>,
    limit: usize,
    /// The stack's limit in bytes.
    bound: u64,
    /// Number of bytes that all holders together are charged for.
    charged: u64,
    /// Number of requests that the user has not taken from the event queue.
    asked: usize,
    /// The holder at which the next comparison begins.
    next_compared: usize,
}

#[derive(Clone, Copy)]
struct Holder {
    conn: ConnId,
    /// Number of bytes of memory that the connection is charged for: the bytes that it holds or the bytes
    /// that it pins, whichever are more.
    charged: u32,
    /// Number of bytes of payload that the connection holds.
    held: u32,
}

/// Whether there is memory for more out-of-order bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Room {
    Plenty,
    /// The bytes are accepted, but this many bytes of memory should be freed.
    Tight(u64),
    /// The stack is at its limit, so the bytes are not accepted. This many bytes of memory should be freed.
    Full(u64),
    /// Like [`Full`](Self::Full), but because too few packet buffers are free.
    NoBuffers(u64),
}

impl OutOfOrderSlab {
    /// A slab with memory for `limit` connections with holes. Together these connections keep at most `bytes`
    /// bytes, and at most three eighths of `pool`. Transmission may use half of the pool, and an eighth stays
    /// free for reception.
    pub(crate) fn new(limit: usize, bytes: u64, pool: &Mempool) -> Self {
        let most = pool.capacity() as u64 * buffer_bytes(pool) * 3 / 8;
        Self {
            records: Slab::with_capacity(limit),
            holders: Vec::with_capacity(limit),
            limit,
            bound: bytes.min(most),
            charged: 0,
            asked: 0,
            next_compared: 0,
        }
    }

    /// Number of range sets in use.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// A range set for `conn`, which has no set yet; `None` at the limit.
    pub(in crate::tcp) fn take(&mut self, conn: ConnId) -> Option<RangesKey> {
        if self.records.len() >= self.limit {
            return None;
        }
        let key = self.records.insert(Ranges::default());
        let holder = Holder { conn, charged: 0, held: 0 };
        // Slab indices have no gaps, so a new index is the number of entries so far.
        match self.holders.get_mut(key) {
            Some(place) => *place = holder,
            None => self.holders.push(holder),
        }
        Some(RangesKey::of(key))
    }

    pub(in crate::tcp) fn remove(&mut self, key: RangesKey) {
        self.charge(key, 0, 0);
        self.records.remove(key.record());
    }

    #[inline]
    pub(in crate::tcp) fn get(&self, key: RangesKey) -> &Ranges {
        &self.records[key.record()]
    }

    #[inline]
    pub(in crate::tcp) fn get_mut(&mut self, key: RangesKey) -> &mut Ranges {
        &mut self.records[key.record()]
    }

    /// Called when the number of held bytes, or the number of pinned bytes that the user reports, has
    /// changed: updates the charge of the set's connection.
    pub(in crate::tcp) fn charge(&mut self, key: RangesKey, held: u64, pinned: u64) {
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let holder = &mut self.holders[key.record()];
        self.charged -= u64::from(holder.charged);
        (holder.charged, holder.held) = (bytes(held.max(pinned)), bytes(held));
        self.charged += u64::from(holder.charged);
    }

    /// Checks that `key` is the set of `conn`, which holds `held` bytes in `pinned` bytes of packet buffers.
    /// `frontier` and `edge` are those of the connection.
    pub(in crate::tcp) fn check_set(
        &self,
        key: RangesKey,
        conn: ConnId,
        (held, pinned): (u64, u64),
        (frontier, edge): (u64, u64),
    ) -> Check {
        let Some(ranges) = self.records.get(key.record()) else {
            return Err(format!("{key:?} is not there"));
        };
        ensure!(!ranges.is_empty(), "a set of ranges without any");
        ranges.check(frontier, edge)?;
        let holder = &self.holders[key.record()];
        ensure!(holder.conn == conn, "the ranges of {conn:?} belong to {:?}", holder.conn);
        let charged = (u64::from(holder.held), u64::from(holder.charged));
        ensure!(charged == (held, held.max(pinned)), "{charged:?} charged for {held} and {pinned} bytes");
        Ok(())
    }

    /// Checks that `holes` connections have a hole, and that `asked` requests wait in the event queue.
    pub(crate) fn check(&self, holes: usize, asked: usize) -> Check {
        ensure!(self.records.len() == holes, "{} sets of ranges, {holes} holes", self.records.len());
        let charged: u64 = self.holders.iter().map(|holder| u64::from(holder.charged)).sum();
        ensure!(self.charged == charged, "{} bytes charged of {charged}", self.charged);
        ensure!(self.asked == asked, "{} requests counted of {asked}", self.asked);
        let free = self.holders.iter().enumerate().filter(|(nr, _)| !self.records.contains(*nr));
        let idle = free.map(|(_, holder)| holder).all(|holder| (holder.charged, holder.held) == (0, 0));
        ensure!(idle, "a free set of ranges holds something");
        Ok(())
    }

    /// Whether there is memory if `bytes` more bytes are charged.
    pub(in crate::tcp) fn room(&self, pool: &Mempool, bytes: u64) -> Room {
        let (free, all) = (pool.available(), pool.capacity());
        let charged = self.charged + bytes;
        let missing = (all / 4).saturating_sub(free) as u64 * buffer_bytes(pool);
        let need = missing.max(charged.saturating_sub(self.bound / 4 * 3));
        if free < all / 8 {
            Room::NoBuffers(need)
        } else if charged > self.bound {
            Room::Full(need)
        } else if free < all / 16 * 3 || charged > self.bound / 8 * 7 {
            Room::Tight(need)
        } else {
            Room::Plenty
        }
    }

    /// The connections to ask so that `need` bytes of memory become free. For each connection, the list has
    /// the number of payload bytes that it should give up. The list is empty while the user has not taken all
    /// earlier requests.
    pub(in crate::tcp) fn request_eviction(
        &mut self,
        need: u64,
    ) -> ArrayVec<(ConnId, usize), MAX_EVICTION_REQUESTS> {
        let mut asked = ArrayVec::new();
        if self.asked > 0 {
            return asked;
        }
        let mut left = need;
        for holder in self.largest() {
            if left == 0 {
                break;
            }
            let (charged, held) = (u64::from(holder.charged), u64::from(holder.held));
            let free = left.min(charged.div_ceil(2));
            left -= free;
            asked.push((holder.conn, (free * held).div_ceil(charged) as usize));
        }
        self.asked = asked.len();
        asked
    }

    /// Whether no compared connection is charged more than the connection of this set.
    pub(in crate::tcp) fn is_charged_most(&mut self, key: RangesKey) -> bool {
        let charged = self.holders[key.record()].charged;
        self.compared().all(|holder| holder.charged <= charged)
    }

    /// The next holders to compare: at most [`MAX_COMPARED`] holders.
    fn compared(&mut self) -> impl Iterator<Item = &Holder> {
        let all = self.holders.len();
        let count = all.min(MAX_COMPARED);
        let first = if all > count { self.next_compared % all } else { 0 };
        self.next_compared = first + count;
        let (before, behind) = self.holders.split_at(first);
        behind.iter().chain(before).take(count)
    }

    /// Called when a connection is asked to give up its excess over its own limit.
    pub(in crate::tcp) fn on_eviction_requested(&mut self) {
        self.asked += 1;
    }

    /// Called when the user has taken a request from the event queue.
    pub(crate) fn on_eviction_request_taken(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// The compared connections that are charged the most, largest first.
    fn largest(&mut self) -> ArrayVec<Holder, MAX_EVICTION_REQUESTS> {
        let mut largest: ArrayVec<Holder, MAX_EVICTION_REQUESTS> = ArrayVec::new();
        for holder in self.compared().filter(|holder| holder.held > 0) {
            if largest.is_full() {
                if largest.last().is_some_and(|least| least.charged >= holder.charged) {
                    continue;
                }
                largest.pop();
            }
            let at = largest.partition_point(|other| other.charged >= holder.charged);
            largest.insert(at, *holder);
        }
        largest
    }
}

/// Number of bytes of memory of one packet buffer.
fn buffer_bytes(pool: &Mempool) -> u64 {
    (pool.data_bytes() + HEADROOM) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }

    /// A slab with a limit of 8000 bytes. `bytes` has the number of held bytes, and of bytes of buffers that
    /// they occupy, for each connection.
    fn holding(bytes: &[(u64, u64)]) -> OutOfOrderSlab {
        let pool = Mempool::heap("out_of_order", 64, 1024);
        let mut slab = OutOfOrderSlab::new(bytes.len().max(100), 8000, &pool);
        for (slot, &(held, pinned)) in bytes.iter().enumerate() {
            let key = slab.take(conn(slot as u32)).unwrap();
            slab.charge(key, held, pinned);
        }
        slab
    }

    #[test]
    fn the_largest_are_asked_for_half_of_what_they_hold() {
        let mut slab = holding(&[(500, 0), (3000, 0), (0, 0), (1000, 4000)]);
        // The requests are in bytes of payload. The last connection pins the most, four times the bytes that
        // it holds.
        assert_eq!(slab.request_eviction(3000).as_slice(), [(conn(3), 500), (conn(1), 1000)]);
        assert!(slab.request_eviction(3000).is_empty(), "once at a time");
        assert!(slab.is_charged_most(RangesKey::of(3)) && !slab.is_charged_most(RangesKey::of(1)));
        slab.on_eviction_request_taken();
        assert!(slab.request_eviction(3000).is_empty());
        slab.on_eviction_request_taken();
        assert_eq!(slab.request_eviction(1).as_slice(), [(conn(3), 1)]);
    }

    #[test]
    fn no_more_than_a_few_are_asked_at_a_time() {
        let mut slab = holding(&[(100, 0); 20]);
        let asked = slab.request_eviction(8000);
        assert_eq!(asked.len(), MAX_EVICTION_REQUESTS);
        assert!(asked.iter().all(|(_, bytes)| *bytes == 50));
    }

    #[test]
    fn of_many_connections_a_part_is_compared_for_each_segment_and_the_rest_for_the_next_ones() {
        let mut bytes = [(1, 0); 1000];
        (bytes[700], bytes[900]) = ((5, 0), (4, 0));
        let mut slab = holding(&bytes);
        let parts = 1000_usize.div_ceil(MAX_COMPARED);
        let mut slots = Vec::new();
        for _ in 0..parts {
            let part: Vec<_> = slab.compared().map(|holder| holder.conn.slot).collect();
            assert_eq!(part.len(), MAX_COMPARED);
            slots.extend(part);
        }
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), 1000, "none is left out");
        let most: Vec<bool> = (0..parts).map(|_| slab.is_charged_most(RangesKey::of(900))).collect();
        assert!(most.contains(&false), "one holds more: {most:?}");
        assert!((0..2 * parts).all(|_| slab.is_charged_most(RangesKey::of(700))));
        let mut asked = Vec::new();
        for _ in 0..parts {
            let requests = slab.request_eviction(1);
            asked.extend(requests.iter().map(|(conn, _)| conn.slot));
            requests.iter().for_each(|_| slab.on_eviction_request_taken());
        }
        assert!(asked.contains(&700) && asked.len() == parts, "{asked:?}");
        // If there are few connections, each comparison includes all of them.
        let mut slab = holding(&bytes[..MAX_COMPARED]);
        assert_eq!([(); 3].map(|()| slab.compared().next().map(|holder| holder.conn.slot)), [Some(0); 3]);
    }

    #[test]
    fn the_bound_and_the_pool_say_whether_there_is_room() {
        let pool = Mempool::heap("out_of_order", 64, 1024);
        let slab = holding(&[(2000, 0), (1000, 4900)]);
        assert_eq!(slab.room(&pool, 100), Room::Plenty);
        assert_eq!(slab.room(&pool, 101), Room::Tight(1001));
        assert_eq!(slab.room(&pool, 1100), Room::Tight(2000));
        assert_eq!(slab.room(&pool, 1101), Room::Full(2001));
        let buffer = buffer_bytes(&pool);
        let mut taken: Vec<_> = (0..52).map(|_| pool.alloc().unwrap()).collect();
        assert_eq!(slab.room(&pool, 1), Room::Plenty);
        taken.extend(pool.alloc());
        assert_eq!(slab.room(&pool, 1), Room::Tight(5 * buffer));
        taken.extend((0..4).map(|_| pool.alloc().unwrap()));
        assert_eq!(slab.room(&pool, 1), Room::NoBuffers(9 * buffer));
    }

    #[test]
    fn a_set_that_goes_takes_what_it_holds_with_it() {
        let mut slab = holding(&[(100, 0), (200, 0)]);
        slab.remove(RangesKey::of(0));
        assert_eq!((slab.charged, slab.len()), (200, 1));
        assert_eq!(slab.take(conn(7)), Some(RangesKey::of(0)));
        assert_eq!(
            slab.request_eviction(8000).as_slice(),
            [(conn(1), 100)],
            "who holds nothing is not asked"
        );
    }

    /// The result of [`OutOfOrderSlab::check_set`] for the set of connection 0, which has one range and holds
    /// 200 bytes in 500 bytes of buffers.
    fn check_set(slab: &OutOfOrderSlab) -> Check {
        slab.check_set(RangesKey::of(0), conn(0), (200, 500), (10, 100))
    }

    #[test]
    fn a_set_that_does_not_fit_its_connection_is_found() {
        type Break = fn(&mut OutOfOrderSlab);
        let broken: [(Break, &str); 7] = [
            (|slab| slab.remove(RangesKey::of(0)), "RangesKey(1) is not there"),
            (|slab| slab.records[0] = Ranges::default(), "a set of ranges without any"),
            (|slab| slab.records[0].insert(5, 8), "the range 5..8 behind 10"),
            (
                |slab| slab.holders[0].conn = conn(1),
                "the ranges of ConnId { slot: 0, generation: 0 } belong to",
            ),
            (|slab| slab.holders[0].held = 201, "(201, 500) charged for 200 and 500 bytes"),
            (|slab| slab.holders[0].charged = 200, "(200, 200) charged for 200 and 500 bytes"),
            (|slab| slab.charge(RangesKey::of(0), 0, 0), "(0, 0) charged for 200 and 500 bytes"),
        ];
        for (break_it, what) in broken {
            let mut slab = holding(&[(200, 500)]);
            slab.records[0].insert(20, 30);
            check_set(&slab).unwrap();
            break_it(&mut slab);
            assert_found(check_set(&slab), what);
        }
    }

    #[test]
    fn a_slab_whose_sums_do_not_fit_is_found() {
        type Break = fn(&mut OutOfOrderSlab);
        let broken: [(Break, &str); 6] = [
            (|slab| _ = slab.take(conn(5)), "2 sets of ranges, 1 holes"),
            (|slab| slab.charged += 1, "201 bytes charged of 200"),
            (|slab| slab.holders[0].charged = 100, "200 bytes charged of 100"),
            (|slab| slab.on_eviction_requested(), "1 requests counted of 0"),
            (
                |slab| {
                    slab.holders[1].charged = 7;
                    slab.charged += 7;
                },
                "a free set of ranges holds something",
            ),
            (|slab| slab.holders[1].held = 7, "a free set of ranges holds something"),
        ];
        for (break_it, what) in broken {
            let mut slab = holding(&[(200, 0), (300, 0)]);
            slab.remove(RangesKey::of(1));
            slab.check(1, 0).unwrap();
            break_it(&mut slab);
            assert_found(slab.check(1, 0), what);
        }
    }
}
