use super::super::SendQueue;
use super::super::test_queue::{FiveSegments, TestQueue, assert_all_found};
use super::*;
use crate::tcp::send::ack_sample::RetransmitFilter;
use crate::tcp::slabs::Place;

const LEN: u64 = 100;

fn at(ms: i64) -> Instant {
    Instant::from_millis(ms)
}

/// Returns a queue of `count` segments that were sent at intervals of a millisecond.
fn queue(count: i64) -> (SegmentSlab, SendQueue) {
    let TestQueue { slab, queue, .. } = test_queue(count);
    (slab, queue)
}

fn test_queue(count: i64) -> TestQueue {
    let mut made = TestQueue::new(64);
    for nr in 0..count {
        assert!(made.send(LEN as usize, at(nr)));
    }
    made
}

fn sample() -> AckSample {
    AckSample::new(RetransmitFilter { echo_ms: None, horizon: at(1 << 20) })
}

/// Returns the first position of segment `from`, and the end of segment `to - 1`.
fn span(from: u64, to: u64) -> (u64, u64) {
    (1 + from * LEN, 1 + to * LEN)
}

/// Marks the segments in a block as selectively acknowledged. Returns the number of segments that
/// were not marked before.
fn sack(slab: &mut SegmentSlab, queue: &mut SendQueue, (start, end): (u64, u64)) -> u64 {
    let mut sample = sample();
    queue.sent().sack(slab, (start, end), &mut sample);
    queue.check(slab).expect("invariants");
    sample.delivered / LEN
}

#[test]
fn blocks_mark_what_is_wholly_inside_and_count_once() {
    let (mut slab, mut queue) = queue(12);
    assert_eq!(sack(&mut slab, &mut queue, span(5, 7)), 2);
    assert_eq!(sack(&mut slab, &mut queue, span(5, 7)), 0);
    assert_eq!(sack(&mut slab, &mut queue, span(5, 9)), 2, "grown at its end");
    assert_eq!(sack(&mut slab, &mut queue, span(3, 9)), 2, "and in front");
    assert_eq!(sack(&mut slab, &mut queue, (span(9, 9).0, span(9, 11).1 - 1)), 1, "the last is not whole");
    assert_eq!(sack(&mut slab, &mut queue, span(9, 11)), 1, "now it is");
    assert_eq!(sack(&mut slab, &mut queue, (span(0, 0).0 + 50, span(0, 2).1)), 1, "nor was the first");
    assert_eq!(sack(&mut slab, &mut queue, span(0, 2)), 1);
    assert_eq!(queue.scoreboard.sacked_segments, 10);
}

#[test]
fn no_walk_begins_at_a_segment_that_has_left_the_queue() {
    let (mut slab, mut queue) = queue(20);
    // Each search is followed by an acknowledgement of the segments that the search found.
    assert_eq!(sack(&mut slab, &mut queue, (span(4, 4).0 + 1, span(4, 4).0 + 2)), 0);
    queue.acknowledge(&mut slab, span(0, 6).1, &mut sample());
    assert_eq!(sack(&mut slab, &mut queue, span(8, 9)), 1);
    queue.acknowledge(&mut slab, span(0, 11).1, &mut sample());
    assert_eq!(sack(&mut slab, &mut queue, span(13, 14)), 1);
}

#[test]
fn a_segment_with_the_record_of_one_that_left_is_not_in_front_of_the_oldest() {
    let mut made = test_queue(4);
    let first = made.queue.segments.head().expect("a segment");
    assert_eq!(sack(&mut made.slab, &mut made.queue, span(2, 3)), 1);
    made.queue.acknowledge(&mut made.slab, span(0, 1).1, &mut sample());
    assert!(made.send(LEN as usize, at(9)));
    let TestQueue { mut slab, mut queue, .. } = made;
    assert_eq!(queue.segments.last_sent(), Some(first), "the same record");
    assert_eq!(sack(&mut slab, &mut queue, span(4, 5)), 1);
    assert_eq!(sack(&mut slab, &mut queue, span(1, 2)), 1);
    assert_eq!(slab.get(first).later, None);
}

#[test]
fn a_block_that_is_repeated_marks_what_was_cut_since() {
    let (mut slab, mut queue) = queue(3);
    let block = (span(0, 1).0 + 50, span(0, 2).1);
    assert_eq!(sack(&mut slab, &mut queue, block), 1, "the first is not whole");
    let first = queue.segments.head().expect("a segment");
    assert!(queue.sent().mark_head_lost(&mut slab));
    assert!(queue.split(&mut slab, first, 50));
    let mut sample = sample();
    queue.sent().sack(&mut slab, block, &mut sample);
    queue.check(&slab).expect("invariants");
    assert_eq!((sample.delivered, queue.scoreboard.sacked_segments), (50, 2));
}

#[test]
fn an_overtaken_segment_or_retransmission_is_marked_lost() {
    let (mut slab, mut queue) = queue(5);
    let mut rack = Rack::new();
    let mut now = at(10);
    let mut detect = |slab: &mut SegmentSlab, queue: &mut SendQueue, nr, now, window_ms| {
        let mut sample = sample();
        queue.sent().sack(slab, span(nr, nr + 1), &mut sample);
        let _ = rack.on_ack(now, &sample);
        let detected = queue.sent().detect_lost(slab, &rack, Duration::from_millis(window_ms), now);
        queue.check(slab).expect("invariants");
        detected
    };
    // Segment 2 took 8 ms, so segment 0 counts as lost at 9 ms, and segment 1 at 10 ms.
    let detected = detect(&mut slab, &mut queue, 2, now, 1);
    assert_eq!((detected.lost, detected.lost_again, detected.next), (2, 0, None));
    for nr in 0..2 {
        let key = queue.scoreboard.next_to_retransmit().expect("lost");
        assert_eq!(slab.get(key).pos, span(nr, nr).0, "the oldest first");
        queue.sent().on_retransmitted(&mut slab, key, at(10), true);
    }
    // Segment 4 was sent before both retransmissions. The retransmission of segment 1 was sent after the
    // retransmission of segment 0, and after segment 3.
    let detected = detect(&mut slab, &mut queue, 4, at(12), 3);
    assert_eq!((detected.lost, detected.next), (0, Some(at(14))), "the window is not over");
    now = at(20);
    let detected = detect(&mut slab, &mut queue, 1, now, 1);
    assert_eq!((detected.lost, detected.next), (1, Some(at(21))), "3 now, 0 in a moment");
    let detected = queue.sent().detect_lost(&mut slab, &rack, Duration::ZERO, now);
    assert_eq!((detected.lost, detected.lost_again), (1, 1));
    assert_eq!(queue.not_sacked_nor_lost(), 0);
}

#[test]
fn a_segment_marked_lost_by_mistake_is_in_flight_again() {
    let (mut slab, mut queue) = queue(6);
    let first = queue.segments.head().expect("a segment");
    queue.sent().on_retransmitted(&mut slab, first, at(10), true);
    queue.sent().mark_timed_out(&mut slab, at(3));
    assert_eq!(queue.not_sacked_nor_lost(), 2 * LEN);
    queue.sent().restore_lost(&mut slab);
    queue.check(&slab).expect("invariants");
    assert_eq!(queue.not_sacked_nor_lost(), 6 * LEN);
    assert_eq!(queue.scoreboard.flight.oldest(), slab.get(first).next, "the first was sent last");
}

#[test]
fn lost_segments_are_retransmitted_as_they_were_marked_but_the_oldest_first() {
    let (mut slab, mut queue) = queue(8);
    let keys: Vec<_> = slab.iter_from(queue.segments.head().expect("a segment")).collect();
    for nr in [5, 3, 0, 4] {
        queue.sent().mark_lost(&mut slab, keys[nr]);
    }
    let order = |slab: &SegmentSlab, queue: &SendQueue| {
        queue.check(slab).expect("invariants");
        let lost = std::iter::successors(queue.scoreboard.next_to_retransmit(), |key| slab.get(*key).later);
        lost.map(|lost| keys.iter().position(|key| *key == lost)).collect::<Vec<_>>()
    };
    assert_eq!(order(&slab, &queue), [0, 5, 3, 4].map(Some));
    assert!(queue.is_oldest_lost());
    queue.acknowledge(&mut slab, span(0, 2).1, &mut sample());
    assert_eq!(order(&slab, &queue), [5, 3, 4].map(Some));
    assert!(!queue.is_oldest_lost());
    queue.acknowledge(&mut slab, span(0, 3).1, &mut sample());
    assert_eq!(order(&slab, &queue), [3, 5, 4].map(Some), "the oldest now");
    queue.sent().mark_timed_out(&mut slab, at(6));
    assert_eq!(order(&slab, &queue), [3, 4, 5, 6].map(Some), "in order after a timeout");
    queue.sent().on_retransmitted(&mut slab, keys[3], at(9), true);
    assert_eq!(sack(&mut slab, &mut queue, span(4, 5)), 1);
    assert_eq!(order(&slab, &queue), [5, 6].map(Some));
    assert!(queue.split(&mut slab, keys[5], 50));
    let second = slab.get(keys[5]).later.expect("it follows the first part");
    assert_eq!((slab.get(second).pos, slab.get(second).later), (span(5, 5).0 + 50, Some(keys[6])));
}

/// In this test, the retransmission of every other segment is lost as well.
#[test]
fn segments_sent_in_another_order_are_put_back_in_so_many_steps_as_there_are() {
    let (mut slab, mut queue) = queue(60);
    let keys: Vec<_> = slab.iter_from(queue.segments.head().expect("a segment")).collect();
    queue.sent().mark_timed_out(&mut slab, at(100));
    for nr in (1..60).step_by(2) {
        queue.sent().on_retransmitted(&mut slab, keys[nr], at(200), true);
    }
    queue.sent().mark_timed_out(&mut slab, at(300));
    assert_eq!(queue.scoreboard.lost_bytes(), 60 * LEN);
    let before = slab.visits();
    queue.sent().restore_lost(&mut slab);
    let steps = slab.visits() - before;
    queue.check(&slab).expect("invariants");
    assert!(steps <= 6 * 60, "{steps}");
    assert!(
        (LEN..50 * LEN).contains(&queue.scoreboard.lost_bytes()),
        "the rest stays lost: {}",
        queue.scoreboard.lost_bytes()
    );
}

#[test]
fn a_peer_that_takes_back_what_it_acknowledged_gets_everything_again() {
    let (mut slab, mut queue) = queue(4);
    assert_eq!(sack(&mut slab, &mut queue, span(0, 3)), 3);
    queue.sent().mark_timed_out(&mut slab, at(0));
    queue.check(&slab).expect("invariants");
    assert_eq!(queue.scoreboard.lost_bytes(), 4 * LEN);
    assert_eq!(sack(&mut slab, &mut queue, span(0, 3)), 3, "what was known before counts for nothing");
}

#[test]
fn wrong_places_are_found() {
    assert_all_found(&[
        (
            |q| {
                let place = q.slab.place(q.keys[2]);
                q.slab.set_place(q.keys[2], Place { previous: q.keys[0], ..place });
            },
            "SegmentKey(2) is in front of 201, not SegmentKey(1)",
        ),
        (
            |q| {
                let place = q.slab.place(q.keys[3]);
                q.slab.set_place(q.keys[3], Place { number: 5, ..place });
            },
            "place number 5 behind 3",
        ),
        (
            |q| {
                let place = q.slab.place(q.keys[3]);
                q.slab.set_place(q.keys[3], Place { far: q.keys[1], ..place });
            },
            "from 301 a leap to SegmentKey(2)",
        ),
        (
            |q| {
                let (place, far) = (q.slab.place(q.keys[3]), q.dangling());
                q.slab.set_place(q.keys[3], Place { far, ..place });
            },
            "from 301 a leap to SegmentKey(6)",
        ),
    ]);
}

#[test]
fn torn_runs_of_segments_that_arrived_are_found() {
    fn three(q: &mut FiveSegments) {
        for key in &q.keys[1..3] {
            q.queue.sent().set_marks(&mut q.slab, *key, Marks::SACKED);
            join_sacked_runs(&mut q.slab, *key, q.keys[0]);
        }
        q.check().expect("invariants");
    }
    assert_all_found(&[
        (|q| q.segment(0).later = Some(q.keys[1]), "a run of SACKed segments is torn at 1"),
        (
            |q| q.queue.sent().set_marks(&mut q.slab, q.keys[1], Marks::SACKED),
            "a run of SACKed segments is torn at 1",
        ),
        (
            |q| {
                three(q);
                q.segment(0).later = Some(q.keys[3]);
            },
            "a run of SACKed segments leads beyond 301",
        ),
        (
            |q| {
                three(q);
                q.segment(1).later = Some(q.keys[0]);
            },
            "a way from 101 to SegmentKey(1), which is at 1",
        ),
    ]);
}

#[test]
fn marks_that_do_not_fit_are_found() {
    assert_all_found(&[
        (|q| q.segment(2).marks = Marks::empty(), "Marks(0x0) at 201"),
        (|q| q.segment(4).marks = Marks::LOST, "Marks(LOST) at 401"),
        (|q| q.segment(0).marks |= Marks::LOST, "Marks(SACKED | LOST) at 1"),
        (|q| q.queue.scoreboard.orderly_from = 1, "Marks(SACKED) in an orderly queue at 1"),
        (|q| q.queue.scoreboard.orderly_from = 101, "Marks(LOST) in an orderly queue at 101"),
    ]);
}

#[test]
fn sums_that_do_not_fit_the_marks_are_found() {
    assert_all_found(&[
        (|q| q.queue.scoreboard.sacked_bytes -= 1, "SACKed, lost: (99, 1, 100) of (100, 1, 100)"),
        (|q| q.queue.scoreboard.sacked_segments += 1, "SACKed, lost: (100, 2, 100) of (100, 1, 100)"),
        (|q| q.queue.scoreboard.lost_bytes += 1, "SACKed, lost: (100, 1, 101) of (100, 1, 100)"),
    ]);
}

#[test]
fn a_torn_order_of_transmission_is_found() {
    assert_all_found(&[
        (
            |q| {
                q.segment(2).marks = Marks::SACKED;
                q.queue.scoreboard.sacked_bytes += LEN;
                q.queue.scoreboard.sacked_segments += 1;
            },
            "in flight and marked Marks(SACKED)",
        ),
        (
            |q| q.queue.scoreboard.flight.list.unlink(&mut q.slab, q.keys[2]),
            "1 segments in flight are not linked",
        ),
        (|q| q.segment(2).later = None, "1 segments in flight are not linked"),
        (|q| q.segment(3).earlier = None, "the order of transmission is torn at 301"),
        (|q| q.segment(3).later = Some(q.dangling()), "is linked and not there"),
        (|q| q.segment(2).sent = Sent { nr: 9, ..q.segment(2).sent }, "sent before the one in front: 301"),
        (
            |q| {
                q.segment(2).sent = Sent { nr: 9, ..q.segment(2).sent };
                q.queue.scoreboard.flight.list.unlink(&mut q.slab, q.keys[2]);
                q.queue.scoreboard.flight.list.append(&mut q.slab, q.keys[2]);
                q.queue.scoreboard.orderly_from = 201;
            },
            "sent in another order than that of the queue: 201",
        ),
        (
            |q| {
                let before = q.queue.scoreboard.flight;
                q.queue.on_sent(&mut q.slab, Instant::from_millis(9));
                q.queue.scoreboard.flight = before;
            },
            "the newest in flight is",
        ),
    ]);
}

#[test]
fn a_torn_list_of_lost_segments_is_found() {
    assert_all_found(&[
        (|q| q.queue.scoreboard.lost.unlink(&mut q.slab, q.keys[1]), "1 lost segments are not linked"),
        (|q| q.queue.scoreboard.lost.last = None, "the last one lost is None"),
        (|q| q.segment(1).earlier = Some(q.keys[0]), "the lost segments are torn at 101"),
        (|q| q.queue.scoreboard.lost.append(&mut q.slab, q.keys[0]), "lost and marked Marks(SACKED)"),
        (
            |q| {
                q.queue.sent().set_marks(&mut q.slab, q.keys[0], Marks::LOST);
                q.queue.scoreboard.lost.unlink(&mut q.slab, q.keys[0]);
                q.queue.scoreboard.lost.append(&mut q.slab, q.keys[0]);
            },
            "the oldest is not sent again first",
        ),
    ]);
}
