//! STags over shared memory and shared domains, for example their access rights, the difficulty of guessing
//! STags, and several writers of one range.

use std::sync::Arc;

use dp::Region;
use iwarp::memory::{
    Access, Accessor, Base, Fault, MemoryTable, PdId, Prepare, RegisterError, RegisterOptions, Registration,
    Stag, StreamId, TableConfig,
};
use iwarp::rdmap::TerminateError;
use proptest::prelude::*;

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const BOTH: Access = READ.union(WRITE);

fn accessor(number: u32) -> Accessor {
    Accessor { pd: PdId(number), stream: StreamId(number.into()) }
}

fn try_register(
    table: &MemoryTable,
    region: &Arc<Region>,
    pd: u32,
    access: Access,
) -> Result<Registration, RegisterError> {
    let options = RegisterOptions { pd: PdId(pd), access, base: Base::Zero, ..Default::default() };
    table.register(Arc::clone(region), &options)
}

fn register(table: &MemoryTable, region: &Arc<Region>, pd: u32, access: Access) -> Registration {
    try_register(table, region, pd, access).unwrap()
}

fn write(table: &MemoryTable, by: Accessor, stag: Stag, bytes: &[u8]) -> Result<(), Fault> {
    let engine = table.join();
    let epoch = engine.enter();
    epoch.check_write(stag, 0, bytes.len() as u64, by).and_then(|target| target.place(0, bytes))
}

fn read(table: &MemoryTable, by: Accessor, stag: Stag) -> Result<[u8; 4], Fault> {
    let engine = table.join();
    let epoch = engine.enter();
    let mut out = [0; 4];
    epoch.check_read(stag, 0, 4, by)?.fetch(0, &mut out)?;
    Ok(out)
}

/// One range has STags of two domains. Each STag has its own rights. Readers read the same bytes, and cannot
/// write. A reader sees the writer's bytes, and two writers overwrite each other.
// Proves SEC-023, SEC-114 to SEC-116.
#[test]
fn one_range_in_two_domains() {
    let table = MemoryTable::new(8, [1; 32]);
    let region = Arc::new(Region::new(64).unwrap());
    let (a, b) = (accessor(1), accessor(2));
    let readers = [register(&table, &region, 1, READ), register(&table, &region, 2, READ)];
    let writers = [register(&table, &region, 1, WRITE), register(&table, &region, 2, BOTH)];
    assert_eq!(read(&table, a, readers[0].stag()), Ok([0; 4]));
    assert_eq!(read(&table, b, readers[1].stag()), Ok([0; 4]));
    assert_eq!(write(&table, a, readers[0].stag(), b"mine"), Err(Fault::AccessRights));
    assert_eq!(write(&table, b, readers[1].stag(), b"mine"), Err(Fault::AccessRights));
    assert_eq!(read(&table, a, writers[0].stag()), Err(Fault::AccessRights));
    // Each stream has access only through its own STags.
    assert_eq!(read(&table, a, writers[1].stag()), Err(Fault::NotAssociated));
    assert_eq!(write(&table, b, writers[0].stag(), b"mine"), Err(Fault::NotAssociated));

    assert_eq!(write(&table, a, writers[0].stag(), b"ours"), Ok(()));
    assert_eq!(read(&table, b, readers[1].stag()), Ok(*b"ours"));
    assert_eq!(write(&table, b, writers[1].stag(), b"lost"), Ok(()));
    assert_eq!(read(&table, a, readers[0].stag()), Ok(*b"lost"));
}

/// In a strict table, only peers of one domain can write to a byte, by whatever kind of STag. Any other table
/// reports overlaps when asked.
// Proves SEC-117.
#[test]
fn peers_of_two_domains_do_not_write_to_one_place() {
    let strict = MemoryTable::with(&TableConfig { strict_overlap: true, ..Default::default() }, [1; 32]);
    let region = Arc::new(Region::new(8192).unwrap());
    let refused = |result: Result<Registration, RegisterError>, writers| {
        assert_eq!(result.err(), Some(RegisterError::Overlap { writers }));
    };
    let first = register(&strict, &region, 1, WRITE);
    let again = register(&strict, &region, 1, BOTH);
    refused(try_register(&strict, &region, 2, WRITE), 2);
    refused(try_register(&strict, &region, 2, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC), 2);
    refused(try_register(&strict, &region, 2, Access::LOCAL_WRITE | Access::MW_BIND), 2);
    let prepare = Prepare { pd: PdId(2), ..Default::default() };
    let prepared = strict.prepare(Arc::clone(&region), &prepare);
    assert_eq!(prepared.err(), Some(RegisterError::Overlap { writers: 2 }));
    // Readers and local writers are allowed in addition to the writer.
    let mut reader = register(&strict, &region, 2, READ);
    let _local = register(&strict, &region, 2, Access::LOCAL_WRITE);
    assert_eq!(reader.other_writers(), 2);
    assert_eq!(first.other_writers(), 0);
    assert_eq!(reader.revalidate(1, BOTH), Err(RegisterError::Overlap { writers: 2 }));
    drop(again);
    first.invalidate();
    reader.revalidate(1, BOTH).unwrap();
    refused(try_register(&strict, &region, 1, WRITE), 1);
    drop((first, reader));
    // The table also considers prepared memory that is not registered yet, and regions for windows to which
    // no window is bound yet.
    let prepared = strict.prepare(Arc::clone(&region), &prepare).unwrap();
    refused(try_register(&strict, &region, 1, WRITE), 1);
    drop(prepared);
    let bindable = register(&strict, &region, 2, Access::LOCAL_WRITE | Access::MW_BIND);
    refused(try_register(&strict, &region, 1, WRITE), 1);
    drop(bindable);
    assert!(try_register(&strict, &region, 1, WRITE).is_ok());

    // Ranges are compared byte by byte: adjacent ranges do not overlap, but a shared byte is an overlap.
    let start = region.as_ptr().as_ptr();
    let piece = |pd, offset: usize, len| {
        let options = RegisterOptions { pd: PdId(pd), access: WRITE, ..Default::default() };
        // SAFETY: a registered range is inside the region, and a range behind the region is refused before
        // any access. The region outlives these registrations, and nobody accesses the region's bytes.
        unsafe { strict.register_user(start.wrapping_add(offset), len, &options) }
    };
    let _middle = piece(1, 100, 50).unwrap();
    assert!(piece(2, 0, 100).is_ok() && piece(2, 150, 10).is_ok());
    refused(piece(2, 0, 101), 1);
    refused(piece(2, 149, 10), 1);
    refused(piece(2, 0, 8192), 1);

    let lenient = MemoryTable::new(8, [2; 32]);
    let one = register(&lenient, &region, 1, WRITE);
    let two = register(&lenient, &region, 2, WRITE);
    assert_eq!((one.other_writers(), two.other_writers()), (1, 1));
}

/// Guesses succeed only as often as by chance, because an STag has 24 random bits. STags are spread over the
/// whole space, and the neighbours of a valid STag are not valid more often than by chance.
// Proves SEC-029, SEC-176, RDMAP-357, RDMAP-358.
#[test]
fn names_are_as_hard_to_guess_as_they_are_many() {
    const LIVE: u32 = 10_000;
    let table = MemoryTable::new(LIVE as usize, [0x33; 32]);
    let region = Arc::new(Region::new(64).unwrap());
    let all: Vec<_> = (0..LIVE).map(|_| register(&table, &region, 1, READ)).collect();
    let engine = table.join();
    let epoch = engine.enter();
    let hits = |guess: &dyn Fn(u32) -> u32, count: u32| {
        let valid = |n: &u32| epoch.check_read(Stag::new(guess(*n), 0), 0, 1, accessor(1)).is_ok();
        (0..count).filter(valid).count() as u32
    };
    // The guesses step evenly over all indices: with 2^20 guesses of 2^24 indices, 625 hits are expected,
    // with sigma 25.
    let guessed = hits(&|n| n.wrapping_mul(0x9e_3779) % Stag::INDICES, 1 << 20);
    assert!((500..750).contains(&guessed), "{guessed}");
    // For the neighbours of valid STags, 10^4 * 10^4 / 2^24 = 6 hits are expected on each side.
    for delta in [1, Stag::INDICES - 1] {
        let neighbours = hits(&|n| (all[n as usize].stag().index() + delta) % Stag::INDICES, LIVE);
        assert!(neighbours < 20, "{neighbours}");
    }
    // In each of 256 equal parts of the space, 39 STags are expected, with sigma 6.2.
    let mut parts = [0; 256];
    for registration in &all {
        parts[registration.stag().0 as usize >> 24] += 1;
    }
    assert!(parts.iter().all(|count| (10..72).contains(count)), "{parts:?}");
    let steps: std::collections::HashSet<_> =
        all.windows(2).map(|two| two[1].stag().0.wrapping_sub(two[0].stag().0)).collect();
    assert!(steps.len() > 9_900, "{} different steps", steps.len());
}

/// Reads outside a range, also close to its ends, are refused with the right error codes. Reads inside the
/// range are allowed.
// Proves SEC-096, SEC-104.
#[test]
fn reads_outside_are_refused_with_their_codes() {
    const BASE: u64 = 0x1000;
    let table = MemoryTable::new(8, [1; 32]);
    let options = RegisterOptions { pd: PdId(1), access: READ, base: Base::Iova(BASE), ..Default::default() };
    let region = table.register(Arc::new(Region::new(77).unwrap()), &options).unwrap();
    let engine = table.join();
    let epoch = engine.enter();
    for (to, len, codes) in [
        (BASE - 1, 1, (0, 1, 1)),
        (BASE - 1, 2, (0, 1, 1)),
        (BASE + 77, 1, (0, 1, 1)),
        (BASE + 76, 2, (0, 1, 1)),
        (BASE, 78, (0, 1, 1)),
        (BASE, u64::from(u32::MAX), (0, 1, 1)),
        (u64::MAX, 1, (0, 1, 4)),
        (u64::MAX - 10, 77, (0, 1, 4)),
    ] {
        let fault = epoch.check_read(region.stag(), to, len, accessor(1)).map(drop).unwrap_err();
        let error = TerminateError::of_read_fault(fault);
        assert_eq!((error.layer(), error.etype(), error.code()), codes, "{to:#x} {len}");
    }
    assert!(epoch.check_read(region.stag(), BASE, 77, accessor(1)).is_ok());
    assert!(epoch.check_read(region.stag(), BASE + 76, 1, accessor(1)).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For random domains, streams, STags and operations, access is allowed if and only if two conditions
    /// hold. The STag has the right, and the STag belongs to the stream or, if it has no stream of its own,
    /// to the domain. Only an STag's own stream may invalidate it.
    // Proves SEC-030, SEC-090, SEC-091, RDMAP-350, RDMAP-351, DDP-226, DDP-227, DDP-236.
    #[test]
    fn access_is_by_domain_or_by_stream(
        names in prop::collection::vec((1_u32..4, prop::option::of(1_u64..5), 0_u32..16), 1..12),
        tries in prop::collection::vec((any::<prop::sample::Index>(), 1_u32..4, 1_u64..5, 0_u8..4), 1..40),
    ) {
        let table = MemoryTable::new(16, [5; 32]);
        let region = Arc::new(Region::new(64).unwrap());
        let names: Vec<_> = names
            .into_iter()
            .map(|(pd, stream, rights)| {
                let rights = Access::from_bits_truncate(rights & Access::REMOTE.bits()) | Access::LOCAL_WRITE;
                let stream = stream.map(StreamId);
                let options = RegisterOptions { pd: PdId(pd), stream, access: rights, base: Base::Zero, ..Default::default() };
                (table.register(Arc::clone(&region), &options).unwrap(), options)
            })
            .collect();
        let engine = table.join();
        for (index, pd, stream, op) in tries {
            let (name, options) = index.get(&names);
            let by = Accessor { pd: PdId(pd), stream: StreamId(stream) };
            let epoch = engine.enter();
            let stag = name.stag();
            let has = |right| options.access.contains(right);
            let mine = options.stream.map_or(options.pd == by.pd, |only| only == by.stream);
            let valid = name.is_valid();
            let atomic = has(Access::REMOTE_ATOMIC) || has(Access::REMOTE_READ | Access::REMOTE_WRITE);
            let (done, allowed) = match op {
                0 => (epoch.check_write(stag, 0, 1, by).is_ok(), mine && has(Access::REMOTE_WRITE)),
                1 => (epoch.check_read(stag, 0, 1, by).is_ok(), mine && has(Access::REMOTE_READ)),
                2 => (epoch.check_atomic(stag, 0, by).is_ok(), mine && atomic),
                _ => {
                    let only = options.stream == Some(by.stream) && options.access.intersects(Access::REMOTE);
                    (epoch.invalidate_remote(stag, by).is_ok(), only)
                }
            };
            prop_assert_eq!(done, allowed && valid);
        }
    }
}
