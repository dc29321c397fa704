//! What a program finds, for `uwarp run --check`. The check looks up functions as the dynamic linker does for
//! a program, so it also shows whether a program finds this library.

use std::ffi::{CStr, c_char, c_void};
use std::net::Ipv6Addr;
use std::ptr;

use libc::c_int;

use crate::ffi::shared_objects::object_of;
use crate::ffi::sys;

/// The library and the device that a program finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The file of the library.
    pub library: String,
    /// The version of the library.
    pub version: String,
    /// The name of the device.
    pub device: String,
    /// Whether the device reports itself as an InfiniBand device.
    pub is_infiniband: bool,
    /// Whether the port is active.
    pub is_active: bool,
    /// The table of GIDs.
    pub gids: Vec<Gid>,
    /// The file that a program loads that opens libibverbs itself (`dlopen`), if this is not the library.
    pub other: Option<String>,
}

/// A row of the table of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID.
    pub gid: Ipv6Addr,
    /// Whether the type is RoCE v2.
    pub is_roce_v2: bool,
    /// The index of the network interface.
    pub interface: u32,
}

/// Opens the device, and closes it again.
///
/// # Errors
/// Returns one line that says what a program does not find.
pub fn find() -> Result<Found, String> {
    let calls = Calls::of_program()?;
    let (library, path) = object_of(calls.get_device_list as *mut c_void).ok_or("no library is found")?;
    // Another libibverbs has no function of this library.
    if object_of(calls.own).is_none_or(|(own, _)| own != library) {
        return Err(format!("programs use {path}, which is not libuwarp.so"));
    }
    let mut count = 0;
    // SAFETY: the function has this type, and the count is writable.
    let list = unsafe { (calls.get_device_list)(&raw mut count) };
    if list.is_null() || count == 0 {
        return Err("the list of devices is empty".into());
    }
    // SAFETY: the list has at least one entry.
    let device = unsafe { *list };
    // SAFETY: the device is an entry of the list.
    let context = unsafe { (calls.open_device)(device) };
    // SAFETY: the list was returned above, and is not used again. Our devices are never freed.
    unsafe { (calls.free_device_list)(list) };
    if context.is_null() {
        return Err("the device cannot be opened".into());
    }
    // SAFETY: the device is never freed, and has an initialized struct.
    let device = unsafe { &*device };
    // SAFETY: the context is open, and the functions are those of its library.
    let found = unsafe { calls.query(device, context, path) };
    // SAFETY: the context was opened above, and is not used again.
    unsafe { (calls.close_device)(context) };
    Ok(Found { other: opened().filter(|(opened, _)| *opened != library).map(|(_, path)| path), ..found? })
}

/// The start address and the file of the library that a program loads that opens libibverbs itself.
fn opened() -> Option<(usize, String)> {
    // SAFETY: the name is a C string, and the initialization of libibverbs is safe in any program.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Some((0, "no libibverbs.so.1".into()));
    }
    // SAFETY: the handle is valid, and the name is a C string.
    object_of(unsafe { libc::dlsym(library, c"ibv_get_device_list".as_ptr()) })
}

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut sys::ibv_device;
type FreeDeviceList = unsafe extern "C" fn(*mut *mut sys::ibv_device);
type OpenDevice = unsafe extern "C" fn(*mut sys::ibv_device) -> *mut sys::ibv_context;
type CloseDevice = unsafe extern "C" fn(*mut sys::ibv_context) -> c_int;
type QueryDevice = unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int;
type QueryPort = unsafe extern "C" fn(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr) -> c_int;
type QueryGid =
    unsafe extern "C" fn(*mut sys::ibv_context, u32, u32, *mut sys::ibv_gid_entry, u32, usize) -> c_int;

/// The functions of the library that the dynamic linker finds.
struct Calls {
    get_device_list: GetDeviceList,
    free_device_list: FreeDeviceList,
    open_device: OpenDevice,
    close_device: CloseDevice,
    query_device: QueryDevice,
    query_port: QueryPort,
    query_gid: QueryGid,
    /// A function that only this library has, or NULL.
    own: *mut c_void,
}

impl Calls {
    fn of_program() -> Result<Self, String> {
        let find = |name: &CStr| {
            // SAFETY: the name is a C string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            if found.is_null() {
                Err(format!("no library has {}", name.to_string_lossy()))
            } else {
                Ok(found)
            }
        };
        macro_rules! function {
            ($name:literal, $type:ty) => {{
                let found = find($name)?;
                // SAFETY: libibverbs's function of this name has the type of its field.
                unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
            }};
        }
        Ok(Self {
            get_device_list: function!(c"ibv_get_device_list", GetDeviceList),
            free_device_list: function!(c"ibv_free_device_list", FreeDeviceList),
            open_device: function!(c"ibv_open_device", OpenDevice),
            close_device: function!(c"ibv_close_device", CloseDevice),
            query_device: function!(c"ibv_query_device", QueryDevice),
            query_port: function!(c"ibv_query_port", QueryPort),
            query_gid: function!(c"_ibv_query_gid_ex", QueryGid),
            own: find(c"uw_ibv_get_device_list").unwrap_or(ptr::null_mut()),
        })
    }

    /// Queries an open device.
    ///
    /// # Safety
    /// `context` is open, and the functions are those of its library.
    unsafe fn query(
        &self,
        device: &sys::ibv_device,
        context: *mut sys::ibv_context,
        library: String,
    ) -> Result<Found, String> {
        let (mut attr, mut port) = (sys::ibv_device_attr::default(), sys::ibv_port_attr::default());
        // SAFETY: the context is open, and the struct is writable.
        let device_status = unsafe { (self.query_device)(context, &raw mut attr) };
        // SAFETY: the context is open. The function writes an older struct, which is not larger.
        let port_status = unsafe { (self.query_port)(context, 1, &raw mut port) };
        if device_status != 0 || port_status != 0 {
            return Err("queries of the device fail".into());
        }
        let gids = (0..u32::try_from(port.gid_tbl_len).unwrap_or(0)).filter_map(|index| {
            let mut entry = sys::ibv_gid_entry::default();
            let size = size_of::<sys::ibv_gid_entry>();
            // SAFETY: the context is open, and the entry is writable and has this size.
            let status = unsafe { (self.query_gid)(context, 1, index, &raw mut entry, 0, size) };
            // SAFETY: `raw` is an array of bytes, which has no invalid values.
            let gid = Ipv6Addr::from(unsafe { entry.gid.raw });
            let is_roce_v2 = entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2;
            (status == 0).then_some(Gid { gid, is_roce_v2, interface: entry.ndev_ifindex })
        });
        Ok(Found {
            library,
            version: text(&attr.fw_ver),
            device: text(&device.name),
            is_infiniband: device.transport_type == sys::IBV_TRANSPORT_IB,
            is_active: port.state == sys::IBV_PORT_ACTIVE,
            gids: gids.collect(),
            other: None,
        })
    }
}

/// The text in a field of a C struct.
fn text(field: &[c_char]) -> String {
    field.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).map(char::from).collect()
}
