//! On-demand paging: the regions that were registered for it, and `ibv_advise_mr`.
//!
//! Memory is never pinned here, so all regions are paged on demand. A region that is registered for on-demand
//! paging may have bytes that are not mapped, and may be the whole address space. Only such a region can be
//! prefetched.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

use iwarp::memory::Access;
use iwarp::verbs::MemoryRegion;
use libc::{c_int, c_void};

use crate::ffi::abi::{self, EINVAL, ENOENT, EOPNOTSUPP, Errno, Outcome};
use crate::ffi::sys;
use crate::ibverbs::pd::Pd;

const EFAULT: Errno = Errno(libc::EFAULT);
const EPERM: Errno = Errno(libc::EPERM);

/// The only flag of `ibv_advise_mr`: the call returns when the pages are there.
const FLUSH: u32 = 1;

/// A region that was registered for on-demand paging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OnDemandRange {
    /// The address of the protection domain (`ibv_pd`).
    pd: usize,
    /// The address of the first byte in requests.
    base: u64,
    /// The address of the first byte in this process.
    first: usize,
    length: usize,
    is_writable: bool,
}

impl OnDemandRange {
    /// The range of a region that starts at `first`.
    pub(super) fn of(region: &MemoryRegion, pd: *mut sys::ibv_pd, first: *mut c_void) -> Self {
        Self {
            pd: pd as usize,
            base: region.addr(),
            first: first as usize,
            length: region.len(),
            is_writable: region.access().contains(Access::LOCAL_WRITE),
        }
    }

    /// The address in this process of the `length` bytes at `addr`, or `None` if the region does not contain
    /// all of these bytes.
    fn find(&self, addr: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(addr.checked_sub(self.base)?).ok()?;
        (length <= self.length.checked_sub(offset)?).then(|| self.first + offset)
    }
}

/// The regions by their keys.
fn ranges() -> MutexGuard<'static, HashMap<u32, OnDemandRange>> {
    static RANGES: OnceLock<Mutex<HashMap<u32, OnDemandRange>>> = OnceLock::new();
    RANGES.get_or_init(Mutex::default).lock().expect("no holder of this lock panics")
}

/// From now on the region can be prefetched.
pub(super) fn insert(lkey: u32, range: OnDemandRange) {
    ranges().insert(lkey, range);
}

/// If `is_on_demand`, removes and returns the range of the region with this key. This function is called
/// before the region is deregistered.
pub(super) fn remove_if(is_on_demand: bool, lkey: u32) -> Option<OnDemandRange> {
    if is_on_demand { ranges().remove(&lkey) } else { None }
}

/// Implements `ibv_advise_mr(3)`, with the errors of the kernel's mlx5 driver. Only a call with the flag
/// `FLUSH` maps pages. Other calls only check their arguments, since pages are mapped when they are used.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut sys::ibv_pd,
    advice: sys::ib_uverbs_advise_mr_advice,
    flags: u32,
    elements: *mut sys::ibv_sge,
    count: u32,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a domain that is valid during the call.
        unsafe { Pd::of(pd) }.check()?;
        let advices = [
            sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        ];
        if !advices.contains(&advice) {
            return Err(EOPNOTSUPP);
        }
        if flags & !FLUSH != 0 || count == 0 || elements.is_null() {
            return Err(EINVAL);
        }
        let writes = advice == sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        let populates = flags & FLUSH != 0 && advice != sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
        for at in 0..count as usize {
            // SAFETY: the caller passes an array of `count` elements, which need not be aligned.
            let element = unsafe { elements.wrapping_add(at).read_unaligned() };
            let at = check(pd as usize, &element, writes)?;
            if populates {
                populate(at, element.length as usize, writes)?;
            }
        }
        Ok(())
    })
}

/// The address in this process of an element that is to be prefetched.
fn check(pd: usize, element: &sys::ibv_sge, writes: bool) -> Outcome<usize> {
    let range = ranges().get(&element.lkey).copied().ok_or(ENOENT)?;
    if range.pd != pd || (writes && !range.is_writable) {
        return Err(EPERM);
    }
    range.find(element.addr, element.length as usize).ok_or(EFAULT)
}

/// Maps the pages of a range. Does nothing on a kernel older than Linux 5.14, which does not know this
/// advice.
fn populate(at: usize, length: usize, writes: bool) -> Outcome<()> {
    let start = at & !(rustix::param::page_size() - 1);
    let advise = |length: usize| {
        let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: this advice changes no byte, and fails for bytes that are not mapped.
        unsafe { libc::madvise(start as *mut c_void, length, advice) == 0 }
    };
    // For no bytes, the call fails only if the kernel does not know the advice.
    if length == 0 || !advise(0) || advise(at - start + length) { Ok(()) } else { Err(EFAULT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bytes_of_a_region_are_found() {
        let range = OnDemandRange { pd: 1, base: 0x100, first: 0x5000, length: 0x20, is_writable: false };
        for (addr, length, wanted) in [
            (0x100, 0x20, Some(0x5000)),
            (0x11f, 1, Some(0x501f)),
            (0x120, 0, Some(0x5020)),
            (0x100, 0x21, None),
            (0x11f, 2, None),
            (0x121, 0, None),
            (0xff, 1, None),
            (u64::MAX, 1, None),
        ] {
            assert_eq!(range.find(addr, length), wanted, "{length:#x} at {addr:#x}");
        }
    }
}
