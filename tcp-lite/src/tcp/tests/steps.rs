//! Tests of the cost of one acknowledgement, measured as the number of segment records that are visited. A
//! peer with thousands of segments in flight must not be able to make us visit all of them again and again
//! (CVE-2019-11478).

use super::wire::*;
use crate::facade::TcpSeqNumber;
use crate::tcp::SegmentSlab;
use crate::tcp::send::Phase;
use crate::{Duration, TcpConfig};

const SEGMENT: usize = 20;
/// Number of segments in flight.
const SEGMENTS: usize = 2000;
/// Maximum number of records that may be visited for one SACK block, however many segments are in flight. The
/// number of steps of a search is about twice the logarithm of the number of segments, and each step reads
/// three records or places. The limit is a few records above the product.
const BOUND: u64 = 90;

/// A peer whose acknowledgements the test forges. The test gives an acknowledgement as a number of segments,
/// and a SACK block as a range of bytes.
struct Forger {
    pair: Pair,
    acked: usize,
    pushed: usize,
    /// The value that is echoed as TSecr; `None` if acknowledgements have no timestamps.
    echo: Option<u32>,
}

impl Forger {
    /// Returns a peer with [`SEGMENTS`] segments in flight.
    fn new() -> Self {
        let big = TcpConfig { recv_window_bytes: 1 << 20, send_buffer_bytes: 1 << 20, ..config() };
        let mut pair = Pair::new(big, big);
        pair.a.segments = SegmentSlab::new(16 * SEGMENTS, 16 * SEGMENTS);
        pair.a.connect(pair.now);
        pair.run_for(Duration::from_millis(100));
        let mut forger = Self { pair, acked: 0, pushed: 0, echo: None };
        for _ in 0..20 {
            forger.send(forger.acked + SEGMENTS - forger.pushed);
            if forger.sent() == forger.pushed {
                return forger;
            }
            forger.hear(forger.sent(), &[]);
        }
        panic!("{} of {} segments were sent", forger.sent(), forger.pushed);
    }

    /// Pushes `count` segments, and sends all segments that may be sent.
    fn send(&mut self, count: usize) {
        for _ in 0..count {
            self.pair.a.push(self.pair.now, &pattern(self.pushed * SEGMENT, SEGMENT)).unwrap();
            self.pushed += 1;
        }
        self.transmit();
    }

    fn sent(&self) -> usize {
        let sending = self.pair.a.tcb().sending();
        (sending.positions().nxt() - 1) as usize / SEGMENT
    }

    /// Sends all segments that may be sent. Returns the number of these segments, and the maximum number of
    /// records that were visited to find one segment.
    fn transmit(&mut self) -> (usize, u64) {
        let (mut count, mut most, now) = (0, 0, self.pair.now);
        loop {
            let (visits, sent) = self.pair.a.with(now, |tcb, ctx| {
                let before = ctx.segments.visits();
                let found = tcb.next_transmission(ctx);
                if let Some(found) = &found {
                    tcb.sent(ctx, found);
                }
                (ctx.segments.visits() - before, found.is_some())
            });
            most = most.max(visits);
            if !sent {
                return (count, most);
            }
            count += 1;
        }
    }

    fn seq(&self, byte: usize) -> TcpSeqNumber {
        self.pair.a.params.iss + 1 + byte
    }

    /// Passes an acknowledgement of `ack` segments to the sender, with these blocks of bytes. Returns the
    /// number of visited records.
    fn hear(&mut self, ack: usize, blocks: &[(usize, usize)]) -> u64 {
        self.pair.now += Duration::from_millis(1);
        self.acked = ack;
        let side = Side::B;
        let mut packet = self.pair.log.iter().rev().find(|(_, from, _)| *from == side).unwrap().2.clone();
        packet.header.flags = Default::default();
        packet.header.seq = self.pair.b.params.iss + 1;
        packet.header.ack = Some(self.seq(ack * SEGMENT));
        packet.header.options.sack.clear();
        for (start, end) in blocks {
            packet.header.options.sack.push((self.seq(*start), self.seq(*end)));
        }
        let value = packet.header.options.timestamps.map_or(0, |(value, _)| value);
        packet.header.options.timestamps = self.echo.map(|echo| (value, echo));
        let now = self.pair.now;
        self.pair.a.with(now, |tcb, ctx| {
            let before = ctx.segments.visits();
            let buf = ctx.pool.alloc().expect("a buffer");
            let _ = tcb.on_segment(ctx, &packet.header, packet.ecn, (buf, 1));
            ctx.segments.visits() - before
        })
    }

    fn phase(&self) -> Phase {
        self.pair.a.tcb().sending().phase()
    }
}

/// Returns a block of one byte inside a segment.
fn inside(segment: usize) -> (usize, usize) {
    (segment * SEGMENT + 1, segment * SEGMENT + 2)
}

fn whole(from: usize, to: usize) -> (usize, usize) {
    (from * SEGMENT, to * SEGMENT)
}

#[test]
fn blocks_without_a_segment_cost_the_same_however_far_away_they_are() {
    let mut forger = Forger::new();
    let (first, last) = (forger.acked, forger.pushed - 1);
    // When the first block arrives after segments were sent, these segments get their places, once.
    let steps = forger.hear(first, &[inside(last)]);
    assert!(steps <= 10 * SEGMENTS as u64, "{steps}");
    for at in (first..=last).chain([first, last, first]) {
        let steps = forger.hear(first, &[inside(at)]);
        assert!(steps <= BOUND, "{at} of {first}..={last}: {steps}");
    }
    let middle = usize::midpoint(first, last);
    for nr in 0..200 {
        let blocks = [inside(last - nr), inside(middle - nr), inside(last), inside(first + nr)];
        let steps = forger.hear(first, &blocks);
        assert!(steps <= 4 * BOUND, "four blocks: {steps}");
    }
}

#[test]
fn blocks_of_every_other_segment_are_marked_and_cost_the_same() {
    // The blocks arrive in three orders: from the front, from the end (so that each block is before all known
    // blocks), and from both ends.
    for order in 0..3 {
        let mut forger = Forger::new();
        let (first, last) = (forger.acked, forger.pushed - 1);
        let mut long = 0;
        for nr in 0..SEGMENTS / 2 - 1 {
            let at = match order {
                0 => first + 1 + 2 * nr,
                1 => last - 2 * nr,
                _ if nr % 2 == 0 => first + 1 + 2 * nr,
                _ => last - 2 * nr,
            };
            long += u64::from(forger.hear(first, &[whole(at, at + 1)]) > BOUND);
            let (_, most) = forger.transmit();
            assert!(most <= 10, "order {order}: {most} to find the next segment, after {nr}");
        }
        // Only acknowledgements after which segments are marked lost visit many records.
        assert!(long <= 4, "order {order}: {long} acknowledgements with a long walk");
    }
}

/// An honest peer repeats each block in up to four acknowledgements.
#[test]
fn blocks_that_are_repeated_cost_little() {
    let mut forger = Forger::new();
    let (first, last) = (forger.acked, forger.pushed - 1);
    forger.hear(first, &[inside(first)]);
    let (mut total, count) = (0, SEGMENTS / 2 - 4);
    let at = |nr: usize| whole(last - 2 * nr, last - 2 * nr + 1);
    for nr in 3..count + 3 {
        let steps = forger.hear(first, &[at(nr), at(nr - 1), at(nr - 2), at(nr - 3)]);
        total += steps;
        forger.transmit();
    }
    // Of four blocks in an acknowledgement, one block is searched for, and three blocks are known. In
    // addition, segments are marked lost.
    let each = total / count as u64;
    assert!(each <= BOUND + 30, "{each} for each acknowledgement");
}

/// The limit holds for any order of arrivals, and for any repetition of blocks by the peer.
#[test]
fn what_has_arrived_is_passed_in_few_steps() {
    type Order = fn(usize) -> usize;
    let orders: [Order; 4] = [|nr| nr, |nr| 1499 - nr, |nr| nr * 7 % 1500, |nr| nr * 701 % 1500];
    for order in orders {
        let mut forger = Forger::new();
        let first = forger.acked;
        let mut total = forger.hear(first, &[inside(first)]);
        for nr in (0..1500).map(order) {
            total += forger.hear(first, &[whole(first + 1 + nr, first + 2 + nr)]);
        }
        for nr in 0..1500 {
            // The blocks begin at each segment, in an order that does not depend on the order of arrival.
            let from = first + 1 + nr * 1103 % 1500;
            total += forger.hear(first, &[whole(from, first + 1501), whole(first + 1, from)]);
        }
        let most = 10 * SEGMENTS as u64 + 4500 * BOUND;
        assert!(total <= most, "{total} records, the limit is {most}");
    }
}

#[test]
fn a_block_that_is_far_away_is_marked_at_once() {
    let mut forger = Forger::new();
    let (first, last) = (forger.acked, forger.pushed - 1);
    forger.hear(first, &[inside(first)]);
    let outstanding = forger.pair.a.tcb().sending().bytes_in_pipe();
    let steps = forger.hear(first, &[whole(last, last + 1)]);
    assert!(steps <= BOUND, "{steps}");
    assert!(forger.pair.a.tcb().sending().bytes_in_pipe() < outstanding);
}

#[test]
fn a_hole_that_is_filled_joins_its_neighbours_without_a_walk_along_them() {
    let mut forger = Forger::new();
    let first = forger.acked;
    let (one, other) = (whole(first + 1, first + 900), whole(first + 901, first + 1800));
    forger.hear(first, &[one]);
    forger.hear(first, &[other, one]);
    let steps = forger.hear(first, &[whole(first + 1, first + 1800)]);
    assert!(steps <= BOUND, "{steps}");
    let steps = forger.hear(first, &[whole(first + 1, first + 1801)]);
    assert!(steps <= BOUND, "and grows at its end: {steps}");
}

#[test]
fn recoveries_that_are_undone_again_and_again_do_not_walk_along_all_each_time() {
    let mut forger = Forger::new();
    let first = forger.acked;
    // The peer makes a segment seem lost, and then reports its retransmission as a duplicate.
    let (mut total, rounds) = (0, 200);
    let block = whole(first + 3, first + 503);
    for _ in 0..rounds {
        forger.send(2);
        let end = forger.sent();
        total += forger.hear(first, &[whole(end - 1, end), block]);
        total += forger.transmit().1;
        total += forger.hear(first, &[whole(first + 3, first + 502), block]);
        total += forger.transmit().1;
    }
    let undone = forger.pair.a.counters.spurious_recoveries;
    assert!(undone >= 2, "{undone} undone, {:?}", forger.phase());
    // The limit allows a few visits of all segments, and [`BOUND`] visits for each other acknowledgement.
    let most = 40 * SEGMENTS as u64 + 2 * rounds as u64 * BOUND;
    assert!(total <= most, "{total} records in {rounds} rounds, {undone} undone");
}

#[test]
fn what_is_lost_again_and_again_at_the_front_does_not_hide_what_is_lost_at_the_end() {
    let mut forger = Forger::new();
    let (first, last) = (forger.acked, forger.pushed - 1);
    // All segments arrive except the first segment, one segment near the end, and the last two segments.
    // After that, new segments arrive again and again before the retransmission of the first segment.
    let blocks = [whole(first + 1, last - 4), whole(last - 3, last - 1)];
    forger.hear(first, &blocks);
    forger.transmit();
    let mut long = 0;
    for nr in 0..50 {
        forger.send(4);
        let end = forger.pushed;
        let steps = forger.hear(first, &[whole(end - 2 - nr % 2, end - nr % 2), blocks[0], blocks[1]]);
        long += u64::from(steps > 3 * BOUND);
        let (_, most) = forger.transmit();
        assert!(most <= 10, "{most} to find the next segment, after {nr}");
    }
    let counters = forger.pair.a.counters;
    assert!(long <= 5 && counters.lost_retransmits > 5, "{long}, {}", counters.lost_retransmits);
}

#[test]
fn the_segment_of_a_tail_loss_probe_is_known() {
    let mut forger = Forger::new();
    // More segments wait, but the peer's window has no room for them. Therefore the probe is the segment that
    // was sent last.
    let first = forger.acked + 1;
    forger.hear(first, &[]);
    forger.transmit();
    let due = forger.pair.a.tcb().deadline().expect("a timer");
    forger.pair.now = due;
    forger.pair.a.with(due, |tcb, ctx| tcb.on_timer(ctx));
    let (sent, most) = forger.transmit();
    assert_eq!(forger.pair.a.counters.tail_loss_probes, 1);
    assert!(sent >= 1 && most <= 10, "{most} to find the last segment");
}
