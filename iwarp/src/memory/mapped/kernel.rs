//! Three ways to ask the kernel whether memory is mapped and may be accessed: `query`, `list` and `populate`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::iter::from_fn;
use std::mem::zeroed;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Mapping, covered, parse};
use crate::memory::access::RegisterError;

const MAPS: &str = "/proc/self/maps";

/// Maximum number of bytes for which `populate` is tried before `list`. `list` is slow in a program with many
/// mappings, and the program may register short memory often.
const SHORT: u64 = 256 << 10;

/// Asks the kernel about the mappings of this process.
#[derive(Default)]
pub(super) struct Maps {
    /// `/proc/self/maps`, which is kept open, since opening it takes ten times as long as a query.
    file: OnceLock<File>,
    /// Whether a query has failed, as it does on a kernel without `PROCMAP_QUERY`.
    cannot_ask: AtomicBool,
}

/// The answer of a method, or `None` if the method does not work on this system.
type Answer = Option<Result<(), RegisterError>>;

impl Maps {
    /// Checks that the process may read the memory and, if `writable`, may write it.
    pub(super) fn check(&self, wanted: &Range<u64>, writable: bool) -> Result<(), RegisterError> {
        if let Some(answer) = self.query(wanted, writable) {
            return answer;
        }
        // If a page cannot be populated, `list` finds the address of that page.
        if wanted.end - wanted.start <= SHORT && populate(wanted, writable) == Some(Ok(())) {
            return Ok(());
        }
        list(wanted, writable)
            .or_else(|| populate(wanted, writable))
            .unwrap_or(Err(RegisterError::Unverified))
    }

    /// Checks the memory by a query for each of its mappings. Returns `None` if queries do not work.
    fn query(&self, wanted: &Range<u64>, writable: bool) -> Answer {
        if self.cannot_ask.load(Ordering::Relaxed) {
            return None;
        }
        let maps = match self.file.get() {
            Some(maps) => maps,
            // If the file cannot be opened now, a later call tries again.
            None => self.file.get_or_init({
                let maps = File::open(MAPS).ok()?;
                || maps
            }),
        };
        let (mut at, mut is_answered) = (wanted.start, true);
        let mappings = from_fn(|| match ask(maps, at) {
            Ok(mapping) => {
                at = mapping.bytes.end;
                Some(Ok(mapping))
            }
            Err(libc::ENOENT) => None,
            Err(_) => {
                is_answered = false;
                None
            }
        });
        let answer = covered(wanted.clone(), writable, mappings, is_there);
        if !is_answered {
            self.cannot_ask.store(true, Ordering::Relaxed);
        }
        is_answered.then_some(answer)
    }
}

/// The argument and the result of `PROCMAP_QUERY` (`struct procmap_query` of `linux/fs.h`).
#[repr(C)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const PROCMAP_QUERY: libc::Ioctl = 0xc068_6611;
const _: () = assert!(size_of::<ProcmapQuery>() == 0x68, "the size is a part of the number");

const VMA_READABLE: u64 = 1 << 0;
const VMA_WRITABLE: u64 = 1 << 1;

/// Returns the mapping that contains the byte at `at`. Fails with `ENOENT` if no mapping contains the byte,
/// and with another error if the request to the kernel fails.
fn ask(maps: &File, at: u64) -> Result<Mapping, i32> {
    // SAFETY: all-zero bytes are a valid `ProcmapQuery`, which consists of numbers.
    let mut query: ProcmapQuery = unsafe { zeroed() };
    query.size = size_of::<ProcmapQuery>() as u64;
    query.query_addr = at;
    // SAFETY: the descriptor is open while `maps` exists. The kernel reads and writes only the struct, since
    // the addresses for a name and a build id are 0. The field `size` is the size of the struct.
    let asked = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if asked != 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    Ok(Mapping {
        bytes: query.vma_start..query.vma_end,
        readable: query.vma_flags & VMA_READABLE != 0,
        writable: query.vma_flags & VMA_WRITABLE != 0,
        of_file: query.inode != 0,
    })
}

/// Checks the memory by the lines of `/proc/self/maps`. Returns `None` if the file cannot be opened.
fn list(wanted: &Range<u64>, writable: bool) -> Answer {
    let maps = File::open(MAPS).ok()?;
    let lines = BufReader::new(maps).lines().map(|line| line.map_err(|_| RegisterError::Unverified));
    let mappings = lines.map(|line| parse(&line?).ok_or(RegisterError::Unverified));
    Some(covered(wanted.clone(), writable, mappings, is_there))
}

/// Checks the memory by populating its pages, without changing any byte. Returns `None` if the kernel does
/// not support this, or if the call fails for a reason that says nothing about the memory.
fn populate(wanted: &Range<u64>, writable: bool) -> Answer {
    let page = rustix::param::page_size() as u64;
    let start = wanted.start / page * page;
    let len = (wanted.end - start) as usize;
    match advise(start, len, writable) {
        Ok(()) => Some(Ok(())),
        // A part of the memory is not mapped, or a page cannot be populated.
        Err(libc::ENOMEM | libc::EFAULT | libc::EHWPOISON) => {
            Some(Err(RegisterError::NotMapped { at: wanted.start }))
        }
        // The mapping does not allow the access, or the kernel does not know the call.
        Err(libc::EINVAL) => {
            let here = &raw const page;
            let known = advise(here.addr() as u64 / page * page, 1, true).is_ok();
            known.then_some(Err(RegisterError::Protected { at: wanted.start }))
        }
        Err(_) => None,
    }
}

fn advise(start: u64, len: usize, writable: bool) -> Result<(), i32> {
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the call touches pages as a read or write by the kernel would, and changes no byte. The call
    // fails for pages that are not mapped.
    let advised = unsafe { libc::madvise(std::ptr::without_provenance_mut(start as usize), len, advice) };
    match advised {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Whether the byte at `at` can be read. The caller has checked that the byte's mapping allows reading. The
/// kernel reads the byte for this check, so that a fault is only an error of the system call (`EFAULT`). If
/// the call fails for another reason, returns `true`: the fault guard, if the table uses it, protects the
/// later accesses.
fn is_there(at: u64) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at as usize), iov_len: 1 };
    // SAFETY: `getpid` has no preconditions and always succeeds.
    let own = unsafe { libc::getpid() };
    // SAFETY: both lists have one element. The local element refers to a byte that exists during the call.
    // The kernel checks the address of the remote element.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

#[cfg(test)]
mod tests;
