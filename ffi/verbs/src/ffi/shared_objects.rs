//! Shared objects of the process, and the detection of another libibverbs among them.
//!
//! If a program opens libibverbs itself (`dlopen`), the dynamic linker chooses the file, which may be
//! rdma-core's libibverbs. rdma-core's library does not find the device of uwarp, and reports nothing. But
//! when rdma-core's library calls its own exported functions, the calls reach this library, because the
//! dynamic linker looks up each name in preloaded libraries first. So this library can detect rdma-core's
//! library.

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Once;

use crate::ffi::abi;

/// Maximum number of stack frames to examine. The caller of an exported function is in one of the first
/// frames.
const FRAMES: usize = 16;

/// If `UWARP_LOG` is set, reports once that the program's device list is from another libibverbs. This
/// function is called by a function that rdma-core's `ibv_get_device_list` calls.
pub(crate) fn warn_of_other_libibverbs() {
    static SAID: Once = Once::new();
    if !abi::is_logging() || SAID.is_completed() {
        return;
    }
    if let Some(other) = caller().filter(|path| is_libibverbs(path)) {
        SAID.call_once(|| {
            abi::complain(&format!(
                "the program has opened {other} itself, which has no device of uwarp: start it by `uwarp run`, \
                 and let it open libibverbs.so.1 by this name alone"
            ));
        });
    }
}

fn is_libibverbs(path: &str) -> bool {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("libibverbs.so")
}

/// The file of the code that has called this library, or `None` if the file cannot be determined.
fn caller() -> Option<String> {
    let (own, _) = object_of(caller as *mut c_void)?;
    let mut frames = [ptr::null_mut::<c_void>(); FRAMES];
    // SAFETY: the array has room for `FRAMES` addresses.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as libc::c_int) };
    let frames = frames.into_iter().take(usize::try_from(count).unwrap_or(0));
    frames.filter_map(object_of).find(|(object, _)| *object != own).map(|(_, path)| path)
}

/// The start address and the file of the library or program that contains `address`, or `None` if nothing
/// contains `address`.
pub(crate) fn object_of(address: *mut c_void) -> Option<(usize, String)> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: `dladdr` takes any address, and `info` is writable.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: `dli_fname` is a C string, which is valid while its library is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, path.to_string_lossy().into_owned()))
}
