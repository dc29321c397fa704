use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use super::*;

const PAGE: usize = 4096;
const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Pages of this process. The drop of this value unmaps the pages.
struct Pages(*mut u8, usize);

impl Pages {
    fn anonymous(pages: usize) -> Self {
        // SAFETY: the kernel chooses the address, so the new mapping does not replace an existing mapping.
        let start = unsafe { mmap_anonymous(null_mut(), pages * PAGE, BOTH, MapFlags::PRIVATE) };
        Self(start.unwrap().cast(), pages)
    }

    /// Maps `pages` pages of a new file with `bytes` bytes.
    fn file(pages: usize, bytes: usize, flags: MapFlags) -> Self {
        let file = memfd_create(c"mapped", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        // SAFETY: the kernel chooses the address, so the new mapping does not replace an existing mapping.
        let start = unsafe { mmap(null_mut(), pages * PAGE, BOTH, flags, &file, 0) };
        Self(start.unwrap().cast(), pages)
    }

    /// Changes the rights of one page.
    fn protect(self, page: usize, rights: MprotectFlags) -> Self {
        let at = self.0.wrapping_add(page * PAGE);
        // SAFETY: the page belongs to this mapping, and no code accesses the page.
        unsafe { mprotect(at.cast(), PAGE, rights) }.unwrap();
        self
    }

    /// Unmaps one page.
    fn without(self, page: usize) -> Self {
        // SAFETY: the page belongs to this mapping, and no code accesses the page.
        unsafe { munmap(self.0.wrapping_add(page * PAGE).cast(), PAGE) }.unwrap();
        self
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, or what is left of it, and no code uses the range any more.
        unsafe { munmap(self.0.cast(), self.1 * PAGE) }.unwrap();
    }
}

/// Returns the methods that work on this kernel, with their answers.
fn ways(wanted: &Range<u64>, writable: bool) -> Vec<(&'static str, Result<(), RegisterError>)> {
    let maps = Maps::default();
    let ways = [
        ("query", maps.query(wanted, writable)),
        ("list", list(wanted, writable)),
        ("populate", populate(wanted, writable)),
    ];
    ways.into_iter().filter_map(|(name, answer)| Some((name, answer?))).collect()
}

/// For each of these mappings, all methods agree on whether the memory may be registered for reading, and on
/// whether it may be registered for writing.
#[test]
fn all_ways_tell_the_same() {
    let cases = [
        ("anonymous", Pages::anonymous(3), [true, true]),
        ("read only", Pages::anonymous(3).protect(1, MprotectFlags::READ), [true, false]),
        ("no rights", Pages::anonymous(3).protect(2, MprotectFlags::empty()), [false, false]),
        ("a hole", Pages::anonymous(3).without(1), [false, false]),
        ("without its end", Pages::anonymous(3).without(2), [false, false]),
        ("a file", Pages::file(3, 3 * PAGE, MapFlags::SHARED), [true, true]),
        ("a file that ends in the last page", Pages::file(3, 2 * PAGE + 1, MapFlags::SHARED), [true, true]),
        ("a short file", Pages::file(3, 2 * PAGE, MapFlags::SHARED), [false, false]),
        ("a private short file", Pages::file(3, 2 * PAGE, MapFlags::PRIVATE), [false, false]),
    ];
    for (name, pages, may) in cases {
        let start = pages.0.addr() as u64;
        for (writable, may) in [false, true].into_iter().zip(may) {
            // From a byte inside the first page to a byte inside the last page.
            let wanted = start + 100..start + 2 * PAGE as u64 + 100;
            let told = ways(&wanted, writable);
            assert!(!told.is_empty());
            for (way, answer) in told {
                assert_eq!(answer.is_ok(), may, "{name}, writable: {writable}, by {way}: {answer:?}");
            }
            let all = Maps::default().check(&wanted, writable);
            assert_eq!(all.is_ok(), may, "{name}");
        }
    }
}

/// A query populates no page, and `populate` populates all pages (`mincore` counts the resident pages).
#[test]
fn asking_brings_in_no_page() {
    let pages = Pages::anonymous(64);
    let start = pages.0.addr() as u64;
    let wanted = start..start + 64 * PAGE as u64;
    let here = || {
        let mut map = [0_u8; 64];
        // SAFETY: the vector has a byte for each page of the mapping.
        assert_eq!(unsafe { libc::mincore(pages.0.cast(), 64 * PAGE, map.as_mut_ptr()) }, 0);
        map.iter().filter(|&&page| page & 1 != 0).count()
    };
    let maps = Maps::default();
    if maps.query(&wanted, true).is_none() {
        return;
    }
    maps.check(&wanted, true).unwrap();
    assert_eq!(here(), 0);
    assert_eq!(populate(&wanted, true), Some(Ok(())));
    assert_eq!(here(), 64);
}

/// If the program has closed the descriptor of `/proc/self/maps`, another file may have the descriptor's
/// number. The query then fails, and no further query is made: the check uses another method.
#[test]
fn a_descriptor_that_does_not_answer_is_given_up() {
    let pages = Pages::anonymous(1);
    let maps = Maps::default();
    maps.file.set(File::open("/dev/null").unwrap()).unwrap();
    let start = pages.0.addr() as u64;
    assert_eq!(maps.query(&(start..start + 1), true), None);
    assert!(maps.cannot_ask.load(Ordering::Relaxed));
    assert_eq!(maps.check(&(start..start + PAGE as u64), true), Ok(()));
    let hole = Pages::anonymous(2).without(1);
    let (start, page) = (hole.0.addr() as u64, PAGE as u64);
    let refused = maps.check(&(start..start + page + 1), true);
    assert_eq!(refused, Err(RegisterError::NotMapped { at: start + page }));
}
