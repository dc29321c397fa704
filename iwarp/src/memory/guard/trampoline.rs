//! A function call that a signal handler can abandon.
//!
//! [`call`] saves the callee-saved registers and stores the stack pointer. [`landing`] restores these
//! registers and returns from `call` with another result. A signal handler makes the interrupted thread
//! continue at `landing`, on the saved stack.

use std::ffi::c_void;

/// Stores the stack pointer at `stack` and calls `run(argument)`. Returns 0 if `run` returned, and 1 if the
/// thread continued at `landing`.
///
/// # Safety
/// `run` may be called with `argument`, and `stack` may be written. `run` does not unwind. If a signal
/// handler makes the thread continue at [`landing`], the abandoned frames need no drop.
#[cfg(target_arch = "x86_64")]
// SAFETY: the body follows the C ABI: this function stores every callee-saved register before `run`, and this
// function or `landing` restores it after `run`. At the return the stack pointer has its old value, and the
// result is in its register.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call(
    run: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    stack: *mut usize,
) -> u32 {
    // The six registers and the return address have 56 bytes. Another 8 bytes align the stack to 16 bytes for
    // the call.
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov [rdx], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Returns 1 from the `call` on whose saved stack the thread runs.
///
/// # Safety
/// The thread jumps to this function and does not call it. The thread is in a [`call`] that has not returned,
/// and has the stack pointer that the `call` stored.
#[cfg(target_arch = "x86_64")]
// SAFETY: the body follows the C ABI on behalf of `call`. The body restores every callee-saved register from
// the place where `call` stored the register, relative to this stack pointer, and returns a result to the
// caller of `call`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn landing() {
    std::arch::naked_asm!(
        "cld",
        "mov eax, 1",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Stores the stack pointer at `stack` and calls `run(argument)`. Returns 0 if `run` returned, and 1 if the
/// thread continued at `landing`.
///
/// # Safety
/// `run` may be called with `argument`, and `stack` may be written. `run` does not unwind. If a signal
/// handler makes the thread continue at [`landing`], the abandoned frames need no drop.
#[cfg(target_arch = "aarch64")]
// SAFETY: the body follows the C ABI: this function stores every callee-saved register before `run`, and this
// function or `landing` restores it after `run`. At the return the stack pointer has its old value, and the
// result is in its register.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call(
    run: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    stack: *mut usize,
) -> u32 {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-160]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x2]",
        "mov x9, x0",
        "mov x0, x1",
        "blr x9",
        "mov w0, #0",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
    )
}

/// Returns 1 from the `call` on whose saved stack the thread runs.
///
/// # Safety
/// The thread jumps to this function and does not call it. The thread is in a [`call`] that has not returned,
/// and has the stack pointer that the `call` stored.
#[cfg(target_arch = "aarch64")]
// SAFETY: the body follows the C ABI on behalf of `call`. The body restores every callee-saved register from
// the place where `call` stored the register, relative to this stack pointer, and returns a result to the
// caller of `call`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn landing() {
    std::arch::naked_asm!(
        "mov w0, #1",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
    )
}
