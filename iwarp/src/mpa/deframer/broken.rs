//! Tests that [`Deframer::check`] finds inconsistencies of a deframer.

use dp::Mempool;
use dp::invariant::assert_found;

use super::early_fpdu::EarlyFpdu;
use super::*;

struct Bench {
    slab: HeldSlab,
    deframer: Deframer,
    pool: Mempool,
}

impl Bench {
    /// Returns a deframer that has recorded an early FPDU at 200..240 and holds the bytes 300..310. Both
    /// ranges are beyond a hole.
    fn new() -> Self {
        let mut bench = Self {
            slab: HeldSlab::new(4, 4),
            deframer: Deframer::new(0, true, true),
            pool: Mempool::heap("deframer", 4, 2048),
        };
        let early = EarlyFpdu { start: 200, end: 240, ulpdu_bytes: 30, head: [0; HEAD_BYTES] };
        bench.slab.early.insert(&mut bench.deframer.early, None, early).unwrap();
        bench.hold(300, true);
        bench
    }

    fn hold(&mut self, start: u64, ahead: bool) {
        let mut buf = self.pool.alloc().unwrap();
        buf.append(10).unwrap().fill(0);
        self.deframer.held.hold(&mut self.slab, start, buf, ahead).unwrap();
    }

    /// Sets the deframer's state as if all bytes before `position` had been handed up.
    fn hand_up(&mut self, position: u64) {
        (self.deframer.next, self.deframer.frontier) = (position, position);
    }
}

#[test]
fn a_deframer_whose_parts_disagree_is_found() {
    type Break = fn(&mut Bench);
    let broken: [(Break, &str); 6] = [
        (|bench| bench.deframer.ended = true, "ended, with 1 buffers and 1 early FPDUs"),
        (|bench| bench.deframer.next = 1, "handed up to 1, arrived up to 0"),
        (|bench| bench.hand_up(310), "handed up to 310, and held: "),
        (|bench| bench.hold(50, false), "arrived up to 0, and in order: "),
        (|bench| bench.hand_up(201), "handed up to 201, and recorded: "),
        (|bench| bench.deframer.held = HeldList::default(), "held buffers: 1 slots taken, 0 in lists"),
    ];
    for (break_it, found) in broken {
        let mut bench = Bench::new();
        assert_eq!(bench.deframer.check(&bench.slab), Ok((1, 1)));
        break_it(&mut bench);
        let checked = bench.deframer.check(&bench.slab);
        assert_found(checked.and_then(|(buffers, early)| bench.slab.check(buffers, early)), found);
    }
}
