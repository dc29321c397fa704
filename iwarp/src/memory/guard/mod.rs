//! Guarded accesses to memory of the caller: if the memory is no longer mapped, a guarded access ends in an
//! error and not in a crash.
//!
//! A caller that registers its own memory promises to keep the memory mapped until it is deregistered. If the
//! promise is broken (memory unmapped or protected too early, a mapped file truncated), the processor faults
//! in the middle of a copy. Under the guard the fault ends the copy: [`attempt`] returns [`Unmapped`]. The
//! bytes copied before the fault stay copied.
//!
//! On Linux on x86-64 and aarch64, a handler of SIGSEGV and SIGBUS catches the fault ([`fault`]). Each
//! registration of guarded memory installs the handler if it is not installed. The handler passes on every
//! fault that no guarded access has caused. On other systems there is no guard, and access to unmapped memory
//! crashes the process. The requirements on a program are documented at
//! [`UserMemory::Guarded`](super::UserMemory::Guarded).
//!
//! Memory of the library needs no guard: the registration keeps this memory alive.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fault;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod trampoline;

/// The memory of a guarded access is no longer mapped, or its mapping no longer allows the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmapped;

/// Installs the guard, so that [`attempt`] survives faults. Returns `false` if this system has no guard.
///
/// # Errors
/// The system refused to install the handler.
pub(super) fn install() -> std::io::Result<bool> {
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    return fault::install().map(|()| true);
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    Ok(false)
}

/// Runs `access`, which accesses the `len` bytes at `start`. A fault at one of these bytes ends `access` at
/// once.
///
/// # Errors
/// [`Unmapped`] when a fault has ended `access`.
///
/// # Safety
/// `access` may be abandoned at any access to these bytes. So at each such access, `access` and the functions
/// that it calls own nothing that needs a drop, and hold no lock. No state on which other code relies is half
/// changed then. `access` does not panic.
pub(super) unsafe fn attempt<F: FnMut()>(start: *const u8, len: usize, access: F) -> Result<(), Unmapped> {
    const { assert!(!std::mem::needs_drop::<F>(), "a guarded access may be left without being dropped") };
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the caller promises that `access` may be abandoned at any access to these bytes.
    return unsafe { fault::attempt(start, len, access) };
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        let _ = (start, len);
        let mut access = access;
        access();
        Ok(())
    }
}
