//! A caller that cannot take a ULPDU yet.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{START, stream};
use crate::mpa::deframer::*;
use crate::mpa::{Deframed, MpaError};

/// A caller that refuses some ULPDUs at first, and TCP's count of held bytes.
struct Bench {
    pool: dp::Mempool,
    slab: HeldSlab,
    deframer: Deframer,
    taken: Vec<Vec<u8>>,
    /// The numbers of ULPDUs that are refused, each once.
    refuses: BTreeSet<usize>,
    /// True if ULPDUs beyond a hole are placed.
    places: bool,
    /// Bytes that TCP counts as held.
    counted: usize,
}

impl Bench {
    fn new(markers: bool, refuses: impl IntoIterator<Item = usize>) -> Self {
        Self {
            pool: dp::Mempool::heap("waiting", 256, 2048),
            slab: HeldSlab::new(256, 256),
            deframer: Deframer::new(START, markers, true),
            taken: Vec::new(),
            refuses: refuses.into_iter().collect(),
            places: true,
            counted: 0,
        }
    }

    /// `wire[from..to]` arrives; then all bytes before `frontier` have arrived.
    fn up(&mut self, wire: &[u8], from: usize, to: usize, frontier: usize) {
        let mut buf = self.pool.alloc().unwrap();
        buf.append(to - from).unwrap().copy_from_slice(&wire[from..to]);
        if from >= frontier {
            self.counted += to - from;
        }
        let (offset, frontier) = (START + from as u64, START + frontier as u64);
        let Self { slab, deframer, taken, refuses, .. } = self;
        let whole = deframer.receive_whole(offset, &buf, frontier, slab, |_, ulpdu| {
            if refuses.remove(&taken.len()) {
                return Err(Untaken::<()>::NotYet);
            }
            taken.push(ulpdu.to_vec());
            Ok(())
        });
        let whole = whole.unwrap();
        if whole == buf.len() {
            return;
        }
        buf.advance(whole);
        let ulpdus = deframer.receive(offset + whole as u64, buf, frontier, slab);
        let released = take(ulpdus, taken, refuses, self.places).unwrap();
        self.count(released);
    }

    fn resume(&mut self) {
        let Self { slab, deframer, taken, refuses, .. } = self;
        let released = take(deframer.resume(slab), taken, refuses, self.places).unwrap();
        self.count(released);
    }

    fn count(&mut self, released: usize) {
        self.counted += self.deframer.take_kept();
        assert!(released <= self.counted, "{released} released of {}", self.counted);
        self.counted -= released;
        self.deframer.check(&self.slab).unwrap();
    }
}

fn take(
    mut ulpdus: Ulpdus<'_>,
    taken: &mut Vec<Vec<u8>>,
    refuses: &mut BTreeSet<usize>,
    places: bool,
) -> Result<usize, MpaError> {
    while let Some(received) = ulpdus.next()? {
        match received {
            Deframed::InOrder(ulpdu) if refuses.remove(&taken.len()) => {
                let position = ulpdu.position();
                return ulpdus.wait(position);
            }
            Deframed::InOrder(ulpdu) => taken.push(super::bytes(&ulpdu)),
            Deframed::Placed { head, ulpdu_len } => {
                // One that was placed is never refused.
                refuses.remove(&taken.len());
                let mut bytes = head.to_vec();
                bytes.resize(ulpdu_len, 0);
                taken.push(bytes);
            }
            Deframed::Ahead(_) if places => ulpdus.mark_placed(),
            Deframed::Ahead(_) => {}
        }
    }
    Ok(ulpdus.finish())
}

/// The refused ULPDU and all later ones are held, count as held, and are handed up in order when the caller
/// continues. Earlier ULPDUs were taken.
#[test]
fn what_is_refused_comes_again() {
    for markers in [false, true] {
        let (wire, ends) = stream(markers, &[b"one", b"two", b"three", b"four"]);
        for refused in 0..4 {
            let mut bench = Bench::new(markers, [refused]);
            bench.up(&wire, 0, ends[2] + 3, ends[2] + 3);
            let begin = if refused == 0 { 0 } else { ends[refused - 1] };
            assert_eq!(bench.deframer.waits(), refused < 3, "the last one is not complete yet");
            bench.up(&wire, ends[2] + 3, wire.len(), wire.len());
            assert!(bench.deframer.waits() && !bench.deframer.at_boundary());
            assert_eq!((bench.taken.len(), bench.deframer.counters().fpdus), (refused, refused as u64));
            assert_eq!(bench.counted, wire.len() - begin);
            bench.resume();
            assert!(!bench.deframer.waits() && bench.deframer.at_boundary());
            assert_eq!(bench.taken, [&b"one"[..], b"two", b"three", b"four"]);
            assert_eq!((bench.counted, bench.deframer.counters().fpdus), (0, 4));
            assert_eq!(bench.slab.buffers().0, 0);
        }
    }
}

/// A caller that cannot continue after all waits again, and no byte counts twice.
#[test]
fn a_caller_may_wait_again() {
    let (wire, ends) = stream(false, &[b"one", b"two", b"three"]);
    let mut bench = Bench::new(false, [0, 2]);
    bench.up(&wire, 0, ends[1], ends[1]);
    assert_eq!(bench.counted, ends[1]);
    bench.refuses.insert(0);
    bench.resume();
    assert_eq!((bench.counted, bench.taken.len()), (ends[1], 0));
    bench.resume();
    assert_eq!((bench.counted, bench.taken.len()), (0, 2));
    bench.up(&wire, ends[1], wire.len(), wire.len());
    assert_eq!(bench.counted, wire.len() - ends[1]);
    bench.deframer.give_up(1000, &mut bench.slab, |_| false);
    let cleared = bench.deframer.clear(&mut bench.slab);
    assert_eq!((cleared, bench.slab.buffers().0, bench.deframer.waits()), (bench.counted, 0, false));
}

/// If no slot is free for the held bytes, reception ends as without a wait.
#[test]
fn a_wait_needs_a_slot() {
    let (wire, ends) = stream(false, &[b"one", b"two"]);
    let mut bench = Bench::new(false, [0]);
    bench.slab = HeldSlab::new(0, 0);
    let mut buf = bench.pool.alloc().unwrap();
    buf.append(wire.len()).unwrap().copy_from_slice(&wire);
    let Bench { deframer, slab, taken, refuses, .. } = &mut bench;
    let ulpdus = deframer.receive(START, buf, START + wire.len() as u64, slab);
    assert_eq!(take(ulpdus, taken, refuses, true), Err(MpaError::NoHeldSlot));
    assert!(deframer.is_over() && !deframer.waits());
    assert_eq!((deframer.take_kept(), ends.len()), (0, 2));
}

proptest! {
    /// ULPDUs of any sizes in segments of any sizes that arrive in any order, with and without markers. The
    /// caller refuses some of them, and continues at any time. Every ULPDU is taken once, in order. TCP's
    /// count equals the number of bytes held beyond the frontier or, while the caller waits, of all held
    /// bytes.
    #[test]
    fn every_ulpdu_comes_once_and_every_byte_is_released(
        markers: bool,
        places: bool,
        lens in prop::collection::vec(0..700_usize, 1..12),
        cuts in prop::collection::vec((1..900_usize, any::<u16>()), 1..40),
        refuses in prop::collection::btree_set(0..12_usize, 0..6),
        resumes in prop::collection::vec(0..3_u8, 1..40),
    ) {
        let ulpdus: Vec<Vec<u8>> =
            lens.iter().enumerate().map(|(n, len)| vec![n as u8 + 1; *len]).collect();
        let slices: Vec<&[u8]> = ulpdus.iter().map(Vec::as_slice).collect();
        let (wire, _) = stream(markers, &slices);
        let mut bench = Bench::new(markers, refuses);
        bench.places = places;
        // Segments in order, then in that of their second number.
        let mut segments = Vec::new();
        let mut at = 0;
        for (len, order) in cuts.iter().cycle() {
            let end = (at + len).min(wire.len());
            segments.push((*order, at, end));
            at = end;
            if at == wire.len() {
                break;
            }
        }
        segments.sort();
        let mut arrived = BTreeSet::new();
        for (number, (_, from, to)) in segments.into_iter().enumerate() {
            arrived.insert((from, to));
            let mut frontier = 0;
            for (from, to) in &arrived {
                if *from == frontier {
                    frontier = *to;
                }
            }
            bench.up(&wire, from, to, frontier);
            if resumes[number % resumes.len()] == 0 && bench.deframer.waits() {
                bench.resume();
            }
        }
        while bench.deframer.waits() {
            bench.resume();
        }
        let lens: Vec<usize> = bench.taken.iter().map(Vec::len).collect();
        prop_assert_eq!(lens, ulpdus.iter().map(Vec::len).collect::<Vec<_>>());
        for (taken, sent) in bench.taken.iter().zip(&ulpdus) {
            let head = taken.len().min(18);
            prop_assert_eq!(&taken[..head], &sent[..head]);
        }
        prop_assert_eq!(bench.counted, 0);
        prop_assert_eq!((bench.slab.buffers().0, bench.slab.early_fpdus().0), (0, 0));
        prop_assert!(bench.deframer.at_boundary());
    }
}
