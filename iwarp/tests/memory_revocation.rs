//! Revocation while engines are placing and reading: when it returns, the memory is its owner's alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dp::Region;
use iwarp::memory::{Access, Accessor, Base, Fault, MemoryTable, PdId, RegisterOptions, Stag, StreamId};

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const OPTIONS: RegisterOptions =
    RegisterOptions { pd: ME.pd, stream: None, access: ACCESS, base: Base::Zero, key: 0, keep: false };

/// Octets of one copy: long enough that revocation meets it half way.
const LEN: usize = 1 << 18;

/// A name that the owner hands to the engines; 0 when there is none.
struct Advertised(AtomicU64);

/// Stops the other threads also when an assertion fails, so that a failure is not a hang.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Places and reads through whatever is advertised until told to stop. Returns how often it could and could not.
fn engine(table: &MemoryTable, advertised: &Advertised, stop: &AtomicBool, octet: u8) -> (u64, u64) {
    let participant = table.join();
    let (mut placed, mut refused) = (0, 0);
    let (octets, mut out) = (vec![octet; LEN], vec![0; LEN]);
    while !stop.load(Ordering::Acquire) {
        let turn = participant.enter();
        let stag = Stag(advertised.0.load(Ordering::Acquire) as u32);
        match turn.check_write(stag, 0, LEN as u64, ME).and_then(|target| target.place(0, &octets)) {
            Ok(()) => placed += 1,
            Err(fault) => {
                assert_eq!(fault, Fault::InvalidStag);
                refused += 1;
            }
        }
        if let Ok(source) = turn.check_read(stag, 0, LEN as u64, ME) {
            let _ = source.fetch(0, &mut out);
        }
        drop(turn);
        std::thread::yield_now();
    }
    (placed, refused)
}

/// Memory of the caller: after `deregister` not an octet of it changes, although engines go on with the old name,
/// and it is freed and reused at once.
// Proves DDP-219, DDP-231, SEC-099 to SEC-101, SEC-177.
#[test]
fn after_deregistration_not_an_octet_changes() {
    let table = MemoryTable::new(16, [3; 32]);
    let advertised = Advertised(AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let engines: Vec<_> = (1..=3_u8)
            .map(|octet| {
                let (table, advertised, stop) = (&table, &advertised, &stop);
                scope.spawn(move || engine(table, advertised, stop, octet))
            })
            .collect();
        let stop_engines = StopOnDrop(&stop);
        let mut written = 0;
        for round in 0..500_u32 {
            let mut memory = vec![0_u8; LEN];
            // SAFETY: the vector outlives the registration and is not touched while it exists.
            let registration = unsafe { table.register_user(memory.as_mut_ptr(), LEN, &OPTIONS) }.unwrap();
            advertised.0.store(registration.stag().0.into(), Ordering::Release);
            std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 50));
            registration.deregister();
            written += u32::from(memory.iter().any(|&octet| octet != 0));
            // The memory is ours alone: plain writes and reads now, and then it is freed.
            memory.fill(0xAA);
            // Long enough for a copy that nobody waited for to go on.
            std::thread::sleep(Duration::from_micros(300));
            assert!(memory.iter().all(|&octet| octet == 0xAA), "round {round}: changed after deregistration");
        }
        drop(stop_engines);
        let (placed, refused) = engines
            .into_iter()
            .map(|engine| engine.join().expect("engines do not fail"))
            .fold((0, 0), |sum, (placed, refused)| (sum.0 + placed, sum.1 + refused));
        assert!(
            placed > 0 && refused > 0 && written > 0,
            "the race was not run: {placed}, {refused}, {written}"
        );
    });
    assert_eq!(table.usage().registered, 0);
}

/// The table lets go of a region when the last registration over it ends, and not before.
#[test]
fn a_region_lives_as_long_as_its_registrations() {
    let table = MemoryTable::new(16, [4; 32]);
    let region = Arc::new(Region::new(4096).unwrap());
    let first = table.register(Arc::clone(&region), &OPTIONS).unwrap();
    let second = table.register(Arc::clone(&region), &OPTIONS).unwrap();
    assert_eq!(Arc::strong_count(&region), 3);
    first.invalidate();
    assert_eq!(Arc::strong_count(&region), 3);
    drop(first);
    second.deregister();
    assert_eq!(Arc::strong_count(&region), 1);
}

/// Deregistering waits for a turn that is open on another thread, and for no other.
#[test]
fn deregistration_waits_for_the_open_turn() {
    let table = MemoryTable::new(16, [5; 32]);
    let registration = table.register(Arc::new(Region::new(64).unwrap()), &OPTIONS).unwrap();
    // An engine that is asleep outside a turn, and one that is gone, hold nobody up.
    let _asleep = table.join();
    drop(table.join());
    let (entered, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let participant = table.join();
            let turn = participant.enter();
            let target = turn.check_write(registration.stag(), 0, 1, ME).unwrap();
            entered.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!done.load(Ordering::Acquire), "the other thread did not wait");
            // Whoever waits has marked the slot by now.
            assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
        });
        while !entered.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        registration.invalidate();
        done.store(true, Ordering::Release);
    });
}

/// Threads that revoke from inside their own turns wait neither for themselves nor for each other.
#[test]
fn revoking_inside_a_turn_does_not_deadlock() {
    let table = MemoryTable::new(16, [6; 32]);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let participant = table.join();
                for _ in 0..300 {
                    let turn = participant.enter();
                    let registration = table.register(Arc::new(Region::new(64).unwrap()), &OPTIONS).unwrap();
                    let target = turn.check_write(registration.stag(), 0, 8, ME).unwrap();
                    assert_eq!(target.place(0, b"eight oc"), Ok(()));
                    registration.deregister();
                    // The memory is gone; what was admitted notices.
                    assert_eq!(target.place(0, b"eight oc"), Err(Fault::InvalidStag));
                }
            });
        }
    });
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// Posting threads that copy inline data outside any turn are waited for as well.
#[test]
fn fetching_outside_a_turn_is_waited_for() {
    let table = MemoryTable::new(16, [7; 32]);
    let advertised = Advertised(AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = vec![0; LEN];
                while !stop.load(Ordering::Acquire) {
                    let lkey = advertised.0.load(Ordering::Acquire) as u32;
                    if table.fetch_local(ME.pd, lkey, 0, &mut out).is_ok() {
                        assert!(
                            out.iter().all(|&octet| octet == 0x11),
                            "read from memory that was given back"
                        );
                    }
                }
            });
        }
        let _stop_readers = StopOnDrop(&stop);
        for _ in 0..500 {
            let mut memory = vec![0x11_u8; LEN];
            // SAFETY: the vector outlives the registration and is not touched while it exists.
            let registration = unsafe { table.register_user(memory.as_mut_ptr(), LEN, &OPTIONS) }.unwrap();
            advertised.0.store(registration.stag().0.into(), Ordering::Release);
            std::thread::yield_now();
            registration.deregister();
            memory.fill(0x22);
        }
    });
}
