//! Memory regions.

use std::cell::UnsafeCell;
use std::sync::Mutex;

use iwarp::memory::{Access, Base};
use iwarp::verbs::{MemoryRegion, MrOptions};
use libc::{c_int, c_uint, c_void};

use crate::ffi::abi::{self, EBUSY, EINVAL, EOPNOTSUPP, Outcome};
use crate::ffi::{resources, sys};
use crate::ibverbs::pd::Pd;

/// A memory region (`ibv_mr`).
#[repr(C)]
pub(crate) struct Mr {
    c: UnsafeCell<sys::ibv_mr>,
    /// `None` while `ibv_dereg_mr` ends the registration.
    region: Mutex<Option<MemoryRegion>>,
}

/// Access flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = 0x3ff0_0000;
const _: () = assert!(OPTIONAL & sys::IBV_ACCESS_OPTIONAL_FIRST != 0);

/// The access rights for the flags of `ibv_reg_mr`, and whether offsets start at 0.
pub(crate) fn access_of(flags: c_uint) -> Outcome<(Access, bool)> {
    // `IBV_ACCESS_HUGETLB` has no effect here.
    let flags = flags & !(OPTIONAL | sys::IBV_ACCESS_HUGETLB);
    if flags & sys::IBV_ACCESS_ON_DEMAND != 0 {
        return Err(EOPNOTSUPP);
    }
    let zero_based = flags & sys::IBV_ACCESS_ZERO_BASED != 0;
    // `Access` has the bit values of libibverbs.
    let access = Access::from_bits(flags & !sys::IBV_ACCESS_ZERO_BASED).ok_or(EINVAL)?;
    let writes_remotely = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes_remotely && !access.contains(Access::LOCAL_WRITE) {
        return Err(EINVAL);
    }
    Ok((access, zero_based))
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
/// The memory is mapped until the region is deregistered, as `ibv_reg_mr(3)` demands.
unsafe fn register(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    base: Base,
    access: Access,
) -> Outcome<MemoryRegion> {
    let options = MrOptions { base, ..MrOptions::new(access) };
    // SAFETY: the program promises that the memory stays mapped until the program deregisters the region. The
    // program is C code, which uses raw pointers for memory that a device may change. If this library
    // accesses a page that is missing or read-only, a guard catches the fault, and the request fails with an
    // error.
    Ok(unsafe { pd.pd.reg_user_mr(addr.cast(), length, &options) }?)
}

/// # Safety
/// `pd` is valid. The memory is mapped until the region is deregistered.
unsafe fn make(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut sys::ibv_mr {
    abi::pointer(|| {
        let (access, zero_based) = access_of(flags)?;
        let base = if zero_based { Base::Zero } else { Base::Iova(iova) };
        // SAFETY: the caller passes a domain that is valid during the call.
        let domain = unsafe { Pd::of(pd) };
        domain.check()?;
        resources::check_for_region()?;
        // SAFETY: the caller promises that the memory is mapped until the region is deregistered.
        let region = unsafe { register(domain, addr, length, base, access) }?;
        domain.add();
        let c = sys::ibv_mr {
            context: domain.context(),
            pd,
            addr,
            length,
            handle: 0,
            lkey: region.lkey(),
            rkey: region.rkey(),
        };
        let mr = Box::new(Mr { c: UnsafeCell::new(c), region: Mutex::new(Some(region)) });
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
        let access = match flags & sys::IBV_REREG_MR_CHANGE_ACCESS != 0 {
            true => access_of(access as c_uint)?.0,
            false => region.as_ref().map_or(Access::empty(), MemoryRegion::access),
        };
        if flags == sys::IBV_REREG_MR_CHANGE_ACCESS
            && let Some(region) = &mut *region
        {
            // If possible, only the access rights change, so that the keys that peers know remain valid.
            // Otherwise, for example if the memory was registered read-only, the memory is registered again.
            let key = region.rkey() as u8;
            if region.reregister(access, key).is_ok() {
                return Ok(());
            }
        }
        // SAFETY: the caller passes a valid domain, or the region uses the domain.
        let domain = unsafe { Pd::of(c.pd) };
        // The new registration is made before the old registration ends. So if the new registration fails,
        // the region is unchanged. SAFETY: the caller promises that the memory is mapped until the region is
        // deregistered.
        let new = unsafe { register(domain, c.addr, c.length, Base::VirtualAddress, access) }?;
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
        let mut region = this.region.lock().expect("no holder of this lock panics");
        if let Some(registered) = region.take()
            && let Err(bound) = registered.deregister()
        {
            *region = Some(*bound.region);
            return Err(EBUSY);
        }
        drop(region);
        // SAFETY: the region is valid during the call.
        let pd = unsafe { (*this.c.get()).pd };
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
        for (flags, wanted) in [
            (0, Ok((Access::empty(), false))),
            (IBV_ACCESS_LOCAL_WRITE, Ok((local, false))),
            (IBV_ACCESS_REMOTE_READ, Ok((Access::REMOTE_READ, false))),
            (IBV_ACCESS_ZERO_BASED, Ok((Access::empty(), true))),
            // A peer's Writes and atomics also need IBV_ACCESS_LOCAL_WRITE.
            (IBV_ACCESS_REMOTE_WRITE, Err(EINVAL)),
            (IBV_ACCESS_REMOTE_ATOMIC, Err(EINVAL)),
            (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, Ok((local | Access::REMOTE_WRITE, false))),
            (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, Ok((local | Access::REMOTE_ATOMIC, false))),
            (IBV_ACCESS_MW_BIND, Ok((Access::MW_BIND, false))),
            // Flags that are ignored: `IBV_ACCESS_HUGETLB`, and flags that a device may ignore.
            (IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING, Ok((Access::empty(), false))),
            (OPTIONAL, Ok((Access::empty(), false))),
            (IBV_ACCESS_ON_DEMAND, Err(EOPNOTSUPP)),
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
