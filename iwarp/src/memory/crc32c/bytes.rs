//! Loads of bytes for a CRC, with a store of each loaded value if they are copied.
//!
//! The loads are assembly that is opaque to the compiler, which may neither repeat nor omit them: the bytes
//! may be registered memory, which others write to. Each byte is loaded once, and the loaded value is both
//! added to the CRC and stored.

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64, _mm256_setzero_si256,
    _mm512_setzero_si512,
};

use super::Front;

/// The destination of the bytes besides the CRC.
pub(super) trait Sink: Copy {
    /// Stores `value` at `offset`.
    ///
    /// # Safety
    /// The sink has room for the value at `offset`, and nobody else accesses these bytes during the call.
    unsafe fn put<T>(self, offset: usize, value: T);
}

/// No destination: no copy is made.
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
        let place = self.0.wrapping_add(offset).cast::<T>();
        // SAFETY: the caller promises room for the value at `offset`, and that nobody else accesses it.
        // `write_unaligned` needs no alignment.
        unsafe { place.write_unaligned(value) };
    }
}

/// A value that is loaded from memory of any alignment, each byte once.
pub(super) trait Load: Sized {
    /// Loads the value at `at` behind `from`.
    ///
    /// # Safety
    /// `size_of::<Self>()` bytes there are mapped and readable.
    unsafe fn load(from: *const u8, at: usize) -> Self;
}

/// Implements loads of one instruction each, into a register of type `$register`.
macro_rules! loads {
    ($($value:ty: $instruction:literal, $register:ty;)*) => {$(
        impl Load for $value {
            #[inline(always)]
            unsafe fn load(from: *const u8, at: usize) -> Self {
                let value: $register;
                // SAFETY: the caller promises that as many bytes as the value has are readable, and the
                // instruction reads no more. It changes only the register that is named.
                unsafe {
                    asm!(
                        $instruction,
                        value = out(reg) value,
                        from = in(reg) from,
                        at = in(reg) at,
                        options(nostack, preserves_flags, readonly),
                    );
                }
                value as Self
            }
        }
    )*};
}

loads! {
    u8: "movzx {value:e}, byte ptr [{from} + {at}]", u32;
    u16: "movzx {value:e}, word ptr [{from} + {at}]", u32;
    u32: "mov {value:e}, dword ptr [{from} + {at}]", u32;
    u64: "mov {value}, qword ptr [{from} + {at}]", u64;
}

impl Load for [u64; 4] {
    #[inline(always)]
    unsafe fn load(from: *const u8, at: usize) -> Self {
        let (a, b, c, d);
        // SAFETY: the caller promises that 32 bytes are readable, and the four instructions read 8 of them
        // each, one behind the other. They change only the registers that are named.
        unsafe {
            asm!(
                "mov {a}, qword ptr [{from} + {at}]",
                "mov {b}, qword ptr [{from} + {at} + 8]",
                "mov {c}, qword ptr [{from} + {at} + 16]",
                "mov {d}, qword ptr [{from} + {at} + 24]",
                a = out(reg) a,
                b = out(reg) b,
                c = out(reg) c,
                d = out(reg) d,
                from = in(reg) from,
                at = in(reg) at,
                options(nostack, preserves_flags, readonly),
            );
        }
        [a, b, c, d]
    }
}

/// Loads `N` times 32 bytes at `at` behind `from`, of any alignment.
///
/// # Safety
/// They are mapped and readable.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn load_256<const N: usize>(from: *const u8, at: usize) -> [__m256i; N] {
    let mut values = [_mm256_setzero_si256(); N];
    for (i, value) in values.iter_mut().enumerate() {
        let from = from.wrapping_add(i * size_of::<__m256i>());
        // SAFETY: the caller promises that `N` times 32 bytes are readable, and the instruction reads those
        // with index `i`. It changes only the register that is named.
        unsafe {
            asm!(
                "vmovdqu {value}, [{from} + {at}]",
                value = out(ymm_reg) *value,
                from = in(reg) from,
                at = in(reg) at,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
    values
}

/// Loads the 64 bytes at `from`, of any alignment.
///
/// # Safety
/// They are mapped and readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_512(from: *const u8) -> __m512i {
    let value;
    // SAFETY: the caller promises that the 64 bytes are readable. The instruction changes only the register
    // that is named.
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

/// A cursor over bytes for a CRC: loads them from the front, and stores each loaded value to a sink.
pub(super) struct Loader<S> {
    from: *const u8,
    sink: S,
    /// Bytes that were taken, at most `len`.
    at: usize,
    len: usize,
}

impl<S: Sink> Loader<S> {
    /// The bytes of `from` at `at..len`.
    ///
    /// # Safety
    /// `at` is at most `len`. While the value exists, `from..from + len` is mapped and readable, and other
    /// threads access it only through atomics and raw copies; `sink` has room for `len` bytes, which nobody
    /// else accesses.
    #[inline(always)]
    pub(super) unsafe fn new(from: *const u8, sink: S, at: usize, len: usize) -> Self {
        Self { from, sink, at, len }
    }

    /// Bytes that were taken.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        self.len - self.at
    }

    /// Takes the next bytes; `None` if fewer are left.
    #[inline(always)]
    pub(super) fn next<T: Load + Copy>(&mut self) -> Option<T> {
        if self.left() < size_of::<T>() {
            return None;
        }
        // SAFETY: as many bytes as the value has are left.
        Some(unsafe { self.take() })
    }

    /// Takes the next bytes.
    ///
    /// # Safety
    /// At least `size_of::<T>()` bytes are [`left`](Self::left).
    #[inline(always)]
    unsafe fn take<T: Load + Copy>(&mut self) -> T {
        // SAFETY: the caller of `new` promised that the bytes of `from` up to `len` are readable while `self`
        // exists. The caller of this function promises that at least the size of the value is left of these
        // bytes.
        let value = unsafe { T::load(self.from, self.at) };
        // SAFETY: the caller of `new` promised that the sink has room for `len` bytes which nobody else
        // accesses. The caller of this function promises that at least the size of the value is left of these
        // bytes.
        unsafe { self.sink.put(self.at, value) };
        self.at += size_of::<T>();
        value
    }

    /// Takes the next `N` times 32 bytes; `None` if fewer are left.
    #[inline]
    #[target_feature(enable = "avx")]
    pub(super) fn next_256<const N: usize>(&mut self) -> Option<[__m256i; N]> {
        const BYTES: usize = size_of::<__m256i>();
        if self.left() < N * BYTES {
            return None;
        }
        // SAFETY: `new` was promised that the bytes of `from` up to `len` are readable while `self` exists,
        // and `N` times 32 are left of them.
        let values = unsafe { load_256(self.from, self.at) };
        for (i, value) in values.iter().enumerate() {
            // SAFETY: `new` was promised that the sink has room for `len` bytes which nobody else accesses,
            // and `N` times 32 are left of them.
            unsafe { self.sink.put(self.at + i * BYTES, *value) };
        }
        self.at += N * BYTES;
        Some(values)
    }

    /// Takes the next `N` times 64 bytes; `None` if fewer are left.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn next_512<const N: usize>(&mut self) -> Option<[__m512i; N]> {
        const BYTES: usize = size_of::<__m512i>();
        if self.left() < N * BYTES {
            return None;
        }
        let mut values = [_mm512_setzero_si512(); N];
        for (i, value) in values.iter_mut().enumerate() {
            let at = self.at + i * BYTES;
            // SAFETY: `new` was promised that the bytes of `from` up to `len` are readable while `self`
            // exists, and `N` values of 64 are left of them.
            *value = unsafe { load_512(self.from.wrapping_add(at)) };
            // SAFETY: `new` was promised that the sink has room for `len` bytes which nobody else accesses,
            // and `N` values of 64 are left of them.
            unsafe { self.sink.put(at, *value) };
        }
        self.at += N * BYTES;
        Some(values)
    }
}

/// Adds and stores bytes up to the next address that is a multiple of 8, at most `len`, in steps of one, two
/// and four bytes. Returns the state of the CRC and the number of bytes.
///
/// # Safety
/// `from..from + len` is mapped and readable, and other threads access it only through atomics and raw
/// copies. `sink` has room for `len` bytes, which nobody else accesses during the call.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn append_head(state: u32, from: *const u8, sink: impl Sink, len: usize) -> (u32, usize) {
    if from.cast::<u64>().is_aligned() {
        return (state, 0);
    }
    let mut state = state;
    let head = from.align_offset(8).min(len);
    // SAFETY: `head` is at most `len`, for which the caller makes the promises of `new`.
    let mut bytes = unsafe { Loader::new(from, sink, 0, head) };
    if head & 1 != 0 {
        // SAFETY: `head` counts a byte here, and nothing was taken before.
        state = _mm_crc32_u8(state, unsafe { bytes.take() });
    }
    if head & 2 != 0 {
        // SAFETY: `head` counts these two bytes and the byte that may have been taken before.
        state = _mm_crc32_u16(state, unsafe { bytes.take() });
    }
    if head & 4 != 0 {
        // SAFETY: `head` counts these four bytes and the bytes that were taken before (at most three).
        state = _mm_crc32_u32(state, unsafe { bytes.take() });
    }
    (state, bytes.at())
}

/// Adds the bytes of `front`.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn append_front(state: u32, front: &Front) -> u32 {
    let Front { words: [first, second], rest } = *front;
    let state = _mm_crc32_u64(_mm_crc32_u64(u64::from(state), first), second) as u32;
    rest.map_or(state, |rest| _mm_crc32_u32(state, rest))
}

/// Adds `zeros` zero bytes.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn append_zeros(state: u32, zeros: usize) -> u32 {
    (0..zeros).fold(state, |state, _| _mm_crc32_u8(state, 0))
}

/// Adds and stores the bytes that are left in words, and the last ones in steps of four, two and one bytes.
/// If `TALLY`, also returns their sum for the Internet checksum.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn append_tail<const TALLY: bool>(state: u32, mut bytes: Loader<impl Sink>) -> (u32, u64) {
    let (mut state, mut sum) = (u64::from(state), 0);
    let mut tally = |value| {
        if TALLY {
            sum += value;
        }
    };
    while let Some(words) = bytes.next::<[u64; 4]>() {
        for word in words {
            state = _mm_crc32_u64(state, word);
            tally((word >> 32) + (word & 0xffff_ffff));
        }
    }
    while let Some(word) = bytes.next::<u64>() {
        state = _mm_crc32_u64(state, word);
        tally((word >> 32) + (word & 0xffff_ffff));
    }
    let mut state = state as u32;
    if let Some(value) = bytes.next() {
        state = _mm_crc32_u32(state, value);
        tally(u64::from(value));
    }
    if let Some(value) = bytes.next() {
        state = _mm_crc32_u16(state, value);
        tally(u64::from(value));
    }
    if let Some(value) = bytes.next() {
        state = _mm_crc32_u8(state, value);
        tally(u64::from(value));
    }
    (state, sum)
}
