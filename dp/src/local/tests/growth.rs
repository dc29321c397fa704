//! Tests of growing rings. The tests check, for example, that no record is lost or changed when a ring grows
//! between any steps of the writer and the reader, and that the reader detects false announcements of growth.

use std::collections::VecDeque;

use proptest::prelude::*;
use rustix::fs::fstat;

use super::super::memory::{self, SharedMemory};
use super::super::ring::{Broken, Consumer, GROWTH, Place, Producer, first_bytes};
use super::*;

/// The place of a ring that may grow twice. The ring is between pages that nobody may write.
const PLACE: Place = Place { control: 4096, data: 8192, bytes: 4096, limit: 65_536 };
const MEMORY: usize = 8192 + 65_536 + 4096;
const GUARDS: [usize; 2] = [0, 8192 + 65_536];

/// The header word of the record that announces that the ring has grown.
const GROWN: u64 = 2 << 32;

fn ring_at(place: Place) -> (Arc<SharedMemory>, Producer, Consumer) {
    let memfd = memory::create(MEMORY, std::iter::once(0..8192 + place.bytes)).unwrap();
    let memory = Arc::new(SharedMemory::map(&memfd, MEMORY).unwrap());
    let (tx, rx) = (Producer::new(Arc::clone(&memory), place), Consumer::new(Arc::clone(&memory), place));
    (memory, tx, rx)
}

fn guards_are_untouched(memory: &SharedMemory) -> bool {
    GUARDS.iter().all(|at| {
        let mut guard = [1; 4096];
        memory.copy_out(*at, &mut guard);
        guard == [0; 4096]
    })
}

fn content(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(7).wrapping_add(number) as u8).collect()
}

fn write(tx: &mut Producer, bytes: &[u8]) -> bool {
    tx.write(bytes.len(), 0, std::iter::once(bytes)).unwrap()
}

/// Consumes and returns the oldest record. Returns `None` if there is no record.
fn take(rx: &mut Consumer) -> Option<Vec<u8>> {
    let record = rx.peek().unwrap()?;
    let mut bytes = vec![0; record.bytes];
    rx.copy(record, 0, &mut bytes);
    rx.advance(record);
    Some(bytes)
}

/// Fills the ring until the ring grows. Whenever the ring is full and cannot grow, the reader consumes a
/// record. Returns the records that were not read.
fn fill_until_it_grows(tx: &mut Producer, rx: &mut Consumer) -> VecDeque<Vec<u8>> {
    let (mut written, mut number, from) = (VecDeque::new(), 0, tx.bytes());
    for _ in 0..10_000 {
        number += 1;
        let next = content(number, 14 + number as usize * 37 % 1000);
        if write(tx, &next) {
            written.push_back(next);
            tx.publish();
        } else if tx.grow(&mut usize::MAX.clone()) {
            assert_eq!(tx.bytes(), from * GROWTH);
            return written;
        } else {
            assert_eq!(take(rx), written.pop_front());
            rx.release();
        }
    }
    panic!("it does not grow");
}

#[derive(Clone, Debug)]
enum Step {
    Write { bytes: usize },
    Publish,
    Take,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (14..1500_usize).prop_map(|bytes| Step::Write { bytes }),
        2 => Just(Step::Publish),
        3 => Just(Step::Take),
        2 => Just(Step::Release),
    ];
    proptest::collection::vec(step, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// A ring that grows whenever it may grow loses no record and changes no record, wherever the reader is.
    #[test]
    fn a_ring_that_grows_passes_all_records_in_order(steps in steps(), mut allowance in 0..80_000_usize) {
        let (memory, mut tx, mut rx) = ring_at(PLACE);
        let (mut hidden, mut shown) = (VecDeque::new(), VecDeque::new());
        let (mut number, granted) = (0, allowance);
        for step in steps {
            match step {
                Step::Write { bytes } => {
                    number += 1;
                    let content = content(number, bytes);
                    let before = allowance;
                    let written = write(&mut tx, &content) || {
                        // The larger ring has space for the record that did not fit in the smaller ring.
                        let grows = tx.grow(&mut allowance);
                        prop_assert_eq!(grows, allowance < before);
                        grows && { prop_assert!(write(&mut tx, &content)); true }
                    };
                    if written {
                        hidden.push_back(content);
                    }
                    prop_assert_eq!(tx.grown_bytes(), granted - allowance);
                    prop_assert_eq!(tx.bytes(), PLACE.bytes + tx.grown_bytes());
                }
                Step::Publish => {
                    tx.publish();
                    shown.append(&mut hidden);
                }
                Step::Take => prop_assert_eq!(take(&mut rx), shown.pop_front()),
                Step::Release => rx.release(),
            }
        }
        tx.publish();
        shown.append(&mut hidden);
        for content in shown {
            prop_assert_eq!(take(&mut rx), Some(content));
        }
        prop_assert!(rx.peek() == Ok(None) && rx.bytes() == tx.bytes());
        rx.release();
        // After any sequence of steps, the whole space of the ring can be used.
        let mut lines = 0;
        while write(&mut tx, &[0; 56]) {
            lines += 1;
        }
        let full = tx.bytes() / 64 - usize::from(tx.bytes() < PLACE.limit);
        prop_assert!(lines == full && guards_are_untouched(&memory), "{} of {} lines", lines, full);
    }

    /// The other side writes any words, including announcements that the ring grows. The reader never writes
    /// outside of the ring, and the ring never has a size that it cannot grow to.
    #[test]
    fn a_reader_survives_any_growth(
        garbage in proptest::collection::vec((any::<bool>(), 0..9000_usize, word(), 0..4_usize), 1..80),
    ) {
        let (memory, _, mut rx) = ring_at(PLACE);
        'run: for (is_word, at, word, reads) in garbage {
            match is_word {
                true => memory.word(PLACE.control + at % 64 * 8).store(word, Ordering::Relaxed),
                false => memory.word(PLACE.data + at % 8192 * 8).store(word, Ordering::Relaxed),
            }
            for _ in 0..reads {
                match rx.peek() {
                    Ok(Some(record)) if record.bytes <= 4000 => {
                        rx.copy(record, 0, &mut vec![0; record.bytes]);
                        rx.advance(record);
                        rx.release();
                    }
                    // Longer records occur only because the ring of this test is so small. A real ring has
                    // room for the longest frame.
                    Ok(_) => {}
                    Err(Broken) => break 'run,
                }
                prop_assert!([4096, 16_384, 65_536].contains(&rx.bytes()));
            }
        }
        prop_assert!(guards_are_untouched(&memory));
    }
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..200_u64).prop_map(|lines| lines * 64),
        3 => Just(GROWN),
        2 => (0..1000_u64, 0..4_u64).prop_map(|(bytes, marks)| marks << 32 | bytes),
        1 => any::<u64>(),
    ]
}

#[test]
fn a_ring_grows_when_it_is_full_and_was_used_for_four_laps_and_not_before() {
    let (_, mut tx, mut rx) = ring_at(PLACE);
    let (mut sent, mut tries) = (0, Vec::new());
    while tx.bytes() == PLACE.bytes {
        while write(&mut tx, &[0; 56]) {
            sent += 64;
        }
        tries.push((sent, tx.grow(&mut usize::MAX.clone())));
        if tx.bytes() == PLACE.bytes {
            tx.publish();
            (0..32).for_each(|_| drop(take(&mut rx)));
            rx.release();
        }
    }
    // One line is reserved for the record that announces the growth. This record is written in the fifth lap,
    // when the ring is full.
    let (last, before) = tries.split_last().unwrap();
    assert!(before.iter().all(|(sent, grew)| !grew && *sent < 4 * 4096), "{tries:?}");
    assert!(last.1 && (4 * 4096..5 * 4096).contains(&last.0), "{tries:?}");
}

/// In memory, the first record in the larger ring has to be directly behind the old ring. So the ring can
/// grow only in one of four laps.
#[test]
fn a_ring_grows_in_one_of_four_laps() {
    for lap in 4..=12 {
        let (_memory, mut tx, mut rx) = ring_at(PLACE);
        // Each record has 1024 bytes, so the last record ends in the middle of a lap.
        for _ in 0..lap * 4 + 2 {
            assert!(write(&mut tx, &content(0, 1016)));
            tx.publish();
            take(&mut rx).unwrap();
            rx.release();
        }
        assert_eq!(tx.grow(&mut 1_000_000), lap % 4 == 0, "lap {lap}");
    }
}

#[test]
fn a_ring_grows_to_its_limit_and_no_further() {
    let (_, mut tx, mut rx) = ring_at(PLACE);
    for bytes in [16_384, 65_536] {
        let unread = fill_until_it_grows(&mut tx, &mut rx);
        assert!(!unread.is_empty(), "it was full");
        assert!(write(&mut tx, &[1; 900]));
        tx.publish();
        for content in unread {
            assert_eq!(take(&mut rx), Some(content));
        }
        assert_eq!((take(&mut rx), rx.bytes(), tx.bytes()), (Some(vec![1; 900]), bytes, bytes));
        rx.release();
    }
    for _ in 0..1000 {
        while write(&mut tx, &[2; 900]) {}
        assert!(!tx.grow(&mut usize::MAX.clone()));
        tx.publish();
        assert_eq!(take(&mut rx), Some(vec![2; 900]));
        rx.release();
    }
}

/// If there is no memory, the ring does not grow, and the reserved line is used for records.
#[test]
fn a_ring_that_gets_no_memory_goes_on_as_it_is() {
    // The mapping ends behind the first part of the ring.
    let file = memory::create(8192 + 4096, std::iter::once(0..8192 + 4096)).unwrap();
    let memory = Arc::new(SharedMemory::map(&file, MEMORY).unwrap());
    let (mut tx, mut rx) = (Producer::new(Arc::clone(&memory), PLACE), Consumer::new(memory, PLACE));
    let (mut number, mut allowance) = (0_u8, usize::MAX);
    for _ in 0..8 {
        while write(&mut tx, &[number; 56]) {
            number = number.wrapping_add(1);
        }
        assert!(!tx.grow(&mut allowance));
        tx.publish();
        for _ in 0..32 {
            assert_eq!(take(&mut rx).unwrap().len(), 56);
        }
        rx.release();
    }
    assert_eq!((allowance, tx.bytes(), tx.grown_bytes()), (usize::MAX, 4096, 0));
    while take(&mut rx).is_some() {}
    rx.release();
    let lines = std::iter::repeat_with(|| write(&mut tx, &[0; 56])).take_while(|written| *written).count();
    assert_eq!(lines, 64, "all of it");
}

#[test]
fn each_lie_about_a_growth_is_found() {
    let lie = |place: Place, header: u64, at: u64, tail: u64| {
        let (memory, mut tx, mut rx) = ring_at(place);
        // The loop moves the reader to the false record.
        for _ in 0..at / 64 {
            assert!(write(&mut tx, &[0; 56]));
            tx.publish();
            take(&mut rx).unwrap();
            rx.release();
        }
        memory.word(place.data + (at % place.bytes as u64) as usize).store(header, Ordering::Relaxed);
        memory.word(place.control).store(tail, Ordering::Relaxed);
        rx.peek()
    };
    // These announcements are valid: they are in the first lap, at whose end the larger ring begins, or four
    // laps later.
    for (at, tail) in [(0, 4096), (64, 4096), (4032, 4096), (4 * 4096, 5 * 4096), (5 * 4096 - 64, 5 * 4096)] {
        assert_eq!(lie(PLACE, GROWN, at, tail), Ok(None), "{at}");
    }
    for (at, tail) in [
        // The larger ring would not begin at the end of the smaller ring.
        (4096, 3 * 4096),
        (2 * 4096, 4 * 4096),
        (4 * 4096 - 64, 5 * 4096),
        // The record after the announcement is not published.
        (0, 64),
        (0, 4032),
        (4 * 4096, 5 * 4096 - 64),
    ] {
        assert_eq!(lie(PLACE, GROWN, at, tail), Err(Broken), "{at} {tail}");
    }
    // The record after the announcement is not published, even if its bytes look like a record.
    let (memory, _, mut rx) = ring_at(PLACE);
    memory.word(PLACE.data).store(GROWN, Ordering::Relaxed);
    memory.word(PLACE.data + 4096).store(14, Ordering::Relaxed);
    memory.word(PLACE.control).store(64, Ordering::Relaxed);
    assert_eq!(rx.peek(), Err(Broken));
    for header in [GROWN | 14, GROWN | 1, 3 << 32, GROWN << 1] {
        assert_eq!(lie(PLACE, header, 0, 4096), Err(Broken), "{header:x}");
    }
    let whole = Place { bytes: 65_536, ..PLACE };
    assert_eq!(lie(whole, GROWN, 0, 65_536), Err(Broken), "it has its limit");
}

#[test]
fn a_ring_begins_with_a_small_part_of_its_memory() {
    let kib = [(256, 256), (512, 128), (1024, 256), (2048, 128), (4096, 256), (256 << 10, 256)];
    for (limit, first) in kib {
        assert_eq!(first_bytes(limit << 10), first << 10, "{limit} KiB");
    }
}

#[test]
fn memory_is_taken_in_parts() {
    let memfd = memory::create(1 << 20, [0..4096, 8192..65_536]).unwrap();
    let taken = || fstat(&memfd).unwrap().st_blocks as usize * 512;
    assert_eq!(taken(), 4096 + 65_536 - 8192);
    let memory = SharedMemory::map(&memfd, 1 << 20).unwrap();
    memory.word(8192).store(7, Ordering::Relaxed);
    memory.take(0..1 << 17).unwrap();
    assert_eq!((taken(), memory.word(8192).load(Ordering::Relaxed)), (1 << 17, 7));
    assert!(memory::is_fit(&memfd, 1 << 20));
    let beyond = std::panic::catch_unwind(|| memory.take(0..(1 << 20) + 4096));
    assert!(beyond.is_err() && taken() == 1 << 17);
}

/// Initial number of bytes of a pair of rings with a maximum of `ring_bytes`.
fn pair_bytes(ring_bytes: usize) -> u64 {
    (4096 + 2 * first_bytes(ring_bytes)) as u64
}

/// Sends until `frames` frames have arrived, and keeps the ring as full as possible. Returns the maximum
/// number of bytes of the sender's shared memory.
fn stream(a: &mut LocalPort, b: &mut LocalPort, frames: u32) -> u64 {
    let (mut sent, mut arrived, mut most) = (0, 0, 0);
    let mut polls = 0;
    while arrived < frames {
        polls += 1;
        assert!(polls < 10_000, "{arrived} of {frames} frames arrive");
        let mut burst: Burst = [frame(a, b.station(), sent, 60_000)].into_iter().collect();
        while a.tx_burst(0, &mut burst) == 1 {
            sent += 1;
            burst.push(frame(a, b.station(), sent, 60_000));
        }
        for received in poll_once(b, 0) {
            assert_eq!((number(&received), received.len()), (arrived, 60_000));
            arrived += 1;
        }
        poll_once(a, 0);
        most = most.max(a.shared_memory_bytes());
    }
    // The loop receives the remaining frames.
    for _ in 0..1000 {
        poll_once(a, 0);
        poll_once(b, 0);
    }
    most
}

fn open_large(scratch: &Scratch, station: u16) -> LocalPort {
    let config = LocalConfig { ring_bytes: 2 << 20, mbufs: 2048, ..scratch.config() };
    open(&LocalConfig { station: Some(station), ..config }).unwrap()
}

/// If a pair has few frames at a time, its rings do not grow. A full ring grows. The ring of the other
/// direction does not grow.
#[test]
fn the_rings_of_a_pair_grow_with_use_and_the_port_tells_their_memory() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (open_large(&scratch, 1), open_large(&scratch, 2));
    assert_eq!(a.shared_memory_bytes(), 0);
    for number in 0..3000 {
        let sent = frame(&a, 2, number, 3000);
        assert!(send(&mut a, sent));
        receive(&mut [&mut a, &mut b], 1);
    }
    poll_once(&mut a, 0);
    let small = pair_bytes(2 << 20);
    assert_eq!((small, a.shared_memory_bytes(), b.shared_memory_bytes()), (4096 + (256 << 10), small, small));
    let most = stream(&mut a, &mut b, 200);
    let large = 4096 + (128 << 10) + (2 << 20);
    assert_eq!((most, a.shared_memory_bytes(), b.shared_memory_bytes()), (large, large, large));
    drop(b);
    departed(&mut a);
    assert_eq!(a.shared_memory_bytes(), 0);
}

/// After a full ring has grown, the time until the reader counts as stuck begins again, even if the reader
/// has read nothing.
#[test]
fn a_reader_of_a_ring_that_has_grown_is_not_stuck_since_the_ring_was_small() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (open_large(&scratch, 1), open_large(&scratch, 2));
    // The loop uses the small ring for a few laps, so that the ring may grow.
    for number in 0..200 {
        let sent = frame(&a, 2, number, 3000);
        assert!(send(&mut a, sent));
        receive(&mut [&mut a, &mut b], 1);
    }
    let small = a.shared_memory_bytes();
    let (mut now_us, mut sent) = (1000, 0);
    // The ring grows in one of four laps.
    for _ in 0..5 {
        while a.next_due_us().is_none() {
            let next = frame(&a, 2, sent, 3000);
            assert!(sent < 1000 && send_at(&mut a, now_us, next));
            sent += 1;
        }
        poll_once(&mut a, now_us);
        if a.shared_memory_bytes() > small {
            break;
        }
        poll_once(&mut b, now_us);
        poll_once(&mut a, now_us);
    }
    assert!(a.shared_memory_bytes() > small && a.next_due_us().is_none());
    // After more than the time for which a ring may be full, the larger ring becomes full, and frames wait
    // for space.
    now_us += 150_000;
    let refused = (sent..2000).find(|number| {
        assert_eq!((a.local_counters().lost, a.counters().tx_link_down), (0, 0), "before {number}");
        let next = frame(&a, 2, *number, 3000);
        !send_at(&mut a, now_us, next)
    });
    assert!(refused.is_some());
    poll_once(&mut a, now_us + 99_999);
    assert_eq!((a.local_counters().lost, a.counters().tx_link_down), (0, 0));
    poll_once(&mut a, now_us + 100_000);
    assert_eq!(a.local_counters().lost, 64, "now it is stuck");
}

/// All rings together may grow by the allowance. When a pair ends, the part of the allowance that the pair
/// has used can be used again.
#[test]
fn the_rings_of_a_port_grow_within_an_allowance() {
    let scratch = Scratch::new();
    let mut a = open_large(&scratch, 1);
    let mut others: Vec<LocalPort> = (2..14).map(|station| open_large(&scratch, station)).collect();
    for other in &mut others {
        stream(&mut a, other, 120);
    }
    let small = pair_bytes(2 << 20);
    let grown = a.shared_memory_bytes() - 12 * small;
    assert!((15 << 20..=16 << 20).contains(&grown), "{grown}");
    let last = others.pop().unwrap().shared_memory_bytes();
    assert_eq!(last, small, "nothing was left for it");
    let first = others.remove(0);
    drop(first);
    while departed(&mut a).0 != 2 {}
    let mut again = open_large(&scratch, 20);
    assert!(stream(&mut a, &mut again, 120) > grown + 10 * small);
    assert!(again.shared_memory_bytes() > small);
}
