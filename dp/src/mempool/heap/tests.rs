//! Tests of pools whose blocks are in memory that the system allocates later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8};

use super::super::slab::backing_bytes;
use super::*;

const COUNT: usize = 4;
const DATA_BYTES: usize = 1000;

#[repr(align(64))]
#[expect(dead_code, reason = "the pool uses the bytes by their address")]
struct Line([AtomicU8; 64]);

/// A backing that records which bytes the pool asks for.
struct Recorder {
    lines: Box<[Line]>,
    /// The bytes of `lines` that belong to the backing.
    skipped: usize,
    bytes: usize,
    taken: Mutex<Vec<(usize, usize)>>,
    /// Whether the system has no memory.
    fails: AtomicBool,
}

impl Recorder {
    fn new(skipped: usize, bytes: usize) -> Arc<Self> {
        let lines =
            (0..(skipped + bytes).div_ceil(64)).map(|_| Line(std::array::from_fn(|_| AtomicU8::new(0))));
        let (taken, fails) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { lines: lines.collect(), skipped, bytes, taken, fails })
    }

    fn taken(&self) -> Vec<(usize, usize)> {
        self.taken.lock().unwrap().clone()
    }
}

impl Backing for Recorder {
    fn start(&self) -> NonNull<u8> {
        let first = NonNull::from(&*self.lines).cast::<u8>();
        first.map_addr(|start| start.saturating_add(self.skipped))
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn take(&self, offset: usize, bytes: usize) -> bool {
        self.taken.lock().unwrap().push((offset, bytes));
        !self.fails.load(Ordering::Relaxed)
    }
}

fn pool(backing: &Arc<Recorder>) -> Arc<HeapPool> {
    HeapPool::backed("pool", COUNT, DATA_BYTES, Arc::<Recorder>::clone(backing))
}

/// The memory of a block is allocated when the block is used for the first time, and only then. A used block
/// is used again only after half of the other blocks, or if no other block is left.
#[test]
fn the_memory_of_a_block_is_taken_once() {
    let bytes = backing_bytes(COUNT, HEADROOM + DATA_BYTES).unwrap();
    let (backing, stride) = (Recorder::new(0, bytes), bytes / COUNT);
    let pool = pool(&backing);
    let alloc = || pool.alloc(0, DATA_BYTES).unwrap();
    // The offset of a buffer's block in the backing.
    let block =
        |handle: &Handle| handle.bytes().as_ptr().addr() - HEADROOM - Backing::start(&*backing).addr().get();
    assert_eq!((pool.available(), backing.taken()), (COUNT, vec![]));
    let first = alloc();
    assert_eq!((pool.available(), backing.taken()), (COUNT - 1, vec![(block(&first), stride)]));
    drop(first);
    assert_eq!(pool.available(), COUNT);
    // The distance is two of the four blocks, so three blocks take turns.
    let turns: Vec<_> = (0..9).map(|_| block(&alloc())).collect();
    let taken: Vec<_> = backing.taken().iter().map(|(offset, _)| *offset).collect();
    assert_eq!(taken.len(), 3, "the fourth block was never needed");
    for (turn, block) in turns.iter().enumerate() {
        assert_eq!(*block, taken[(turn + 1) % 3], "{turns:?} {taken:?}");
    }
    let all = [(); COUNT].map(|()| alloc());
    let mut taken = backing.taken();
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2, 3].map(|block| (block * stride, stride)));
    assert_eq!((pool.available(), pool.exhausted()), (0, 0));
    assert!(pool.alloc(0, 1).is_none());
    assert_eq!((pool.exhausted(), backing.taken().len()), (1, COUNT));
    drop(all);
    assert_eq!(pool.available(), COUNT);
}

/// If the system has no memory for a new block, the pool counts as empty, and loses no block.
#[test]
fn a_block_without_memory_stays_in_the_pool() {
    let backing = Recorder::new(0, backing_bytes(COUNT, HEADROOM + DATA_BYTES).unwrap());
    let pool = pool(&backing);
    let used = pool.alloc(0, 1).unwrap();
    backing.fails.store(true, Ordering::Relaxed);
    for failures in 1..4 {
        assert!(pool.alloc(0, 1).is_none());
        assert_eq!((pool.available(), pool.exhausted()), (COUNT - 1, failures));
    }
    drop(used);
    let again = pool.alloc(0, 1);
    assert!(again.is_some() && pool.alloc(0, 1).is_none(), "the used block has memory");
    assert_eq!(pool.exhausted(), 4);
    backing.fails.store(false, Ordering::Relaxed);
    let others = [(); COUNT - 1].map(|()| pool.alloc(0, 1));
    assert!(others.iter().all(Option::is_some) && pool.available() == 0);
}

/// The blocks have to fit the backing, and have to be aligned.
#[test]
fn a_backing_that_does_not_fit_is_refused() {
    let bytes = backing_bytes(COUNT, HEADROOM + DATA_BYTES).unwrap();
    for (skipped, bytes, fits) in
        [(0, bytes, true), (0, bytes + 1, true), (0, bytes - 1, false), (64, bytes, true), (32, bytes, false)]
    {
        let backing = Recorder::new(skipped, bytes);
        let made = catch_unwind(AssertUnwindSafe(|| pool(&backing).capacity())).ok();
        assert_eq!(made, fits.then_some(COUNT), "{skipped} {bytes}");
    }
}
