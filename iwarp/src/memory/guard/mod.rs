//! Accesses to the caller's memory that end in an error, not in a crash, when the memory is not there any
//! more.
//!
//! Whoever registers memory of his own promises to keep it mapped until it is deregistered. Where the promise
//! is broken (unmapped or protected too early, a mapped file cut short), the processor faults in the middle
//! of a copy. Under the guard the fault ends the copy: [`attempt`] returns [`Unmapped`]. What was copied
//! before stays copied.
//!
//! On Linux, on x86-64 and aarch64, a handler of SIGSEGV and SIGBUS does it ([`fault`]). It is installed
//! once, with the first registration of memory of a caller, and passes on every fault that is not a guarded
//! access. Elsewhere there is no guard, and a broken promise is a crash. What a program has to know of it is
//! said at [`UserMemory::Guarded`](super::UserMemory::Guarded).
//!
//! Memory of our own needs no guard: a registration keeps it.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fault;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod trampoline;

/// The memory of a guarded access is not there, or not as it was when it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmapped;

/// Sees to it that [`attempt`] survives faults. Returns whether it does on this system.
///
/// # Errors
/// The system refused the handler.
pub(super) fn install() -> std::io::Result<bool> {
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    return fault::install().map(|()| true);
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    Ok(false)
}

/// Runs `access`, which accesses the `len` bytes at `start`; a fault there ends it where it stands.
///
/// # Errors
/// [`Unmapped`]: it was left.
///
/// # Safety
/// `access` may be left at any access to these bytes, for ever: it and what it calls own nothing that is to
/// be dropped, hold no lock, and leave nothing half done that anybody relies on. It does not panic.
pub(super) unsafe fn attempt<F: FnMut()>(start: *const u8, len: usize, access: F) -> Result<(), Unmapped> {
    const { assert!(!std::mem::needs_drop::<F>(), "a guarded access may be left without being dropped") };
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the caller promises the same.
    return unsafe { fault::attempt(start, len, access) };
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        let _ = (start, len);
        let mut access = access;
        access();
        Ok(())
    }
}
