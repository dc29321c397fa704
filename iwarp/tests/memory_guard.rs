//! If memory of the caller is not mapped, or is unmapped before it is deregistered, accesses fail with an
//! error and do not crash. Other crashes of the program are not affected.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[path = "it/common/apart.rs"]
mod apart;
#[path = "memory_guard/opened.rs"]
mod opened;

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use apart::apart;
use dp::{ExtBuf, Mbuf, Mempool};
use iwarp::memory::{
    Access, AccessError, Accessor, Base, Bind, FastBind, Fault, MemoryTable, PdId, Prepare, RegisterError,
    RegisterOptions, Registration, StreamId, Stride, TableConfig, UserMemory, WindowKind,
};
use iwarp::mpa::Crc32c;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
const PAGE: usize = 4096;
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Maps pages for one test, which unmaps them page by page or not at all.
fn pages(count: usize, rights: ProtFlags) -> *mut u8 {
    apart(count * PAGE, rights)
}

fn unmap(start: *mut u8, count: usize) {
    // SAFETY: each caller passes its own pages from `pages`. From now on these pages are accessed only under
    // the guard, or not at all.
    unsafe { munmap(start.cast(), count * PAGE) }.unwrap();
}

fn protect(start: *mut u8, count: usize, rights: MprotectFlags) {
    // SAFETY: each caller passes its own pages from `pages`. From now on these pages are accessed only under
    // the guard, or as the new rights allow.
    unsafe { mprotect(start.cast(), count * PAGE, rights) }.unwrap();
}

fn table() -> MemoryTable {
    MemoryTable::new(8, [9; 32])
}

fn register(table: &MemoryTable, ptr: *mut u8, len: usize) -> Result<Registration, RegisterError> {
    register_for(table, ptr, len, ALL)
}

fn register_for(
    table: &MemoryTable,
    ptr: *mut u8,
    len: usize,
    access: Access,
) -> Result<Registration, RegisterError> {
    let options = RegisterOptions { pd: ME.pd, access, base: Base::Zero, ..Default::default() };
    // SAFETY: the test owns the memory and accesses it only through the registration. Tests break one
    // promise: they unmap or protect the memory before the registration is dropped. The guard of the table
    // turns accesses to such memory into errors.
    unsafe { table.register_user(ptr, len, &options) }
}

/// Writes, reads and atomically changes `len` bytes at `to` as a peer does. Returns the three results. Each
/// way to write the bytes has the same result.
fn accesses(table: &MemoryTable, region: &Registration, to: u64, len: usize) -> [Result<(), Fault>; 3] {
    let engine = table.join();
    let guard = engine.enter();
    let (bytes, mut out) = (vec![0xee; len], vec![0; len]);
    // This memory has gaps between the bytes, as markers cause them.
    let stride = Stride::new(60);
    let mut in_runs = vec![0xee; stride.span(len)];
    // The bytes of this frame that are placed are in external memory.
    const FRONT: usize = 3;
    let pool = Mempool::heap("frames", 1, FRONT);
    let mut frame = pool.alloc().unwrap();
    frame.append(FRONT).unwrap();
    frame.chain(Mbuf::external(&pool, ExtBuf::new(Arc::new(bytes.clone()))).unwrap()).unwrap();
    [
        guard.check_write(region.stag(), to, len as u64, ME).and_then(|target| {
            let placed = target.place(0, &bytes);
            assert_eq!(target.place_frame(0, &frame, FRONT, len), placed, "{len} bytes at {to}, of a frame");
            if placed.is_ok() {
                let too_short = target.place_frame(0, &frame, FRONT + 1, len);
                assert_eq!(too_short, Err(Fault::Bounds), "{len} bytes at {to}");
            }
            assert_eq!(
                target.place_runs(0, stride.runs(&in_runs)).map(|placed| assert_eq!(placed, len)),
                placed
            );
            placed
        }),
        guard.check_read(region.stag(), to, len as u64, ME).and_then(|source| {
            let (copied, mut crc) = (&mut vec![0; len], Crc32c::new());
            let (plain, with_crc) =
                (source.fetch(0, &mut out), source.fetch_with_crc(0, copied, crc.running()));
            assert_eq!(plain, with_crc, "{len} bytes at {to}");
            assert_eq!(plain, source.fetch_runs(0, &mut in_runs, stride), "{len} bytes at {to}, in runs");
            // The test compares only the bytes of this copy, because other threads may have changed other
            // bytes since.
            let mut expected = Crc32c::new();
            expected.update(if plain.is_ok() { copied } else { &[] });
            assert_eq!(crc.finish(), expected.finish(), "a CRC of bytes that were not fetched");
            plain
        }),
        guard.check_atomic(region.stag(), to, ME).and_then(|word| word.update(|old| old + 1)).map(drop),
    ]
}

const GONE: Result<(), Fault> = Err(Fault::InvalidStag);

/// The bytes to place may be at the end of the mapped memory. A load of bytes behind the mapped memory would
/// end the process.
#[test]
fn nothing_behind_what_is_placed_is_loaded() {
    let table = table();
    let mut memory = vec![0; PAGE];
    let region = register(&table, memory.as_mut_ptr(), PAGE).unwrap();
    let start = pages(2, READ_WRITE);
    // SAFETY: the two pages of `pages` are mapped and writable, and only this test accesses them.
    unsafe { start.write_bytes(0xee, PAGE) };
    protect(start.wrapping_add(PAGE), 1, MprotectFlags::empty());
    let engine = table.join();
    let guard = engine.enter();
    let target = guard.check_write(region.stag(), 0, PAGE as u64, ME).unwrap();
    for front in (0..20).chain([60, 500]).chain(505..515) {
        for len in (0..100).chain(500..600).chain([1024, 1030, 1537, PAGE]) {
            // SAFETY: `len` is at most a page, so these are the last bytes of the first page. The page was
            // filled above, stays readable, and is no longer written.
            let bytes = unsafe { std::slice::from_raw_parts(start.wrapping_add(PAGE - len), len) };
            let stride = Stride::new(front);
            assert_eq!(target.place_runs(front % 17, stride.runs(bytes)), Ok(stride.content(len)));
        }
    }
}

/// The test accesses memory with different lengths and alignments, close to the end of the mapped pages. An
/// access beyond the end fails as on a revoked STag. An access that lies wholly inside the mapped pages still
/// works. A write across the end fails, but its bytes before the end are written.
// Proves SEC-169, SEC-021.
#[test]
fn unmapped_memory_is_an_error() {
    let table = table();
    let start = pages(4, READ_WRITE);
    let region = register(&table, start, 4 * PAGE).unwrap();
    assert_eq!(accesses(&table, &region, 0, 4 * PAGE), [Ok(()); 3]);
    unmap(start.wrapping_add(2 * PAGE), 2);
    let left = 2 * PAGE as u64;
    for len in [1, 7, 8, 9, 61, 62, 63, 64, 65, 200, 1000, PAGE + 3] {
        for before in [0, 1, 5, 8, 16, 63] {
            let len_before = len as u64 + before;
            assert_eq!(accesses(&table, &region, left - len_before, len)[..2], [Ok(()); 2]);
            if before < len as u64 {
                assert_eq!(accesses(&table, &region, left - before, len)[..2], [GONE; 2]);
            }
        }
    }
    assert_eq!(accesses(&table, &region, left, 8), [GONE; 3]);
    assert_eq!(accesses(&table, &region, left - 8, 8), [Ok(()); 3]);
    // These are the accesses of the owner and of a posting thread.
    let memory = region.memory();
    let unmapped = |offset| Err(AccessError::Unmapped { offset });
    assert_eq!(memory.write_at(2 * PAGE - 2, b"abcd"), unmapped(2 * PAGE - 2));
    assert_eq!(memory.read_at(2 * PAGE, &mut [0; 9]), unmapped(2 * PAGE));
    assert_eq!(memory.load_u8_acquire(2 * PAGE), unmapped(2 * PAGE).map(|()| 0));
    assert_eq!(memory.load_u64_acquire(2 * PAGE), unmapped(2 * PAGE).map(|()| 0));
    assert_eq!(memory.store_u8_release(2 * PAGE, 1), unmapped(2 * PAGE));
    assert_eq!(memory.load_u8_acquire(2 * PAGE - 1), Ok(b'b'));
    let lkey = region.stag().0;
    assert_eq!(table.fetch_local(ME.pd, lkey, left - 1, &mut [0]), Ok(()));
    assert_eq!(table.fetch_local(ME.pd, lkey, left - 1, &mut [0; 2]), Err(Fault::InvalidStag));
    drop(region);
    unmap(start, 2);
}

/// The rights of mapped memory are reduced. Only the forbidden accesses fail, and they work again when the
/// rights are restored.
// Proves SEC-169.
#[test]
fn protected_memory_is_an_error() {
    let table = table();
    let start = pages(1, READ_WRITE);
    let region = register(&table, start, PAGE).unwrap();
    protect(start, 1, MprotectFlags::READ);
    assert_eq!(accesses(&table, &region, 0, 100), [GONE, Ok(()), GONE]);
    protect(start, 1, MprotectFlags::empty());
    assert_eq!(accesses(&table, &region, 0, 100), [GONE; 3]);
    protect(start, 1, MprotectFlags::READ | MprotectFlags::WRITE);
    assert_eq!(accesses(&table, &region, 0, 100), [Ok(()); 3]);
    drop(region);
    unmap(start, 1);
}

/// A mapped file is truncated: its pages are still mapped, and accesses raise SIGBUS.
// Proves SEC-169.
#[test]
fn a_file_cut_short_is_an_error() {
    let table = table();
    let path = std::env::temp_dir().join(format!("iwarp-guard-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    // SAFETY: without a requested address, a new mapping replaces no other mapping.
    let start = unsafe { mmap(null_mut(), 2 * PAGE, READ_WRITE, MapFlags::SHARED, &file, 0) }.unwrap();
    let region = register(&table, start.cast(), 2 * PAGE).unwrap();
    assert_eq!(accesses(&table, &region, PAGE as u64 - 8, 16), [Ok(()); 3]);
    file.set_len(PAGE as u64).unwrap();
    assert_eq!(accesses(&table, &region, PAGE as u64, 16), [GONE; 3]);
    assert_eq!(accesses(&table, &region, PAGE as u64 - 8, 16), [GONE, GONE, Ok(())]);
    assert_eq!(accesses(&table, &region, 0, PAGE), [Ok(()); 3]);
    drop(region);
    unmap(start.cast(), 2);
}

/// Copies fail on several threads at once, between copies that succeed.
#[test]
fn threads_fail_each_for_itself() {
    let table = table();
    let start = pages(2, READ_WRITE);
    let region = register(&table, start, 2 * PAGE).unwrap();
    unmap(start.wrapping_add(PAGE), 1);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..500 {
                    assert_eq!(accesses(&table, &region, PAGE as u64 - 8, 16)[..2], [GONE; 2], "{round}");
                    assert_eq!(accesses(&table, &region, PAGE as u64 - 16, 16)[..2], [Ok(()); 2]);
                }
            });
        }
    });
    drop(region);
    unmap(start, 1);
}

/// Memory that is not mapped, or that does not allow the requested access, gets no STag. Memory is also
/// checked when it is prepared for fast registration.
// Proves SEC-021, SEC-169, RDMAP-367, DDP-221, DDP-237.
#[test]
fn what_is_not_there_is_not_registered() {
    let table = table();
    let start = pages(4, READ_WRITE);
    unmap(start.wrapping_add(3 * PAGE), 1);
    let end = start.wrapping_add(3 * PAGE).addr() as u64;
    assert_eq!(register(&table, start, 3 * PAGE + 1).err(), Some(RegisterError::NotMapped { at: end }));
    assert_eq!(
        register(&table, start.wrapping_add(3 * PAGE), 1).err(),
        Some(RegisterError::NotMapped { at: end })
    );
    assert!(matches!(register(&table, null_mut(), 1), Err(RegisterError::NotMapped { at: 0 })));
    let wraps = register(&table, std::ptr::without_provenance_mut(usize::MAX), 2);
    assert!(matches!(wraps, Err(RegisterError::NotMapped { .. })));
    // The second of three pages is read-only.
    let middle = start.wrapping_add(PAGE);
    protect(middle, 1, MprotectFlags::READ);
    let protected = Some(RegisterError::Protected { at: middle.addr() as u64 });
    assert_eq!(register(&table, start, 3 * PAGE).err(), protected);
    assert_eq!(register_for(&table, start, 3 * PAGE, Access::LOCAL_WRITE).err(), protected);
    assert!(register_for(&table, start, 3 * PAGE, Access::REMOTE_READ).is_ok());
    assert!(register(&table, start, PAGE).is_ok());
    let prepare = Prepare { pd: ME.pd, ..Default::default() };
    // SAFETY: the pages are unmapped at the end of this test. The registrations are dropped earlier, and
    // nobody accesses the pages through the registrations.
    let prepared = |writable| unsafe { table.prepare_user(start, 3 * PAGE, writable, &prepare) };
    assert_eq!(prepared(true).err(), protected);
    assert!(prepared(false).is_ok());
    protect(middle, 1, MprotectFlags::empty());
    assert_eq!(register_for(&table, start, 3 * PAGE, Access::REMOTE_READ).err(), protected);
    assert_eq!(table.usage().registered, 0);
    unmap(start, 3);
}

/// A child of the process that created the table cannot access memory through the table, and cannot register
/// in it. The child waits for no thread of its parent, not even for a thread that was inside an epoch.
// Proves SEC-169.
#[test]
fn a_forked_child_has_no_registrations() {
    let table = table();
    let start = pages(1, READ_WRITE);
    let region = register(&table, start, PAGE).unwrap();
    let (inside, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let engine = table.join();
            let _turn = engine.enter();
            inside.store(true, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        while !inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: the child of a process with several threads may only run code that needs no lock of these
        // threads. The child calls `_exit` and `in_child`, which does not wait for a thread of the parent, as
        // this test proves. glibc keeps its allocator usable in a child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the call only arms a timer in the child. The timer ends the child if the child hangs.
            unsafe { libc::alarm(20) };
            let failures = in_child(&table, region);
            // SAFETY: `_exit` ends the child without running any destructor or exit handler that the child
            // has inherited.
            unsafe { libc::_exit(failures) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local variable that may be written. The child belongs to this test.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        done.store(true, Ordering::Release);
        assert_eq!(ExitStatus::from_raw(status).code(), Some(0), "the failed checks, as bits, or a signal");
        // The parent continues as before.
        assert_eq!(accesses(&table, &region, 0, 8), [Ok(()); 3]);
        drop(region);
    });
    unmap(start, 1);
}

/// Runs the checks in the child. Returns the failed checks, one bit for each.
fn in_child(table: &MemoryTable, region: Registration) -> i32 {
    let lkey = region.stag().0;
    let fails = [
        region.is_valid(),
        accesses(table, &region, 0, 8) != [GONE; 3],
        table.check_local(ME.pd, lkey, 0, 1, Access::empty()) != Err(Fault::InvalidStag),
        table.fetch_local(ME.pd, lkey, 0, &mut [0]) != Err(Fault::InvalidStag),
        register(table, region.memory().as_ptr(), 8).err() != Some(RegisterError::Forked),
        table.usage().registered != 0,
        region.deregister_unbound().is_err(),
    ];
    fails.iter().enumerate().map(|(bit, failed)| i32::from(*failed) << bit).sum()
}

// ---- tests that need their own process ----

/// The environment variable with the name of the part to run, in a process that was started to crash.
const PART: &str = "IWARP_GUARD_PART";

/// Runs one of the parts below in a separate process.
fn run(part: &str) -> ExitStatus {
    let test = ["--exact", "the_parts", "--ignored", "--test-threads=1"];
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(test).env(PART, part).output().unwrap().status
}

/// A fault that is not a guarded access goes to the handler that was installed before the guard, whichever
/// signature the handler has. Without such a handler, the process dies of the fault, and also of a signal
/// that was sent to it.
#[test]
fn other_faults_are_passed_on() {
    assert_eq!(run("nothing").code(), Some(0));
    assert_eq!(run("fault").signal(), Some(libc::SIGSEGV));
    assert_eq!(run("fault_by_default").signal(), Some(libc::SIGSEGV));
    assert_eq!(run("sent_by_default").signal(), Some(libc::SIGBUS));
    assert_eq!(run("handled").code(), Some(42));
    assert_eq!(run("handled_with_information").code(), Some(43));
    assert_eq!(run("sent_and_ignored").code(), Some(0));
}

/// The previous handler runs as the kernel would run it: with its mask, only once if it has SA_RESETHAND, and
/// nested if it has SA_NODEFER.
#[test]
fn a_handler_from_before_runs_as_it_asked_to() {
    assert_eq!(run("handled_with_its_mask").code(), Some(44));
    assert_eq!(run("handled_nested").code(), Some(45));
    assert_eq!(run("handled_once").signal(), Some(libc::SIGSEGV));
    assert_eq!(run("handled_again").code(), Some(0));
}

/// A handler is installed after the guard. After the next registration, the guard receives each signal before
/// this handler, whether or not the handler passes signals on to the guard. If the handler passes a signal
/// on, the handler that was installed before the guard receives the signal once.
#[test]
fn a_handler_from_after_the_first_registration_does_not_disarm() {
    assert_eq!(run("later").code(), Some(42));
    assert_eq!(run("later_and_passes_on").code(), Some(51));
    assert_eq!(run("later_and_passes_on_to_nothing").signal(), Some(libc::SIGSEGV));
    // The seven guarded accesses also pass through the program's handler.
    assert_eq!(run("later_and_passes_on_unseen").code(), Some(58));
    assert_eq!(run("later_and_gone").code(), Some(50));
    assert_eq!(run("later_again").code(), Some(52));
    assert_eq!(run("later_by_many").code(), Some(42));
}

/// Without the guard, memory that is unmapped too early causes a crash, as documented, and no handler is
/// changed.
#[test]
fn trusted_memory_has_no_guard() {
    assert_eq!(run("trusted").signal(), Some(libc::SIGSEGV));
}

#[test]
#[ignore = "parts of other tests, each in a process of its own"]
fn the_parts() {
    // This test does something only in the processes that the tests above start.
    let Ok(part) = std::env::var(PART) else { return };
    // Some parts install a signal action before the guard.
    match part.as_str() {
        "fault_by_default" => handle(libc::SIGSEGV, libc::SIG_DFL, 0),
        "sent_by_default" => handle(libc::SIGBUS, libc::SIG_DFL, 0),
        "handled" => handle(libc::SIGSEGV, exit_42 as extern "C" fn(i32) as usize, 0),
        "handled_with_information" => {
            let handler = exit_43 as extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) as usize;
            handle(libc::SIGSEGV, handler, libc::SA_SIGINFO);
        }
        "sent_and_ignored" => handle(libc::SIGSEGV, libc::SIG_IGN, 0),
        "handled_with_its_mask" => handle(libc::SIGSEGV, exit_by_mask as extern "C" fn(i32) as usize, 0),
        "handled_nested" => {
            handle(libc::SIGSEGV, exit_by_mask as extern "C" fn(i32) as usize, libc::SA_NODEFER);
        }
        "handled_once" => {
            handle(libc::SIGSEGV, count as extern "C" fn(i32) as usize, libc::SA_RESETHAND);
        }
        "handled_again" => handle(libc::SIGSEGV, count as extern "C" fn(i32) as usize, 0),
        "later_and_passes_on" | "later_and_passes_on_unseen" | "later_and_gone" | "later_again" => {
            handle(libc::SIGSEGV, exit_by_count as extern "C" fn(i32) as usize, 0);
        }
        _ => {}
    }
    let user_memory = if part == "trusted" { UserMemory::Trusted } else { UserMemory::Guarded };
    let table = MemoryTable::with(&TableConfig { user_memory, ..Default::default() }, [1; 32]);
    let start = pages(1, READ_WRITE);
    let region = register(&table, start, PAGE).unwrap();
    let other = pages(1, READ_WRITE);
    let again = || drop(register(&table, other, PAGE).unwrap());
    match part.as_str() {
        "later" => {
            handle(libc::SIGSEGV, exit_42 as extern "C" fn(i32) as usize, 0);
            again();
        }
        "later_and_passes_on" | "later_and_passes_on_to_nothing" => {
            handle_and_pass_on();
            again();
        }
        "later_and_passes_on_unseen" => drop(handle_and_pass_on()),
        "later_and_gone" => {
            let ours = handle_and_pass_on();
            again();
            restore(&ours);
        }
        "later_again" => {
            for _ in 0..2 {
                handle_and_pass_on();
                again();
            }
            send(libc::SIGSEGV);
        }
        "later_by_many" => {
            for flags in [0, libc::SA_NODEFER, libc::SA_RESTART] {
                handle(libc::SIGSEGV, count as extern "C" fn(i32) as usize, flags);
                again();
                handle(libc::SIGSEGV, exit_42 as extern "C" fn(i32) as usize, flags);
                again();
                again();
            }
        }
        _ => {}
    }
    unmap(start, 1);
    // With the guard, this access does not crash, whatever action was installed before.
    assert_eq!(accesses(&table, &region, 0, 8), [GONE; 3]);
    SURVIVED.store(true, Ordering::Relaxed);
    match part.as_str() {
        "nothing" => {}
        "sent_by_default" => send(libc::SIGBUS),
        "sent_and_ignored" => send(libc::SIGSEGV),
        "handled_once" | "handled_again" => {
            send(libc::SIGSEGV);
            assert_eq!(COUNT.load(Ordering::Relaxed), 1);
            assert!(!is_blocked(libc::SIGUSR1), "its mask goes when it returns");
            send(libc::SIGSEGV);
            assert_eq!(COUNT.load(Ordering::Relaxed), 2);
        }
        _ => {
            // SAFETY: this store is unsound on purpose. The page is not mapped, and the process has to die of
            // the store. The store is volatile so that the compiler keeps it.
            unsafe { start.write_volatile(1) };
        }
    }
}

fn handle(signal: i32, handler: usize, flags: i32) {
    // SAFETY: all-zero bytes are a valid `sigaction`: integers, a mask of integers, and an optional function.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: `sigaddset` writes to a local signal set. The set is initialised, because zeros are the empty
    // set on Linux.
    unsafe { libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1) };
    // SAFETY: each caller passes SIG_IGN, SIG_DFL or one of the functions below, with the flags for its
    // signature. As handlers, these functions only count, read the mask, and exit.
    assert_eq!(unsafe { libc::sigaction(signal, &action, null_mut()) }, 0);
}

/// The action to which [`pass_on`] passes signals.
static FOUND: Mutex<Option<libc::sigaction>> = Mutex::new(None);

/// Installs [`pass_on`] for SIGSEGV. Returns the previous action.
fn handle_and_pass_on() -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid `sigaction`: integers, a mask of integers, and an optional function.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut found = action;
    action.sa_sigaction = pass_on as Handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `pass_on` has the signature of a handler with SA_SIGINFO, and no thread holds its lock when
    // this process faults. `found` is a local variable that may be written.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, &mut found) }, 0);
    *FOUND.lock().unwrap() = Some(found);
    found
}

fn restore(action: &libc::sigaction) {
    // SAFETY: `action` is an action that was installed before, and it is still valid.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, action, null_mut()) }, 0);
}

type Handler = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void);

/// Counts the signal, and passes it on to a handler with SA_SIGINFO.
///
/// # Safety
/// The kernel calls this function as a handler with SA_SIGINFO, or another handler calls it with the kernel's
/// arguments.
unsafe extern "C" fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let found = FOUND.lock().unwrap().unwrap();
    assert!(found.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: the handler was installed with SA_SIGINFO, so it is a function of this signature.
    let found: Handler = unsafe { std::mem::transmute(found.sa_sigaction) };
    // SAFETY: the kernel passed these arguments for this signal.
    unsafe { found(signal, info, context) };
}

/// If [`send`] has sent the signal, returns. If a fault has raised the signal, ends the process with 50 plus
/// [`COUNT`] as its exit code.
extern "C" fn exit_by_count(_signal: i32) {
    let count = COUNT.load(Ordering::Relaxed);
    if SENT.swap(false, Ordering::Relaxed) {
        return;
    }
    // SAFETY: `_exit` is async-signal-safe, and ends the process without running any other code of the
    // process.
    unsafe { libc::_exit(50 + count as i32) }
}

/// `true` while a signal was sent and is not handled yet.
static SENT: AtomicBool = AtomicBool::new(false);

fn send(signal: i32) {
    SENT.store(true, Ordering::Relaxed);
    // SAFETY: `raise` sends the signal to the calling thread. This process was started to receive the
    // signal.
    unsafe { libc::raise(signal) };
}

/// `true` if the guarded accesses have failed and the process still runs.
static SURVIVED: AtomicBool = AtomicBool::new(false);

extern "C" fn exit_42(_signal: i32) {
    let code = if SURVIVED.load(Ordering::Relaxed) { 42 } else { 1 };
    // SAFETY: `_exit` is async-signal-safe, and ends the process without running any other code of the
    // process.
    unsafe { libc::_exit(code) }
}

extern "C" fn exit_43(signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: our handler passes on the kernel's `siginfo_t`, which is valid during the handler and is not
    // changed.
    let passed_on = unsafe { (*info).si_signo };
    // SAFETY: `_exit` is async-signal-safe, and ends the process without running any other code of the
    // process.
    unsafe { libc::_exit(if signal == libc::SIGSEGV && passed_on == signal { 43 } else { 1 }) }
}

/// Number of signals that [`count`] and [`pass_on`] have handled.
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: i32) {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

fn is_blocked(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid `sigset_t`: an array of integers.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: without a new set the call only writes the current mask of this thread to `mask`.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) };
    // SAFETY: `sigismember` reads a local set, which the previous call has filled in.
    (unsafe { libc::sigismember(&mask, signal) }) == 1
}

/// Ends the process with exit code 44 if the mask of [`handle`] and the signal itself are blocked, and with
/// 45 if only the mask is blocked.
extern "C" fn exit_by_mask(signal: i32) {
    let code = match (is_blocked(libc::SIGUSR1), is_blocked(signal), is_blocked(libc::SIGUSR2)) {
        (true, true, false) => 44,
        (true, false, false) => 45,
        _ => 1,
    };
    // SAFETY: `_exit` is async-signal-safe, and ends the process without running any other code of the
    // process.
    unsafe { libc::_exit(code) }
}
