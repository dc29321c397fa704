//! Tests of reception step by step. More tests with random streams are in the crate's
//! `tests/it/mpa/oracle.rs`.

mod held;

use dp::Mempool;

use super::*;
use crate::mpa::{CRC_BYTES, Crc32c, Framer, MpaError, marker};

/// Stream offset of position 0.
const START: u64 = 24;

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Early(Vec<u8>),
    Whole(Vec<u8>),
    Placed(Vec<u8>, usize),
}

use Seen::{Early, Placed, Whole};

fn bytes(ulpdu: &Ulpdu<'_>) -> Vec<u8> {
    let mut bytes = vec![0; ulpdu.len()];
    ulpdu.copy_to(0, &mut bytes);
    bytes
}

struct Bench {
    pool: Mempool,
    slab: HeldSlab,
    deframer: Deframer,
    seen: Vec<Seen>,
    /// Whether the test ends reception after the first ULPDU in order.
    enough: bool,
}

impl Bench {
    fn new(markers: bool) -> Self {
        Self::with_slots(markers, 64, 64)
    }

    fn with_slots(markers: bool, buffers: usize, records: usize) -> Self {
        Self {
            pool: Mempool::heap("deframer", 64, 2048),
            slab: HeldSlab::new(buffers, records),
            deframer: Deframer::new(START, markers, true),
            seen: Vec::new(),
            enough: false,
        }
    }

    /// Passes `wire[from..to]` to the deframer. Afterwards all bytes before `frontier` have arrived. Returns
    /// the number of released bytes.
    fn up(&mut self, wire: &[u8], from: usize, to: usize, frontier: usize) -> Result<usize, MpaError> {
        let mut buf = self.pool.alloc().unwrap();
        buf.append(to - from).unwrap().copy_from_slice(&wire[from..to]);
        self.receive(START + from as u64, buf, START + frontier as u64)
    }

    /// Passes a buffer to the deframer and records the ULPDUs. ULPDUs that begin with `n` are not placed
    /// early.
    fn receive(&mut self, offset: u64, buf: Mbuf, frontier: u64) -> Result<usize, MpaError> {
        let Self { slab, deframer, seen, .. } = self;
        let mut ulpdus = deframer.receive(offset, buf, frontier, slab);
        while let Some(received) = ulpdus.next()? {
            match received {
                Deframed::InOrder(ulpdu) => seen.push(Whole(bytes(&ulpdu))),
                Deframed::Placed { head, ulpdu_len } => seen.push(Placed(head.to_vec(), ulpdu_len)),
                Deframed::Ahead(ulpdu) => {
                    let bytes = bytes(&ulpdu);
                    if bytes.first() != Some(&b'n') {
                        seen.push(Early(bytes));
                        ulpdus.mark_placed();
                    }
                    continue;
                }
            }
            if self.enough {
                return Ok(0);
            }
        }
        Ok(ulpdus.finish())
    }

    fn seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    /// Returns the number of buffer slots in use, the number of recorded early FPDUs, and the number of
    /// buffers that are missing from the pool.
    fn kept(&self) -> (usize, usize, usize) {
        (self.slab.buffers().0, self.slab.early_fpdus().0, self.pool.capacity() - self.pool.available())
    }
}

/// Returns a stream with these ULPDUs, and the end of each FPDU.
fn stream(markers: bool, ulpdus: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
    let mut framer = Framer::new(markers, true);
    let mut wire = Vec::new();
    let ends = ulpdus
        .iter()
        .map(|ulpdu| {
            let at = wire.len();
            wire.resize(at + framer.wire_len(ulpdu.len()), 0);
            framer.frame(&mut wire[at..], ulpdu);
            wire.len()
        })
        .collect();
    (wire, ends)
}

/// Writes the correct CRC to the end of a changed FPDU.
fn seal(fpdu: &mut [u8]) {
    let (covered, field) = fpdu.split_at_mut(fpdu.len() - CRC_BYTES);
    let mut crc = Crc32c::new();
    crc.update(covered);
    field.copy_from_slice(&crc.field());
}

/// `receive_whole` consumes whole valid FPDUs from the front of a buffer that is the next in order, and
/// leaves all other bytes to `receive`. It consumes nothing if the stream has markers, if the deframer holds
/// bytes, or if reception is over.
#[test]
fn whole_fpdus_are_taken_from_the_front_of_the_next_buffer() {
    let (wire, ends) = stream(false, &[b"hello", b"you", b"world"]);
    let whole = |bench: &mut Bench, part: &[u8], from: usize, frontier: usize| {
        let mut buf = bench.pool.alloc().unwrap();
        buf.append(part.len()).unwrap().copy_from_slice(part);
        let (offset, frontier) = (START + from as u64, START + frontier as u64);
        let Bench { deframer, slab, seen, .. } = bench;
        deframer.receive_whole(offset, &buf, frontier, slab, |_, ulpdu| {
            seen.push(Whole(ulpdu.to_vec()));
            Ok::<_, ()>(())
        })
    };
    // Two whole FPDUs, and the first bytes of a third FPDU.
    let mut bench = Bench::new(false);
    let end = ends[1] + 3;
    assert_eq!(whole(&mut bench, &wire[..end], 0, end), Ok(ends[1]));
    assert_eq!(bench.seen(), [Whole(b"hello".into()), Whole(b"you".into())]);
    assert!(!bench.deframer.at_boundary());
    // A buffer that begins before the next FPDU, and a buffer that begins after the first byte of this FPDU.
    assert_eq!(whole(&mut bench, &wire, 0, wire.len()), Ok(0));
    assert_eq!(whole(&mut bench, &wire[ends[1] + 4..], ends[1] + 4, wire.len()), Ok(0));
    // The buffer ends after the last byte that TCP reports as received in order.
    assert_eq!(whole(&mut bench, &wire[ends[1]..], ends[1], wire.len() - 1), Ok(0));
    // The deframer holds other bytes.
    bench.up(&wire, ends[1] + 4, wire.len(), ends[1]).unwrap();
    assert_eq!(whole(&mut bench, &wire[ends[1]..], ends[1], wire.len()), Ok(0));
    assert_eq!((bench.seen(), bench.deframer.counters().fpdus), (vec![], 2));
    // After `clear`, reception is over.
    bench.deframer.clear(&mut bench.slab);
    assert_eq!(whole(&mut bench, &wire[ends[1]..], ends[1], wire.len()), Ok(0));
    // A damaged FPDU, and the same FPDU without a CRC check.
    let mut damaged = wire.clone();
    damaged[ends[0] - 1] ^= 1;
    let mut bench = Bench::new(false);
    assert_eq!(whole(&mut bench, &damaged, 0, wire.len()), Ok(0));
    bench.deframer.framing.crc = false;
    assert_eq!(whole(&mut bench, &damaged, 0, wire.len()), Ok(wire.len()));
    assert!(bench.deframer.at_boundary());
    // A stream with markers.
    let (wire, _) = stream(true, &[b"hello"]);
    assert_eq!(whole(&mut Bench::new(true), &wire, 0, wire.len()), Ok(0));
}

/// A random stream, in some rounds with a damaged byte, is cut at random positions into buffers of one or two
/// segments. One deframer receives every buffer by `receive`. The other deframer receives the buffers by
/// `receive_whole`, and then the remaining bytes by `receive`. Both hand up the same FPDUs, and end in the
/// same state and with the same error.
#[test]
fn both_paths_hand_up_the_same() {
    let (mut whole_bytes, mut errors) = (0, 0);
    for seed in 0..600 {
        let mut dice = testkit::dice::Dice::xorshift(seed);
        let markers = seed % 8 == 0;
        let ulpdus: Vec<Vec<u8>> = (0..20).map(|nr| vec![nr + 1; dice.below(60) as usize]).collect();
        let (mut wire, _) = stream(markers, &ulpdus.iter().map(Vec::as_slice).collect::<Vec<_>>());
        if seed % 4 == 1 {
            let at = dice.below(wire.len() as u64) as usize;
            wire[at] ^= 1 << dice.below(8);
        }
        let mut benches = [true, false].map(|_| Bench::new(markers));
        let (mut from, mut pieces) = (0, Vec::new());
        while from < wire.len() {
            let to = (from + 1 + dice.below(150) as usize).min(wire.len());
            pieces.push((from, to));
            from = to;
        }
        for at in 1..pieces.len() {
            if dice.below(8) == 0 {
                pieces.swap(at - 1, at);
            }
        }
        let mut arrived: Vec<(usize, usize)> = Vec::new();
        for (from, to) in pieces {
            arrived.push((from, to));
            arrived.sort_unstable();
            let frontier = arrived.iter().fold(0, |end, (from, to)| if *from == end { *to } else { end });
            let first = dice.below((to - from) as u64 + 1) as usize;
            let results = [true, false].map(|fast| {
                let bench = &mut benches[usize::from(!fast)];
                let mut buf = bench.pool.alloc().unwrap();
                buf.append(first).unwrap().copy_from_slice(&wire[from..from + first]);
                if first < to - from {
                    let mut behind = bench.pool.alloc().unwrap();
                    behind.append(to - from - first).unwrap().copy_from_slice(&wire[from + first..to]);
                    buf.chain(behind).unwrap();
                }
                let (mut offset, frontier) = (START + from as u64, START + frontier as u64);
                if fast {
                    let Bench { deframer, slab, seen, .. } = &mut *bench;
                    let taken = deframer.receive_whole(offset, &buf, frontier, slab, |_, ulpdu| {
                        seen.push(Whole(ulpdu.to_vec()));
                        Ok::<_, ()>(())
                    });
                    let taken = taken.unwrap();
                    whole_bytes += taken;
                    if taken > 0 && taken == buf.len() {
                        return Ok(0);
                    }
                    buf.advance(taken);
                    offset += taken as u64;
                }
                bench.receive(offset, buf, frontier)
            });
            assert_eq!(results[0], results[1], "{seed} {from}");
            errors += u32::from(results[0].is_err());
            let [one, two] = benches.each_mut().map(|bench| {
                let Bench { deframer, slab, .. } = &*bench;
                let Deframer { next, frontier, ended, counters, .. } = deframer;
                let state = format!("{next} {frontier} {ended} {counters:?} {:?}", deframer.check(slab));
                (state, bench.kept(), bench.seen())
            });
            assert_eq!(one, two, "{seed} {from}");
        }
    }
    assert!(whole_bytes > 8000 && errors > 100, "{whole_bytes} {errors}");
}

/// Returns a buffer with the bytes of `parts`. The bytes of the first part are in the buffer, and the other
/// parts are external memory.
fn borrowed(pool: &Mempool, parts: &[&[u8]]) -> Mbuf {
    let mut buf = pool.alloc().unwrap();
    buf.append(parts[0].len()).unwrap().copy_from_slice(parts[0]);
    for part in &parts[1..] {
        buf.chain(Mbuf::external(pool, dp::ExtBuf::new(std::sync::Arc::new(part.to_vec()))).unwrap())
            .unwrap();
    }
    buf
}

/// A random stream without CRCs is cut at random positions into buffers with borrowed memory. One deframer
/// receives private copies by `receive`. The other deframer receives the buffers by `receive_borrowed`, and
/// then private copies of the remaining bytes by `receive`. Both hand up the same FPDUs, and end in the same
/// state.
#[test]
fn borrowed_fpdus_are_handed_up_as_others() {
    let (mut borrowed_bytes, mut others) = (0, 0);
    for seed in 0..400 {
        let mut dice = testkit::dice::Dice::xorshift(seed);
        let ulpdus: Vec<Vec<u8>> = (0..20).map(|nr| vec![nr + 1; dice.below(60) as usize]).collect();
        let (wire, ends) = stream(false, &ulpdus.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut benches = [true, false].map(|_| Bench::new(false));
        benches.iter_mut().for_each(|bench| bench.deframer.framing.crc = false);
        let (mut from, mut pieces) = (0, Vec::new());
        while from < wire.len() {
            let to = (from + 1 + dice.below(200) as usize).min(wire.len());
            pieces.push((from, to));
            from = to;
        }
        for at in 1..pieces.len() {
            if dice.below(8) == 0 {
                pieces.swap(at - 1, at);
            }
        }
        let mut arrived: Vec<(usize, usize)> = Vec::new();
        for (from, to) in pieces {
            arrived.push((from, to));
            arrived.sort_unstable();
            let frontier = arrived.iter().fold(0, |end, (from, to)| if *from == end { *to } else { end });
            let [one, two] = [(); 2].map(|()| from + dice.below((to - from) as u64 + 1) as usize);
            let (one, two) = (one.min(two), one.max(two));
            let parts = [&wire[from..one], &wire[one..two], &wire[two..to]];
            let (mut offset, frontier) = (START + from as u64, START + frontier as u64);
            let [fast, general] = &mut benches;
            let buf = borrowed(&general.pool, &parts).into_private().unwrap();
            general.receive(offset, buf, frontier).unwrap();
            let mut buf = borrowed(&fast.pool, &parts);
            let Bench { deframer, slab, seen, .. } = &mut *fast;
            let begun = deframer.counters().fpdus as usize;
            let mut starts = std::iter::once(0).chain(ends.iter().map(|end| *end as u64)).skip(begun);
            let taken = deframer.receive_borrowed(offset, &buf, frontier, slab, |ulpdu| {
                let (frame, at) = ulpdu.in_frame().unwrap();
                let mut copy = vec![0; ulpdu.len()];
                assert!(frame.copy_to(at, &mut copy) == copy.len() && ulpdu.whole().is_none());
                let mut runs = Vec::new();
                let Ok(()) = ulpdu.try_each_run(0, usize::MAX, |run| {
                    runs.extend_from_slice(run);
                    Ok::<_, std::convert::Infallible>(())
                });
                let front = ulpdu.front(9).map(<[u8]>::to_vec);
                assert!(front.is_none_or(|front| front == copy[..copy.len().min(9)]));
                assert_eq!((&runs, &bytes(&ulpdu)), (&copy, &copy));
                assert_eq!(Some(ulpdu.position()), starts.next(), "each FPDU has the position of its length");
                seen.push(Whole(copy));
                Ok::<_, ()>(())
            });
            let taken = taken.unwrap();
            borrowed_bytes += taken;
            others += buf.len() - taken;
            if taken > 0 && taken == buf.len() {
                drop(buf);
            } else {
                buf.advance(taken);
                offset += taken as u64;
                fast.receive(offset, buf.into_private().unwrap(), frontier).unwrap();
            }
            let [one, two] = benches.each_mut().map(|bench| {
                let Bench { deframer, slab, .. } = &*bench;
                let Deframer { next, frontier, ended, counters, .. } = deframer;
                let state = format!("{next} {frontier} {ended} {counters:?} {:?}", deframer.check(slab));
                (state, bench.kept(), bench.seen())
            });
            assert_eq!(one, two, "{seed} {from}");
        }
    }
    assert!(borrowed_bytes > 20_000 && others > 50_000, "{borrowed_bytes} {others}");
}

/// Bytes that other processes may write are taken only if nothing has to be checked before they are placed.
#[test]
fn borrowed_fpdus_are_refused_where_they_are_checked() {
    let (wire, ends) = stream(false, &[b"hello", b"you"]);
    let take = |change: fn(&mut Bench), from: usize, frontier: usize| {
        let mut bench = Bench::new(false);
        bench.deframer.framing.crc = false;
        change(&mut bench);
        let buf = borrowed(&bench.pool, &[&wire[from..from + 1], &wire[from + 1..]]);
        let (offset, frontier) = (START + from as u64, START + frontier as u64);
        let Bench { deframer, slab, .. } = &mut bench;
        deframer.receive_borrowed(offset, &buf, frontier, slab, |_| Ok::<_, ()>(()))
    };
    assert_eq!(take(|_| (), 0, wire.len()), Ok(wire.len()));
    assert_eq!(take(|bench| bench.deframer.framing.crc = true, 0, wire.len()), Ok(0));
    assert_eq!(take(|bench| bench.deframer.framing.markers = true, 0, wire.len()), Ok(0));
    assert_eq!(take(|bench| bench.deframer.ended = true, 0, wire.len()), Ok(0));
    assert_eq!(take(|_| (), ends[0], wire.len()), Ok(0), "not the next byte");
    assert_eq!(take(|_| (), 0, wire.len() - 1), Ok(0), "bytes beyond the frontier");
    let mut bench = Bench::new(false);
    bench.deframer.framing.crc = false;
    let buf = borrowed(&bench.pool, &[&wire[..1], &wire[1..]]);
    let Bench { deframer, slab, .. } = &mut bench;
    let frontier = START + wire.len() as u64;
    assert_eq!(deframer.receive_borrowed(START, &buf, frontier, slab, |_| Err("refused")), Err("refused"));
    assert!(deframer.is_over() && deframer.counters().fpdus == 1);
    assert_eq!(deframer.accepted_end(), START + ends[0] as u64 - 1, "the refused FPDU is not accepted");
}

/// `receive_whole` consumes whole FPDUs in front of borrowed memory, and leaves the borrowed memory to
/// `receive_borrowed`.
#[test]
fn whole_fpdus_in_front_of_borrowed_memory_are_taken() {
    let (wire, ends) = stream(false, &[b"hello", b"you", b"world"]);
    let mut bench = Bench::new(false);
    bench.deframer.framing.crc = false;
    let buf = borrowed(&bench.pool, &[&wire[..ends[0]], &wire[ends[0]..ends[1]], &wire[ends[1]..]]);
    let Bench { deframer, slab, .. } = &mut bench;
    let frontier = START + wire.len() as u64;
    assert_eq!(deframer.receive_whole(START, &buf, frontier, slab, |_, _| Ok::<_, ()>(())), Ok(ends[0]));
}

/// An error that the user's closure returns ends reception, as an error of `Ulpdus` does.
#[test]
fn an_error_of_the_user_ends_reception() {
    let (wire, _) = stream(false, &[b"hello", b"you"]);
    let mut bench = Bench::new(false);
    let mut buf = bench.pool.alloc().unwrap();
    buf.append(wire.len()).unwrap().copy_from_slice(&wire);
    let Bench { deframer, slab, .. } = &mut bench;
    let frontier = START + wire.len() as u64;
    assert_eq!(deframer.receive_whole(START, &buf, frontier, slab, |_, _| Err("refused")), Err("refused"));
    assert!(deframer.is_over());
    assert_eq!(deframer.counters().fpdus, 1);
}

// Proves MPA-019, MPA-039, MPA-016, MPA-032, MPA-133, DDP-036: no ULPDU is passed to DDP before the last byte
// of its FPDU has arrived. An idle connection holds no buffer.
#[test]
fn an_fpdu_is_handed_up_at_its_last_byte() {
    for markers in [false, true] {
        let (wire, _) = stream(markers, &[b"hello"]);
        let mut bench = Bench::new(markers);
        for end in 1..wire.len() {
            assert_eq!(bench.up(&wire, end - 1, end, end), Ok(0));
            assert!(bench.seen().is_empty() && !bench.deframer.at_boundary());
        }
        // The single bytes were copied into one buffer.
        assert_eq!(bench.kept(), (1, 0, 1));
        bench.up(&wire, wire.len() - 1, wire.len(), wire.len()).unwrap();
        assert_eq!(bench.seen(), [Whole(b"hello".to_vec())]);
        assert!(bench.deframer.at_boundary());
        assert_eq!(bench.kept(), (0, 0, 0));
    }
}

// Proves MPA-273, MPA-124, MPA-129, MPA-280: a segment may contain several FPDUs, and the CRC of an FPDU may
// arrive in a segment of its own, as Linux siw sends it.
#[test]
fn segments_need_not_be_aligned() {
    let (wire, ends) = stream(false, &[b"one", b"two", b"three"]);
    let mut bench = Bench::new(false);
    let cut = ends[2] - CRC_BYTES;
    bench.up(&wire, 0, cut, cut).unwrap();
    assert_eq!(bench.seen(), [Whole(b"one".to_vec()), Whole(b"two".to_vec())]);
    assert_eq!(bench.kept(), (1, 0, 1));
    bench.up(&wire, cut, ends[2], ends[2]).unwrap();
    assert_eq!(bench.seen(), [Whole(b"three".to_vec())]);
    assert_eq!((bench.kept(), bench.deframer.counters().fpdus), ((0, 0, 0), 3));
}

// Proves MPA-283, MPA-127, DDP-024: without markers, bytes beyond a hole are held. They are released when all
// bytes before them have arrived.
#[test]
fn without_markers_nothing_is_early() {
    let (wire, ends) = stream(false, &[b"one", b"two", b"three"]);
    let mut bench = Bench::new(false);
    assert_eq!(bench.up(&wire, ends[0], ends[1], 0), Ok(0));
    assert_eq!(bench.up(&wire, ends[1], ends[2] - 2, 0), Ok(0));
    assert!(bench.seen().is_empty());
    let released = bench.up(&wire, 0, ends[0], ends[2] - 2).unwrap();
    assert_eq!(bench.seen(), [Whole(b"one".to_vec()), Whole(b"two".to_vec())]);
    // Both pieces were copied into one buffer, which still waits for two bytes. The buffer is in order, so
    // its bytes are not counted.
    assert_eq!((released, bench.kept()), (ends[2] - 2 - ends[0], (1, 0, 1)));
    assert_eq!(bench.up(&wire, ends[2] - 2, ends[2], ends[2]), Ok(0));
    assert_eq!((bench.seen(), bench.kept()), (vec![Whole(b"three".to_vec())], (0, 0, 0)));
}

// Proves MPA-033, MPA-035, MPA-130, MPA-131, MPA-002, MPA-055, MPA-061, DDP-014, DDP-019, DDP-053, DDP-131,
// DDP-138, DDP-137: a marker leads to an FPDU beyond a hole, and the length of this FPDU leads to the next
// FPDU. The caller can place these FPDUs as soon as they arrive. An FPDU that the caller does not place is
// held until it is next in order. All FPDUs are delivered in order.
#[test]
fn a_marker_and_lengths_lead_to_fpdus_ahead() {
    let long = [b'x'; 700];
    let (wire, ends) = stream(true, &[b"first", &long, b"n refused", b"last"]);
    let mut bench = Bench::new(true);
    let released = bench.up(&wire, ends[0], ends[3], 0).unwrap();
    assert_eq!(bench.seen(), [Early(long.to_vec()), Early(b"last".to_vec())]);
    // The FPDU that the caller did not place stays held, in its buffer.
    assert_eq!(released, ends[1] - ends[0] + ends[3] - ends[2]);
    assert_eq!(bench.kept(), (1, 2, 1));
    let released = bench.up(&wire, 0, ends[0], ends[3]).unwrap();
    assert_eq!(released, ends[2] - ends[1]);
    assert_eq!(
        bench.seen(),
        [
            Whole(b"first".to_vec()),
            Placed(vec![b'x'; 18], 700),
            Whole(b"n refused".to_vec()),
            Placed(b"last".to_vec(), 4)
        ]
    );
    assert_eq!((bench.kept(), bench.deframer.at_boundary()), ((0, 0, 0), true));
}

// Proves MPA-281, MPA-292, MPA-127: an FPDU beyond a hole is found when its last piece arrives, even if its
// three pieces arrive in the worst order.
#[test]
fn pieces_ahead_are_joined() {
    let long = [b'x'; 1500];
    let (wire, ends) = stream(true, &[b"first", &long, &long]);
    let mut bench = Bench::new(true);
    let (a, b) = (ends[0] + 500, ends[0] + 1000);
    assert_eq!(bench.up(&wire, b, ends[1] + 8, 0), Ok(0));
    assert_eq!(bench.up(&wire, ends[0], a, 0), Ok(0));
    assert!(bench.seen().is_empty());
    assert_eq!(bench.up(&wire, a, b, 0), Ok(ends[1] - ends[0]));
    assert_eq!(bench.seen(), [Early(long.to_vec())]);
    // The length of the second FPDU now gives the beginning of the third FPDU, although the third FPDU's
    // first marker has not arrived.
    assert_eq!(bench.kept(), (1, 1, 1));
    let rest = bench.up(&wire, ends[1] + 8, ends[2], 0).unwrap();
    assert_eq!((rest, bench.seen()), (ends[2] - ends[1], vec![Early(long.to_vec())]));
    bench.up(&wire, 0, ends[0], ends[2]).unwrap();
    assert_eq!(bench.seen().len(), 3);
    assert_eq!(bench.kept(), (0, 0, 0));
}

// Proves MPA-044, MPA-126, MPA-132, MPA-096, MPA-230, MPA-237, MPA-238, MPA-227: an FPDU beyond a hole with a
// wrong CRC is ignored, and its length leads to no other FPDU. When this FPDU is the next in order, its wrong
// CRC is error code 2.
#[test]
fn a_bad_crc_ahead_is_met_in_order() {
    let long = [b'x'; 300];
    let (mut wire, ends) = stream(true, &[b"first", &long, &long, &long]);
    wire[ends[0] + 100] ^= 1;
    let mut bench = Bench::new(true);
    // The marker at 512 is in the third FPDU, which is valid.
    assert!(ends[1] < 512 && 512 < ends[2]);
    assert_eq!(bench.up(&wire, ends[0], ends[2], 0), Ok(ends[2] - ends[1]));
    assert_eq!(bench.seen(), [Early(long.to_vec())]);
    let error = bench.up(&wire, 0, ends[0], ends[2]).unwrap_err();
    assert_eq!(error, MpaError::Crc { position: ends[0] as u64 });
    assert_eq!(error.terminate_code().control(), [0x20, 2, 0, 0]);
    assert_eq!(bench.seen(), [Whole(b"first".to_vec())]);
    // Reception is over: everything is freed, and new bytes are dropped.
    assert_eq!((bench.kept(), bench.deframer.is_over()), ((0, 0, 0), true));
    assert_eq!(bench.up(&wire, ends[2], ends[3], ends[3]), Ok(ends[1] - ends[0]));
    assert_eq!((bench.seen(), bench.kept()), (vec![], (0, 0, 0)));
}

// Proves MPA-043, MPA-051, MPA-054, MPA-125, MPA-231, MPA-232: if the CRC is good, the receiver ignores the
// pad, and the reserved bytes and the two low bits of a marker. A marker with a wrong FPDUPTR is error code
// 3, even if all bytes arrive in order. This is tested with the first and the second marker. The ULPDU that
// is passed on contains no marker.
#[test]
fn only_a_wrong_pointer_is_code_3() {
    let ulpdu = [b'x'; 601];
    for (at, xor, expected) in [
        (512, 0xff, None),
        (515, 0x03, None),
        (0, 0x55, None),
        (515, 0x04, Some(MpaError::Marker { position: 0 })),
        (514, 0x80, Some(MpaError::Marker { position: 0 })),
        (3, 0x08, Some(MpaError::Marker { position: 0 })),
    ] {
        let (mut wire, ends) = stream(true, &[&ulpdu]);
        wire[at] ^= xor;
        let pad = ends[0] - CRC_BYTES - 1;
        wire[pad] ^= 0xff;
        seal(&mut wire);
        let mut bench = Bench::new(true);
        assert_eq!(bench.up(&wire, 0, ends[0], ends[0]).err(), expected);
        let seen = if expected.is_none() { vec![Whole(ulpdu.to_vec())] } else { vec![] };
        assert_eq!(bench.seen(), seen);
    }
}

// The length field of an FPDU is wrong, and reaches into the next FPDU. While the FPDU waits for its last
// bytes, the next FPDU is placed early. The error is found when the next byte arrives, before the FPDU is
// complete.
#[test]
fn lengths_that_come_before_the_marker_they_disagree_with_are_code_3() {
    let long = [b'x'; 600];
    let (mut wire, ends) = stream(true, &[b"first", &long, b"last"]);
    wire[5] += 8;
    let mut bench = Bench::new(true);
    assert_eq!(bench.up(&wire, 0, 8, 8), Ok(0));
    bench.up(&wire, ends[0], ends[2], 8).unwrap();
    assert_eq!(bench.seen().len(), 2);
    assert_eq!(bench.up(&wire, 8, 9, 9), Err(MpaError::Marker { position: 0 }));
}

// Proves MPA-233, MPA-227: if the length of an FPDU reaches into an FPDU to which a marker has led, the error
// has code 3.
#[test]
fn lengths_and_markers_that_disagree_are_code_3() {
    let long = [b'x'; 600];
    let (mut wire, ends) = stream(true, &[b"first", &long, b"last"]);
    let mut bench = Bench::new(true);
    bench.up(&wire, ends[0], ends[2], 0).unwrap();
    assert_eq!(bench.seen().len(), 2);
    // The length field of the first FPDU is larger than the number of bytes before the second FPDU.
    wire[5] += 8;
    let error = bench.up(&wire, 0, ends[0], ends[2]).unwrap_err();
    assert_eq!(error, MpaError::Marker { position: 0 });
    assert_eq!(error.terminate_code().control(), [0x20, 3, 0, 0]);
    assert!(bench.seen().is_empty());
    assert_eq!(bench.kept(), (0, 0, 0));
}

// Proves MPA-047, MPA-048: a ULPDU of length 0 is passed to DDP, which refuses it. A ULPDU of more than 64768
// bytes is passed to DDP like any other ULPDU.
#[test]
fn odd_lengths_are_framed() {
    let mut wire = vec![0; 8];
    seal(&mut wire);
    let mut bench = Bench::new(false);
    bench.up(&wire, 0, 8, 8).unwrap();
    assert_eq!(bench.seen(), [Whole(vec![])]);

    let mut long = vec![0xff; 2 + 65_535 + 3 + CRC_BYTES];
    seal(&mut long);
    wire.extend(long);
    let mut at = 8;
    while at < wire.len() {
        let to = wire.len().min(at + 1460);
        bench.up(&wire, at, to, to).unwrap();
        at = to;
    }
    assert_eq!(bench.seen(), [Whole(vec![0xff; 65_535])]);
    assert_eq!(bench.kept(), (0, 0, 0));
}

#[test]
fn ulpdus_that_are_not_asked_for_end_reception() {
    let (wire, ends) = stream(true, &[b"one", b"two", b"three"]);
    let mut bench = Bench::new(true);
    bench.enough = true;
    bench.up(&wire, ends[1], ends[2], 0).unwrap();
    assert_eq!(bench.up(&wire, 0, ends[1], ends[2]), Ok(0));
    assert_eq!(bench.seen(), [Whole(b"one".to_vec())]);
    assert_eq!((bench.deframer.is_over(), bench.kept()), (true, (0, 0, 0)));
    assert_eq!(bench.deframer.clear(&mut bench.slab), ends[2] - ends[1]);
}

// If a connection needs more of the shared slab than is free, it fails or works without out-of-order
// placement. Without a free slot for a buffer, the error has code 5. Without a free slot for an early FPDU,
// no FPDU is placed early.
#[test]
fn slots_run_out_in_good_order() {
    let long = [b'x'; 600];
    let (wire, ends) = stream(true, &[b"first", &long, &long, &long]);
    let mut bench = Bench::with_slots(true, 2, 1);
    assert_eq!(bench.up(&wire, ends[0], ends[1], 0), Ok(ends[1] - ends[0]));
    assert_eq!(bench.up(&wire, ends[1], ends[2], 0), Ok(0));
    assert_eq!(bench.seen(), [Early(long.to_vec())]);
    assert_eq!(bench.kept(), (1, 1, 1));
    assert_eq!(bench.up(&wire, ends[2] + 4, ends[2] + 300, 0), Ok(0));
    assert_eq!(bench.up(&wire, ends[2] + 304, ends[3], 0), Err(MpaError::NoHeldSlot));
    assert_eq!(bench.kept(), (0, 0, 0));
    assert_eq!(bench.deframer.clear(&mut bench.slab), ends[3] - 8 - ends[1]);
}

#[test]
fn bytes_in_front_of_the_first_fpdu_are_startups() {
    let (wire, _) = stream(false, &[b"one"]);
    let mut bench = Bench::new(false);
    let mut buf = bench.pool.alloc().unwrap();
    buf.append(5).unwrap().copy_from_slice(b"Reply");
    buf.append(wire.len()).unwrap().copy_from_slice(&wire);
    bench.receive(START - 5, buf, START + wire.len() as u64).unwrap();
    assert_eq!(bench.seen(), [Whole(b"one".to_vec())]);
}

// If a stream ends after a marker that belongs to the next FPDU, the stream ends inside that FPDU.
#[test]
fn a_fin_behind_a_marker_cuts() {
    let mut bench = Bench::new(true);
    bench.up(&[0; 4], 0, 4, 4).unwrap();
    assert!(!bench.deframer.at_boundary());
    assert_eq!(bench.deframer.clear(&mut bench.slab), 0);
    assert_eq!(bench.kept(), (0, 0, 0));
}
