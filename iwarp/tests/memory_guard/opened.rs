//! Memory of the user for which a request creates an STag, by a fast registration or a window.

use super::*;

/// A request of a send queue may create STags for memory of the caller, by a fast registration or by windows
/// of both types. An access through such an STag to unmapped memory fails with an error and does not crash.
#[test]
fn memory_that_a_request_opens_is_guarded() {
    let table = table();
    let start = pages(2, READ_WRITE);
    let prepare = Prepare { pd: ME.pd, ..Prepare::default() };
    // SAFETY: the test owns the memory and accesses it only through the registration. The test breaks one
    // promise: it unmaps the memory before the registration is dropped. The guard of the table turns accesses
    // to the unmapped memory into errors.
    let fast = unsafe { table.prepare_user(start, PAGE, true, &prepare) }.unwrap();
    let region = register_for(&table, start.wrapping_add(PAGE), PAGE, ALL | Access::MW_BIND).unwrap();
    let kinds = [WindowKind::Type1, WindowKind::Type2];
    let windows = kinds.map(|kind| table.alloc_window(ME.pd, kind, false).unwrap());
    let engine = table.join();
    let epoch = engine.enter();
    let (len, access) = (PAGE as u64, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let bind = FastBind {
        stag: fast.stag(3),
        offset: 0,
        len,
        access: access | Access::LOCAL_WRITE,
        base: Base::Zero,
    };
    epoch.fast_register(&bind, ME).unwrap();
    for window in &windows {
        let (stag, region) = (window.stag(3), region.stag());
        epoch.bind_window(&Bind { stag, region, addr: 0, len, access, zero_based: true }, ME).unwrap();
    }
    let stags = [fast.stag(3), windows[0].stag(3), windows[1].stag(3)];
    let meet = |stag| {
        let write = epoch.check_write(stag, 8, 8, ME).and_then(|target| target.place(0, &[7; 8]));
        let read = epoch.check_read(stag, 8, 8, ME).and_then(|source| source.fetch(0, &mut [0; 8]));
        [write, read]
    };
    assert_eq!(stags.map(meet), [[Ok(()); 2]; 3]);
    unmap(start, 2);
    assert_eq!(stags.map(meet), [[GONE; 2]; 3]);
}
