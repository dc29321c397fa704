//! Loads of bytes for a sum, with a store of each loaded value if they are copied.
//!
//! The loads are assembly that is opaque to the compiler, which may neither repeat nor omit them: `from` may
//! be registered memory, which others write to. Each byte is loaded once, and the loaded value is both summed
//! and stored.

use std::arch::asm;
use std::arch::x86_64::{__m128i, __m512i, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

/// The destination of the bytes besides the sum.
pub(super) trait Sink: Copy {
    /// Stores `value` at `offset`.
    ///
    /// # Safety
    /// The sink has room for the value there, and the caller may write it.
    unsafe fn put<T>(self, offset: usize, value: T);
}

/// No destination: the bytes are only summed.
#[derive(Clone, Copy)]
pub(super) struct Nowhere;

/// Memory that the caller owns.
#[derive(Clone, Copy)]
pub(super) struct To(pub(super) *mut u8);

impl Sink for Nowhere {
    #[inline(always)]
    unsafe fn put<T>(self, _offset: usize, _value: T) {}
}

impl Sink for To {
    #[inline(always)]
    unsafe fn put<T>(self, offset: usize, value: T) {
        // SAFETY: the caller promises that the sink has room at `offset`. `write_unaligned` needs no
        // alignment.
        unsafe { self.0.add(offset).cast::<T>().write_unaligned(value) };
    }
}

/// Defines loads of one instruction each.
macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident: $value:ty = $instruction:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// They are mapped and readable.
        #[inline(always)]
        unsafe fn $name(from: *const u8) -> $value {
            let value;
            // SAFETY: the caller promises that the bytes are readable. Only the register is changed.
            unsafe {
                asm!(
                    $instruction,
                    value = out(reg) value,
                    from = in(reg) from,
                    options(nostack, preserves_flags, readonly),
                );
            }
            value
        }
    )*};
}

loads! {
    /// One byte.
    load_8: u32 = "movzx {value:e}, byte ptr [{from}]";
    /// Two bytes.
    load_16: u32 = "movzx {value:e}, word ptr [{from}]";
    /// Four bytes.
    load_32: u32 = "mov {value:e}, dword ptr [{from}]";
    /// Eight bytes.
    load_64: u64 = "mov {value}, qword ptr [{from}]";
}

/// Loads the 64 bytes at `from`, of any alignment.
///
/// # Safety
/// They are mapped and readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_512(from: *const u8) -> __m512i {
    let value;
    // SAFETY: the caller promises that the bytes are readable. Only the register is changed.
    unsafe {
        asm!(
            "vmovdqu64 {value}, [{from}]",
            value = out(zmm_reg) value,
            from = in(reg) from,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Loads the 16 bytes at `from + OFFSET`, of any alignment.
///
/// # Safety
/// They are mapped and readable.
#[inline(always)]
pub(super) unsafe fn load_128<const OFFSET: usize>(from: *const u8) -> __m128i {
    let value;
    // SAFETY: the caller promises that the bytes are readable. Only the register is changed.
    unsafe {
        asm!(
            "movdqu {value}, [{from} + {offset}]",
            value = out(xmm_reg) value,
            from = in(reg) from,
            offset = const OFFSET,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Sums and stores bytes up to the next address that is a multiple of 8, at most `len`, in steps of one, two
/// and four bytes. Returns the state of the sum and the number of bytes.
///
/// # Safety
/// `from..from + len` is mapped and readable, and `sink` has room for it.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn sum_head(state: u32, from: *const u8, sink: impl Sink, len: usize) -> (u32, usize) {
    if from.cast::<u64>().is_aligned() {
        return (state, 0);
    }
    let mut state = state;
    let head = from.align_offset(8).min(len);
    let mut at = 0;
    // SAFETY: the parts of `head` follow each other and end at `head`, which is at most `len`.
    unsafe {
        if head & 1 != 0 {
            state = take_8(state, from, sink, at);
            at += 1;
        }
        if head & 2 != 0 {
            state = take_16(state, from, sink, at);
            at += 2;
        }
        if head & 4 != 0 {
            state = take_32(state, from, sink, at);
            at += 4;
        }
    }
    (state, at)
}

/// Sums and stores the bytes at `at..len` in words, and the rest in steps of four, two and one bytes.
///
/// # Safety
/// As [`sum_head`], and `at` is at most `len`.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn sum_tail(state: u32, from: *const u8, sink: impl Sink, at: usize, len: usize) -> u32 {
    let mut state = u64::from(state);
    let mut at = at;
    // SAFETY: `at` plus the bytes taken there is at most `len`.
    unsafe {
        while len - at >= 8 {
            let word = load_64(from.add(at));
            sink.put(at, word);
            state = _mm_crc32_u64(state, word);
            at += 8;
        }
        let mut state = state as u32;
        if (len - at) & 4 != 0 {
            state = take_32(state, from, sink, at);
            at += 4;
        }
        if (len - at) & 2 != 0 {
            state = take_16(state, from, sink, at);
            at += 2;
        }
        if (len - at) & 1 != 0 {
            state = take_8(state, from, sink, at);
        }
        state
    }
}

/// # Safety
/// As [`sum_head`], for the byte at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take_8(state: u32, from: *const u8, sink: impl Sink, at: usize) -> u32 {
    // SAFETY: the caller promises that the byte at `at` is readable and that the sink has room for it.
    unsafe {
        let value = load_8(from.add(at)) as u8;
        sink.put(at, value);
        _mm_crc32_u8(state, value)
    }
}

/// # Safety
/// As [`sum_head`], for two bytes at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take_16(state: u32, from: *const u8, sink: impl Sink, at: usize) -> u32 {
    // SAFETY: the caller promises that the bytes at `at` are readable and that the sink has room for them.
    unsafe {
        let value = load_16(from.add(at)) as u16;
        sink.put(at, value);
        _mm_crc32_u16(state, value)
    }
}

/// # Safety
/// As [`sum_head`], for four bytes at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take_32(state: u32, from: *const u8, sink: impl Sink, at: usize) -> u32 {
    // SAFETY: the caller promises that the bytes at `at` are readable and that the sink has room for them.
    unsafe {
        let value = load_32(from.add(at));
        sink.put(at, value);
        _mm_crc32_u32(state, value)
    }
}
