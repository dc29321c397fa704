//! The handler of SIGSEGV and SIGBUS, and the guarded accesses that it recognises.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::Unmapped;
use super::trampoline::{call, landing};

/// A guarded access that this thread executes.
struct Recovery {
    start: usize,
    len: usize,
    /// The stack pointer for [`landing`].
    stack: Cell<usize>,
}

thread_local! {
    /// The innermost guarded access, or null. It has no destructor, so it is a plain word that a signal
    /// handler may read.
    static ACTIVE: Cell<*const Recovery> = const { Cell::new(null()) };
}

/// The actions for the two signals before ours.
static PREVIOUS_SEGV: Previous = Previous::new();
static PREVIOUS_BUS: Previous = Previous::new();

/// The action for a signal before ours.
struct Previous {
    action: OnceLock<libc::sigaction>,
    /// It was for one signal only (`SA_RESETHAND`), and has handled it.
    spent: AtomicBool,
}

impl Previous {
    const fn new() -> Self {
        Self { action: OnceLock::new(), spent: AtomicBool::new(false) }
    }

    /// The handler for the current signal, with its action.
    fn take(&self) -> (libc::sighandler_t, Option<&libc::sigaction>) {
        let Some(action) = self.action.get() else { return (libc::SIG_DFL, None) };
        let is_function = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        let once = is_function && action.sa_flags & libc::SA_RESETHAND != 0;
        if once && self.spent.swap(true, Ordering::Relaxed) {
            return (libc::SIG_DFL, None);
        }
        (action.sa_sigaction, Some(action))
    }
}

/// See [`super::attempt`].
///
/// # Safety
/// As [`super::attempt`].
pub(super) unsafe fn attempt<F: FnMut()>(
    start: *const u8,
    len: usize,
    mut access: F,
) -> Result<(), Unmapped> {
    unsafe extern "C" fn run<F: FnMut()>(access: *mut c_void) {
        // SAFETY: `attempt` passes the address of its own `access`, which is of this type and used nowhere
        // else.
        let access = unsafe { &mut *access.cast::<F>() };
        access();
    }
    let recovery = Recovery { start: start.addr(), len, stack: Cell::new(0) };
    let outer = ACTIVE.replace(&raw const recovery);
    let access: *mut F = &mut access;
    // SAFETY: `run` gets a pointer to `access`, as it requires, and `stack` is a local variable. When
    // `landing` ends the call, the abandoned frames are those of `run` and `access`, which own nothing by the
    // caller's promise.
    let left = unsafe { call(run::<F>, access.cast(), recovery.stack.as_ptr()) };
    ACTIVE.set(outer);
    if left == 0 { Ok(()) } else { Err(Unmapped) }
}

/// Installs the handler, once for the process.
pub(super) fn install() -> std::io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        replace(libc::SIGSEGV, &PREVIOUS_SEGV)?;
        replace(libc::SIGBUS, &PREVIOUS_BUS)?;
        *done = true;
    }
    Ok(())
}

fn replace(signal: c_int, previous: &Previous) -> std::io::Result<()> {
    let check = |result: c_int| if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    // SAFETY: all fields of the structure are integers and pointers, for which zero is a valid value.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the action of a signal that exists; `old` may be written.
    check(unsafe { libc::sigaction(signal, null(), &mut old) })?;
    // Stored before our handler can run.
    let _ = previous.action.set(old);
    // SAFETY: all fields of the structure are integers and pointers, for which zero is a valid value.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = on_fault as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    // On the alternate stack, if there is one: a stack overflow raises SIGSEGV too.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (old.sa_flags & libc::SA_RESTART);
    // SAFETY: `on_fault` has the signature of a handler with SA_SIGINFO, and is async-signal-safe.
    check(unsafe { libc::sigaction(signal, &new, null_mut()) })
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `siginfo_t` to a handler with SA_SIGINFO.
    let (is_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    let active = ACTIVE.get();
    if is_fault && !active.is_null() {
        // SAFETY: while `ACTIVE` points to it, the frame of `attempt` exists on this thread, which executes
        // this handler.
        let recovery = unsafe { &*active };
        if address.wrapping_sub(recovery.start) < recovery.len {
            // SAFETY: the kernel passes the `ucontext_t` of the interrupted thread, which is this thread. It
            // was in `call`, which had stored its stack pointer before it ran the access that faulted.
            unsafe { go_on_at_landing(context.cast(), recovery.stack.get()) };
            return;
        }
    }
    // SAFETY: the arguments are those that the kernel passed to this handler.
    unsafe { pass_on(signal, info, context, is_fault) };
}

/// Makes the interrupted thread continue at [`landing`].
///
/// # Safety
/// `context` is the context of that thread, and `stack` is the stack pointer that its current `call` has
/// stored.
unsafe fn go_on_at_landing(context: *mut libc::ucontext_t, stack: usize) {
    let landing = landing as unsafe extern "C" fn() as usize;
    // SAFETY: the caller promises that `context` is the context of the interrupted thread, which the kernel
    // lets the handler change.
    let machine = unsafe { &mut (*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        machine.gregs[libc::REG_RIP as usize] = landing as i64;
        machine.gregs[libc::REG_RSP as usize] = stack as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        machine.pc = landing as u64;
        machine.sp = stack as u64;
    }
}

/// Does what the system would have done without our handler. Only the stack may differ: a handler that did
/// not ask for the alternate stack (`SA_ONSTACK`) runs on it too, if there is one.
///
/// # Safety
/// The arguments are those of a handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    let previous = if signal == libc::SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGV };
    let (handler, action) = previous.take();
    if let Some(action) = action {
        // SAFETY: `action` comes from the kernel, so its mask is valid, and this is the handler of `signal`.
        unsafe { mask_as(action, signal) };
    }
    let flags = action.map_or(0, |action| action.sa_flags);
    match handler {
        // A fault cannot be ignored.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both calls are async-signal-safe. With the default action restored, a fault happens
            // again when the thread continues. A signal that was sent is raised again, and handled when this
            // handler returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: its flags have SA_SIGINFO, so it was installed with this signature.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        _ => {
            // SAFETY: its flags do not have SA_SIGINFO, so it was installed with this signature.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Blocks the signals that the kernel would block for a handler with this action. The kernel restores the
/// previous mask when our handler returns.
///
/// # Safety
/// `action` has a valid signal mask. The caller is the handler of `signal`, which blocks only that signal.
unsafe fn mask_as(action: &libc::sigaction, signal: c_int) {
    let nests = action.sa_flags & libc::SA_NODEFER != 0;
    // SAFETY: the signal sets are local or only read, and `pthread_sigmask` may be called in a handler.
    unsafe {
        if nests {
            let mut own: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut own);
            libc::sigaddset(&mut own, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &own, null_mut());
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &action.sa_mask, null_mut());
    }
}
