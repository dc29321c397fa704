//! Tests of regions: for example, a large region is in hugepages if enough are free.

use super::*;

fn read(region: &Region, offset: usize) -> u8 {
    assert!(offset < region.len());
    let place = region.as_ptr().as_ptr().wrapping_add(offset);
    // SAFETY: `offset` is inside the region, which is mapped while it is borrowed. The bytes are initialised
    // with zeros. The tests use a region in one thread at a time.
    unsafe { place.read_volatile() }
}

fn write(region: &Region, offset: usize, byte: u8) {
    assert!(offset < region.len());
    let place = region.as_ptr().as_ptr().wrapping_add(offset);
    // SAFETY: `offset` is inside the region, which is mapped while it is borrowed. The tests use a region in
    // one thread at a time.
    unsafe { place.write_volatile(byte) }
}

#[test]
fn a_region_is_zeroed_page_aligned_and_writable_at_both_ends() {
    for bytes in [1, 4096, 4097, (1 << 20) - 1, 1 << 20, (4 << 20) + 5] {
        let region = Region::new(bytes).unwrap();
        assert_eq!(region.len(), bytes);
        assert!(!region.is_empty());
        assert_eq!(region.as_ptr().as_ptr() as usize % rustix::param::page_size(), 0);
        assert_eq!((read(&region, 0), read(&region, bytes - 1)), (0, 0));
        write(&region, 0, 0x5a);
        write(&region, bytes - 1, 0xa5);
        assert_eq!(read(&region, bytes - 1), 0xa5);
        assert!(bytes == 1 || read(&region, 0) == 0x5a);
    }
}

#[test]
fn nothing_and_more_than_there_is_are_errors() {
    assert!(matches!(Region::new(0), Err(RegionError::Empty)));
    for bytes in [usize::MAX, usize::MAX / 2] {
        let error = Region::new(bytes).unwrap_err();
        assert!(error.to_string().contains("no memory for a region of"), "{error}");
    }
}

#[test]
fn small_regions_leave_hugepages_alone() {
    assert!(!Region::new(4096).unwrap().is_huge());
}

#[test]
fn a_region_may_be_used_and_dropped_on_another_thread() {
    let region = Region::new(3 << 20).unwrap();
    write(&region, 7, 7);
    std::thread::spawn(move || assert_eq!(read(&region, 7), 7)).join().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_large_region_is_of_hugepages_where_some_are_free() {
    use std::time::{Duration, Instant};

    let enough = || hugepages::available().is_some_and(|pages| pages >= 4);
    // `scripts/test` reserves hugepages if it runs as root. If no hugepages are free, the tests in this file
    // use ordinary pages.
    let in_ci = std::env::var_os("CI").is_some_and(|set| set == "true");
    // Tests of other programs may use all reserved hugepages for a moment.
    let deadline = Instant::now() + Duration::from_secs(30);
    while in_ci && !enough() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let had_enough = enough();
    assert!(had_enough || !in_ci, "fewer than 4 hugepages of 2 MiB are free");
    let region = Region::new((2 << 20) + 1).unwrap();
    // Other processes may have reserved or returned hugepages since the first check.
    assert!(region.is_huge() || !had_enough || !enough());
    if region.is_huge() {
        assert_eq!(region.as_ptr().as_ptr() as usize % hugepages::BYTES, 0);
        write(&region, 2 << 20, 1);
    }
}

#[test]
fn more_than_all_hugepages_falls_back_to_ordinary_pages() {
    #[cfg(target_os = "linux")]
    let bytes = (hugepages::available().unwrap_or(0) + 1) * hugepages::BYTES;
    #[cfg(not(target_os = "linux"))]
    let bytes = 4 << 20;
    // The region is in ordinary pages, unless another process has just returned hugepages.
    let region = Region::new(bytes).unwrap();
    write(&region, bytes - 1, 1);
}
