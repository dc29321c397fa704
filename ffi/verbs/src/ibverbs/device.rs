//! The device: its name in the list, its contexts, and the answers to queries.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_int, ssize_t};

use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::c_str::copy_str;
use crate::ffi::sys;
use crate::ffi::use_count::UseCount;
use crate::net::{Net, RoceVersion, version_of};
use crate::process::Process;
use crate::process::async_events::AsyncQueue;
use crate::process::{identity, limits};

/// The name of the device's node.
pub(crate) const DEV_NAME: &str = "uverbs0";

/// The device of this library, in the layout that programs read.
struct Device(sys::ibv_device);

// SAFETY: the strings and numbers of the struct are never changed, and its function pointers are NULL.
unsafe impl Sync for Device {}
// SAFETY: the strings and numbers of the struct are never changed, and its function pointers are NULL.
unsafe impl Send for Device {}

/// An open device (`ibv_context`). The program has the address of the last field of `c`, `context`.
#[repr(C)]
pub(crate) struct OpenDevice {
    c: UnsafeCell<sys::verbs_context>,
    pub(crate) process: &'static Process,
    pub(crate) async_events: AsyncQueue,
    /// The descriptor of `cmd_fd`: a character device that takes no commands. No call of the library needs
    /// this descriptor.
    _commands: Option<File>,
    /// The number of objects that were made with the context and are not destroyed.
    objects: UseCount,
}

fn device() -> *mut sys::ibv_device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut device = sys::ibv_device {
            node_type: identity::node_type(),
            transport_type: if identity::pretends_ib() {
                sys::IBV_TRANSPORT_IB
            } else {
                sys::IBV_TRANSPORT_IWARP
            },
            ..Default::default()
        };
        let name = identity::device_name();
        copy_str(&mut device.name, &name);
        copy_str(&mut device.dev_name, DEV_NAME);
        copy_str(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/{DEV_NAME}"));
        copy_str(&mut device.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Device(device)
    });
    ptr::from_ref(&device.0).cast_mut()
}

impl OpenDevice {
    /// The open device to which `context` belongs.
    ///
    /// # Safety
    /// `context` was returned by `ibv_open_device`, and is not closed while the reference is used.
    pub(crate) unsafe fn of<'a>(context: *mut sys::ibv_context) -> &'a Self {
        let offset = std::mem::offset_of!(sys::verbs_context, context);
        // SAFETY: `context` is the address of the field `context` of a `verbs_context`, which is the first
        // field of an `OpenDevice`.
        let whole = unsafe { context.byte_sub(offset) };
        // SAFETY: the address is that of an `OpenDevice`, which is freed only when it is closed.
        unsafe { &*whole.cast::<Self>() }
    }

    /// The address of the `ibv_context`, which programs know.
    pub(crate) fn as_c(&self) -> *mut sys::ibv_context {
        // SAFETY: the field is part of the value in the cell. No reference to the field is made.
        unsafe { &raw mut (*self.c.get()).context }
    }

    /// The number of completion vectors.
    pub(crate) fn comp_vectors(&self) -> u32 {
        // SAFETY: the field is part of the value in the cell, and is not changed after the device is opened.
        unsafe { (*self.c.get()).context.num_comp_vectors as u32 }
    }

    /// Counts an object that was made with the context.
    pub(crate) fn add(&self) {
        self.objects.inc();
    }

    /// Subtracts a destroyed object of the context.
    pub(crate) fn remove(&self) {
        self.objects.dec();
    }

    /// Opens the device. `calls` are the functions that programs call through the struct.
    pub(crate) fn open(
        process: &'static Process,
        calls: sys::verbs_context,
    ) -> Outcome<*mut sys::ibv_context> {
        let async_events = AsyncQueue::new()?;
        // Some programs examine the file of `cmd_fd` before they ask the kernel for the device (ruapc).
        let commands = File::options().read(true).write(true).open("/dev/null").ok();
        let mut c = sys::verbs_context {
            sz: size_of::<sys::verbs_context>(),
            query_port: Some(query_port_of),
            query_device_ex: Some(query_device_ex),
            ..calls
        };
        c.context.device = device();
        c.context.cmd_fd = commands.as_ref().map_or(-1, File::as_raw_fd);
        c.context.async_fd = async_events.fd();
        c.context.num_comp_vectors = limits::comp_vectors() as c_int;
        c.context.abi_compat = usize::MAX as *mut libc::c_void;
        let open = Box::new(Self {
            c: UnsafeCell::new(c),
            process,
            async_events,
            _commands: commands,
            objects: UseCount::default(),
        });
        process.async_events.add_queue(&open.async_events);
        Ok(Box::leak(open).as_c())
    }
}

// ---- the list of devices ----

/// Implements `ibv_get_device_list(3)`. The list has one device. Making the list does not start the engine.
///
/// # Safety
/// `count` is NULL or writable.
#[unsafe(export_name = "uw_ibv_get_device_list")]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut sys::ibv_device {
    if !count.is_null() {
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *count = 1 };
    }
    Box::into_raw(Box::new([device(), ptr::null_mut()])).cast()
}

/// Implements `ibv_free_device_list(3)`.
///
/// # Safety
/// `list` was returned by [`ibv_get_device_list`], and is not used after the call.
#[unsafe(export_name = "uw_ibv_free_device_list")]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::ibv_device) {
    if !list.is_null() {
        // SAFETY: the list is a leaked `Box` of two pointers, and the caller does not use it again.
        drop(unsafe { Box::from_raw(list.cast::<[*mut sys::ibv_device; 2]>()) });
    }
}

/// Implements `ibv_get_device_name(3)`.
///
/// # Safety
/// `device` is from the list of devices.
#[unsafe(export_name = "uw_ibv_get_device_name")]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut sys::ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device of the list, which is never freed.
    unsafe { &raw const (*device).name }.cast()
}

/// Implements `ibv_get_device_guid(3)`: returns the GUID in network byte order.
///
/// # Safety
/// `device` is from the list of devices.
#[unsafe(export_name = "uw_ibv_get_device_guid")]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(_device: *mut sys::ibv_device) -> u64 {
    identity::guid().to_be()
}

/// Implements `ibv_get_device_index(3)`: returns -1, since the kernel has no index for this device.
///
/// # Safety
/// `device` is from the list of devices.
#[unsafe(export_name = "uw_ibv_get_device_index")]
pub(crate) unsafe extern "C" fn ibv_get_device_index(_device: *mut sys::ibv_device) -> c_int {
    -1
}

// ---- contexts ----

/// Implements `ibv_close_device(3)`.
///
/// # Safety
/// `context` is open.
#[unsafe(export_name = "uw_ibv_close_device")]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        open.process.async_events.remove_queue(&open.async_events);
        // As with a kernel device, closing succeeds even if the program has not destroyed all objects. The
        // remaining objects are not freed before the process ends.
        if open.objects.in_use() {
            return Ok(());
        }
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        drop(unsafe { Box::from_raw(ptr::from_ref(open).cast_mut()) });
        Ok(())
    })
}

/// Implements `ibv_import_device(3)`: fails, since a device of another process cannot be shared.
#[unsafe(export_name = "uw_ibv_import_device")]
pub(crate) extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut sys::ibv_context {
    abi::pointer(|| Err(abi::EOPNOTSUPP))
}

// ---- queries ----

/// Implements `ibv_query_device(3)`.
///
/// # Safety
/// `context` is open, and `attr` is writable.
#[unsafe(export_name = "uw_ibv_query_device")]
pub(crate) unsafe extern "C" fn ibv_query_device(
    _context: *mut sys::ibv_context,
    attr: *mut sys::ibv_device_attr,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a pointer to a writable struct.
        unsafe { attr.write(limits::device()) };
        Ok(())
    })
}

unsafe extern "C" fn query_device_ex(
    _context: *mut sys::ibv_context,
    input: *const sys::ibv_query_device_ex_input,
    attr: *mut sys::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes NULL or a pointer to a readable struct.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(EINVAL);
        }
        let whole = limits::device_ex();
        if size < size_of::<sys::ibv_device_attr>() {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a pointer to a struct of that size.
        unsafe { put(&whole, attr, size) };
        Ok(())
    })
}

/// Copies a struct to a caller whose struct has `size` bytes. The caller's struct is smaller than ours if the
/// caller was compiled with older headers than this library, and larger if the caller was compiled with newer
/// headers. Fields that this library does not know are set to 0.
///
/// # Safety
/// `out` has `size` writable bytes.
unsafe fn put<T>(whole: &T, out: *mut T, size: usize) {
    let bytes = size.min(size_of::<T>());
    // SAFETY: the caller's struct has `size` bytes, and `whole` has `size_of::<T>()` bytes. Exactly the
    // smaller number is copied.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(whole).cast::<u8>(), out.cast::<u8>(), bytes) };
    // SAFETY: the caller's struct has `size` bytes, and `bytes` is at most `size`.
    let rest = unsafe { out.cast::<u8>().add(bytes) };
    // SAFETY: another `size - bytes` bytes of the caller's struct start at `rest`.
    unsafe { ptr::write_bytes(rest, 0, size - bytes) };
}

/// Implements `ibv_query_port(3)`. This exported function writes the old struct, for programs that were
/// compiled with older headers.
///
/// # Safety
/// `context` is open, and `attr` is writable.
#[unsafe(export_name = "uw_ibv_query_port")]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::_compat_ibv_port_attr,
) -> c_int {
    // The header does not define the old struct, which ends before the first field that was added.
    let size = std::mem::offset_of!(sys::ibv_port_attr, port_cap_flags2);
    // SAFETY: the caller passes an open context. `attr` points to the old struct, which has `size` bytes.
    unsafe { query_port_of(context, port, attr.cast(), size) }
}

unsafe extern "C" fn query_port_of(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::ibv_port_attr,
    size: usize,
) -> c_int {
    abi::status(|| {
        if port != 1 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        // SAFETY: the caller passes a pointer to a struct of that size.
        unsafe { put(&limits::port(&open.process.net), attr, size) };
        Ok(())
    })
}

/// Implements `ibv_query_gid(3)`.
///
/// # Safety
/// `context` is open, and `gid` is writable.
#[unsafe(export_name = "uw_ibv_query_gid")]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut sys::ibv_context,
    port: u8,
    index: c_int,
    gid: *mut sys::ibv_gid,
) -> c_int {
    abi::minus_one(|| {
        if port != 1 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        let raw = usize::try_from(index).ok().and_then(|index| open.process.net.gid(index)).ok_or(EINVAL)?;
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { gid.write(sys::ibv_gid { raw }) };
        Ok(0)
    })
}

/// The entry at `index` of the table of GIDs.
///
/// # Errors
/// Returns `EINVAL` if the table has no such entry, as the kernel does.
pub(crate) fn gid_entry(net: &Net, index: u32) -> Outcome<sys::ibv_gid_entry> {
    let raw = net.gid(index as usize).ok_or(EINVAL)?;
    Ok(sys::ibv_gid_entry {
        gid: sys::ibv_gid { raw },
        gid_index: index,
        port_num: 1,
        gid_type: match version_of(index as usize) {
            RoceVersion::V1 => sys::IBV_GID_TYPE_ROCE_V1,
            RoceVersion::V2 => sys::IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: net.interface_index(),
    })
}

/// Implements `ibv_query_gid_ex(3)`.
///
/// # Safety
/// `context` is open, and `entry` has `size` writable bytes.
#[unsafe(export_name = "uw__ibv_query_gid_ex")]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut sys::ibv_context,
    port: u32,
    index: u32,
    entry: *mut sys::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    abi::status(|| {
        if port != 1 || flags != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        let ours = gid_entry(&open.process.net, index)?;
        // SAFETY: the caller passes an entry of `size` bytes.
        unsafe { put(&ours, entry, size) };
        Ok(())
    })
}

/// Implements `ibv_query_gid_table(3)`: returns the number of entries, or a negative error number. As in the
/// kernel, the call fails if the table has more than `max` entries.
///
/// # Safety
/// `context` is open, and `entries` is writable and has `max` entries of `size` bytes.
#[unsafe(export_name = "uw__ibv_query_gid_table")]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut sys::ibv_context,
    entries: *mut sys::ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> ssize_t {
    let count = abi::guarded(|| {
        // SAFETY: the caller passes an open context.
        let net = &unsafe { OpenDevice::of(context) }.process.net;
        if flags != 0 || max < net.gid_count() {
            return Err(EINVAL);
        }
        for index in 0..net.gid_count() {
            let ours = gid_entry(net, index as u32)?;
            // SAFETY: the caller passes an array of `max` entries of `size` bytes, and `index` is less than
            // `max`.
            let entry = unsafe { entries.byte_add(index * size) };
            // SAFETY: the entry has `size` bytes.
            unsafe { put(&ours, entry, size) };
        }
        Ok(net.gid_count())
    });
    count.map_or_else(|Errno(number)| -(number as ssize_t), |count| count as ssize_t)
}

/// Returns the type of a GID as in the kernel's sysfs. `ibv_devinfo` calls this function.
///
/// # Safety
/// `context` is open, and `kind` is writable.
#[unsafe(export_name = "uw_ibv_query_gid_type")]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut sys::ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an open context.
        let open = unsafe { OpenDevice::of(context) };
        if port != 1 || index as usize >= open.process.net.gid_count() {
            return Err(EINVAL);
        }
        // In sysfs, IB and RoCE v1 have the same type.
        let value = match version_of(index as usize) {
            RoceVersion::V1 => 0,
            RoceVersion::V2 => 1,
        };
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *kind = value };
        Ok(0)
    })
}

/// Implements `ibv_query_pkey(3)`.
///
/// # Safety
/// `context` is open, and `pkey` is writable.
#[unsafe(export_name = "uw_ibv_query_pkey")]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut sys::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    abi::minus_one(|| {
        if (port, index) != (1, 0) {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *pkey = 0xffff };
        Ok(0)
    })
}

/// Implements `ibv_get_pkey_index(3)`.
///
/// # Safety
/// `context` is open.
#[unsafe(export_name = "uw_ibv_get_pkey_index")]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    _context: *mut sys::ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    abi::minus_one(|| if (port, pkey) == (1, 0xffff) { Ok(0) } else { Err(EINVAL) })
}

/// Returns the mount point of sysfs. rdma-core's `ibv_get_device_list` calls this function.
#[unsafe(export_name = "uw_ibv_get_sysfs_path")]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    crate::ffi::shared_objects::warn_of_other_libibverbs();
    const PATH: &CStr = c"/sys";
    PATH.as_ptr()
}
