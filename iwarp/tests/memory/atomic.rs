//! Atomics on words of registered memory: the checks, and that a word changes in one step or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dp::Region;
use iwarp::memory::{
    Access, Accessor, Base, EpochGuard, Fault, MemoryTable, PdId, RegisterOptions, Registration, Stag,
    StreamId,
};
use iwarp::rdmap::AtomicOp;

const ATOMIC: Access = Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC);
const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };

fn registered(table: &MemoryTable, access: Access) -> Registration {
    let options =
        RegisterOptions { pd: ME.pd, stream: None, access, base: Base::Zero, ..RegisterOptions::default() };
    table.register(Arc::new(Region::new(4096).unwrap()), &options).unwrap()
}

/// The word is changed by threads with epochs of their own, and by the application's own atomics.
// Proves EXT-103, EXT-170.
#[test]
fn the_word_is_changed_in_one_step() {
    const EACH: u64 = 50_000;
    let table = MemoryTable::new(16, [3; 32]);
    let words = registered(&table, ATOMIC);
    let ops = [
        AtomicOp::FetchAdd { add: 1, mask: 0 },
        AtomicOp::FetchAdd { add: 1 << 32, mask: 1 << 31 },
        AtomicOp::FetchAdd { add: 1 << 48 | 1, mask: 1 << 31 | 1 << 47 },
    ];
    std::thread::scope(|scope| {
        for op in ops {
            let (table, words) = (&table, &words);
            scope.spawn(move || {
                let participant = table.join();
                for _ in 0..EACH {
                    let epoch = participant.enter();
                    let word = epoch.check_atomic(words.stag(), 8, ME).unwrap();
                    word.update(|value| op.apply(value)).unwrap();
                }
            });
        }
    });
    // Three fields: 2 * EACH, EACH and EACH modulo 2^16.
    let value = words.memory().load_u64_acquire(8).unwrap();
    let low = (2 * EACH) & 0xffff_ffff;
    assert_eq!((value & 0xffff_ffff, value >> 32 & 0xffff, value >> 48), (low, EACH & 0xffff, EACH & 0xffff));
}

/// An admitted word is not changed after it has been revoked, by whichever call.
#[test]
fn a_revoked_word_is_not_changed() {
    let table = MemoryTable::new(16, [4; 32]);
    let words = registered(&table, ATOMIC);
    let participant = table.join();
    let epoch = participant.enter();
    let word = epoch.check_atomic(words.stag(), 0, ME).unwrap();
    assert_eq!(word.update(|value| value + 1), Ok(0));
    words.invalidate();
    assert_eq!(word.update(|value| value + 1), Err(Fault::InvalidStag));
    assert_eq!(words.memory().load_u64_acquire(0), Ok(1));
}

/// Memory belongs to its owner only, once deregistration has returned, also with atomics under way on other
/// threads.
// Proves EXT-155.
#[test]
fn after_deregistration_no_atomic_lands() {
    let table = MemoryTable::new(16, [5; 32]);
    let (advertised, stop) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let engines: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let participant = table.join();
                    let mut changed = 0_u64;
                    while stop.load(Ordering::Acquire) == 0 {
                        let epoch = participant.enter();
                        let stag = Stag(advertised.load(Ordering::Acquire) as u32);
                        if let Ok(word) = epoch.check_atomic(stag, 0, ME) {
                            changed += u64::from(word.update(|value| value + 1).is_ok());
                        }
                        drop(epoch);
                        std::thread::yield_now();
                    }
                    changed
                })
            })
            .collect();
        let mut failed = None;
        for round in 0..2000 {
            let words = registered(&table, ATOMIC);
            let region = Arc::clone(words.region().unwrap());
            advertised.store(words.stag().0.into(), Ordering::Release);
            std::thread::sleep(Duration::from_micros(round % 5 * 20));
            words.deregister();
            // It belongs to us only: it is the same when read twice.
            let read = || {
                table
                    .register(Arc::clone(&region), &RegisterOptions::default())
                    .unwrap()
                    .memory()
                    .load_u64_acquire(0)
            };
            let before = read();
            std::thread::yield_now();
            if before != read() {
                failed = Some(round);
            }
        }
        stop.store(1, Ordering::Release);
        let changed: u64 = engines.into_iter().map(|engine| engine.join().unwrap()).sum();
        assert_eq!(failed, None, "changed after deregistration");
        assert!(changed > 0, "the race was not run");
    });
}

/// The checks in their order: name, rights, stream, range, and last alignment.
// Proves EXT-152 to EXT-154, EXT-174, EXT-202.
#[test]
fn a_word_is_checked_in_order() {
    let table = MemoryTable::new(16, [6; 32]);
    let participant = table.join();
    let epoch = participant.enter();
    let fault = |registration: &Registration, to: u64, by: Accessor| {
        epoch.check_atomic(registration.stag(), to, by).map(drop).err()
    };
    let words = registered(&table, ATOMIC);
    let stranger = Accessor { pd: PdId(2), ..ME };
    for to in 0..4096 {
        let expected =
            if to > 4088 { Some(Fault::Bounds) } else { (to % 8 != 0).then_some(Fault::Misaligned) };
        assert_eq!(fault(&words, to, ME), expected, "{to}");
        assert_eq!(fault(&words, to, stranger), Some(Fault::NotAssociated));
    }
    assert_eq!(fault(&words, u64::MAX - 6, ME), Some(Fault::Wrap));
    for (access, expected) in [
        (Access::LOCAL_WRITE, Some(Fault::InvalidStag)),
        (Access::REMOTE_READ, Some(Fault::AccessRights)),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, Some(Fault::AccessRights)),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ, None),
        (ATOMIC, None),
        (ATOMIC | Access::REMOTE_READ, None),
    ] {
        let registration = registered(&table, access);
        assert_eq!(fault(&registration, 0, ME), expected, "{access:?}");
        // The rights are checked before the alignment.
        assert_eq!(fault(&registration, 4, ME), Some(expected.unwrap_or(Fault::Misaligned)));
    }
    // A region whose offsets start at 4: the alignment of the memory counts.
    let options = RegisterOptions {
        pd: ME.pd,
        stream: None,
        access: ATOMIC,
        base: Base::Iova(4),
        ..RegisterOptions::default()
    };
    let shifted = table.register(Arc::new(Region::new(64).unwrap()), &options).unwrap();
    assert_eq!((fault(&shifted, 4, ME), fault(&shifted, 8, ME)), (None, Some(Fault::Misaligned)));
    set_and_see(&epoch, &words);
}

fn set_and_see(epoch: &EpochGuard<'_>, words: &Registration) {
    let word = epoch.check_atomic(words.stag(), 4088, ME).unwrap();
    assert_eq!(word.update(|_| 0x1122), Ok(0));
    assert_eq!(words.memory().load_u64_acquire(4088), Ok(0x1122));
}
