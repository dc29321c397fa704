//! Tests of a ring, for example against a model, and with a peer that writes any words to the ring's memory.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::memory::{self, SharedMemory};
use super::super::ring::{Broken, Consumer, PARTIAL_CHECKSUM, Place, Producer, Record};
use super::*;

/// The place of a ring that is so small that it wraps often. The ring is between guard pages that nobody may
/// write.
const PLACE: Place = Place { control: 4096, data: 8192, bytes: 4096, limit: 4096 };
const MEMORY: usize = 4 * 4096;
const GUARDS: [usize; 2] = [0, 8192 + 4096];

fn memory() -> Arc<SharedMemory> {
    let memfd = memory::create(MEMORY, std::iter::once(0..MEMORY)).unwrap();
    assert!(memory::is_fit(&memfd, MEMORY) && !memory::is_fit(&memfd, MEMORY - 1));
    Arc::new(SharedMemory::map(&memfd, MEMORY).unwrap())
}

fn ring() -> (Arc<SharedMemory>, Producer, Consumer) {
    let memory = memory();
    let (tx, rx) = (Producer::new(Arc::clone(&memory), PLACE), Consumer::new(Arc::clone(&memory), PLACE));
    (memory, tx, rx)
}

fn guards_are_untouched(memory: &SharedMemory) -> bool {
    GUARDS.iter().all(|at| {
        let mut guard = [1; 4096];
        memory.copy_out(*at, &mut guard);
        guard == [0; 4096]
    })
}

fn lines(bytes: usize) -> usize {
    (bytes + 8).div_ceil(64)
}

fn bytes_of(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(7).wrapping_add(number) as u8).collect()
}

fn take(rx: &mut Consumer, record: Record) -> Vec<u8> {
    let mut bytes = vec![0; record.bytes];
    let (first, rest) = bytes.split_at_mut(record.bytes / 3);
    rx.copy(record, 0, first);
    rx.copy(record, record.bytes / 3, rest);
    rx.advance(record);
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Write { bytes: usize, parts: usize },
    Publish,
    Take,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (14..1600_usize, 1..4_usize).prop_map(|(bytes, parts)| Step::Write { bytes, parts }),
        1 => (14..70_usize).prop_map(|bytes| Step::Write { bytes, parts: 1 }),
        3 => Just(Step::Publish),
        4 => Just(Step::Take),
        3 => Just(Step::Release),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_published_is_read_in_order_and_space_is_used_when_it_is_released(steps in steps()) {
        let (memory, mut tx, mut rx) = ring();
        let (mut hidden, mut shown) = (VecDeque::new(), VecDeque::new());
        let (mut used, mut taken, mut number) = (0, 0, 0);
        for step in steps {
            match step {
                Step::Write { bytes, parts } => {
                    number += 1;
                    let content = bytes_of(number, bytes);
                    let pieces = content.chunks(bytes.div_ceil(parts));
                    let written = tx.write(bytes, number & PARTIAL_CHECKSUM, pieces).unwrap();
                    prop_assert_eq!(written, used + lines(bytes) <= 64);
                    if written {
                        used += lines(bytes);
                        hidden.push_back((number, content));
                    }
                }
                Step::Publish => {
                    prop_assert!(!tx.publish(), "nobody sleeps");
                    shown.append(&mut hidden);
                    prop_assert_eq!(tx.unpublished(), 0);
                }
                Step::Take => match rx.peek().unwrap() {
                    None => prop_assert!(shown.is_empty()),
                    Some(record) => {
                        prop_assert_eq!(rx.peek(), Ok(Some(record)));
                        let (number, content) = shown.pop_front().unwrap();
                        prop_assert_eq!(record.marks, number & PARTIAL_CHECKSUM);
                        prop_assert_eq!(take(&mut rx, record), content);
                        taken += lines(record.bytes);
                        prop_assert_eq!(rx.unreleased(), taken as u64 * 64);
                    }
                },
                Step::Release => {
                    rx.release();
                    used -= std::mem::take(&mut taken);
                }
            }
            prop_assert_eq!(rx.has_news(), !shown.is_empty());
        }
        prop_assert!(guards_are_untouched(&memory));
    }

    /// The other side writes any words between any two steps. The reader returns frames of valid lengths, or
    /// `Broken`. The reader never reads or writes outside of the ring, and uses its own copies of the words.
    #[test]
    fn a_reader_survives_any_memory(
        garbage in proptest::collection::vec((any::<bool>(), 0..520_usize, any_word(), 0..4_usize), 1..80),
    ) {
        let (memory, _, mut rx) = ring();
        let mut read = 0_u64;
        'run: for (is_word, at, word, reads) in garbage {
            match is_word {
                true => memory.word(PLACE.control + at % 64 * 8).store(word, Ordering::Relaxed),
                false => memory.word(PLACE.data + at % 512 * 8).store(word, Ordering::Relaxed),
            }
            for _ in 0..reads {
                match rx.peek() {
                    Ok(Some(record)) => {
                        prop_assert!((14..=65_553).contains(&record.bytes) && record.marks <= 1);
                        prop_assert!(lines(record.bytes) <= 64, "more than the ring");
                        take(&mut rx, record);
                        read += lines(record.bytes) as u64 * 64;
                        rx.release();
                    }
                    Ok(None) => {}
                    Err(Broken) => break 'run,
                }
            }
        }
        prop_assert!(rx.unreleased() == 0 && guards_are_untouched(&memory));
        prop_assert!(read <= 80 * 4 * 4096);
    }

    #[test]
    fn a_writer_survives_any_position_of_its_reader(
        words in proptest::collection::vec((any_word(), 14..4000_usize), 1..80),
    ) {
        let (memory, mut tx, _) = ring();
        for (word, bytes) in words {
            memory.word(PLACE.control + 128).store(word, Ordering::Relaxed);
            if tx.write(bytes, 0, std::iter::once(bytes_of(1, bytes))).is_err() {
                break;
            }
            tx.publish();
        }
        prop_assert!(guards_are_untouched(&memory));
    }
}

/// Generates words that may be a position, a header, or anything.
fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..200_u64).prop_map(|lines| lines * 64),
        0..5000_u64,
        (0..70_000_u64, 0..3_u64).prop_map(|(bytes, marks)| marks << 32 | bytes),
        any::<u64>(),
        Just(u64::MAX),
    ]
}

#[test]
fn each_lie_of_a_writer_is_found() {
    let at = |offset: usize| {
        move |memory: &SharedMemory, word: u64| {
            memory.word(offset).store(word, Ordering::Relaxed);
        }
    };
    let (tail, header) = (at(PLACE.control), at(PLACE.data));
    // Invalid tails are between two lines, are beyond the ring, or decrease (the last check of this test).
    // Invalid headers have an unknown kind, or a length that is too short, too long or longer than the
    // published bytes.
    for (position, word) in [(1, 14), (63, 14), (4096 + 64, 14), (u64::MAX - 63, 14), (64, 13), (64, 57)]
        .into_iter()
        .chain([(4096, 65_554), (64, u64::MAX), (64, 2 << 32 | 14), (64, 1 << 63 | 14), (64, 0)])
    {
        let (memory, _, mut rx) = ring();
        header(&memory, word);
        tail(&memory, position);
        assert_eq!(rx.peek(), Err(Broken), "{position} {word:x}");
    }
    // These positions are between two lines, after a valid record.
    for position in [65, 127] {
        let (memory, _, mut rx) = ring();
        header(&memory, 56);
        tail(&memory, position);
        assert_eq!(rx.peek(), Err(Broken), "{position}");
    }
    let (memory, _, mut rx) = ring();
    header(&memory, 56);
    tail(&memory, 64);
    let record = rx.peek().unwrap().unwrap();
    rx.advance(record);
    tail(&memory, 0);
    assert_eq!(rx.peek(), Err(Broken), "the tail goes back");
}

#[test]
fn each_lie_of_a_reader_is_found() {
    for head in [1, 63, 128 + 64, u64::MAX, u64::MAX - 63] {
        let (memory, mut tx, _) = ring();
        for _ in 0..2 {
            assert_eq!(tx.write(50, 0, std::iter::once([0; 50])), Ok(true));
        }
        tx.publish();
        memory.word(PLACE.control + 128).store(head, Ordering::Relaxed);
        assert_eq!(tx.write(4000, 0, std::iter::once([0; 4000])), Err(Broken), "{head}");
    }
    // The writer has written three records, and has published two of these records.
    for (head, outcome) in [(128, Ok(false)), (192, Err(Broken))] {
        let (memory, mut tx, _) = ring();
        for nr in 0..3 {
            assert_eq!(tx.write(50, 0, std::iter::once([0; 50])), Ok(true));
            if nr < 2 {
                tx.publish();
            }
        }
        memory.word(PLACE.control + 128).store(head, Ordering::Relaxed);
        assert_eq!(tx.write(4050, 0, std::iter::once([0; 4050])), outcome, "{head}");
    }
    let (_, mut tx, mut rx) = ring();
    assert_eq!(tx.write(4000, 0, std::iter::once([0; 4000])), Ok(true));
    tx.publish();
    let record = rx.peek().unwrap().unwrap();
    rx.advance(record);
    rx.release();
    assert_eq!(tx.write(4000, 0, std::iter::once([0; 4000])), Ok(true));
    // The reader cannot have consumed unpublished records.
    rx.release();
    assert_eq!(tx.write(4000, 0, std::iter::once([0; 4000])), Ok(false));
    // The reader cannot take back space that it has released.
    let (memory, mut tx, mut rx) = ring();
    for _ in 0..3 {
        assert_eq!(tx.write(1000, 0, std::iter::once([0; 1000])), Ok(true));
        tx.publish();
        let record = rx.peek().unwrap().unwrap();
        rx.advance(record);
    }
    rx.release();
    assert_eq!(tx.write(2000, 0, std::iter::once([0; 2000])), Ok(true));
    memory.word(PLACE.control + 128).store(1024, Ordering::Relaxed);
    assert_eq!(tx.write(2500, 0, std::iter::once([0; 2500])), Err(Broken), "the head goes back");
}

#[test]
fn a_sleeping_reader_is_woken_once() {
    let (_, mut tx, mut rx) = ring();
    let mut write = || {
        assert_eq!(tx.write(14, 0, std::iter::once([0; 14])), Ok(true));
        tx.publish()
    };
    assert!(!write(), "it does not sleep yet");
    let record = rx.peek().unwrap().unwrap();
    rx.advance(record);
    rx.mark_sleeping();
    assert!(!rx.has_news());
    assert!(write() && !write(), "once");
    assert!(rx.has_news());
    rx.mark_sleeping();
    rx.mark_awake();
    assert!(!write(), "it has got up");
}

/// A writer that waits for space can continue while the reader is still reading a burst.
#[test]
fn the_writer_gets_each_64_kib_back_at_once() {
    let place = Place { control: 0, data: 4096, bytes: 256 << 10, limit: 256 << 10 };
    let bytes = 4096 + place.limit;
    let memory = Arc::new(
        SharedMemory::map(memory::create(bytes, std::iter::once(0..bytes)).unwrap(), bytes).unwrap(),
    );
    let (mut tx, mut rx) = (Producer::new(Arc::clone(&memory), place), Consumer::new(memory, place));
    // Each record has 16 KiB, including the word in front of the frame.
    while tx.write(16_376, 0, std::iter::once([0; 16_376])).unwrap() {}
    tx.publish();
    let space: Vec<bool> = (0..16)
        .map(|_| {
            let record = rx.peek().unwrap().unwrap();
            rx.advance(record);
            let has_space = tx.write(16_376, 0, std::iter::once([0; 16_376])).unwrap();
            // When the ring is full again, the writer waits for the next 64 KiB.
            while tx.write(16_376, 0, std::iter::once([0; 16_376])).unwrap() {}
            has_space
        })
        .collect();
    let [no, yes] = [false, true];
    assert_eq!(space, [no, no, no, yes].repeat(4));
}
