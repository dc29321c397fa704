//! Calling a function so that it can be left from a signal handler.
//!
//! [`call`] saves what a callee has to preserve and tells where. [`landing`] restores it and returns from
//! `call` a second way; it is entered by a handler that makes the interrupted thread go on there, on the
//! saved stack.

use std::ffi::c_void;

/// Calls `run(argument)` and returns 0, after it stored its stack pointer at `stack`; or 1, when `landing`
/// was entered.
///
/// # Safety
/// What `run` asks for; `stack` may be written.
#[cfg(target_arch = "x86_64")]
// SAFETY: the body keeps to the C ABI: every register that a callee preserves is stored before `run` and
// restored after it, the stack pointer comes back to the return address, and the result is in its register.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call(
    run: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    stack: *mut usize,
) -> u32 {
    // Six registers and the return address: eight bytes more align the stack to 16 for the call.
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

/// Returns 1 from the `call` on whose saved stack it is entered.
///
/// # Safety
/// To be entered, not called: with the stack pointer that [`call`] stored, while that call has not returned.
#[cfg(target_arch = "x86_64")]
// SAFETY: the body reads the stack as `call` has written it, and leaves it as `call` does.
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

/// Calls `run(argument)` and returns 0, after it stored its stack pointer at `stack`; or 1, when `landing`
/// was entered.
///
/// # Safety
/// What `run` asks for; `stack` may be written.
#[cfg(target_arch = "aarch64")]
// SAFETY: the body keeps to the C ABI: every register that a callee preserves is stored before `run` and
// restored after it, the stack pointer comes back to the return address, and the result is in its register.
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

/// Returns 1 from the `call` on whose saved stack it is entered.
///
/// # Safety
/// To be entered, not called: with the stack pointer that [`call`] stored, while that call has not returned.
#[cfg(target_arch = "aarch64")]
// SAFETY: the body reads the stack as `call` has written it, and leaves it as `call` does.
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
