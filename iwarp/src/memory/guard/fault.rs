//! The handler of SIGSEGV and SIGBUS, and the accesses it knows of.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::Unmapped;
use super::trampoline::{call, landing};

/// An access under way on this thread.
struct Recovery {
    start: usize,
    len: usize,
    /// The stack on which [`landing`] goes on.
    stack: Cell<usize>,
}

thread_local! {
    /// The innermost access; null outside of all. Without a destructor it is a plain word, which a handler
    /// may read.
    static ACTIVE: Cell<*const Recovery> = const { Cell::new(null()) };
}

/// What handled the signals before us.
static PREVIOUS_SEGV: Previous = Previous::new();
static PREVIOUS_BUS: Previous = Previous::new();

/// What handled a signal before us.
struct Previous {
    action: OnceLock<libc::sigaction>,
    /// It was for one signal only (`SA_RESETHAND`), and has had it.
    spent: AtomicBool,
}

impl Previous {
    const fn new() -> Self {
        Self { action: OnceLock::new(), spent: AtomicBool::new(false) }
    }

    /// The handler that a signal goes to now, where it is one, with its action.
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
/// As there.
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
    // SAFETY: `run` gets what it asks for, and `stack` is ours to write. When the call is left through
    // `landing`, the frames in between are `run`'s and those of `access`, which by the caller's promise own
    // nothing.
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
    // SAFETY: all fields of the structure are integers and pointers, for which zeros are values.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the action of a signal that exists; `old` may be written.
    check(unsafe { libc::sigaction(signal, null(), &mut old) })?;
    // Known before our handler can run.
    let _ = previous.action.set(old);
    // SAFETY: as above.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = on_fault as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    // On the alternate stack, where there is one: who overflows his stack comes by here too.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (old.sa_flags & libc::SA_RESTART);
    // SAFETY: `on_fault` is a handler of this form, and does only what a handler may.
    check(unsafe { libc::sigaction(signal, &new, null_mut()) })
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `siginfo_t` to a handler with SA_SIGINFO.
    let (is_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    let active = ACTIVE.get();
    if is_fault && !active.is_null() {
        // SAFETY: while `ACTIVE` names it the frame of `attempt` on this thread stands, and this thread is
        // here.
        let recovery = unsafe { &*active };
        if address.wrapping_sub(recovery.start) < recovery.len {
            // SAFETY: the kernel passes the interrupted thread's `ucontext_t`, which is this thread's own; it
            // was in `call`, which had stored its stack before it ran what faults.
            unsafe { go_on_at_landing(context.cast(), recovery.stack.get()) };
            return;
        }
    }
    // SAFETY: what the kernel gave us is passed on as it is.
    unsafe { pass_on(signal, info, context, is_fault) };
}

/// Makes the interrupted thread go on in [`landing`].
///
/// # Safety
/// `context` is its context, and `stack` what the `call` it is in has stored.
unsafe fn go_on_at_landing(context: *mut libc::ucontext_t, stack: usize) {
    let landing = landing as unsafe extern "C" fn() as usize;
    // SAFETY: the caller vouches for `context`.
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

/// Does what would have been done without us, but for the stack: a handler that did not ask for the alternate
/// one (`SA_ONSTACK`) runs on it too, where there is one.
///
/// # Safety
/// The arguments are those of a handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    let previous = if signal == libc::SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGV };
    let (handler, action) = previous.take();
    if let Some(action) = action {
        // SAFETY: `action` is the kernel's, with a mask that is one.
        unsafe { mask_as(action, signal) };
    }
    let flags = action.map_or(0, |action| action.sa_flags);
    match handler {
        // A fault cannot be ignored.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the default action. A fault then happens again when the thread goes on; a
            // signal that somebody sent is sent again, and taken when this handler returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as a handler of this form.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        _ => {
            // SAFETY: it was installed as a handler of this form.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Blocks what a handler with this action has blocked while it runs, and no more. The kernel puts back what
/// was there when our handler returns.
///
/// # Safety
/// `action` has a signal mask. This is called from the handler of `signal`, which blocks that alone.
unsafe fn mask_as(action: &libc::sigaction, signal: c_int) {
    let nests = action.sa_flags & libc::SA_NODEFER != 0;
    // SAFETY: sets of signals, which are ours or only read. Changing a mask is allowed in a handler.
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
