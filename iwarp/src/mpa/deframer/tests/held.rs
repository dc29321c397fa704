//! Tests of bytes that a deframer or a list holds, and of dropping such bytes.

use super::*;

// The deframer has one `HeldList`. A `HeldList` of the engine holds the bytes that arrive during startup. The
// bytes that arrive first for a position are kept. Later buffers are reduced to their new bytes.
#[test]
fn a_held_list_gives_bytes_once_and_in_order() {
    let pool = Mempool::heap("held", 16, 2048);
    let mut slab = HeldSlab::new(4, 0);
    let mut list = HeldList::default();
    let buf = |bytes: &[u8]| {
        let mut buf = pool.alloc().unwrap();
        buf.append(bytes.len()).unwrap().copy_from_slice(bytes);
        buf
    };
    list.hold(&mut slab, 30, buf(&[3; 300]), true).unwrap();
    list.hold(&mut slab, 10, buf(&[1; 10]), true).unwrap();
    // The new bytes begin at the end of the first buffer and end at the start of the second buffer.
    list.hold(&mut slab, 15, buf(&[2; 400]), true).unwrap();
    // This buffer has no new bytes.
    list.hold(&mut slab, 12, buf(&[9; 300]), true).unwrap();
    let mut taken = Vec::new();
    while let Some(held) = list.pop(&mut slab) {
        let mut bytes = vec![0; held.buf.len()];
        held.buf.copy_to(0, &mut bytes);
        taken.push((held.start, bytes, held.ahead));
    }
    let joined = [vec![1; 10], vec![2; 10]].concat();
    assert_eq!(taken, [(10, joined, true), (30, vec![3; 300], true)]);
    assert!(list.is_empty() && slab.buffers() == (0, 4));
    list.hold(&mut slab, 0, buf(&[1]), true).unwrap();
    list.hold(&mut slab, 5, buf(&[1]), false).unwrap();
    assert_eq!(list.clear(&mut slab), 1);
    assert_eq!(pool.available(), 16);
}

// The bytes of a small buffer are copied to the end of the previous buffer, and the small buffer is freed.
// Bytes that fill more than half of their buffer are not copied.
#[test]
fn only_small_buffers_are_put_together() {
    let pool = Mempool::heap("held", 16, 2048);
    let mut slab = HeldSlab::new(4, 0);
    for (small, buffers) in [(200, 1), (1200, 2)] {
        let mut list = HeldList::default();
        for (start, bytes) in [(10, 100), (110, small)] {
            let mut buf = pool.alloc().unwrap();
            buf.append(bytes).unwrap().fill(7);
            list.hold(&mut slab, start, buf, true).unwrap();
        }
        assert_eq!(pool.available(), 16 - buffers, "{small}");
        list.clear(&mut slab);
    }
}

// Two small buffers are joined in any order of arrival: the bytes at the higher position are copied into the
// buffer of the bytes at the lower position.
#[test]
fn small_buffers_are_put_together_in_any_order() {
    let pool = Mempool::heap("held", 64, 2048);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [3, 0, 2, 1], [1, 3, 0, 2]] {
        let (mut slab, mut list) = (HeldSlab::new(16, 0), HeldList::default());
        for at in order {
            let mut buf = pool.alloc().unwrap();
            buf.append(100).unwrap().fill(at as u8);
            let slot = list.insert(&mut slab, 500 + at * 100, buf, true).unwrap().unwrap();
            let held = slab.buffers.at(slot).unwrap();
            assert!(held.start <= 500 + at * 100 && held.start + held.buf.len() as u64 >= 600 + at * 100);
            list.check(&slab).unwrap();
        }
        // A buffer of 100 bytes may stay separate if it arrives last, between two buffers that have no room
        // for it.
        assert!(slab.buffers().0 <= 2, "{order:?}");
        assert_eq!(list.pinned_bytes(), slab.buffers().0 * (2048 + 128), "{order:?}");
        let mut bytes = Vec::new();
        while let Some(held) = list.pop(&mut slab) {
            assert_eq!(held.start, 500 + bytes.len() as u64);
            held.buf.segments().for_each(|run| bytes.extend_from_slice(run));
        }
        assert_eq!(bytes, [[0; 100], [1; 100], [2; 100], [3; 100]].concat());
    }
    // A buffer is not copied if it is more than half full, or if the buffer before it has another value of
    // `ahead`.
    for (bytes, ahead) in [(1200, true), (100, false)] {
        let (mut slab, mut list) = (HeldSlab::new(16, 0), HeldList::default());
        for (start, bytes, ahead) in [(110, bytes, true), (10, 100, ahead)] {
            let mut buf = pool.alloc().unwrap();
            buf.append(bytes).unwrap().fill(7);
            list.hold(&mut slab, start, buf, ahead).unwrap();
        }
        assert_eq!(slab.buffers().0, 2);
        list.clear(&mut slab);
    }
    assert_eq!(pool.available(), 64);
}

// A peer sends single bytes, each directly before the previous byte, so that TCP records one range for all
// these bytes. For each byte, the buffers pin only a few bytes of memory, and the list finds the slot in a
// few steps.
#[test]
fn bytes_at_falling_positions_pin_little_and_are_found_at_once() {
    const BYTES: u64 = 20_000;
    for markers in [false, true] {
        let pool = Mempool::heap("deframer", 64, 2048);
        let mut slab = HeldSlab::new(64, 64);
        let mut deframer = Deframer::new(START, markers, true);
        // These bytes alternate with single bytes at rising positions far ahead.
        for nr in 0..2 * BYTES {
            let at = if nr % 2 == 0 { BYTES - nr / 2 } else { 3 * BYTES + nr / 2 };
            let mut buf = pool.alloc().expect("a few buffers are enough");
            buf.append(1).unwrap()[0] = 7;
            slab.buffers.steps.set(0);
            let mut ulpdus = deframer.receive(START + 1000 + at, buf, START, &mut slab);
            while let Ok(Some(_)) = ulpdus.next() {}
            assert_eq!(ulpdus.finish(), 0);
            let steps = slab.buffers.steps.get();
            assert!(steps <= 6, "{steps} steps for byte {nr}");
        }
        deframer.check(&slab).unwrap();
        let pinned = deframer.pinned_bytes();
        assert!(pinned <= 4 * 2 * BYTES as usize + 4 * 2176, "{pinned} bytes for {}", 2 * BYTES);
        deframer.clear(&mut slab);
        assert_eq!(pool.available(), 64);
    }
}

// The number of failed checks of FPDUs for one arriving buffer is limited, whatever the markers contain.
#[test]
fn lying_markers_cost_little() {
    let mut wire = vec![0; 4096];
    for (at, byte) in wire.iter_mut().enumerate() {
        *byte = (at * 7) as u8;
    }
    for at in (512..4096).step_by(512) {
        wire[at..at + 4].copy_from_slice(&marker::encode(12));
        // An FPDU whose length field says that it ends inside the buffer.
        wire[at - 12..at - 10].copy_from_slice(&8_u16.to_be_bytes());
    }
    let mut bench = Bench::new(true);
    for from in (100..4000).step_by(1460) {
        bench.up(&wire, from, (from + 1460).min(4096), 0).unwrap();
    }
    assert!(bench.seen().is_empty());
    let unsound = bench.deframer.counters().early_unsound;
    assert!((1..=6).contains(&unsound), "{unsound}");
    bench.deframer.clear(&mut bench.slab);
    assert_eq!(bench.kept(), (0, 0, 0));
}

// Buffers that arrived ahead are counted until they are freed, or until all bytes before them have arrived. A
// buffer that arrived in order and waits is not counted.
#[test]
fn pinned_bytes_are_those_of_buffers_that_came_ahead() {
    let long = [b'x'; 600];
    let (wire, ends) = stream(false, &[&long, &long, &long]);
    let mut bench = Bench::new(false);
    let buffer = {
        let buf = bench.pool.alloc().unwrap();
        buf.headroom() + buf.tailroom()
    };
    bench.up(&wire, 0, 300, 300).unwrap();
    assert_eq!(bench.deframer.pinned_bytes(), 0);
    bench.up(&wire, ends[0], ends[1], 300).unwrap();
    assert_eq!(bench.deframer.pinned_bytes(), buffer);
    // A small buffer is copied to the end of its predecessor. A longer buffer, or a buffer without a
    // predecessor, is pinned itself.
    bench.up(&wire, ends[1], ends[1] + 100, 300).unwrap();
    assert_eq!(bench.deframer.pinned_bytes(), buffer);
    bench.up(&wire, ends[2] - 1, ends[2], 300).unwrap();
    assert_eq!(bench.deframer.pinned_bytes(), 2 * buffer);
    bench.up(&wire, 300, ends[0], ends[1] + 100).unwrap();
    assert_eq!(bench.deframer.pinned_bytes(), buffer);
    bench.up(&wire, ends[1] + 100, ends[2] - 1, ends[2]).unwrap();
    assert_eq!((bench.deframer.pinned_bytes(), bench.kept()), (0, (0, 0, 0)));
}

// Bytes are released when all bytes before them have arrived, even if their FPDU is incomplete. Otherwise a
// window that is smaller than the FPDU and the bytes ahead would never open. The rest of the FPDU would wait
// for the window, and the bytes ahead would wait for the rest of the FPDU.
#[test]
fn what_the_frontier_has_passed_is_released_before_its_fpdu_is_whole() {
    let long = [b'x'; 1800];
    let (wire, ends) = stream(false, &[&long]);
    let mut bench = Bench::new(false);
    assert_eq!(bench.up(&wire, 600, 1200, 0), Ok(0));
    assert_eq!(bench.up(&wire, 1300, 1400, 0), Ok(0));
    assert_eq!(bench.up(&wire, 0, 600, 1200), Ok(600));
    assert_eq!(bench.up(&wire, 1200, 1300, 1400), Ok(100));
    assert_eq!((bench.deframer.pinned_bytes(), bench.seen()), (0, vec![]));
    assert_eq!(bench.up(&wire, 1400, ends[0], ends[0]), Ok(0));
    assert_eq!((bench.seen(), bench.kept()), (vec![Whole(long.to_vec())], (0, 0, 0)));
}

/// Returns the number of pinned bytes per held byte, for segments of `bytes` bytes beyond a hole. `apart` is
/// the number of bytes between two segments.
fn pinned_for_one_held(bytes: usize, apart: usize) -> f64 {
    let wire = vec![0; 48 << 10];
    let mut bench = Bench::new(false);
    let (mut at, mut held) = (100, 0);
    while at + bytes <= wire.len() && bench.pool.available() > 0 {
        bench.up(&wire, at, at + bytes, 0).unwrap();
        held += bytes;
        at += bytes + apart;
    }
    let pinned = bench.deframer.pinned_bytes();
    bench.deframer.clear(&mut bench.slab);
    pinned as f64 / held as f64
}

// Small adjacent segments beyond a hole pin little more memory than they contain. Segments of half a buffer
// or more pin at most about twice their size.
#[test]
fn segments_that_touch_share_buffers() {
    for bytes in [1, 64, 257, 512, 1000, 1089, 1460] {
        let pinned = pinned_for_one_held(bytes, 0);
        println!("{bytes} bytes: {pinned:.2} pinned for one held");
        assert!((1.0..2.1).contains(&pinned), "{bytes}: {pinned}");
    }
    assert!(pinned_for_one_held(64, 0) < 1.2);
    // Segments that are not adjacent have separate buffers. TCP limits the number of such segments.
    assert!(pinned_for_one_held(64, 64) > 30.0);
}

// An FPDU without a marker is found because it begins at the end of the previous FPDU, even after the bytes
// of the previous FPDU are freed.
#[test]
fn an_fpdu_without_a_marker_is_found_behind_one_that_was_placed() {
    let (wire, ends) = stream(true, &[&[b'x'; 60][..]; 20]);
    // The marker at 512 is between `first` and `second`. The next marker is after `third`.
    let marked = ends.iter().position(|end| *end > 512).unwrap();
    let [first, second, third] = [marked - 1, marked, marked + 3].map(|nr| ends[nr]);
    assert!(third < 1024);
    let mut bench = Bench::new(true);
    assert_eq!(bench.up(&wire, first, second, 0), Ok(second - first));
    assert_eq!(bench.kept(), (0, 1, 0));
    assert_eq!(bench.up(&wire, second, third, 0), Ok(third - second));
    assert_eq!(bench.seen().len(), 4);
}

// Bytes beyond `frontier` wait, even if they directly follow bytes before `frontier`.
#[test]
fn nothing_is_handed_up_that_the_frontier_has_not_passed() {
    let (wire, ends) = stream(false, &[b"one", b"two"]);
    let mut bench = Bench::new(false);
    bench.up(&wire, 0, ends[1], ends[1] - 1).unwrap();
    assert_eq!((bench.seen(), bench.deframer.at_boundary()), (vec![Whole(b"one".to_vec())], false));
}

/// Makes the deframer give up `bytes` bytes. Returns the positions of the ranges that were passed to `may`,
/// with the answer of each call.
fn give_up(bench: &mut Bench, bytes: usize, may: impl Fn(usize) -> bool) -> Vec<(Vec<Range<usize>>, bool)> {
    let mut asked: Vec<(Vec<Range<usize>>, bool)> = Vec::new();
    let Bench { deframer, slab, .. } = bench;
    deframer.give_up(bytes, slab, |stretches| {
        let position = |offset: u64| (offset - START) as usize;
        let ranges = stretches.iter().map(|range| position(range.start)..position(range.end)).collect();
        let may = may(asked.len());
        asked.push((ranges, may));
        may
    });
    asked
}

#[test]
fn as_much_is_given_up_as_was_asked_for_from_the_far_end() {
    let long = [b'x'; 6000];
    let (wire, _) = stream(false, &[&long]);
    // The deframer holds a thousand bytes in order, and three buffers ahead.
    let held = || {
        let mut bench = Bench::new(false);
        bench.up(&wire, 0, 1000, 1000).unwrap();
        for from in [1500, 3000, 4500] {
            bench.up(&wire, from, from + 1200, 1000).unwrap();
        }
        bench
    };
    let [near, middle, far] = [1500, 3000, 4500].map(|from| from..from + 1200);
    for (bytes, expected) in [
        (0, vec![]),
        (1, vec![far.clone()]),
        (1200, vec![far.clone()]),
        (1201, vec![far.clone(), middle.clone()]),
        (usize::MAX, vec![far.clone(), middle.clone(), near]),
    ] {
        let mut bench = held();
        let asked = give_up(&mut bench, bytes, |_| true);
        let left = 4 - expected.len();
        let expected: Vec<_> = expected.into_iter().map(|range| (vec![range], true)).collect();
        assert_eq!((asked, bench.kept()), (expected, (left, 0, left)), "{bytes}");
    }
    // A buffer that `may` refuses is kept, and all buffers before this buffer are also kept.
    let mut bench = held();
    let asked = give_up(&mut bench, usize::MAX, |nr| nr == 0);
    assert_eq!(asked, [(vec![far], true), (vec![middle], false)]);
    assert_eq!(bench.kept(), (3, 0, 3));
}

#[test]
fn what_was_placed_early_is_never_given_up() {
    let long = [b'x'; 300];
    let (wire, ends) = stream(true, &[b"first", &long, &long, b"n refused", &long, b"n refused"]);
    let mut bench = Bench::new(true);
    let placed = bench.up(&wire, ends[1] - 100, ends[5], 0).unwrap();
    assert_eq!(placed, ends[2] - ends[1] + ends[4] - ends[3]);
    let parts = vec![ends[1] - 100..ends[1], ends[2]..ends[3], ends[4]..ends[5]];
    let near = ends[0] + 4..ends[0] + 104;
    assert_eq!(bench.up(&wire, near.start, near.end, 0), Ok(0));
    // The bytes that were placed early do not count as dropped.
    let bytes: usize = parts.iter().map(Range::len).sum();
    assert_eq!(give_up(&mut bench, bytes + 1, |_| true), [(parts, true), (vec![near], true)]);
    assert_eq!(bench.kept(), (0, 2, 0));
    // The peer sends only the dropped bytes again.
    bench.seen();
    for (from, to, frontier) in
        [(0, ends[1], ends[2]), (ends[2], ends[3], ends[4]), (ends[4], ends[5], ends[5])]
    {
        assert_eq!(bench.up(&wire, from, to, frontier), Ok(0));
    }
    let seen: Vec<_> = bench.seen().into_iter().map(|seen| matches!(seen, Placed(..))).collect();
    assert_eq!(seen, [false, false, true, false, true, false]);
    assert_eq!((bench.kept(), bench.deframer.at_boundary()), ((0, 0, 0), true));
}
