//! The functions of libc that this library exports in its own form, under the same names. A [`Next`] is the
//! function that a program would have called without this library.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::ffi::abi::{Errno, Outcome};

/// The first symbol version of libc on this architecture. libc has the functions that it removed from its
/// headers under this version only.
const FIRST_VERSION: &CStr = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

/// A function of type `F` in the next library that has a function of this name.
pub(crate) struct Next<F> {
    name: &'static CStr,
    known: AtomicPtr<c_void>,
    function: PhantomData<fn() -> F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` is the type of a pointer to a function, and the function of this name has this type.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self { name, known: AtomicPtr::new(ptr::null_mut()), function: PhantomData }
    }

    /// The function. The first call finds it, and takes the lock of the dynamic linker.
    ///
    /// # Errors
    /// Returns `ENOSYS` if no library has the function.
    #[inline]
    pub(crate) fn get(&self) -> Outcome<F> {
        let mut known = self.known.load(Ordering::Relaxed);
        if known.is_null() {
            known = self.find();
            if known.is_null() {
                return Err(Errno(libc::ENOSYS));
            }
        }
        // SAFETY: `F` is a pointer to a function of the type of this function (`new`), with the size of
        // `known`.
        Ok(unsafe { std::mem::transmute_copy(&known) })
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // SAFETY: the name and the version are C strings.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), FIRST_VERSION.as_ptr()) };
        }
        if found.is_null() {
            // libc may be in front of this library in the search order.
            // SAFETY: the name of the library is a C string, and no library is loaded.
            let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if !libc.is_null() {
                // SAFETY: the handle is valid, and the name is a C string.
                found = unsafe { libc::dlsym(libc, self.name.as_ptr()) };
            }
        }
        self.known.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines a static with libc's function of this name, and finds the function when the library is loaded.
/// Later, another thread could hold the lock of the dynamic linker when this process forks. A function that
/// is called earlier, by the start of another library, finds itself.
macro_rules! next {
    ($next:ident $name:ident: $type:ty) => {
        // SAFETY: libc's function of this name has this type.
        pub(super) static $next: $crate::ffi::next::Next<$type> = unsafe {
            $crate::ffi::next::Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                },
            )
        };

        const _: () = {
            extern "C" fn find() {
                let _ = $next.get();
            }

            #[used]
            #[unsafe(link_section = ".init_array")]
            static AT_START: extern "C" fn() = find;
        };
    };
}
pub(crate) use next;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_libc_is_found_and_a_name_of_none_is_not() {
        // SAFETY: `getpid` has this type.
        static GETPID: Next<extern "C" fn() -> libc::pid_t> = unsafe { Next::new(c"getpid") };
        // SAFETY: there is no such function.
        static NONE: Next<extern "C" fn()> = unsafe { Next::new(c"uwarp_has_no_such_function") };
        for _ in 0..2 {
            assert_eq!(GETPID.get().unwrap()(), std::process::id() as libc::pid_t);
            assert_eq!(NONE.get().err(), Some(Errno(libc::ENOSYS)));
        }
    }
}
