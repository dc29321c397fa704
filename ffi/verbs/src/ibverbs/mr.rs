//! Memory regions.

use std::cell::UnsafeCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use iwarp::memory::{ADDRESS_SPACE, Access, Base};
use iwarp::verbs::{MemoryRegion, MrOptions};
use libc::{c_int, c_uint, c_void};

use crate::ffi::abi::{self, EBUSY, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::{resources, sys};
use crate::ibverbs::on_demand::{self, OnDemandRange};
use crate::ibverbs::pd::Pd;

/// A memory region (`ibv_mr`).
#[repr(C)]
pub(crate) struct Mr {
    c: UnsafeCell<sys::ibv_mr>,
    /// `None` while `ibv_dereg_mr` ends the registration.
    region: Mutex<Option<MemoryRegion>>,
    /// Whether the region was registered for on-demand paging. The value changes only while `region` is
    /// locked.
    on_demand: AtomicBool,
}

/// What the access flags of a region mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) access: Access,
    /// Whether offsets start at 0.
    pub(crate) zero_based: bool,
    /// Whether the bytes need not be mapped. Memory is never pinned here, so the flag only omits a check.
    pub(crate) on_demand: bool,
}

/// Access flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = 0x3ff0_0000;
const _: () = assert!(OPTIONAL & sys::IBV_ACCESS_OPTIONAL_FIRST != 0);

/// The meaning of the flags of `ibv_reg_mr`.
pub(crate) fn access_of(flags: c_uint) -> Outcome<Flags> {
    // `IBV_ACCESS_HUGETLB` has no effect here.
    let flags = flags & !(OPTIONAL | sys::IBV_ACCESS_HUGETLB);
    let zero_based = flags & sys::IBV_ACCESS_ZERO_BASED != 0;
    let on_demand = flags & sys::IBV_ACCESS_ON_DEMAND != 0;
    // `Access` has the bit values of libibverbs.
    let rights = flags & !(sys::IBV_ACCESS_ZERO_BASED | sys::IBV_ACCESS_ON_DEMAND);
    let access = Access::from_bits(rights).ok_or(EINVAL)?;
    let writes_remotely = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes_remotely && !access.contains(Access::LOCAL_WRITE) {
        return Err(EINVAL);
    }
    Ok(Flags { access, zero_based, on_demand })
}

/// Whether this range means the whole address space (`ibv_reg_mr(3)`).
fn is_implicit(addr: *mut c_void, length: usize) -> bool {
    addr.is_null() && length == usize::MAX
}

impl Mr {
    /// # Safety
    /// `mr` was returned by this library, and is not deregistered while the reference is used.
    unsafe fn of<'a>(mr: *mut sys::ibv_mr) -> &'a Self {
        // SAFETY: the C struct is the first field of an `Mr`, which is freed only when it is deregistered.
        unsafe { &*mr.cast::<Self>() }
    }
}

/// Registers `length` bytes from `addr`. `base` is the address that peers use for the first byte.
///
/// # Safety
/// The memory is mapped until the region is deregistered, as `ibv_reg_mr(3)` demands, unless `on_demand` is
/// true.
unsafe fn register(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    base: Base,
    Flags { access, on_demand, .. }: Flags,
) -> Outcome<MemoryRegion> {
    let options = MrOptions { base, ..MrOptions::new(access) };
    if on_demand {
        let length = if is_implicit(addr, length) { ADDRESS_SPACE } else { length };
        // SAFETY: the program is C code, which uses raw pointers for memory that a device may change. The
        // program gives keys and requests only for memory that a device may access. A guard catches the
        // faults of other accesses.
        return Ok(unsafe { pd.pd.reg_on_demand_mr(addr.cast(), length, &options) }?);
    }
    // SAFETY: the program promises that the memory stays mapped until the program deregisters the region. The
    // program is C code, which uses raw pointers for memory that a device may change. If this library
    // accesses a page that is missing or read-only, a guard catches the fault, and the request fails with an
    // error.
    Ok(unsafe { pd.pd.reg_user_mr(addr.cast(), length, &options) }?)
}

/// # Safety
/// `pd` is valid. The memory is mapped until the region is deregistered, unless the flags ask for on-demand
/// paging.
unsafe fn make(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut sys::ibv_mr {
    abi::pointer(|| {
        let flags = access_of(flags)?;
        let base = if flags.zero_based { Base::Zero } else { Base::Iova(iova) };
        // In the region of the whole address space, offsets are addresses.
        if flags.on_demand && is_implicit(addr, length) && iova != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(pd) };
        domain.check()?;
        resources::check_for_region()?;
        // SAFETY: the caller promises that the memory is mapped until the region is deregistered.
        let region = unsafe { register(domain, addr, length, base, flags) }?;
        domain.add();
        if flags.on_demand {
            on_demand::insert(region.lkey(), OnDemandRange::of(&region, pd, addr));
        }
        let c = sys::ibv_mr {
            context: domain.context(),
            pd,
            addr,
            length,
            handle: 0,
            lkey: region.lkey(),
            rkey: region.rkey(),
        };
        let on_demand = AtomicBool::new(flags.on_demand);
        let mr = Box::new(Mr { c: UnsafeCell::new(c), region: Mutex::new(Some(region)), on_demand });
        Ok(Box::into_raw(mr).cast())
    })
}

/// Implements `ibv_reg_mr(3)`.
///
/// # Safety
/// `pd` is valid. The memory is mapped until the region is deregistered.
#[unsafe(export_name = "uw_ibv_reg_mr")]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller passes a valid domain, and memory that is mapped until the region is deregistered.
    unsafe { make(pd, addr, length, addr as u64, access as c_uint) }
}

/// Implements `ibv_reg_mr_iova(3)`.
///
/// # Safety
/// The conditions of [`ibv_reg_mr`].
#[unsafe(export_name = "uw_ibv_reg_mr_iova")]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller passes a valid domain, and memory that is mapped until the region is deregistered.
    unsafe { make(pd, addr, length, iova, access as c_uint) }
}

/// rdma-core's headers call this function in place of `ibv_reg_mr` and `ibv_reg_mr_iova` if the flags are not
/// constants.
///
/// # Safety
/// The conditions of [`ibv_reg_mr`].
#[unsafe(export_name = "uw_ibv_reg_mr_iova2")]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller passes a valid domain, and memory that is mapped until the region is deregistered.
    unsafe { make(pd, addr, length, iova, access) }
}

/// Implements `ibv_reg_dmabuf_mr(3)`. The call is refused, since no device could access such memory.
///
/// # Safety
/// `pd` is valid.
#[unsafe(export_name = "uw_ibv_reg_dmabuf_mr")]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut sys::ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut sys::ibv_mr {
    abi::pointer(|| Err(EOPNOTSUPP))
}

/// Checks the input of `ibv_rereg_mr`, as libibverbs does before it calls a driver.
fn check_rereg(flags: c_uint, addr: *mut c_void, length: usize, access: c_int) -> Outcome<()> {
    let known =
        sys::IBV_REREG_MR_CHANGE_TRANSLATION | sys::IBV_REREG_MR_CHANGE_PD | sys::IBV_REREG_MR_CHANGE_ACCESS;
    let moves_nowhere = addr.is_null() || length == 0;
    if flags == 0
        || flags & !known != 0
        || (flags & sys::IBV_REREG_MR_CHANGE_TRANSLATION != 0 && moves_nowhere)
        || (flags & sys::IBV_REREG_MR_CHANGE_ACCESS == 0 && access != 0)
    {
        return Err(EINVAL);
    }
    Ok(())
}

/// Implements `ibv_rereg_mr(3)`: returns 0, or one of the negative codes in that man page.
///
/// # Safety
/// `mr` is valid. New memory is mapped until the region is deregistered.
#[unsafe(export_name = "uw_ibv_rereg_mr")]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut sys::ibv_mr,
    flags: c_int,
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags as c_uint;
    if let Err(error) = check_rereg(flags, addr, length, access) {
        abi::set_errno(error);
        return sys::IBV_REREG_MR_ERR_INPUT;
    }
    let result = abi::guarded(|| {
        // SAFETY: the caller passes a region that is valid during the call.
        let this = unsafe { Mr::of(mr) };
        let mut region = this.region.lock().expect("no holder of this lock panics");
        // SAFETY: this thread holds the lock under which the fields are changed.
        let mut c = unsafe { this.c.get().read() };
        let before = c.pd;
        if flags & sys::IBV_REREG_MR_CHANGE_PD != 0 {
            c.pd = pd;
        }
        if flags & sys::IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            (c.addr, c.length) = (addr, length);
        }
        let was_on_demand = this.on_demand.load(Ordering::Relaxed);
        let new_flags = match flags & sys::IBV_REREG_MR_CHANGE_ACCESS != 0 {
            true => access_of(access as c_uint)?,
            false => Flags {
                access: region.as_ref().map_or(Access::empty(), MemoryRegion::access),
                zero_based: false,
                on_demand: was_on_demand,
            },
        };
        if flags == sys::IBV_REREG_MR_CHANGE_ACCESS
            && new_flags.on_demand == was_on_demand
            && let Some(region) = &mut *region
        {
            // If possible, only the access rights change, so that the keys that peers know remain valid.
            // Otherwise, for example if the memory was registered read-only, the memory is registered again.
            let key = region.rkey() as u8;
            if region.reregister(new_flags.access, key).is_ok() {
                if was_on_demand {
                    on_demand::insert(region.lkey(), OnDemandRange::of(region, c.pd, c.addr));
                }
                return Ok(());
            }
        }
        // SAFETY: the caller passes a valid domain, or the region uses the domain.
        let domain = unsafe { Pd::of(c.pd) };
        // The new registration is made before the old registration ends. So if the new registration fails,
        // the region is unchanged. SAFETY: the caller promises that the memory is mapped until the region is
        // deregistered.
        let new = unsafe { register(domain, c.addr, c.length, Base::VirtualAddress, new_flags) }?;
        on_demand::remove_if(was_on_demand, c.lkey);
        if new_flags.on_demand {
            on_demand::insert(new.lkey(), OnDemandRange::of(&new, c.pd, c.addr));
        }
        this.on_demand.store(new_flags.on_demand, Ordering::Relaxed);
        (c.lkey, c.rkey) = (new.lkey(), new.rkey());
        domain.add();
        // SAFETY: the old domain is not deallocated while this region uses it.
        unsafe { Pd::of(before) }.remove();
        drop(region.replace(new));
        // SAFETY: this thread holds the lock. Programs read the fields only after this call has returned.
        unsafe { this.c.get().write(c) };
        Ok(())
    });
    match result {
        Ok(()) => 0,
        Err(error) => {
            abi::set_errno(error);
            // The old registration is still valid, although `verbs.h` says of this code that the region
            // should not be used.
            sys::IBV_REREG_MR_ERR_CMD
        }
    }
}

/// Implements `ibv_dereg_mr(3)`.
///
/// # Safety
/// `mr` is valid, and is not used after a call that succeeds.
#[unsafe(export_name = "uw_ibv_dereg_mr")]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a region that is valid during the call.
        abi::check_handle(unsafe { (*mr).handle }, 0)?;
        // SAFETY: the caller passes a region that is valid during the call.
        let this = unsafe { Mr::of(mr) };
        // SAFETY: the region is valid during the call.
        let sys::ibv_mr { pd, lkey, .. } = unsafe { *this.c.get() };
        let mut region = this.region.lock().expect("no holder of this lock panics");
        // The key is removed first, since another region may get it as soon as this region is deregistered.
        let prefetched = on_demand::remove_if(this.on_demand.load(Ordering::Relaxed), lkey);
        if let Some(registered) = region.take()
            && let Err(bound) = registered.deregister()
        {
            *region = Some(*bound.region);
            if let Some(range) = prefetched {
                on_demand::insert(lkey, range);
            }
            return Err(EBUSY);
        }
        drop(region);
        // SAFETY: a domain is not deallocated while it has regions.
        unsafe { Pd::of(pd) }.remove();
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// Implements `ibv_import_mr(3)`: fails, since objects of another process cannot be shared.
///
/// # Safety
/// `pd` is valid.
#[unsafe(export_name = "uw_ibv_import_mr")]
pub(crate) unsafe extern "C" fn ibv_import_mr(_pd: *mut sys::ibv_pd, _handle: u32) -> *mut sys::ibv_mr {
    abi::pointer(|| Err(EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_of_access_is_a_right_or_is_refused() {
        use sys::{
            IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
            IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
            IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED,
        };
        let local = Access::LOCAL_WRITE;
        let only = |access| Ok(Flags { access, zero_based: false, on_demand: false });
        for (flags, wanted) in [
            (0, only(Access::empty())),
            (IBV_ACCESS_LOCAL_WRITE, only(local)),
            (IBV_ACCESS_REMOTE_READ, only(Access::REMOTE_READ)),
            (
                IBV_ACCESS_ZERO_BASED,
                Ok(Flags { access: Access::empty(), zero_based: true, on_demand: false }),
            ),
            (
                IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE,
                Ok(Flags { access: local, zero_based: false, on_demand: true }),
            ),
            // A peer's Writes and atomics also need IBV_ACCESS_LOCAL_WRITE.
            (IBV_ACCESS_REMOTE_WRITE, Err(EINVAL)),
            (IBV_ACCESS_REMOTE_ATOMIC, Err(EINVAL)),
            (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, only(local | Access::REMOTE_WRITE)),
            (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, only(local | Access::REMOTE_ATOMIC)),
            (IBV_ACCESS_MW_BIND, only(Access::MW_BIND)),
            // Flags that are ignored: `IBV_ACCESS_HUGETLB`, and flags that a device may ignore.
            (IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING, only(Access::empty())),
            (OPTIONAL, only(Access::empty())),
            (1 << 19, Err(EINVAL)),
            (1 << 30, Err(EINVAL)),
        ] {
            assert_eq!(access_of(flags), wanted, "{flags:#x}");
        }
    }

    #[test]
    fn what_is_registered_anew_is_named_by_the_flags() {
        use sys::{
            IBV_REREG_MR_CHANGE_ACCESS as ACCESS, IBV_REREG_MR_CHANGE_PD as PD,
            IBV_REREG_MR_CHANGE_TRANSLATION as TRANSLATION,
        };
        let (null, place) = (std::ptr::null_mut(), std::ptr::dangling_mut::<u64>().cast());
        for (flags, addr, length, access, wanted) in [
            (0, place, 8, 0, Err(EINVAL)),
            (8, place, 8, 0, Err(EINVAL)),
            (PD, null, 0, 0, Ok(())),
            (PD, null, 0, 1, Err(EINVAL)),
            (ACCESS, null, 0, 1, Ok(())),
            (TRANSLATION, place, 8, 0, Ok(())),
            (TRANSLATION, null, 8, 0, Err(EINVAL)),
            (TRANSLATION, place, 0, 0, Err(EINVAL)),
            (TRANSLATION, place, 8, 1, Err(EINVAL)),
            (TRANSLATION | ACCESS | PD, place, 8, 1, Ok(())),
        ] {
            assert_eq!(check_rereg(flags, addr, length, access), wanted, "{flags} {length} {access}");
        }
    }
}
