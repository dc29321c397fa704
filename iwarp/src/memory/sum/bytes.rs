//! Bytes on their way from memory into a sum, and perhaps to where they are copied.
//!
//! The loads are assembly that the compiler does not look into and may neither repeat nor leave out: what
//! lies at `from` may be registered memory, which others write to. A byte is loaded by one of them, once, and
//! the value that came goes both ways.

use std::arch::asm;
use std::arch::x86_64::{__m128i, __m512i, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

/// Where bytes go besides the sum.
pub(super) trait Sink: Copy {
    /// Stores `value` at `offset`.
    ///
    /// # Safety
    /// There is room for it that is ours.
    unsafe fn put<T>(self, offset: usize, value: T);
}

/// Nowhere: they are only summed.
#[derive(Clone, Copy)]
pub(super) struct Nowhere;

/// To memory of our own.
#[derive(Clone, Copy)]
pub(super) struct To(pub(super) *mut u8);

impl Sink for Nowhere {
    #[inline(always)]
    unsafe fn put<T>(self, _offset: usize, _value: T) {}
}

impl Sink for To {
    #[inline(always)]
    unsafe fn put<T>(self, offset: usize, value: T) {
        // SAFETY: the caller vouches for the place, which need not be aligned for `write_unaligned`.
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
            // SAFETY: the caller vouches for what is read; nothing is changed but the register.
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

/// The 64 bytes at `from`, which may lie anywhere.
///
/// # Safety
/// They are mapped and readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_512(from: *const u8) -> __m512i {
    let value;
    // SAFETY: as in the other loads.
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

/// The 16 bytes at `OFFSET` from `from`, which may lie anywhere.
///
/// # Safety
/// They are mapped and readable.
#[inline(always)]
pub(super) unsafe fn load_128<const OFFSET: usize>(from: *const u8) -> __m128i {
    let value;
    // SAFETY: as in the other loads.
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

/// Takes bytes up to an address that is a multiple of 8: by one, two and four, at most `len`. Returns the
/// sum's state and how many it took.
///
/// # Safety
/// `from..from + len` is mapped and readable, and `sink` has room for it.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn rise(state: u32, from: *const u8, sink: impl Sink, len: usize) -> (u32, usize) {
    if from.cast::<u64>().is_aligned() {
        return (state, 0);
    }
    let mut state = state;
    let head = from.align_offset(8).min(len);
    let mut at = 0;
    // SAFETY: the parts of `head` lie one behind the other and end at `head`, which is at most `len`.
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

/// Takes the bytes at `at..len` by words, and the rest by four, two and one.
///
/// # Safety
/// As [`rise`], and `at` is at most `len`.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn fall(state: u32, from: *const u8, sink: impl Sink, at: usize, len: usize) -> u32 {
    let mut state = u64::from(state);
    let mut at = at;
    // SAFETY: `at` and the bytes taken there stay below `len`.
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
/// As [`rise`], for the byte at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take_8(state: u32, from: *const u8, sink: impl Sink, at: usize) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe {
        let value = load_8(from.add(at)) as u8;
        sink.put(at, value);
        _mm_crc32_u8(state, value)
    }
}

/// # Safety
/// As [`rise`], for two bytes at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take_16(state: u32, from: *const u8, sink: impl Sink, at: usize) -> u32 {
    // SAFETY: the caller vouches for them.
    unsafe {
        let value = load_16(from.add(at)) as u16;
        sink.put(at, value);
        _mm_crc32_u16(state, value)
    }
}

/// # Safety
/// As [`rise`], for four bytes at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take_32(state: u32, from: *const u8, sink: impl Sink, at: usize) -> u32 {
    // SAFETY: the caller vouches for them.
    unsafe {
        let value = load_32(from.add(at));
        sink.put(at, value);
        _mm_crc32_u32(state, value)
    }
}
