//! Registered memory, for example the rights, the exact ranges, the STags, and their invalidation.

use std::collections::HashMap;
use std::sync::Arc;

use dp::Region;
use iwarp::memory::{
    Access, AccessError, Accessor, Base, Fault, MemoryTable, PdId, Prepare, RegisterError, RegisterOptions,
    Registration, Stag, StreamId, TableConfig,
};
use proptest::prelude::*;

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
const WRITE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn table(max_mr: usize) -> MemoryTable {
    MemoryTable::new(max_mr, [0x42; 32])
}

fn options(access: Access) -> RegisterOptions {
    RegisterOptions { pd: ME.pd, access, ..Default::default() }
}

fn register(table: &MemoryTable, bytes: usize, options: RegisterOptions) -> Registration {
    table.register(Arc::new(Region::new(bytes).unwrap()), &options).unwrap()
}

/// Registers `region`, which most tests share because they need no memory of their own.
fn register_shared(table: &MemoryTable, region: &Arc<Region>) -> Registration {
    table.register(Arc::clone(region), &options(WRITE)).unwrap()
}

/// 10^5 registrations are created and dropped. No index is 0, each bit of the index is 1 in about half of the
/// STags, consecutive STags are unrelated, and no index is used twice.
// Proves SEC-060, SEC-092.
#[test]
fn a_hundred_thousand_stags_are_unpredictable_sparse_and_not_reused() {
    const COUNT: usize = 100_000;
    let table = table(1000);
    let region = Arc::new(Region::new(64).unwrap());
    let mut alive = std::collections::VecDeque::new();
    let (mut ones, mut equal_neighbours) = ([0_u32; 24], [0_u32; 24]);
    let (mut last_index, mut last_seen) = (0, HashMap::new());
    for n in 0..COUNT {
        let registration = register_shared(&table, &region);
        let index = registration.stag().index();
        assert!(index != 0 && registration.stag().key() == 0);
        assert_eq!(last_seen.insert(index, n), None, "an index came back within 10^5 registrations");
        for bit in 0..24 {
            ones[bit] += index >> bit & 1;
            equal_neighbours[bit] += !(index ^ last_index) >> bit & 1;
        }
        last_index = index;
        alive.push_back(registration);
        if alive.len() == 1000 {
            alive.pop_front();
        }
    }
    // Each count is about half of the STags. The allowed deviation is five standard deviations of sqrt(10^5)
    // / 2 = 158.
    for count in ones.iter().chain(&equal_neighbours) {
        assert!(count.abs_diff(COUNT as u32 / 2) < 790, "{ones:?}, {equal_neighbours:?}");
    }
    assert_eq!(table.usage().registered, alive.len());
}

/// The same seed gives the same STags. The STags of the two seeds of this test have no index in common.
// Proves SEC-093.
#[test]
fn stags_follow_from_the_seed_alone() {
    let region = Arc::new(Region::new(64).unwrap());
    let names = |seed: u8| {
        let table = MemoryTable::new(200, [seed; 32]);
        let all: Vec<_> = (0..200).map(|_| register_shared(&table, &region)).collect();
        all.iter().map(|r| r.stag().index()).collect::<Vec<_>>()
    };
    assert_eq!(names(1), names(1));
    let (one, two) = (names(1), names(2));
    assert!(one.iter().all(|index| !two.contains(index)));
}

/// The limit has a name and a count of refusals. A registration that ends makes space.
// Proves SEC-048, SEC-121.
#[test]
fn the_limit_holds_and_is_reported() {
    let table = table(3);
    let region = Arc::new(Region::new(64).unwrap());
    let mut all: Vec<_> = (0..3).map(|_| register_shared(&table, &region)).collect();
    let refused = table.register(Arc::clone(&region), &options(WRITE));
    assert_eq!(refused.err(), Some(RegisterError::Limit { max_mr: 3 }));
    assert_eq!(RegisterError::Limit { max_mr: 3 }.to_string(), "limit reached: max_mr = 3");
    let usage = table.usage();
    assert_eq!((usage.registered, usage.limit, usage.refused), (3, 3, 1));
    all.pop();
    assert!(table.register(region, &options(WRITE)).is_ok());
}

/// The consumer's eight bits are a part of the STag: with any other value, the STag names nothing.
#[test]
fn the_key_is_part_of_the_name() {
    let table = table(4);
    let registration = register(&table, 16, RegisterOptions { key: 0x5A, ..options(WRITE) });
    let (stag, base) = (registration.stag(), registration.base_to());
    assert_eq!(stag.key(), 0x5A);
    let engine = table.join();
    let epoch = engine.enter();
    for key in 0..=255 {
        let result = epoch.check_write(Stag::new(stag.index(), key), base, 1, ME).map(|_| ());
        assert_eq!(result, if key == 0x5A { Ok(()) } else { Err(Fault::InvalidStag) });
    }
}

/// For every combination of rights, the association is checked before the rights and the range.
// Proves DDP-182, DDP-211, DDP-212, DDP-230, SEC-022, SEC-041, SEC-084, SEC-111.
#[test]
fn the_rights_matrix() {
    let table = table(64);
    let engine = table.join();
    for bits in 0..32 {
        let access = Access::from_bits_retain(bits);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let made = table.register(Arc::new(Region::new(16).unwrap()), &options(access));
        if writes && !access.contains(Access::LOCAL_WRITE) {
            assert_eq!(made.err(), Some(RegisterError::RemoteWithoutLocalWrite));
            continue;
        }
        let registration = made.unwrap();
        let (stag, to) = (registration.stag(), registration.base_to());
        let epoch = engine.enter();
        let remote = |right: Access| match () {
            () if !access.intersects(Access::REMOTE) => Err(Fault::InvalidStag),
            () if access.contains(right) => Ok(()),
            () => Err(Fault::AccessRights),
        };
        assert_eq!(epoch.check_write(stag, to, 1, ME).map(|_| ()), remote(Access::REMOTE_WRITE));
        assert_eq!(epoch.check_read(stag, to, 1, ME).map(|_| ()), remote(Access::REMOTE_READ));
        let local = if access.contains(Access::LOCAL_WRITE) { Ok(()) } else { Err(Fault::AccessRights) };
        assert_eq!(epoch.check_sink(stag, to, 1, ME.pd).map(|_| ()), local);
        assert_eq!(table.check_local(ME.pd, stag.0, to, 1, Access::LOCAL_WRITE), local);
        assert!(epoch.check_source(stag, to, 1, ME.pd).is_ok());
        // Association is checked before rights and range.
        let foreign = Accessor { pd: PdId(2), stream: StreamId(1) };
        let expected =
            if access.intersects(Access::REMOTE) { Fault::NotAssociated } else { Fault::InvalidStag };
        assert_eq!(epoch.check_write(stag, 0, u64::MAX, foreign).map(|_| ()), Err(expected));
        assert_eq!(epoch.check_source(stag, to, 1, PdId(2)).map(|_| ()), Err(Fault::NotAssociated));
    }
}

/// An STag of a single stream is valid for that stream, whatever domain it names. An STag of a domain is
/// valid for every stream of the domain.
// Proves DDP-226, DDP-227, SEC-085, SEC-086.
#[test]
fn both_kinds_of_association() {
    let table = table(4);
    let single = register(&table, 16, RegisterOptions { stream: Some(StreamId(7)), ..options(WRITE) });
    let domain = register(&table, 16, options(WRITE));
    let engine = table.join();
    let epoch = engine.enter();
    for (pd, stream, single_ok, domain_ok) in
        [(1, 7, true, true), (1, 8, false, true), (2, 7, true, false), (2, 8, false, false)]
    {
        let by = Accessor { pd: PdId(pd), stream: StreamId(stream) };
        for (registration, ok) in [(&single, single_ok), (&domain, domain_ok)] {
            let result = epoch.check_write(registration.stag(), registration.base_to(), 1, by).map(|_| ());
            assert_eq!(result, if ok { Ok(()) } else { Err(Fault::NotAssociated) });
        }
    }
}

/// Tagged offsets may start at the address of the memory, at 0, or at another value. A range may end at 2^64,
/// and its last byte then cannot be accessed.
// Proves DDP-005, DDP-185.
#[test]
fn tagged_offsets_start_where_asked() {
    let table = table(8);
    let region = Arc::new(Region::new(256).unwrap());
    let base = |base| table.register(Arc::clone(&region), &RegisterOptions { base, ..options(WRITE) });
    let address = region.as_ptr().as_ptr().addr() as u64;
    assert_eq!(base(Base::VirtualAddress).unwrap().base_to(), address);
    assert_eq!(base(Base::Zero).unwrap().base_to(), 0);
    assert_eq!(base(Base::Iova(77)).unwrap().base_to(), 77);
    assert_eq!(base(Base::Iova(u64::MAX - 254)).err(), Some(RegisterError::BaseWraps));
    let top = base(Base::Iova(u64::MAX - 255)).unwrap();
    let engine = table.join();
    let epoch = engine.enter();
    let check = |to, len| epoch.check_write(top.stag(), to, len, ME).map(|_| ());
    assert_eq!(check(u64::MAX - 255, 255), Ok(()));
    assert_eq!(check(u64::MAX - 255, 256), Err(Fault::Wrap));
    assert_eq!(check(u64::MAX - 256, 1), Err(Fault::Bounds));
    assert_eq!(check(0, 1), Err(Fault::Bounds));
}

/// After an invalidation by its owner or by the peer, and after deregistration, the STag is unusable at once.
/// The STag keeps its index until the registration ends.
// Proves DDP-219, DDP-231, RDMAP-250, SEC-098, SEC-155, SEC-156.
#[test]
fn invalidation_by_owner_and_peer() {
    let table = table(8);
    let single = RegisterOptions { stream: Some(ME.stream), ..options(WRITE) };
    let mut mine = register(&table, 16, single);
    let shared = register(&table, 16, options(WRITE));
    let local = register(&table, 16, RegisterOptions { access: Access::LOCAL_WRITE, ..single });
    let others = register(&table, 16, RegisterOptions { stream: Some(StreamId(2)), ..options(WRITE) });
    let engine = table.join();
    let (stag, to) = (mine.stag(), mine.base_to());
    {
        let epoch = engine.enter();
        let target = epoch.check_write(stag, to, 4, ME).unwrap();
        assert_eq!(epoch.invalidate_remote(Stag(stag.0 ^ 1), ME), Err(Fault::InvalidStag));
        assert_eq!(epoch.invalidate_remote(shared.stag(), ME), Err(Fault::NotInvalidatable));
        assert_eq!(epoch.invalidate_remote(others.stag(), ME), Err(Fault::NotInvalidatable));
        assert_eq!(epoch.invalidate_remote(local.stag(), ME), Err(Fault::InvalidStag));
        assert_eq!(target.place(0, b"abcd"), Ok(()));
        assert_eq!(epoch.invalidate_remote(stag, ME), Ok(()));
        // An access that was admitted before is refused now.
        assert_eq!(target.place(0, b"efgh"), Err(Fault::InvalidStag));
        assert_eq!(epoch.check_write(stag, to, 4, ME).map(|_| ()), Err(Fault::InvalidStag));
        assert_eq!(epoch.invalidate_remote(stag, ME), Err(Fault::InvalidStag));
    }
    assert!(!mine.is_valid() && shared.is_valid());
    let mut bytes = [0; 5];
    mine.memory().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abcd\0");

    let renewed = mine.revalidate(9, WRITE | Access::REMOTE_READ).unwrap();
    assert_eq!((renewed.index(), renewed.key()), (stag.index(), 9));
    let epoch = engine.enter();
    assert_eq!(epoch.check_write(stag, to, 4, ME).map(|_| ()), Err(Fault::InvalidStag));
    let source = epoch.check_read(renewed, to, 4, ME).unwrap();
    // The owner may revoke while its own thread is inside an epoch.
    mine.invalidate();
    assert_eq!(source.fetch(0, &mut bytes[..4]), Err(Fault::InvalidStag));
    assert_eq!(mine.revalidate(9, Access::REMOTE_WRITE), Err(RegisterError::RemoteWithoutLocalWrite));
    let target =
        epoch.check_write(others.stag(), others.base_to(), 4, Accessor { stream: StreamId(2), ..ME });
    drop(others);
    assert_eq!(target.unwrap().place(0, b"x"), Err(Fault::InvalidStag));
}

/// The consumer's send queue can invalidate an STag by its number, once, inside its own domain only.
// Proves RDMAP-077.
#[test]
fn invalidation_by_name() {
    let table = table(2);
    let mine = register(&table, 16, options(WRITE));
    let engine = table.join();
    let epoch = engine.enter();
    let target = epoch.check_write(mine.stag(), mine.base_to(), 1, ME).unwrap();
    assert_eq!(
        epoch.invalidate_local(mine.stag(), Accessor { pd: PdId(2), ..ME }),
        Err(Fault::NotAssociated)
    );
    assert_eq!(epoch.invalidate_local(mine.stag(), ME), Ok(()));
    assert_eq!(target.place(0, b"x"), Err(Fault::InvalidStag));
    assert_eq!(epoch.invalidate_local(mine.stag(), ME), Err(Fault::InvalidStag));
}

/// Memory of the caller that was registered for reading is never written, not even by its owner through the
/// registration.
#[test]
fn read_only_memory_stays_as_it_is() {
    static CONSTANT: [u8; 32] = [7; 32];
    let table = table(4);
    let ptr = CONSTANT.as_ptr().cast_mut();
    // SAFETY: the static stays mapped for ever. The registration never writes to the static, because
    // `REMOTE_READ` allows no writing, so shared references to the static's bytes may exist at the same time.
    let mut registration = unsafe { table.register_user(ptr, 32, &options(Access::REMOTE_READ)) }.unwrap();
    assert_eq!(registration.memory().write_at(0, b"x"), Err(AccessError::ReadOnly));
    assert_eq!(registration.memory().store_u8_release(0, 1), Err(AccessError::ReadOnly));
    assert_eq!(registration.revalidate(1, WRITE), Err(RegisterError::ReadOnly));
    let engine = table.join();
    let epoch = engine.enter();
    assert_eq!(
        epoch.check_sink(registration.stag(), ptr.addr() as u64, 1, ME.pd).map(|_| ()),
        Err(Fault::AccessRights)
    );
    let mut out = [0; 32];
    let source = epoch.check_read(registration.stag(), ptr.addr() as u64, 32, ME).unwrap();
    assert_eq!(source.fetch(0, &mut out), Ok(()));
    assert_eq!(out, CONSTANT);
    assert_eq!(
        table.fetch_local(ME.pd, registration.stag().0, ptr.addr() as u64 + 31, &mut out[..1]),
        Ok(())
    );
    assert_eq!(
        table.fetch_local(ME.pd, registration.stag().0, ptr.addr() as u64 + 31, &mut out[..2]),
        Err(Fault::Bounds)
    );
}

/// A registration of no bytes has an STag that covers no offset, wherever its tagged offsets start.
#[test]
fn a_registration_of_no_bytes_covers_nothing() {
    let table = table(8);
    let participant = table.join();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::MW_BIND;
    for (ptr, base) in [
        (std::ptr::null_mut(), Base::VirtualAddress),
        (std::ptr::without_provenance_mut(0x1234), Base::Zero),
        (std::ptr::without_provenance_mut(usize::MAX), Base::VirtualAddress),
        (std::ptr::null_mut(), Base::Iova(u64::MAX)),
    ] {
        let options = RegisterOptions { base, ..options(all) };
        // SAFETY: no byte is registered, so no memory has to stay mapped.
        let mut empty = unsafe { table.register_user(ptr, 0, &options) }.unwrap();
        assert!((empty.len(), empty.is_empty(), empty.is_valid()) == (0, true, true));
        let (stag, to) = (empty.stag(), empty.base_to());
        let epoch = participant.enter();
        for at in [to, to.wrapping_sub(1), 0] {
            assert!(epoch.check_write(stag, at, 1, ME).is_err());
            assert!(epoch.check_read(stag, at, 1, ME).is_err());
            assert!(epoch.check_sink(stag, at, 1, ME.pd).is_err());
            assert!(table.check_local(ME.pd, stag.0, at, 1, Access::empty()).is_err());
            assert_eq!(table.check_local(ME.pd, stag.0, at, 0, Access::LOCAL_WRITE), Ok(()));
            assert_eq!(table.fetch_local(ME.pd, stag.0, at, &mut []), Ok(()));
        }
        assert!(epoch.check_atomic(stag, to & !7, ME).is_err());
        drop(epoch);
        assert!(empty.memory().read_at(0, &mut []).is_ok() && empty.memory().read_at(0, &mut [0]).is_err());
        let renamed = empty.revalidate(stag.key().wrapping_add(1), Access::empty()).unwrap();
        assert!(renamed != stag && empty.deregister_unbound().is_ok());
    }
    table.check_invariants().unwrap();
    // A fast registration cannot be prepared for zero bytes.
    let prepare = Prepare { pd: ME.pd, stream: None, keep: false };
    // SAFETY: no byte is registered, so no memory has to stay mapped.
    let prepared = unsafe { table.prepare_user(std::ptr::null_mut(), 0, true, &prepare) };
    assert_eq!(prepared.err(), Some(RegisterError::Empty));
}

/// A registration of no bytes may lie inside memory to which peers of another domain can write: it has no
/// byte to which they could write.
#[test]
fn a_registration_of_no_bytes_overlaps_nothing() {
    let config = TableConfig { strict_overlap: true, ..TableConfig::default() };
    let table = MemoryTable::with(&config, [7; 32]);
    let region = Arc::new(Region::new(4096).unwrap());
    let inside = region.as_ptr().as_ptr().wrapping_add(100);
    let whole = table.register(Arc::clone(&region), &options(WRITE)).unwrap();
    let other = RegisterOptions { pd: PdId(ME.pd.0 + 1), ..options(WRITE) };
    // SAFETY: no byte is registered, so no memory has to stay mapped.
    let empty = unsafe { table.register_user(inside, 0, &other) }.unwrap();
    assert_eq!((whole.other_writers(), empty.other_writers()), (0, 0));
}

/// The owner's own accesses are also limited to the memory.
#[test]
fn the_owner_reads_and_writes_inside_the_memory() {
    let table = table(4);
    let registration = register(&table, 24, options(WRITE));
    let memory = registration.memory();
    memory.write_at(20, b"tail").unwrap();
    assert_eq!(memory.load_u8_acquire(23), Ok(b'l'));
    assert_eq!(memory.store_u8_release(23, b'L'), Ok(()));
    assert_eq!(memory.load_u64_acquire(16).map(u64::to_ne_bytes), Ok(*b"\0\0\0\0taiL"));
    let outside = |offset, len| Err(AccessError::OutOfRange { offset, len, bytes: 24 });
    assert_eq!(memory.write_at(21, b"tail"), outside(21, 4));
    assert_eq!(memory.read_at(25, &mut []), outside(25, 0));
    assert_eq!(memory.load_u8_acquire(24), outside(24, 1).map(|()| 0));
    assert_eq!(memory.load_u64_acquire(usize::MAX), outside(usize::MAX, 8).map(|()| 0));
    assert_eq!(memory.load_u64_acquire(12), Err(AccessError::Misaligned { offset: 12 }));
    assert_eq!(memory.read_at(24, &mut []), Ok(()));
}

/// The epochs of one participant do not nest. A second participant is not affected by the first.
#[test]
#[should_panic(expected = "an epoch of this participant is open already")]
fn turns_do_not_nest() {
    let table = table(1);
    let (one, two) = (table.join(), table.join());
    let _first = one.enter();
    let _other = two.enter();
    let _second = one.enter();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For any sequence of placements, in range or not, the bytes inside the range are those placed last. No
    /// byte before the range or behind it ever changes.
    // Proves DDP-217, DDP-228, RDMAP-352, SEC-094, SEC-096, SEC-097, SEC-110.
    #[test]
    fn nothing_outside_the_range_changes(
        start in 0_usize..100, len in 1_usize..300,
        writes in prop::collection::vec((-20_i64..330, prop::collection::vec(any::<u8>(), 1..120), any::<bool>()), 1..20),
    ) {
        const CANARY: u8 = 0xC5;
        let mut memory = vec![CANARY; 512];
        let mut model = memory.clone();
        let table = table(1);
        let ptr = memory.as_mut_ptr().wrapping_add(start);
        // SAFETY: `start + len` is below 512, so the range is inside the vector. The vector outlives the
        // registration. Until the registration is dropped, the vector's bytes are accessed only through the
        // registration.
        let registration = unsafe { table.register_user(ptr, len, &options(WRITE | Access::REMOTE_READ)) }.unwrap();
        let base = registration.base_to();
        let engine = table.join();
        for (offset, bytes, whole) in &writes {
            let epoch = engine.enter();
            let to = base.wrapping_add_signed(*offset);
            let inside = *offset >= 0 && *offset as usize + bytes.len() <= len;
            match epoch.check_write(registration.stag(), to, bytes.len() as u64, ME) {
                Ok(target) => {
                    prop_assert!(inside);
                    prop_assert_eq!(target.len(), bytes.len());
                    prop_assert_eq!(target.place(1, bytes), Err(Fault::Bounds));
                    let cut = if *whole { 0 } else { bytes.len() / 2 };
                    target.place(0, &bytes[..cut]).unwrap();
                    target.place(cut, &bytes[cut..]).unwrap();
                    model[start + *offset as usize..][..bytes.len()].copy_from_slice(bytes);
                    let source = epoch.check_read(registration.stag(), to, bytes.len() as u64, ME).unwrap();
                    let mut out = vec![0; bytes.len()];
                    source.fetch(0, &mut out).unwrap();
                    prop_assert_eq!(&out, bytes);
                }
                Err(fault) => prop_assert!(!inside && fault == Fault::Bounds),
            }
        }
        registration.deregister();
        prop_assert_eq!(memory, model);
    }
}
