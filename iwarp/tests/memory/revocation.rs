//! Revocation while engines place and read. When the call that revokes returns, only the owner accesses the
//! memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dp::Region;
use iwarp::memory::{
    Access, Accessor, Base, Bind, BindError, FastBind, Fault, MemoryTable, PdId, Prepare, RegisterOptions,
    Stag, StreamId, WindowKind,
};

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const OPTIONS: RegisterOptions =
    RegisterOptions { pd: ME.pd, stream: None, access: ACCESS, base: Base::Zero, key: 0, keep: false };

/// Length of one copy in bytes. The copy takes long enough that a revocation often occurs in the middle of
/// it.
const LEN: usize = 1 << 18;

/// The STag that the owner gives to the engines, or 0.
struct Advertised(AtomicU64);

/// Stops the other threads even if an assertion fails, so that a failing test does not hang.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Places and reads through the advertised STag until `stop` is set. Returns how many placements succeeded
/// and failed.
fn engine(table: &MemoryTable, advertised: &Advertised, stop: &AtomicBool, byte: u8) -> (u64, u64) {
    let participant = table.join();
    let (mut placed, mut refused) = (0, 0);
    let (bytes, mut out) = (vec![byte; LEN], vec![0; LEN]);
    while !stop.load(Ordering::Acquire) {
        let epoch = participant.enter();
        let stag = Stag(advertised.0.load(Ordering::Acquire) as u32);
        match epoch.check_write(stag, 0, LEN as u64, ME).and_then(|target| target.place(0, &bytes)) {
            Ok(()) => placed += 1,
            Err(fault) => {
                assert_eq!(fault, Fault::InvalidStag);
                refused += 1;
            }
        }
        if let Ok(source) = epoch.check_read(stag, 0, LEN as u64, ME) {
            let _ = source.fetch(0, &mut out);
        }
        drop(epoch);
        std::thread::yield_now();
    }
    (placed, refused)
}

/// After `deregister` has returned, no byte of the caller's memory changes, although engines still use the
/// old STag. The test then writes to the memory, reads it, and frees it.
// Proves DDP-219, DDP-231, SEC-099 to SEC-101, SEC-177.
#[test]
fn after_deregistration_not_a_byte_changes() {
    let table = MemoryTable::new(16, [3; 32]);
    let advertised = Advertised(AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let engines: Vec<_> = (1..=3_u8)
            .map(|byte| {
                let (table, advertised, stop) = (&table, &advertised, &stop);
                scope.spawn(move || engine(table, advertised, stop, byte))
            })
            .collect();
        let stop_engines = StopOnDrop(&stop);
        let mut written = 0;
        for round in 0..500_u32 {
            let mut memory = vec![0_u8; LEN];
            // SAFETY: the vector is dropped after `deregister` returns. Until then the vector's bytes are
            // accessed only through the registration.
            let registration = unsafe { table.register_user(memory.as_mut_ptr(), LEN, &OPTIONS) }.unwrap();
            advertised.0.store(registration.stag().0.into(), Ordering::Release);
            std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 50));
            registration.deregister();
            written += u32::from(memory.iter().any(|&byte| byte != 0));
            // Only this test accesses the memory now. The test writes and reads the memory directly, and then
            // frees it.
            memory.fill(0xAA);
            // In this time, a copy for which `deregister` did not wait would change the memory.
            std::thread::sleep(Duration::from_micros(300));
            assert!(memory.iter().all(|&byte| byte == 0xAA), "round {round}: changed after deregistration");
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

/// Registrations keep their region alive until the last of them is dropped or deregistered. Invalidating an
/// STag does not release the region.
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

/// A revocation waits for an epoch that is open on another thread, and not for participants outside an epoch.
#[test]
fn deregistration_waits_for_the_open_epoch() {
    let table = MemoryTable::new(16, [5; 32]);
    let registration = table.register(Arc::new(Region::new(64).unwrap()), &OPTIONS).unwrap();
    // A participant that sleeps outside an epoch delays nobody. A participant that was dropped also delays
    // nobody.
    let _asleep = table.join();
    drop(table.join());
    let (entered, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let participant = table.join();
            let epoch = participant.enter();
            let target = epoch.check_write(registration.stag(), 0, 1, ME).unwrap();
            entered.store(true, Ordering::Release);
            // The waiting call first marks the slot as revoked.
            let started = Instant::now();
            while target.place(0, b"x") != Err(Fault::InvalidStag) {
                assert!(started.elapsed() < Duration::from_secs(60), "the other thread does not revoke");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(!done.load(Ordering::Acquire), "the other thread did not wait");
        });
        while !entered.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        registration.invalidate();
        done.store(true, Ordering::Release);
    });
}

/// Threads that revoke inside their own epochs do not wait for themselves or for each other.
#[test]
fn revoking_inside_an_epoch_does_not_deadlock() {
    let table = MemoryTable::new(16, [6; 32]);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let participant = table.join();
                for _ in 0..300 {
                    let epoch = participant.enter();
                    let registration = table.register(Arc::new(Region::new(64).unwrap()), &OPTIONS).unwrap();
                    let target = epoch.check_write(registration.stag(), 0, 8, ME).unwrap();
                    assert_eq!(target.place(0, b"eight oc"), Ok(()));
                    registration.deregister();
                    // The memory is revoked, and an access that was admitted before is refused.
                    assert_eq!(target.place(0, b"eight oc"), Err(Fault::InvalidStag));
                }
            });
        }
    });
    assert!(started.elapsed() < Duration::from_secs(60));
}

/// A revocation also waits for posting threads that copy inline data outside an epoch.
#[test]
fn fetching_outside_an_epoch_is_waited_for() {
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
                        assert!(out.iter().all(|&byte| byte == 0x11), "read from memory that was given back");
                    }
                }
            });
        }
        let _stop_readers = StopOnDrop(&stop);
        for _ in 0..500 {
            let mut memory = vec![0x11_u8; LEN];
            // SAFETY: the vector is dropped after `deregister` returns. Until then the vector's bytes are
            // accessed only through the registration.
            let registration = unsafe { table.register_user(memory.as_mut_ptr(), LEN, &OPTIONS) }.unwrap();
            advertised.0.store(registration.stag().0.into(), Ordering::Release);
            std::thread::yield_now();
            registration.deregister();
            memory.fill(0x22);
        }
    });
}

/// A send queue ends the STags of memory: windows of either type, and fast registrations. When the call
/// returns, no engine changes or reads the memory through the STag any more.
// Proves SEC-099, SEC-101, RDMAP-355, DDP-231.
#[test]
fn memory_invalidated_by_a_send_queue_does_not_change() {
    let table = MemoryTable::new(16, [8; 32]);
    let advertised = Advertised(AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let bindable = RegisterOptions { access: ACCESS | Access::MW_BIND, ..OPTIONS };
    let region = table.register(Arc::new(Region::new(LEN).unwrap()), &bindable).unwrap();
    let windows =
        [WindowKind::Type1, WindowKind::Type2].map(|kind| table.alloc_window(ME.pd, kind, false).unwrap());
    let prepare = Prepare { pd: ME.pd, ..Prepare::default() };
    let fast = table.prepare(Arc::new(Region::new(LEN).unwrap()), &prepare).unwrap();
    let queue = table.join();
    let mut written = [0; 3];
    std::thread::scope(|scope| {
        let engines: Vec<_> = (1..=2_u8)
            .map(|byte| {
                let (table, advertised, stop) = (&table, &advertised, &stop);
                scope.spawn(move || engine(table, advertised, stop, byte))
            })
            .collect();
        let stop_engines = StopOnDrop(&stop);
        for round in 0..450_u32 {
            let kind = (round % 3) as usize;
            let key = round as u8;
            let memory = if kind == 2 { fast.memory() } else { region.memory() };
            memory.write_at(0, &[0; LEN]).unwrap();
            let bind = |stag, len| Bind {
                stag,
                region: region.stag(),
                addr: 0,
                len,
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
                zero_based: true,
            };
            let stag = if kind == 2 { fast.stag(key) } else { windows[kind].stag(key) };
            let register = FastBind { stag, offset: 0, len: LEN as u64, access: ACCESS, base: Base::Zero };
            // The windows are bound and invalidated inside epochs, as in an engine.
            let epoch = queue.enter();
            if kind == 2 {
                epoch.fast_register(&register, ME).unwrap();
            } else {
                epoch.bind_window(&bind(stag, LEN as u64), ME).unwrap();
            }
            drop(epoch);
            advertised.0.store(stag.0.into(), Ordering::Release);
            std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 50));
            let epoch = queue.enter();
            if kind == 0 {
                epoch.bind_window(&bind(windows[0].stag(key.wrapping_add(1)), 0), ME).unwrap();
            } else {
                epoch.invalidate_local(stag, ME).unwrap();
            }
            let (mut first, mut last) = (vec![0; LEN], vec![0; LEN]);
            memory.read_at(0, &mut first).unwrap();
            // In this time, a copy for which the call did not wait would change the memory.
            std::thread::sleep(Duration::from_micros(300));
            memory.read_at(0, &mut last).unwrap();
            assert!(first == last, "round {round}: changed after it was taken away");
            drop(epoch);
            written[kind] += u32::from(first.iter().any(|&byte| byte != 0));
        }
        drop(stop_engines);
        for engine in engines {
            engine.join().expect("engines do not fail");
        }
    });
    assert!(written.iter().all(|&rounds| rounds > 0), "the race was not run: {written:?}");
}

/// One STag is registered alternately for two pieces of its memory. An engine continuously writes to an
/// offset of the first piece. A Write is placed in the first piece or refused, and is never placed in the
/// second piece.
// Proves SEC-095.
#[test]
fn a_range_is_in_force_before_its_name() {
    const PIECE: u64 = 64;
    const ROUNDS: usize = 30_000;
    let table = MemoryTable::new(4, [8; 32]);
    let prepare = Prepare { pd: ME.pd, ..Prepare::default() };
    let fast = table.prepare(Arc::new(Region::new(4096).unwrap()), &prepare).unwrap();
    let (stag, base) = (fast.stag(1), 0x1000);
    let pieces = [(0, base), (2048, base + PIECE)].map(|(offset, base)| FastBind {
        stag,
        offset,
        len: PIECE,
        access: ACCESS,
        base: Base::Iova(base),
    });
    let stop = AtomicBool::new(false);
    let placed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let engine = table.join();
            while !stop.load(Ordering::Acquire) {
                let epoch = engine.enter();
                for _ in 0..20 {
                    let target = epoch.check_write(stag, base, 1, ME);
                    let done = target.and_then(|target| target.place(0, &[1]));
                    assert!(matches!(done, Ok(()) | Err(Fault::InvalidStag | Fault::Bounds)), "{done:?}");
                    placed.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                }
            }
        });
        let stop_engine = StopOnDrop(&stop);
        let queue = table.join();
        let mut round = 0;
        let late = Instant::now() + Duration::from_secs(20);
        // The loop may last longer, because a busy machine may delay the engine.
        while round < ROUNDS || placed.load(Ordering::Relaxed) == 0 && Instant::now() < late {
            let epoch = queue.enter();
            epoch.fast_register(&pieces[round % 2], ME).unwrap();
            if round % 64 == 0 {
                std::thread::yield_now();
            }
            epoch.invalidate_local(stag, ME).unwrap();
            round += 1;
        }
        drop(stop_engine);
    });
    let mut bytes = [0; 4096];
    fast.memory().read_at(0, &mut bytes).unwrap();
    assert!(placed.into_inner() > 0 && bytes[0] == 1, "the race was not run");
    assert_eq!(bytes[1..], [0; 4095]);
}

/// Waits until another thread has made a condition true, for a limited time. If the condition stays false, an
/// assertion of the test fails.
fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() && Instant::now() < end {
        std::thread::yield_now();
    }
}

/// Prepared memory is freed while a request to register the memory is still in a send queue. The memory does
/// not become valid again between its revocation and its end.
#[test]
fn what_is_being_freed_is_not_registered_again() {
    let table = MemoryTable::new(16, [9; 32]);
    let engine = table.join();
    let options = Prepare { pd: ME.pd, ..Prepare::default() };
    let prepared = table.prepare(Arc::new(Region::new(64).unwrap()), &options).unwrap();
    let stag = prepared.stag(1);
    let register = FastBind { stag, offset: 0, len: 64, access: ACCESS, base: Base::Zero };
    let epoch = engine.enter();
    epoch.fast_register(&register, ME).unwrap();
    assert!(epoch.check_write(stag, 0, 64, ME).is_ok());
    std::thread::scope(|scope| {
        // The call waits for the epoch.
        scope.spawn(move || drop(prepared));
        until(|| epoch.check_write(stag, 0, 64, ME).is_err());
        let again = epoch.fast_register(&register, ME);
        let reached = epoch.check_write(stag, 0, 64, ME).is_ok();
        drop(epoch);
        assert_eq!(again, Err(BindError::UnknownStag));
        assert!(!reached);
    });
    // Another registration uses the slot.
    let region = table.register(Arc::new(Region::new(64).unwrap()), &OPTIONS).unwrap();
    assert!(region.is_valid());
    assert_eq!(table.usage().registered, 1);
}

/// A window of type 1 is freed while its engine waits to bind it again. The bind fails, and the next user of
/// the window's slot is not affected.
#[test]
fn a_window_that_is_freed_while_it_is_bound_again_stays_unbound() {
    let table = MemoryTable::new(16, [10; 32]);
    let (binder, other) = (table.join(), table.join());
    let options = RegisterOptions { access: Access::LOCAL_WRITE | Access::MW_BIND, ..OPTIONS };
    let region = table.register(Arc::new(Region::new(64).unwrap()), &options).unwrap();
    let window = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    let stag = window.stag(1);
    let access = Access::REMOTE_READ;
    let bind = Bind { stag, region: region.stag(), addr: 0, len: 64, access, zero_based: true };
    binder.enter().bind_window(&bind, ME).unwrap();
    let epoch = other.enter();
    std::thread::scope(|scope| {
        // Both calls wait for the epoch.
        let bound = scope.spawn(move || binder.enter().bind_window(&bind, ME));
        until(|| epoch.check_read(stag, 0, 64, ME).is_err());
        scope.spawn(move || drop(window));
        until(|| table.window_kind(stag).is_none());
        drop(epoch);
        assert_eq!(bound.join().unwrap(), Err(BindError::UnknownStag));
    });
    let next = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    let bind = Bind { stag: next.stag(1), region: region.stag(), addr: 0, len: 64, access, zero_based: true };
    assert_eq!(other.enter().bind_window(&bind, ME), Ok(()));
}

/// A participant that was moved to another thread cannot open a second epoch while the thread of its first
/// epoch waits.
#[test]
fn turns_of_one_participant_never_overlap() {
    let table = MemoryTable::new(4, [7; 32]);
    let options = RegisterOptions { pd: PdId(1), access: Access::LOCAL_WRITE, ..Default::default() };
    let registration = table.register(Arc::new(Region::new(64).unwrap()), &options).unwrap();
    let (holder, waiter) = (table.join(), table.join());
    let (is_held, may_go) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let (give, take) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let _turn = holder.enter();
            is_held.store(true, Ordering::Release);
            until(|| may_go.load(Ordering::Acquire));
        });
        until(|| is_held.load(Ordering::Acquire));
        threads.spawn(move || {
            // A participant with an open epoch can be moved only if the epoch's guard was forgotten.
            std::mem::forget(waiter.enter());
            give.send(waiter).unwrap();
            // The call waits for the epoch of `holder`.
            registration.invalidate();
        });
        let waiter = take.recv().unwrap();
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            let entered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(waiter.enter())));
            assert!(entered.is_err());
        }
        may_go.store(true, Ordering::Release);
    });
}
