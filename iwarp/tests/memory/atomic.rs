//! Atomics on words of registered memory. After all checks, a word changes in one step or not at all.

use std::cell::{Cell, RefCell};
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

/// Several threads change the word, each with its own epochs. Each change is one atomic step.
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
    // The expected values of the three fields are 2 * EACH, EACH and EACH modulo 2^16.
    let value = words.memory().load_u64_acquire(8).unwrap();
    let low = (2 * EACH) & 0xffff_ffff;
    assert_eq!((value & 0xffff_ffff, value >> 32 & 0xffff, value >> 48), (low, EACH & 0xffff, EACH & 0xffff));
}

/// A word whose access was admitted is not changed after its STag was invalidated.
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

/// The caller's code computes the new value. In this test, the caller's code also ends or renews the
/// registration of the word. For example, it drops the registration, which frees the memory, and registers
/// other memory, which may get the same slot and the same address. The update then fails and changes no
/// memory.
#[test]
fn a_change_that_ends_its_registration_writes_nowhere() {
    let ends: [fn(Registration, &MemoryTable) -> Registration; 4] = [
        |first, table| {
            drop(first);
            registered(table, ATOMIC)
        },
        |first, _| {
            first.invalidate();
            first
        },
        // STag, memory and rights are the same afterwards. But a value that was read before may have changed
        // in the meantime.
        |mut first, _| {
            let key = first.stag().key();
            first.revalidate(key, ATOMIC).unwrap();
            first
        },
        |first, table| {
            let region = Arc::clone(first.region().unwrap());
            let options =
                RegisterOptions { pd: ME.pd, access: ATOMIC, base: Base::Zero, ..RegisterOptions::default() };
            drop(first);
            table.register(region, &options).unwrap()
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let table = MemoryTable::new(16, [9; 32]);
        let held = RefCell::new(Some(registered(&table, ATOMIC)));
        let stag = held.borrow().as_ref().unwrap().stag();
        let participant = table.join();
        let epoch = participant.enter();
        let word = epoch.check_atomic(stag, 0, ME).unwrap();
        let calls = Cell::new(0);
        let result = word.update(|value| {
            calls.set(calls.get() + 1);
            let first = held.borrow_mut().take().unwrap();
            *held.borrow_mut() = Some(end(first, &table));
            value + 0x0bad
        });
        assert_eq!((result, calls.get()), (Err(Fault::InvalidStag), 1), "{number}");
        let second = held.into_inner().unwrap();
        assert_eq!(second.memory().load_u64_acquire(0), Ok(0), "{number}");
        assert_eq!(word.update(|_| 1), Err(Fault::InvalidStag), "{number}");
    }
}

/// A panic of the caller's code is passed on, and the word does not change.
#[test]
fn a_change_that_panics_leaves_the_word() {
    let table = MemoryTable::new(16, [10; 32]);
    let words = registered(&table, ATOMIC);
    let participant = table.join();
    let epoch = participant.enter();
    let word = epoch.check_atomic(words.stag(), 0, ME).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| word.update(|_| panic!("no"))));
    assert!(caught.is_err());
    assert_eq!((word.update(|value| value + 1), words.memory().load_u64_acquire(0)), (Ok(0), Ok(1)));
}

/// If the caller's code changes the word itself, the new value is computed again.
#[test]
fn a_change_is_of_the_value_that_it_replaces() {
    let table = MemoryTable::new(16, [11; 32]);
    let words = registered(&table, ATOMIC);
    let participant = table.join();
    let epoch = participant.enter();
    let word = epoch.check_atomic(words.stag(), 0, ME).unwrap();
    let seen = RefCell::new(Vec::new());
    let before = word.update(|value| {
        seen.borrow_mut().push(value);
        if value == 0 {
            word.update(|_| 5).unwrap();
        }
        value + 10
    });
    // A weak exchange may fail spuriously. Then the closure receives the same value again.
    seen.borrow_mut().dedup();
    assert_eq!((before, words.memory().load_u64_acquire(0), seen.into_inner()), (Ok(5), Ok(15), vec![0, 5]));
}

/// After deregistration has returned, only the owner accesses the memory, even if other threads were
/// executing atomics.
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
            // Only this test accesses the memory, so two reads return equal bytes.
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

/// The checks are made in this order: STag, stream, rights, range, and finally alignment.
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
    // The tagged offsets of this region start at 4: the check uses only the alignment of the memory.
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
