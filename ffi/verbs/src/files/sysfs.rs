//! The function of libibverbs that reads a file of sysfs.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use libc::c_int;

use super::calls;
use crate::ffi::abi::{EINVAL, Outcome};

/// Maximum number of bytes of a file of sysfs.
const PAGE: usize = 4096;

/// Reads a file without the end of its line, and returns the number of bytes, or -1. `ibv_devinfo` and
/// rdma-core's libibverbs call this function.
///
/// # Safety
/// `folder` and `file` are C strings, and `buffer` has `size` bytes.
#[unsafe(export_name = "uw_ibv_read_sysfs_file")]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes C strings.
    let [folder, file] = [folder, file].map(|text| unsafe { CStr::from_ptr(text) });
    let Ok(mut bytes) = read(folder, file, size.min(PAGE)) else { return -1 };
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() == size {
        // As in rdma-core, a text without room for its zero is not returned.
        return -1;
    }
    bytes.push(0);
    // SAFETY: the caller passes room for `size` bytes, and there are at most as many.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
    bytes.len() as c_int - 1
}

fn read(folder: &CStr, file: &CStr, size: usize) -> Outcome<Vec<u8>> {
    let path = [folder.to_bytes(), b"/", file.to_bytes()].concat();
    calls::read(&CString::new(path).map_err(|_| EINVAL)?, size)
}
