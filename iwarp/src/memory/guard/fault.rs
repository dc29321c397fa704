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
    /// The stack pointer that [`landing`] needs.
    stack: Cell<usize>,
}

thread_local! {
    /// The innermost guarded access of this thread, or null. The variable has no destructor, so it is a plain
    /// word that a signal handler may read.
    static ACTIVE: Cell<*const Recovery> = const { Cell::new(null()) };
}

/// Number of our handlers. For each signal, our handlers can replace at most this number of different actions
/// of the program.
const GENERATIONS: usize = 8;

/// Our handlers: a different function for each action of the program that our handler has replaced. The
/// program may install its own handler after ours, and pass signals on to our handler. Our handler is then
/// installed again as a different function, which passes signals on to the program's new handler. Therefore
/// the chain of handlers has no cycle.
static HANDLERS: [Handler; GENERATIONS] = [
    on_fault::<0>,
    on_fault::<1>,
    on_fault::<2>,
    on_fault::<3>,
    on_fault::<4>,
    on_fault::<5>,
    on_fault::<6>,
    on_fault::<7>,
];

/// For each of our handlers, the previous actions for SIGSEGV and SIGBUS.
static PREVIOUS_SEGV: [Previous; GENERATIONS] = [const { Previous::new() }; GENERATIONS];
static PREVIOUS_BUS: [Previous; GENERATIONS] = [const { Previous::new() }; GENERATIONS];

/// The action that was set for a signal before our handler was installed.
struct Previous {
    action: OnceLock<libc::sigaction>,
    /// Whether `action` has `SA_RESETHAND` and has already handled its one signal.
    spent: AtomicBool,
}

impl Previous {
    const fn new() -> Self {
        Self { action: OnceLock::new(), spent: AtomicBool::new(false) }
    }

    /// Whether the value is unset, or is set to `action`.
    fn may_be(&self, action: &libc::sigaction) -> bool {
        self.action.get().is_none_or(|previous| {
            previous.sa_sigaction == action.sa_sigaction && previous.sa_flags == action.sa_flags
        })
    }

    /// Returns the handler for the current signal, and its action. Marks an action with `SA_RESETHAND` as
    /// spent.
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

/// A signal that this thread passes on to a handler of the program.
#[derive(Clone, Copy)]
struct Passing {
    /// Address of the kernel's `siginfo_t`.
    info: usize,
    /// The stack pointer of our handler that the kernel called for this signal.
    stack: usize,
    /// The generation whose previous handler has received the signal.
    generation: usize,
}

thread_local! {
    /// The signal that this thread is passing on. The value stays set if a handler of the program does not
    /// return but jumps (`longjmp`). Like [`ACTIVE`], this variable has no destructor.
    static PASSING: Cell<Passing> = const { Cell::new(Passing { info: 0, stack: 0, generation: 0 }) };
}

/// Runs `access` as described at [`super::attempt`].
///
/// # Safety
/// `access` may be abandoned at any access to these bytes. So at each such access, `access` and the functions
/// that it calls own nothing that needs a drop, and hold no lock. No state on which other code relies is half
/// changed then.
pub(super) unsafe fn attempt<F: FnMut()>(
    start: *const u8,
    len: usize,
    mut access: F,
) -> Result<(), Unmapped> {
    /// # Safety
    /// `access` points to an `F` that nobody else uses during the call.
    unsafe extern "C" fn run<F: FnMut()>(access: *mut c_void) {
        // SAFETY: the caller promises that `access` points to an `F` that nobody else uses.
        let access = unsafe { &mut *access.cast::<F>() };
        access();
    }
    let recovery = Recovery { start: start.addr(), len, stack: Cell::new(0) };
    let outer = ACTIVE.replace(&raw const recovery);
    let access: *mut F = &mut access;
    // SAFETY: `run` gets a pointer to `access`, an `F` that no other code uses until `call` returns.
    // `recovery.stack` is part of a local variable. The compiler stores `ACTIVE` before `call`, since `call`
    // is assembly during which a signal handler may run. When `landing` ends the call, the frames of `run`
    // and `access` are abandoned. By the caller's promise these frames have nothing to drop at that point.
    let left = unsafe { call(run::<F>, access.cast(), recovery.stack.as_ptr()) };
    ACTIVE.set(outer);
    if left == 0 { Ok(()) } else { Err(Unmapped) }
}

/// Installs our handler for SIGSEGV and SIGBUS, if it is not installed. If the program has installed its own
/// handler since the last call, our handler is installed again, and passes signals on to the program's
/// handler. If every generation is in use for a different handler, the program's handler stays.
pub(super) fn install() -> std::io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    replace(libc::SIGSEGV, &PREVIOUS_SEGV)?;
    replace(libc::SIGBUS, &PREVIOUS_BUS)
}

fn replace(signal: c_int, previous: &[Previous; GENERATIONS]) -> std::io::Result<()> {
    let check = |result: c_int| if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    // SAFETY: all-zero bytes are a valid `sigaction`: integers, a mask of integers, and an optional function.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call only writes the current action to `old`, a local variable.
    check(unsafe { libc::sigaction(signal, null(), &mut old) })?;
    if HANDLERS.iter().any(|handler| *handler as usize == old.sa_sigaction) {
        return Ok(());
    }
    // This is the generation whose handler already passes signals on to `old`, or else the first unused
    // generation. If every generation is in use, the program keeps its own handler.
    let Some(generation) = previous.iter().position(|previous| previous.may_be(&old)) else { return Ok(()) };
    // The previous action is stored before our handler can run.
    let _ = previous[generation].action.set(old);
    previous[generation].spent.store(false, Ordering::Relaxed);
    // SAFETY: all-zero bytes are a valid `sigaction`: integers, a mask of integers, and an optional function.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = HANDLERS[generation] as usize;
    // The handler runs on the alternate stack, if the thread has one: a stack overflow raises SIGSEGV too.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (old.sa_flags & libc::SA_RESTART);
    // SAFETY: `new` is a complete action. `on_fault` has the signature of a handler with SA_SIGINFO, and all
    // its operations are async-signal-safe. They are accesses to thread-local words, to atomics and to a set
    // `OnceLock`, system calls, and a call of the handler that the program itself had installed for this
    // signal.
    check(unsafe { libc::sigaction(signal, &new, null_mut()) })
}

/// The type of a signal handler with SA_SIGINFO.
type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// # Safety
/// The caller is the kernel, which calls this function as a handler with SA_SIGINFO, or another handler with
/// SA_SIGINFO for the same signal. The other handler passes on the arguments that the kernel gave to it.
unsafe extern "C" fn on_fault<const GENERATION: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: this handler passes on its own arguments, and `handle` has the same requirements as this
    // handler.
    unsafe { handle(GENERATION, signal, info, context) }
}

/// Handles a signal for the handler of `generation`. This is a separate function, so that all generations use
/// the same amount of stack.
///
/// # Safety
/// The requirements of [`on_fault`].
#[inline(never)]
unsafe fn handle(generation: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `info` is what the kernel passed to a handler with SA_SIGINFO: a `siginfo_t` on this stack. No
    // other code changes it while this reference is used.
    let fault = unsafe { &*info };
    // SAFETY: the kernel fills in the whole structure. If the kernel raised the signal, the address is that
    // of the fault. If a process sent the signal, the bytes at this place are other numbers, which are not
    // used.
    let address = unsafe { fault.si_addr() }.addr();
    let is_fault = fault.si_code > 0;
    let active = ACTIVE.get();
    if is_fault && !active.is_null() {
        // SAFETY: `attempt` points `ACTIVE` to a variable of its frame, and resets it before it returns. The
        // frame exists while this handler runs, since the handler interrupted `attempt` on this thread.
        let recovery = unsafe { &*active };
        if address.wrapping_sub(recovery.start) < recovery.len {
            // SAFETY: `context` is what the kernel passed to a handler with SA_SIGINFO: the context of this
            // thread when the thread faulted. The thread was accessing the bytes of `recovery`, so it was in
            // the `call` of that `attempt`. `call` stores the stack pointer before the access runs.
            unsafe { go_on_at_landing(context.cast(), recovery.stack.get()) };
            return;
        }
    }
    let outer = PASSING.get();
    let mut passing = Passing { info: info.addr(), stack: stack_pointer(), generation };
    let mut previous = Some(generation);
    // If both conditions hold, a handler of the program has passed this signal on to our handler. The second
    // condition is needed because a new `siginfo_t` may be at the address of an older `siginfo_t`. In this
    // case the kernel calls our handler at the same stack depth. But a handler that passes a signal on to our
    // handler calls it from deeper in the stack.
    if outer.info == passing.info && passing.stack < outer.stack {
        previous = outer.generation.checked_sub(1).map(|before| before.min(generation));
        passing = Passing { generation: previous.unwrap_or(0), ..outer };
    }
    PASSING.set(passing);
    // SAFETY: the kernel passed these arguments to a handler of `signal` with SA_SIGINFO.
    unsafe { pass_on(previous, signal, info, context, is_fault) };
    PASSING.set(outer);
}

/// The stack pointer of the caller.
#[inline(always)]
fn stack_pointer() -> usize {
    let stack;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction copies a register, and changes nothing else.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction copies a register, and changes nothing else.
    unsafe {
        std::arch::asm!("mov {}, sp", out(reg) stack, options(nomem, nostack, preserves_flags));
    }
    stack
}

/// Makes the interrupted thread continue at [`landing`].
///
/// # Safety
/// `context` is the context that the kernel passed to the current handler. The interrupted thread is in
/// `call`, which stored `stack` as its stack pointer. The thread need not return to any function that `call`
/// has called.
unsafe fn go_on_at_landing(context: *mut libc::ucontext_t, stack: usize) {
    let landing = landing as unsafe extern "C" fn() as usize;
    // SAFETY: the caller promises that `context` is what the kernel passed to the current handler. The
    // handler may change the context, and no other code uses it while the handler runs.
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

/// Does what the system would have done without our handler of `generation`. If `generation` is `None`,
/// performs the default action. Only the stack may differ: a handler that did not ask for the alternate stack
/// (`SA_ONSTACK`) still runs on that stack, if the thread has one.
///
/// # Safety
/// `signal`, `info` and `context` are the arguments that the kernel passed to the current handler, which has
/// SA_SIGINFO. `signal` is SIGSEGV or SIGBUS.
unsafe fn pass_on(
    generation: Option<usize>,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    is_fault: bool,
) {
    let previous = if signal == libc::SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGV };
    let (handler, action) =
        generation.map_or((libc::SIG_DFL, None), |generation| previous[generation].take());
    if let Some(action) = action {
        // SAFETY: `replace` got `action`, including its mask, from the kernel. The caller runs in the handler
        // of `signal`, which `replace` installed with an empty mask and without SA_NODEFER.
        unsafe { mask_as(action, signal) };
    }
    let flags = action.map_or(0, |action| action.sa_flags);
    match handler {
        // A signal that a process has sent is ignored. A fault cannot be ignored.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: `signal` is async-signal-safe, and `SIG_DFL` names no function. After a fault, the
            // thread faults again when it continues, and the default action follows.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if !is_fault {
                // SAFETY: `raise` is async-signal-safe. The signal is blocked while its handler runs, so the
                // default action follows when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program installed this address with SA_SIGINFO, so it is a function of this
            // signature.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            // SAFETY: the function is a handler of `signal`, and the arguments are those that the kernel
            // passes to such a handler with SA_SIGINFO.
            unsafe { handler(signal, info, context) };
        }
        _ => {
            // SAFETY: the program installed this address without SA_SIGINFO, so it is a function of this
            // signature.
            let handler: unsafe extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            // SAFETY: the function is a handler of `signal`, which is being handled.
            unsafe { handler(signal) };
        }
    }
}

/// Sets the signal mask that the kernel would set for a handler with this action. The kernel restores the
/// previous mask when our handler returns.
///
/// # Safety
/// `action` is a value that the kernel returned, so its mask is initialised. The caller runs in the handler
/// of `signal`, which blocks only that signal.
unsafe fn mask_as(action: &libc::sigaction, signal: c_int) {
    if action.sa_flags & libc::SA_NODEFER != 0 {
        let own = only(signal);
        // SAFETY: `pthread_sigmask` is async-signal-safe and reads a local set. The caller runs in the
        // handler of `signal`. Unblocking the signal affects only the handler with this action, which allows
        // this by SA_NODEFER.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &own, null_mut()) };
    }
    // SAFETY: `pthread_sigmask` is async-signal-safe and reads a set that the caller promises to be
    // initialised. The kernel restores the mask when the calling handler returns.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &action.sa_mask, null_mut()) };
}

/// Returns the set that contains only this signal.
fn only(signal: c_int) -> libc::sigset_t {
    // SAFETY: all-zero bytes are a valid `sigset_t`: an array of integers.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `sigemptyset` is async-signal-safe and writes a local set.
    unsafe { libc::sigemptyset(&mut set) };
    // SAFETY: `sigaddset` is async-signal-safe and writes a local set that `sigemptyset` has initialised.
    unsafe { libc::sigaddset(&mut set, signal) };
    set
}
