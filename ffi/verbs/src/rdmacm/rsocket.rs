//! rsockets: the code of the system's librdmacm, which runs on the functions of this library.
//!
//! The dynamic linker looks for each symbol in a preloaded library before it looks in librdmacm. So when
//! librdmacm itself calls `rdma_*` and `ibv_*`, the calls reach this library, and librdmacm's rsockets run on
//! this library. To be able to replace librdmacm, this library also exports the functions of rsockets, and
//! forwards each call to the next library that has the function. If this library is loaded under librdmacm's
//! name (`uwarp run`, `uwarp libs`), it loads the system's librdmacm for these calls. If there is no
//! librdmacm, these calls fail with `EOPNOTSUPP`.

use std::ffi::{CStr, CString, c_long, c_void};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

use crate::ffi::abi::{self, EOPNOTSUPP};
use crate::ffi::shared_objects;

/// The function with this name in a library that was loaded after this library, or in the system's librdmacm.
/// Returns NULL if neither has such a function.
fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if found.is_null()
            && let Some(library) = of_system()
        {
            // SAFETY: the library of this handle is never unloaded, and the name is a C string.
            found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
        }
        known.store(found, Ordering::Relaxed);
    }
    found
}

/// The handle of the system's librdmacm, or `None` if it cannot be loaded. The first call that needs the
/// handle loads the library, which is never unloaded. A program that finds this library under librdmacm's
/// name has not loaded the system's librdmacm.
fn of_system() -> Option<usize> {
    static LIBRARY: OnceLock<Option<usize>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let own =
            shared_objects::object_of(of_system as *mut c_void).and_then(|(_, path)| fs::metadata(path).ok());
        let own = own.map(|own| (own.dev(), own.ino()));
        let of_machine = |folder: &str| format!("{folder}/{}-linux-gnu", std::env::consts::ARCH);
        // The dynamic linker's default folders.
        let folders = [of_machine("/lib"), of_machine("/usr/lib"), "/lib64".into(), "/usr/lib64".into()];
        let folders = folders.into_iter().chain(["/lib".into(), "/usr/lib".into()]);
        let files = folders.map(|folder| Path::new(&folder).join("librdmacm.so.1"));
        let mut others = files
            .filter(|file| fs::metadata(file).is_ok_and(|found| Some((found.dev(), found.ino())) != own));
        let path = CString::new(others.next()?.into_os_string().into_encoded_bytes()).ok()?;
        // SAFETY: the path is a C string, and the initialization of librdmacm is safe in any program.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!library.is_null()).then_some(library as usize)
    })
}

macro_rules! forward {
    ($($export:literal $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// Calls librdmacm's function of this name.
            ///
            /// # Safety
            /// The conditions of librdmacm's function.
            #[unsafe(export_name = $export)]
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                const NAME: &CStr =
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zeros"),
                    };
                static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let found = next(NAME, &KNOWN);
                if found.is_null() {
                    abi::set_errno(EOPNOTSUPP);
                    return -1 as _;
                }
                // SAFETY: librdmacm's function of this name has this signature.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found)
                };
                // SAFETY: the caller meets the conditions of librdmacm's function.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

forward! {
    "uw_rsocket" rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    "uw_rbind" rbind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    "uw_rlisten" rlisten(socket: c_int, backlog: c_int) -> c_int;
    "uw_raccept" raccept(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    "uw_rconnect" rconnect(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    "uw_rshutdown" rshutdown(socket: c_int, how: c_int) -> c_int;
    "uw_rclose" rclose(socket: c_int) -> c_int;
    "uw_rrecv" rrecv(socket: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    "uw_rrecvfrom" rrecvfrom(
        socket: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr,
        address_length: *mut socklen_t
    ) -> ssize_t;
    "uw_rrecvmsg" rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    "uw_rsend" rsend(socket: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    "uw_rsendto" rsendto(
        socket: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr,
        address_length: socklen_t
    ) -> ssize_t;
    "uw_rsendmsg" rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    "uw_rread" rread(socket: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    "uw_rreadv" rreadv(socket: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    "uw_rwrite" rwrite(socket: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    "uw_rwritev" rwritev(socket: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    "uw_rpoll" rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    "uw_rselect" rselect(
        count: c_int, reads: *mut libc::fd_set, writes: *mut libc::fd_set, errors: *mut libc::fd_set,
        timeout: *mut timeval
    ) -> c_int;
    "uw_rgetpeername" rgetpeername(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    "uw_rgetsockname" rgetsockname(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    "uw_rsetsockopt" rsetsockopt(
        socket: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t
    ) -> c_int;
    "uw_rgetsockopt" rgetsockopt(
        socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t
    ) -> c_int;
    // The header declares the last argument as variadic. Callers pass this argument like any other argument,
    // and librdmacm reads it only for commands that have an argument.
    "uw_rfcntl" rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int;
    "uw_riomap" riomap(
        socket: c_int, buffer: *mut c_void, length: size_t, protection: c_int, flags: c_int, offset: off_t
    ) -> off_t;
    "uw_riounmap" riounmap(socket: c_int, buffer: *mut c_void, length: size_t) -> c_int;
    "uw_riowrite" riowrite(
        socket: c_int, buffer: *const c_void, length: size_t, offset: off_t, flags: c_int
    ) -> size_t;
}
