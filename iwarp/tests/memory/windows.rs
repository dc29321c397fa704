//! STags that a send queue makes valid and invalid: memory windows of both types, and fast registration.

use std::sync::Arc;

use dp::Region;
use iwarp::memory::{
    Access, Accessor, Base, Bind, BindError, EpochGuard, FastBind, Fault, MemoryTable, PdId, Prepare,
    RegisterError, RegisterOptions, Registration, Stag, StreamId, TableConfig, WindowKind,
};

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
/// Another stream of the same protection domain.
const SIBLING: Accessor = Accessor { pd: PdId(1), stream: StreamId(2) };
const STRANGER: Accessor = Accessor { pd: PdId(2), stream: StreamId(3) };
const BOTH: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const BASE: u64 = 0x1000;
const LEN: usize = 256;

fn table() -> MemoryTable {
    MemoryTable::new(16, [0x17; 32])
}

fn region(table: &MemoryTable, access: Access) -> Registration {
    region_of(table, access, None)
}

fn region_of(table: &MemoryTable, access: Access, stream: Option<StreamId>) -> Registration {
    let options = RegisterOptions { pd: ME.pd, stream, access, base: Base::Iova(BASE), ..Default::default() };
    table.register(Arc::new(Region::new(LEN).unwrap()), &options).unwrap()
}

fn bindable(table: &MemoryTable) -> Registration {
    region(table, Access::LOCAL_WRITE | Access::MW_BIND)
}

/// Returns a request to bind the window to bytes 100 to 149 of the region, for reading and writing.
fn bind(stag: Stag, region: &Registration) -> Bind {
    Bind { stag, region: region.stag(), addr: BASE + 100, len: 50, access: BOTH, zero_based: false }
}

fn write(epoch: &EpochGuard<'_>, stag: Stag, to: u64, len: u64, by: Accessor) -> Result<(), Fault> {
    epoch.check_write(stag, to, len, by).and_then(|target| target.place(0, &vec![0xee; len as usize]))
}

fn read(epoch: &EpochGuard<'_>, stag: Stag, to: u64, by: Accessor) -> Result<(), Fault> {
    epoch.check_read(stag, to, 1, by).and_then(|source| source.fetch(0, &mut [0]))
}

/// A window exposes exactly its own range, with its own rights, to its own scope. The region itself cannot be
/// accessed.
// Proves SEC-030, SEC-031, SEC-109, SEC-110, RDMAP-354, DDP-220.
#[test]
fn a_window_opens_its_range_to_its_scope() {
    let table = table();
    let region = bindable(&table);
    let engine = table.join();
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        for zero_based in [false, true] {
            let window = table.alloc_window(ME.pd, kind, false).unwrap();
            let stag = window.stag(7);
            let epoch = engine.enter();
            assert_eq!(epoch.bind_window(&Bind { zero_based, ..bind(stag, &region) }, ME), Ok(()));
            assert!(window.is_valid(stag) && !window.is_valid(window.stag(8)));
            let base = if zero_based { 0 } else { BASE + 100 };
            for (offset, len, expected) in [
                (0_i64, 50, Ok(())),
                (49, 1, Ok(())),
                (-1, 1, Err(Fault::Bounds)),
                (50, 1, Err(Fault::Bounds)),
                (1, 50, Err(Fault::Bounds)),
            ] {
                // If offsets start at 0, offset -1 wraps around to the largest offset.
                let wraps = zero_based && offset < 0;
                let expected = if wraps { Err(Fault::Wrap) } else { expected };
                assert_eq!(write(&epoch, stag, base.wrapping_add_signed(offset), len, ME), expected);
            }
            let mut bytes = [0; LEN];
            region.memory().read_at(0, &mut bytes).unwrap();
            let changed: Vec<_> = (0..LEN).filter(|&at| bytes[at] != 0).collect();
            assert_eq!(changed, (100..150).collect::<Vec<_>>());
            // The scope of a window of type 1 is the domain, and the scope of a window of type 2 is the
            // stream.
            let sibling = if kind == WindowKind::Type1 { Ok(()) } else { Err(Fault::NotAssociated) };
            assert_eq!(read(&epoch, stag, base, SIBLING), sibling);
            assert_eq!(read(&epoch, stag, base, STRANGER), Err(Fault::NotAssociated));
            // The region behind the window has no STag on the wire, and the window's STag is no local key.
            assert_eq!(read(&epoch, region.stag(), BASE + 100, ME), Err(Fault::InvalidStag));
            assert_eq!(epoch.check_sink(stag, base, 1, ME.pd).map(drop), Err(Fault::InvalidStag));
            assert_eq!(epoch.check_source(stag, base, 1, ME.pd).map(drop), Err(Fault::InvalidStag));
            drop(epoch);
            region.memory().write_at(0, &[0; LEN]).unwrap();
        }
    }
}

/// Wrong binds are refused and make no STag valid.
// Proves SEC-026, SEC-038, SEC-170, DDP-237, RDMAP-367.
#[test]
fn a_wrong_bind_makes_nothing_valid() {
    let table = table();
    let all = region(&table, BOTH | Access::LOCAL_WRITE | Access::MW_BIND);
    let plain = region(&table, BOTH | Access::LOCAL_WRITE);
    let read_only = region(&table, Access::MW_BIND);
    let single = region_of(&table, Access::MW_BIND, Some(SIBLING.stream));
    let gone = bindable(&table);
    gone.invalidate();
    let engine = table.join();
    let epoch = engine.enter();
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let window = table.alloc_window(ME.pd, kind, false).unwrap();
        let other = table.alloc_window(ME.pd, kind, false).unwrap();
        let stag = window.stag(1);
        let good = bind(stag, &all);
        let read = Bind { access: Access::REMOTE_READ, ..good };
        assert_eq!(epoch.bind_window(&bind(other.stag(1), &all), ME), Ok(()));
        for (wrong, by, error) in [
            (Bind { stag: all.stag(), ..good }, ME, BindError::UnknownStag),
            (Bind { stag: Stag(stag.0 ^ 0x100), ..good }, ME, BindError::UnknownStag),
            (good, STRANGER, BindError::NotAssociated),
            (Bind { region: plain.stag(), ..good }, ME, BindError::NotBindable),
            (Bind { region: gone.stag(), ..good }, ME, BindError::Region(Fault::InvalidStag)),
            (Bind { region: other.stag(1), ..good }, ME, BindError::Region(Fault::InvalidStag)),
            (Bind { region: single.stag(), ..read }, ME, BindError::Region(Fault::NotAssociated)),
            (Bind { addr: BASE - 1, ..good }, ME, BindError::Region(Fault::Bounds)),
            (Bind { addr: BASE + 207, ..good }, ME, BindError::Region(Fault::Bounds)),
            (Bind { len: u64::MAX - 0x1000, ..good }, ME, BindError::Region(Fault::Wrap)),
            (Bind { access: Access::LOCAL_WRITE, ..good }, ME, BindError::Rights),
            (Bind { access: Access::MW_BIND, ..good }, ME, BindError::Rights),
            (Bind { region: read_only.stag(), ..good }, ME, BindError::Rights),
            (Bind { region: read_only.stag(), access: Access::REMOTE_ATOMIC, ..good }, ME, BindError::Rights),
        ] {
            assert_eq!(epoch.bind_window(&wrong, by), Err(error), "{wrong:?}");
            assert!(!window.is_valid(stag));
            assert_eq!(epoch.check_read(stag, BASE + 100, 1, ME).map(drop), Err(Fault::InvalidStag));
        }
        // The old binding has to stay valid.
        let wrong = Bind { addr: 0, ..bind(other.stag(2), &all) };
        assert!(epoch.bind_window(&wrong, ME).is_err());
        assert!(other.is_valid(other.stag(1)));
        // The same bind succeeds without the fault.
        assert_eq!(epoch.bind_window(&Bind { region: read_only.stag(), ..read }, ME), Ok(()));
    }
}

/// A window of a protection domain cannot be bound to another domain's region.
// Proves SEC-026.
#[test]
fn window_and_region_are_of_one_domain() {
    let table = table();
    let options = RegisterOptions {
        pd: STRANGER.pd,
        access: Access::MW_BIND,
        base: Base::Iova(BASE),
        ..Default::default()
    };
    let foreign = table.register(Arc::new(Region::new(LEN).unwrap()), &options).unwrap();
    let window = table.alloc_window(ME.pd, WindowKind::Type2, false).unwrap();
    let engine = table.join();
    let bind = Bind { access: Access::REMOTE_READ, ..bind(window.stag(0), &foreign) };
    let error = BindError::Region(Fault::NotAssociated);
    assert_eq!(engine.enter().bind_window(&bind, ME), Err(error));
    assert_eq!(engine.enter().bind_window(&bind, STRANGER), Err(BindError::NotAssociated));
}

/// If a region belongs to one stream, a window exposes the region to this stream only.
#[test]
fn a_window_over_a_region_of_one_stream_is_of_that_stream() {
    let table = table();
    let region = region_of(&table, Access::LOCAL_WRITE | Access::MW_BIND, Some(ME.stream));
    let engine = table.join();
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let window = table.alloc_window(ME.pd, kind, false).unwrap();
        let stag = window.stag(7);
        let epoch = engine.enter();
        let error = BindError::Region(Fault::NotAssociated);
        assert_eq!(epoch.bind_window(&bind(stag, &region), SIBLING), Err(error));
        assert_eq!(epoch.bind_window(&bind(stag, &region), ME), Ok(()));
        for (by, expected) in [(ME, Ok(())), (SIBLING, Err(Fault::NotAssociated))] {
            assert_eq!(write(&epoch, stag, BASE + 100, 50, by), expected, "{kind:?}");
            assert_eq!(read(&epoch, stag, BASE + 100, by), expected, "{kind:?}");
        }
    }
}

/// A window of type 1 can be bound again at any time, is unbound by a length of 0, and cannot be invalidated
/// by the peer. A window of type 2 has to be invalidated by its queue pair or its peer before it is bound
/// again; the peer's invalidation can be forbidden.
// Proves SEC-155, SEC-157, RDMAP-077, RDMAP-356.
#[test]
fn both_types_end_as_they_may() {
    let table = table();
    let region = bindable(&table);
    let engine = table.join();
    let epoch = engine.enter();

    let one = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    assert_eq!(epoch.bind_window(&bind(one.stag(1), &region), ME), Ok(()));
    let target = epoch.check_write(one.stag(1), BASE + 100, 1, ME).unwrap();
    assert_eq!(epoch.invalidate_remote(one.stag(1), ME), Err(Fault::NotInvalidatable));
    assert_eq!(epoch.invalidate_local(one.stag(1), ME), Err(Fault::NotInvalidatable));
    assert_eq!(epoch.bind_window(&bind(one.stag(2), &region), SIBLING), Ok(()));
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    assert_eq!(write(&epoch, one.stag(1), BASE + 100, 1, ME), Err(Fault::InvalidStag));
    assert_eq!(write(&epoch, one.stag(2), BASE + 100, 1, ME), Ok(()));
    assert_eq!(epoch.bind_window(&Bind { len: 0, ..bind(one.stag(3), &region) }, ME), Ok(()));
    assert_eq!(write(&epoch, one.stag(2), BASE + 100, 1, ME), Err(Fault::InvalidStag));
    assert!(!one.is_valid(one.stag(3)));

    let two = table.alloc_window(ME.pd, WindowKind::Type2, false).unwrap();
    assert_eq!(epoch.bind_window(&bind(two.stag(1), &region), ME), Ok(()));
    assert_eq!(epoch.bind_window(&bind(two.stag(2), &region), ME), Err(BindError::StillValid));
    assert_eq!(epoch.invalidate_local(two.stag(1), SIBLING), Err(Fault::NotAssociated));
    assert_eq!(epoch.invalidate_remote(two.stag(1), SIBLING), Err(Fault::NotInvalidatable));
    assert_eq!(epoch.invalidate_local(two.stag(1), ME), Ok(()));
    assert_eq!(epoch.bind_window(&Bind { len: 0, ..bind(two.stag(2), &region) }, ME), Err(BindError::Empty));
    assert_eq!(epoch.bind_window(&bind(two.stag(2), &region), ME), Ok(()));
    let source = epoch.check_read(two.stag(2), BASE + 100, 1, ME).unwrap();
    assert_eq!(epoch.invalidate_remote(two.stag(2), ME), Ok(()));
    assert_eq!(source.fetch(0, &mut [0]), Err(Fault::InvalidStag));
    assert_eq!(epoch.invalidate_remote(two.stag(2), ME), Err(Fault::InvalidStag));

    let kept = table.alloc_window(ME.pd, WindowKind::Type2, true).unwrap();
    assert_eq!(epoch.bind_window(&bind(kept.stag(1), &region), ME), Ok(()));
    assert_eq!(epoch.invalidate_remote(kept.stag(1), ME), Err(Fault::NotInvalidatable));
    assert!(kept.is_valid(kept.stag(1)));
    assert_eq!(epoch.invalidate_local(kept.stag(1), ME), Ok(()));
}

/// A window ends with its region, however the region ends, and does not become valid again together with the
/// region. `deregister` refuses a region with a window. Windows of one region do not depend on each other.
// Proves SEC-042, RDMAP-355, DDP-229.
#[test]
fn a_window_ends_with_its_region() {
    let table = table();
    let engine = table.join();
    let epoch = engine.enter();
    let mut region = bindable(&table);
    let window = table.alloc_window(ME.pd, WindowKind::Type2, false).unwrap();
    let other = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    let stag = window.stag(1);
    assert_eq!(epoch.bind_window(&bind(stag, &region), ME), Ok(()));
    assert_eq!(epoch.bind_window(&bind(other.stag(1), &region), ME), Ok(()));
    assert_eq!(epoch.invalidate_local(stag, ME), Ok(()));
    assert_eq!(write(&epoch, other.stag(1), BASE + 100, 1, ME), Ok(()));
    assert_eq!(region.revalidate(1, Access::MW_BIND), Err(RegisterError::Bound));
    region = *region.deregister_unbound().unwrap_err();
    assert!(region.is_valid() && other.is_valid(other.stag(1)));
    drop(other);

    assert_eq!(epoch.bind_window(&bind(stag, &region), ME), Ok(()));
    let target = epoch.check_write(stag, BASE + 100, 1, ME).unwrap();
    region.invalidate();
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    assert!(!window.is_valid(stag));
    region.revalidate(0, region.access()).unwrap();
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    assert_eq!(write(&epoch, stag, BASE + 100, 1, ME), Err(Fault::InvalidStag));
    // The window is bound to the region again, and then the region is dropped.
    assert_eq!(epoch.bind_window(&bind(stag, &region), ME), Ok(()));
    let target = epoch.check_write(stag, BASE + 100, 1, ME).unwrap();
    let source = epoch.check_read(stag, BASE + 100, 1, ME).unwrap();
    drop(region);
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    assert_eq!(source.fetch(0, &mut [0]), Err(Fault::InvalidStag));
    // A region that reuses the slot of the old region inherits no window.
    let fresh = bindable(&table);
    assert_eq!(write(&epoch, stag, BASE + 100, 1, ME), Err(Fault::InvalidStag));
    assert!(fresh.deregister_unbound().is_ok());
}

/// An unbound window names nothing. Prepared memory that is not registered also names nothing.
// Proves SEC-044.
#[test]
fn what_is_only_allocated_names_nothing() {
    let table = table();
    let engine = table.join();
    let epoch = engine.enter();
    let window = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    let prepared =
        table.prepare(Arc::new(Region::new(LEN).unwrap()), &Prepare { pd: ME.pd, ..Default::default() });
    let prepared = prepared.unwrap();
    let start = prepared.memory().as_ptr().addr() as u64;
    for key in 0..=255 {
        for stag in [window.stag(key), prepared.stag(key)] {
            assert_eq!(write(&epoch, stag, start, 1, ME), Err(Fault::InvalidStag));
            assert_eq!(read(&epoch, stag, 0, ME), Err(Fault::InvalidStag));
            assert_eq!(epoch.check_sink(stag, start, 1, ME.pd).map(drop), Err(Fault::InvalidStag));
        }
    }
}

/// Prepared memory is accessible with the requested range, rights and base until it is invalidated. Then the
/// memory can be registered with other values.
// Proves SEC-031, SEC-038, SEC-157, SEC-170, DDP-218, DDP-229, RDMAP-353, RDMAP-354.
#[test]
fn fast_registration_opens_and_shuts_a_range() {
    let table = table();
    let engine = table.join();
    let epoch = engine.enter();
    let prepare = Prepare { pd: ME.pd, stream: Some(ME.stream), keep: false };
    let fast = table.prepare(Arc::new(Region::new(LEN).unwrap()), &prepare).unwrap();
    let stag = fast.stag(3);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let good = FastBind { stag, offset: 100, len: 50, access, base: Base::Iova(BASE) };
    let refused = |wrong: FastBind, by| {
        let result = epoch.fast_register(&wrong, by);
        assert!(!fast.is_valid(wrong.stag), "{wrong:?}");
        result.unwrap_err()
    };
    assert_eq!(refused(good, STRANGER), BindError::NotAssociated);
    assert_eq!(refused(FastBind { stag: Stag(1), ..good }, ME), BindError::UnknownStag);
    assert_eq!(refused(FastBind { len: 0, ..good }, ME), BindError::Empty);
    let outside = BindError::Region(Fault::Bounds);
    assert_eq!(refused(FastBind { offset: 207, ..good }, ME), outside);
    assert_eq!(refused(FastBind { offset: 257, len: 1, ..good }, ME), outside);
    assert_eq!(refused(FastBind { offset: u64::MAX, len: 2, ..good }, ME), outside);
    assert_eq!(refused(FastBind { access: Access::REMOTE_WRITE, ..good }, ME), BindError::Rights);
    assert_eq!(refused(FastBind { base: Base::Iova(u64::MAX), ..good }, ME), BindError::BaseWraps);

    assert_eq!(epoch.fast_register(&good, ME), Ok(()));
    assert!(fast.is_valid(stag));
    assert_eq!(epoch.fast_register(&good, ME), Err(BindError::StillValid));
    assert_eq!(write(&epoch, stag, BASE, 50, ME), Ok(()));
    assert_eq!(write(&epoch, stag, BASE + 50, 1, ME), Err(Fault::Bounds));
    assert_eq!(write(&epoch, stag, BASE - 1, 1, ME), Err(Fault::Bounds));
    assert_eq!(read(&epoch, stag, BASE, ME), Err(Fault::AccessRights));
    assert_eq!(write(&epoch, stag, BASE, 1, SIBLING), Err(Fault::NotAssociated));
    // Unlike a window's STag, the STag of prepared memory is also a local key.
    assert!(epoch.check_source(stag, BASE, 50, ME.pd).is_ok());
    let mut bytes = [0; LEN];
    fast.memory().read_at(0, &mut bytes).unwrap();
    assert!((0..LEN).all(|at| (bytes[at] == 0xee) == (100..150).contains(&at)));

    let target = epoch.check_write(stag, BASE, 1, ME).unwrap();
    assert_eq!(epoch.invalidate_remote(stag, ME), Ok(()));
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    let read_only = FastBind { stag: fast.stag(4), access: Access::REMOTE_READ, ..good };
    assert_eq!(epoch.fast_register(&FastBind { base: Base::Zero, offset: 0, ..read_only }, ME), Ok(()));
    assert_eq!(read(&epoch, fast.stag(4), 49, ME), Ok(()));
    assert_eq!(read(&epoch, stag, 0, ME), Err(Fault::InvalidStag));
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    assert_eq!(epoch.invalidate_local(fast.stag(4), ME), Ok(()));
    assert_eq!(epoch.fast_register(&good, ME), Ok(()));
    fast.invalidate();
    assert!(!fast.is_valid(stag));

    let kept = Prepare { keep: true, ..prepare };
    let kept = table.prepare(Arc::new(Region::new(LEN).unwrap()), &kept).unwrap();
    assert_eq!(epoch.fast_register(&FastBind { stag: kept.stag(0), ..good }, ME), Ok(()));
    assert_eq!(epoch.invalidate_remote(kept.stag(0), ME), Err(Fault::NotInvalidatable));
    assert!(kept.is_valid(kept.stag(0)));
}

/// Windows have their own limit, with a count of refusals. Memory regions have a separate limit.
// Proves SEC-040, SEC-121, DDP-235, DDP-238.
#[test]
fn windows_have_a_limit() {
    let table = MemoryTable::with(&TableConfig { max_mr: 1, max_mw: 2, ..Default::default() }, [1; 32]);
    let windows: Vec<_> =
        (0..2).map(|_| table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap()).collect();
    let refused = table.alloc_window(ME.pd, WindowKind::Type2, false).unwrap_err();
    assert_eq!(refused, RegisterError::WindowLimit { max_mw: 2 });
    assert_eq!(refused.to_string(), "limit reached: max_mw = 2");
    let region = bindable(&table);
    let prepared = table.prepare(Arc::new(Region::new(LEN).unwrap()), &Prepare::default());
    assert_eq!(prepared.unwrap_err(), RegisterError::Limit { max_mr: 1 });
    let usage = table.usage();
    assert_eq!((usage.registered, usage.limit, usage.refused), (1, 1, 1));
    assert_eq!((usage.windows, usage.max_mw, usage.windows_refused), (2, 2, 1));
    drop((windows, region));
    let usage = table.usage();
    assert_eq!((usage.registered, usage.windows), (0, 0));
}

/// A request may name prepared memory before an earlier request has registered the memory. The memory is
/// checked when the request moves bytes. An error that no earlier request can correct is refused at once.
#[test]
fn prepared_memory_is_named_before_it_is_registered() {
    let table = table();
    let prepared = table
        .prepare(Arc::new(Region::new(LEN).unwrap()), &Prepare { pd: ME.pd, ..Prepare::default() })
        .unwrap();
    let window = table.alloc_window(ME.pd, WindowKind::Type2, false).unwrap();
    let (stag, access) = (prepared.stag(1), Access::LOCAL_WRITE);
    let check = |pd, stag: Stag, addr| table.check_local(pd, stag.0, addr, 8, access);
    assert_eq!(check(ME.pd, stag, BASE), Ok(()));
    assert_eq!(check(STRANGER.pd, stag, BASE), Err(Fault::NotAssociated));
    assert_eq!(check(ME.pd, stag, u64::MAX), Err(Fault::Wrap));
    assert_eq!(check(ME.pd, window.stag(1), BASE), Err(Fault::InvalidStag));
    let engine = table.join();
    let epoch = engine.enter();
    let moved = || epoch.check_source(stag, BASE, 8, ME.pd).map(drop);
    assert_eq!(moved(), Err(Fault::InvalidStag));
    let register = FastBind { stag, offset: 0, len: 8, access, base: Base::Iova(BASE) };
    epoch.fast_register(&register, ME).unwrap();
    assert_eq!(moved(), Ok(()));
    assert_eq!(check(ME.pd, stag, BASE + 1), Err(Fault::Bounds), "what is registered is known");
    drop(epoch);
    drop(prepared);
    assert_eq!(check(ME.pd, stag, BASE), Err(Fault::InvalidStag));
}

/// If two queue pairs bind one window of type 1 at the same time, both succeed, and the later binding is
/// valid.
#[test]
fn a_window_may_be_bound_by_two_at_once() {
    let table = table();
    let region = bindable(&table);
    let window = table.alloc_window(ME.pd, WindowKind::Type1, false).unwrap();
    let binder = |keys: std::ops::Range<u8>, by: Accessor| {
        let engine = table.join();
        let (region, window) = (&region, &window);
        move || {
            for round in 0..200 {
                let key = keys.start + round % (keys.end - keys.start);
                engine.enter().bind_window(&bind(window.stag(key), region), by).unwrap();
            }
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(binder(0..100, ME));
        threads.spawn(binder(100..200, SIBLING));
    });
    let bound = (0..200).filter(|&key| window.is_valid(window.stag(key))).count();
    assert_eq!(bound, 1);
}
