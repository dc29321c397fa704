//! The calls of libc that open, list, examine and resolve paths, for the paths of the device's files.
//!
//! The library exports these calls under libc's names (`uwarp.map`, `build.rs`), so programs that are started
//! with the library call them in place of libc's. A call with another path passes its arguments on to libc,
//! after it has looked at the first bytes of the path. Such a call allocates nothing, takes no lock and does
//! not change `errno`. A call with a path of ours calls libc with the path in the tree (`place.rs`).
//!
//! Three answers differ from those of the kernel for the file in the tree:
//! - A file of sysfs cannot be opened for writing. Its size is that of a page, since the content may change.
//! - In a process that has started the engine, a file has what queries return now (`facts.rs`).
//! - A node is a character device with the numbers of a kernel device. `/dev/null` is opened in its place.
//!
//! These calls do not reach a file: system calls that a program makes itself (as Go does), calls relative to
//! a descriptor of another folder, and functions of libc that list folders themselves (`glob`, `ftw`,
//! `fts_open`).

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

use libc::{c_int, c_uint, mode_t, size_t, ssize_t};
use rustix::fs::{MemfdFlags, SealFlags};

use super::place::{self, Found, Last, Node, Ours};
use super::table::{content, table};
use super::{facts, tree};
use crate::ffi::abi::{self, Errno, Outcome};
use crate::ffi::next::next;
use crate::process::identity;

/// The size that sysfs reports for each file.
const PAGE: i64 = 4096;

/// Calls `call` with `path`, or with the path that takes its place. `call` also gets the file, if it is ours.
/// If the call fails, the result is `failed`, and `errno` has the reason.
///
/// # Safety
/// `path` is NULL or a C string.
#[inline]
unsafe fn with_path<R: Copy + PartialEq>(
    path: *const c_char,
    failed: R,
    call: impl Fn(*const c_char, Option<&Found>) -> Outcome<R>,
) -> R {
    // SAFETY: the caller passes NULL or a C string, which it does not change during the call.
    let result = match unsafe { place::ours(path) } {
        None => call(path, None),
        Some(ours) => return with_ours(path, ours, failed, &call),
    };
    result.unwrap_or_else(|error| {
        abi::set_errno(error);
        failed
    })
}

#[cold]
fn with_ours<R: Copy + PartialEq>(
    path: *const c_char,
    ours: Ours<'_>,
    failed: R,
    call: &dyn Fn(*const c_char, Option<&Found>) -> Outcome<R>,
) -> R {
    let before = errno();
    // A forked child also has these files. So this is not `abi::guarded`, which refuses calls of a child.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let Some(tree) = tree() else { return call(path, None) };
        let found = ours.find(&tree.root)?;
        match &found {
            Found::InTree(path) => call(path.as_ptr(), Some(&found)),
            Found::Node(_) => call(Node::STAND_IN.as_ptr(), Some(&found)),
            Found::Elsewhere(path) => call(path.as_ptr(), None),
        }
    }));
    match result.unwrap_or(Err(abi::EIO)) {
        Ok(result) => {
            if result != failed {
                abi::set_errno(Errno(before));
            }
            result
        }
        Err(error) => {
            abi::set_errno(error);
            failed
        }
    }
}

/// The tree, unless the user has turned the files off. A program with more privileges than its user gets no
/// files from a folder of this user.
fn tree() -> Option<&'static tree::Tree> {
    // SAFETY: the call has no conditions.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_privileged || !identity::has_files() { None } else { tree::get() }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Defines a call that passes all arguments on, except the path. After a call with a file of ours, `$after`
/// gets the file and the result.
macro_rules! calls {
    ($($export:literal $next:ident $name:ident(
        $($before:ident: $before_type:ty,)* [path] $(, $arg:ident: $arg_type:ty)*
    ) -> $result:ty, $failed:expr $(, $after:expr)?;)*) => {
        $(
            next! { $next $name: unsafe extern "C" fn($($before_type,)* *const c_char $(, $arg_type)*) -> $result }

            /// Calls libc's function of this name, with the path in the tree if the path is ours.
            ///
            /// # Safety
            /// The conditions of libc's function.
            #[unsafe(export_name = $export)]
            pub(crate) unsafe extern "C" fn $name(
                $($before: $before_type,)* path: *const c_char $(, $arg: $arg_type)*
            ) -> $result {
                let call = |path: *const c_char, _found: Option<&Found>| {
                    let next = $next.get()?;
                    // SAFETY: the caller meets the conditions of libc's function, and the path is a C string.
                    let result = unsafe { next($($before,)* path $(, $arg)*) };
                    $(
                        if let Some(found) = _found && result != $failed {
                            // SAFETY: libc has filled the struct of the caller.
                            unsafe { $after(found) };
                        }
                    )?
                    Ok(result)
                };
                // SAFETY: the caller passes a path as to libc's function.
                unsafe { with_path(path, $failed, call) }
            }
        )*
    };
}

// ---- calls that only pass their arguments on ----

type Filter = *const c_void;
type Compare = *const c_void;
type Names = *mut c_void;

calls! {
    "uw_opendir" OPENDIR opendir([path]) -> *mut libc::DIR, ptr::null_mut();
    "uw_scandir" SCANDIR scandir([path], names: Names, filter: Filter, compare: Compare) -> c_int, -1;
    "uw_scandir64" SCANDIR64 scandir64([path], names: Names, filter: Filter, compare: Compare) -> c_int, -1;
    "uw_scandirat" SCANDIRAT scandirat(
        folder: c_int, [path], names: Names, filter: Filter, compare: Compare
    ) -> c_int, -1;
    "uw_scandirat64" SCANDIRAT64 scandirat64(
        folder: c_int, [path], names: Names, filter: Filter, compare: Compare
    ) -> c_int, -1;
    "uw_access" ACCESS access([path], mode: c_int) -> c_int, -1;
    "uw_eaccess" EACCESS eaccess([path], mode: c_int) -> c_int, -1;
    "uw_euidaccess" EUIDACCESS euidaccess([path], mode: c_int) -> c_int, -1;
    "uw_faccessat" FACCESSAT faccessat(folder: c_int, [path], mode: c_int, flags: c_int) -> c_int, -1;
    "uw_readlink" READLINK readlink([path], buffer: *mut c_char, size: size_t) -> ssize_t, -1;
    "uw___readlink_chk" READLINK_CHK __readlink_chk(
        [path], buffer: *mut c_char, size: size_t, object: size_t
    ) -> ssize_t, -1;
    "uw_readlinkat" READLINKAT readlinkat(
        folder: c_int, [path], buffer: *mut c_char, size: size_t
    ) -> ssize_t, -1;
    "uw___readlinkat_chk" READLINKAT_CHK __readlinkat_chk(
        folder: c_int, [path], buffer: *mut c_char, size: size_t, object: size_t
    ) -> ssize_t, -1;
    "uw_chdir" CHDIR chdir([path]) -> c_int, -1;
    "uw_getxattr" GETXATTR getxattr(
        [path], name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t, -1;
    "uw_lgetxattr" LGETXATTR lgetxattr(
        [path], name: *const c_char, value: *mut c_void, size: size_t
    ) -> ssize_t, -1;
    "uw_listxattr" LISTXATTR listxattr([path], list: *mut c_char, size: size_t) -> ssize_t, -1;
    "uw_llistxattr" LLISTXATTR llistxattr([path], list: *mut c_char, size: size_t) -> ssize_t, -1;
}

// ---- the status of a file ----

calls! {
    "uw_stat" STAT stat([path], buffer: *mut libc::stat) -> c_int, -1, |found| patch(found, buffer);
    "uw_stat64" STAT64 stat64([path], buffer: *mut libc::stat) -> c_int, -1, |found| patch(found, buffer);
    "uw_lstat" LSTAT lstat([path], buffer: *mut libc::stat) -> c_int, -1, |found| patch(found, buffer);
    "uw_lstat64" LSTAT64 lstat64([path], buffer: *mut libc::stat) -> c_int, -1, |found| patch(found, buffer);
    "uw___xstat" XSTAT __xstat(version: c_int, [path], buffer: *mut libc::stat) -> c_int, -1,
        |found| patch(found, buffer);
    "uw___xstat64" XSTAT64 __xstat64(version: c_int, [path], buffer: *mut libc::stat) -> c_int, -1,
        |found| patch(found, buffer);
    "uw___lxstat" LXSTAT __lxstat(version: c_int, [path], buffer: *mut libc::stat) -> c_int, -1,
        |found| patch(found, buffer);
    "uw___lxstat64" LXSTAT64 __lxstat64(version: c_int, [path], buffer: *mut libc::stat) -> c_int, -1,
        |found| patch(found, buffer);
    "uw_fstatat" FSTATAT fstatat(
        folder: c_int, [path], buffer: *mut libc::stat, flags: c_int
    ) -> c_int, -1, |found| patch(found, buffer);
    "uw_fstatat64" FSTATAT64 fstatat64(
        folder: c_int, [path], buffer: *mut libc::stat, flags: c_int
    ) -> c_int, -1, |found| patch(found, buffer);
    "uw___fxstatat" FXSTATAT __fxstatat(
        version: c_int, folder: c_int, [path], buffer: *mut libc::stat, flags: c_int
    ) -> c_int, -1, |found| patch(found, buffer);
    "uw___fxstatat64" FXSTATAT64 __fxstatat64(
        version: c_int, folder: c_int, [path], buffer: *mut libc::stat, flags: c_int
    ) -> c_int, -1, |found| patch(found, buffer);
    "uw_statx" STATX statx(
        folder: c_int, [path], flags: c_int, mask: c_uint, buffer: *mut libc::statx
    ) -> c_int, -1, |found| patch_statx(found, buffer);
}

/// Corrects the status of a file of ours.
///
/// # Safety
/// `buffer` has the status.
unsafe fn patch(found: &Found, buffer: *mut libc::stat) {
    // SAFETY: the caller passes the struct of its own caller, which nobody else uses during the call.
    let status = unsafe { &mut *buffer };
    match found {
        Found::Node(node) => {
            let (major, minor) = node.numbers();
            status.st_mode = libc::S_IFCHR | status.st_mode & 0o7777;
            status.st_rdev = libc::makedev(major, minor);
        }
        _ if status.st_mode & libc::S_IFMT == libc::S_IFREG => status.st_size = PAGE,
        _ => {}
    }
}

/// Corrects the status of a file of ours.
///
/// # Safety
/// `buffer` has the status.
unsafe fn patch_statx(found: &Found, buffer: *mut libc::statx) {
    // SAFETY: the caller passes the struct of its own caller, which nobody else uses during the call.
    let status = unsafe { &mut *buffer };
    match found {
        Found::Node(node) => {
            status.stx_mode = libc::S_IFCHR as u16 | status.stx_mode & 0o7777;
            (status.stx_rdev_major, status.stx_rdev_minor) = node.numbers();
        }
        _ if mode_t::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG => status.stx_size = PAGE as u64,
        _ => {}
    }
}

// ---- opening a file ----

// The header declares the mode as a variadic argument. Callers pass it like any other argument, and libc
// reads it only if the flags say that there is one.
next! { OPEN open: unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int }
next! { OPEN64 open64: unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int }
next! { UNDERSCORE_OPEN __open: unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int }
next! { UNDERSCORE_OPEN64 __open64: unsafe extern "C" fn(*const c_char, c_int, mode_t) -> c_int }
next! { OPEN_2 __open_2: unsafe extern "C" fn(*const c_char, c_int) -> c_int }
next! { OPEN64_2 __open64_2: unsafe extern "C" fn(*const c_char, c_int) -> c_int }
next! { OPENAT openat: unsafe extern "C" fn(c_int, *const c_char, c_int, mode_t) -> c_int }
next! { OPENAT64 openat64: unsafe extern "C" fn(c_int, *const c_char, c_int, mode_t) -> c_int }
next! { OPENAT_2 __openat_2: unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int }
next! { OPENAT64_2 __openat64_2: unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int }

macro_rules! opens {
    ($($export:literal $next:ident $name:ident(
        $($before:ident: $before_type:ty,)* [path], flags: c_int $(, $arg:ident: $arg_type:ty)*
    );)*) => {
        $(
            /// Calls libc's function of this name, with the path in the tree if the path is ours.
            ///
            /// # Safety
            /// The conditions of libc's function.
            #[unsafe(export_name = $export)]
            pub(crate) unsafe extern "C" fn $name(
                $($before: $before_type,)* path: *const c_char, flags: c_int $(, $arg: $arg_type)*
            ) -> c_int {
                let call = |path: *const c_char, found: Option<&Found>| {
                    if let Some(Found::InTree(in_tree)) = found {
                        check_flags(in_tree, flags)?;
                        if let Some(descriptor) = open_now(path, flags) {
                            return Ok(descriptor.into_raw_fd());
                        }
                    }
                    let next = $next.get()?;
                    // SAFETY: the caller meets the conditions of libc's function, and the path is a C string.
                    Ok(unsafe { next($($before,)* path, flags $(, $arg)*) })
                };
                // SAFETY: the caller passes a path as to libc's function.
                unsafe { with_path(path, -1, call) }
            }
        )*
    };
}

opens! {
    "uw_open" OPEN open([path], flags: c_int, mode: mode_t);
    "uw_open64" OPEN64 open64([path], flags: c_int, mode: mode_t);
    "uw___open" UNDERSCORE_OPEN __open([path], flags: c_int, mode: mode_t);
    "uw___open64" UNDERSCORE_OPEN64 __open64([path], flags: c_int, mode: mode_t);
    "uw___open_2" OPEN_2 __open_2([path], flags: c_int);
    "uw___open64_2" OPEN64_2 __open64_2([path], flags: c_int);
    "uw_openat" OPENAT openat(folder: c_int, [path], flags: c_int, mode: mode_t);
    "uw_openat64" OPENAT64 openat64(folder: c_int, [path], flags: c_int, mode: mode_t);
    "uw___openat_2" OPENAT_2 __openat_2(folder: c_int, [path], flags: c_int);
    "uw___openat64_2" OPENAT64_2 __openat64_2(folder: c_int, [path], flags: c_int);
}

type File = *mut libc::FILE;

next! { FOPEN fopen: unsafe extern "C" fn(*const c_char, *const c_char) -> File }
next! { FOPEN64 fopen64: unsafe extern "C" fn(*const c_char, *const c_char) -> File }

macro_rules! fopens {
    ($($export:literal $next:ident $name:ident;)*) => {
        $(
            /// Calls libc's function of this name, with the path in the tree if the path is ours.
            ///
            /// # Safety
            /// The conditions of libc's function.
            #[unsafe(export_name = $export)]
            pub(crate) unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> File {
                let call = |path: *const c_char, found: Option<&Found>| {
                    if let Some(Found::InTree(in_tree)) = found {
                        // SAFETY: the caller passes a C string as to libc's function.
                        let flags = flags_of(unsafe { CStr::from_ptr(mode) });
                        check_flags(in_tree, flags)?;
                        if let Some(descriptor) = open_now(path, flags) {
                            let descriptor = descriptor.into_raw_fd();
                            // SAFETY: the descriptor is open, and the mode is a C string.
                            let file = unsafe { libc::fdopen(descriptor, mode) };
                            if file.is_null() {
                                // SAFETY: the descriptor was made above, and no stream has it.
                                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
                            }
                            return Ok(file);
                        }
                    }
                    let next = $next.get()?;
                    // SAFETY: the caller meets the conditions of libc's function, and the path is a C string.
                    Ok(unsafe { next(path, mode) })
                };
                // SAFETY: the caller passes a path as to libc's function.
                unsafe { with_path(path, ptr::null_mut(), call) }
            }
        )*
    };
}

fopens! {
    "uw_fopen" FOPEN fopen;
    "uw_fopen64" FOPEN64 fopen64;
}

/// The flags of `open` for a mode of `fopen`.
fn flags_of(mode: &CStr) -> c_int {
    let mode = mode.to_bytes();
    let access = match mode.first() {
        _ if mode.contains(&b'+') => libc::O_RDWR,
        Some(b'w' | b'a') => libc::O_WRONLY | libc::O_CREAT,
        _ => libc::O_RDONLY,
    };
    access | if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 }
}

/// Refuses to open a file of sysfs for writing, and to make a file there, also for root.
fn check_flags(path: &CStr, flags: c_int) -> Outcome<()> {
    let creates = flags & libc::O_CREAT != 0;
    if !creates && flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_TRUNC == 0 {
        return Ok(());
    }
    // The error of a path that does not exist comes first.
    match rustix::fs::stat(path) {
        Err(rustix::io::Errno::NOENT) if creates => Err(Errno(libc::EACCES)),
        Err(error) => Err(error.into()),
        Ok(status) if status.st_mode & libc::S_IFMT == libc::S_IFDIR => Err(Errno(libc::EISDIR)),
        Ok(_) => Err(Errno(libc::EACCES)),
    }
}

/// Opens a copy of what queries return now, in a process that has started the engine. Returns `None` if the
/// process has not, or if the path in the tree is not that of a file.
fn open_now(path: *const c_char, flags: c_int) -> Option<OwnedFd> {
    if flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return None;
    }
    let facts = facts::now()?;
    // SAFETY: the path is a path in the tree, which is a C string.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let below = path.strip_prefix(&tree()?.root).ok()?;
    let place = [b"/", below.as_os_str().as_bytes()].concat();
    let resolved = Ours::of(&place)?.resolve(&tree()?.root, Last::Followed).ok()?;
    let table = table(&facts);
    let content = content(&table, std::str::from_utf8(resolved.get(1..)?).ok()?)?;
    let close = if flags & libc::O_CLOEXEC != 0 { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    let file = rustix::fs::memfd_create(c"uwarp", close | MemfdFlags::ALLOW_SEALING).ok()?;
    // The file offset stays at the start.
    rustix::io::pwrite(&file, content.as_bytes(), 0).ok()?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(file.as_fd(), seals).ok()?;
    Some(file)
}

// ---- resolving a path ----

next! { REALPATH realpath: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char }
next! { REALPATH_CHK __realpath_chk: unsafe extern "C" fn(*const c_char, *mut c_char, size_t) -> *mut c_char }
next! { CANONICALIZE canonicalize_file_name: unsafe extern "C" fn(*const c_char) -> *mut c_char }

/// Implements `realpath(3)`. The path of a file of ours is the path that programs know, not the path in the
/// tree.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_realpath")]
pub(crate) unsafe extern "C" fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char {
    let next = |path| {
        let next = REALPATH.get()?;
        // SAFETY: the caller meets the conditions of libc's function, and the path is a C string.
        Ok(unsafe { next(path, buffer) })
    };
    // SAFETY: the caller passes a path and a buffer as to libc's function.
    unsafe { resolved(path, buffer, next) }
}

/// Implements `realpath(3)`, for programs that are compiled with checks of buffers.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw___realpath_chk")]
pub(crate) unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> *mut c_char {
    let next = |path| {
        let next = REALPATH_CHK.get()?;
        // SAFETY: the caller meets the conditions of libc's function, and the path is a C string.
        Ok(unsafe { next(path, buffer, size) })
    };
    if size < libc::PATH_MAX as size_t {
        // libc ends the process.
        // SAFETY: the caller passes a path as to libc's function.
        return unsafe { with_path(path, ptr::null_mut(), |path, _| next(path)) };
    }
    // SAFETY: the caller passes a path and a buffer as to libc's function.
    unsafe { resolved(path, buffer, next) }
}

/// Implements `canonicalize_file_name(3)`.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(export_name = "uw_canonicalize_file_name")]
pub(crate) unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    let next = |path| {
        let next = CANONICALIZE.get()?;
        // SAFETY: the caller meets the conditions of libc's function, and the path is a C string.
        Ok(unsafe { next(path) })
    };
    // SAFETY: the caller passes a path as to libc's function.
    unsafe { resolved(path, ptr::null_mut(), next) }
}

/// Resolves a path into `buffer`, or into new memory if `buffer` is NULL. `next` resolves a path that is not
/// ours.
///
/// # Safety
/// `path` is NULL or a C string, and `buffer` is NULL or has `PATH_MAX` bytes.
unsafe fn resolved(
    path: *const c_char,
    buffer: *mut c_char,
    next: impl Fn(*const c_char) -> Outcome<*mut c_char>,
) -> *mut c_char {
    // SAFETY: the caller passes NULL or a C string, which it does not change during the call.
    let ours = unsafe { place::ours(path) };
    let call = |path: *const c_char, _: Option<&Found>| {
        let (Some(ours), Some(tree)) = (ours, ours.and_then(|_| tree())) else { return next(path) };
        let way = ours.resolve(&tree.root, Last::Followed)?;
        if Ours::of(&way).is_none() {
            return next(CString::new(way).map_err(|_| abi::EINVAL)?.as_ptr());
        }
        if way.len() >= libc::PATH_MAX as usize {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let mut place = buffer;
        if place.is_null() {
            // SAFETY: the call has no conditions. The program frees the memory.
            place = unsafe { libc::malloc(way.len() + 1) }.cast();
        }
        if place.is_null() {
            return Err(abi::ENOMEM);
        }
        // SAFETY: the memory has more than `way.len()` bytes, and nobody else uses it.
        unsafe { ptr::copy_nonoverlapping(way.as_ptr(), place.cast(), way.len()) };
        // SAFETY: the memory has a byte behind the path.
        let end = unsafe { place.add(way.len()) };
        // SAFETY: `end` is the address of this byte.
        unsafe { *end = 0 };
        Ok(place)
    };
    // SAFETY: the caller passes NULL or a C string.
    unsafe { with_path(path, ptr::null_mut(), call) }
}

/// Reads a file as a program does, at most `size` bytes.
///
/// # Errors
/// Returns the error number of the call that fails.
pub(super) fn read(path: &CStr, size: usize) -> Outcome<Vec<u8>> {
    // SAFETY: the path is a C string.
    let descriptor = unsafe { open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(Errno(errno()));
    }
    // SAFETY: the descriptor was opened above, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut bytes = vec![0; size];
    let length = rustix::io::read(&file, &mut bytes[..])?;
    bytes.truncate(length);
    Ok(bytes)
}
