//! Loads of bytes for a CRC, and functions that continue a CRC by the CRC instruction. If the bytes are
//! copied, each loaded value is also stored.
//!
//! The bytes may be registered memory, to which other threads write. So the loads are assembly that is opaque
//! to the compiler, which must not repeat or omit a load. Each byte is loaded once, so the copy and the CRC
//! have the same value of this byte.

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64, _mm256_setzero_si256,
    _mm512_setzero_si512,
};

use super::Front;

/// The destination to which the loaded bytes are copied.
pub(super) trait Sink: Copy {
    /// Stores `value` at `offset`.
    ///
    /// # Safety
    /// The sink has room for the value at `offset`, and no other code accesses these bytes during the call.
    unsafe fn put<T>(self, offset: usize, value: T);
}

/// The sink for a CRC without a copy: it discards the values.
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
        // SAFETY: the caller promises that the sink has room for the value at `offset` and that no other code
        // accesses these bytes. `write_unaligned` does not require alignment.
        unsafe { place.write_unaligned(value) };
    }
}

/// A value that can be loaded from any address. Each byte is loaded once.
pub(super) trait Load: Sized {
    /// Loads the value at the address `from + at`.
    ///
    /// # Safety
    /// `size_of::<Self>()` bytes at `from + at` are mapped and readable.
    unsafe fn load(from: *const u8, at: usize) -> Self;
}

/// Implements `Load` by one instruction per type, with a register of type `$register`.
macro_rules! loads {
    ($($value:ty: $instruction:literal, $register:ty;)*) => {$(
        impl Load for $value {
            #[inline(always)]
            unsafe fn load(from: *const u8, at: usize) -> Self {
                let value: $register;
                // SAFETY: the caller promises that `size_of::<Self>()` bytes at `from + at` are readable. The
                // instruction reads no other bytes, and changes only the register that is named.
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
        // SAFETY: the caller promises that 32 bytes at `from + at` are readable. Each of the four
        // instructions reads a different 8 of these bytes, and changes only the register that is named.
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

/// Loads `N` values of 32 bytes each from the address `from + at`, which may have any alignment.
///
/// # Safety
/// `N` times 32 bytes at `from + at` are mapped and readable.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn load_256<const N: usize>(from: *const u8, at: usize) -> [__m256i; N] {
    let mut values = [_mm256_setzero_si256(); N];
    for (i, value) in values.iter_mut().enumerate() {
        let from = from.wrapping_add(i * size_of::<__m256i>());
        // SAFETY: the caller promises that `N` times 32 bytes at the caller's `from + at` are readable. The
        // instruction reads the 32 bytes with index `i`, and changes only the register that is named.
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

/// Loads the 64 bytes at `from`, which may have any alignment.
///
/// # Safety
/// 64 bytes at `from` are mapped and readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_512(from: *const u8) -> __m512i {
    let value;
    // SAFETY: the caller promises that 64 bytes at `from` are readable. The instruction reads these bytes,
    // and changes only the register that is named.
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

/// A cursor over bytes for a CRC, which loads the bytes in order and stores each loaded value to a sink.
pub(super) struct Loader<S> {
    from: *const u8,
    sink: S,
    /// Offset of the next byte to load, at most `len`.
    at: usize,
    len: usize,
}

impl<S: Sink> Loader<S> {
    /// Returns a cursor over the bytes `at..len` of the `len` bytes at `from`.
    ///
    /// # Safety
    /// `at` is at most `len`. While the value exists, `from..from + len` is mapped and readable, and other
    /// threads access it only through atomics and raw copies. During that time `sink` has room for `len`
    /// bytes, and no other code accesses these bytes.
    #[inline(always)]
    pub(super) unsafe fn new(from: *const u8, sink: S, at: usize, len: usize) -> Self {
        Self { from, sink, at, len }
    }

    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Number of bytes that are left.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        self.len - self.at
    }

    /// Loads the next value. Returns `None` if fewer bytes are left than the value has.
    #[inline(always)]
    pub(super) fn next<T: Load + Copy>(&mut self) -> Option<T> {
        if self.left() < size_of::<T>() {
            return None;
        }
        // SAFETY: at least `size_of::<T>()` bytes are left.
        Some(unsafe { self.take() })
    }

    /// Loads the next value.
    ///
    /// # Safety
    /// At least `size_of::<T>()` bytes are [`left`](Self::left).
    #[inline(always)]
    unsafe fn take<T: Load + Copy>(&mut self) -> T {
        // SAFETY: the caller of `new` promised that the bytes of `from` up to `len` are readable while `self`
        // exists. The caller of this function promises that at least `size_of::<T>()` of these bytes are
        // left.
        let value = unsafe { T::load(self.from, self.at) };
        // SAFETY: the caller of `new` promised that the sink has room for `len` bytes, which no other code
        // accesses. The caller of this function promises that at least `size_of::<T>()` of these bytes are
        // left.
        unsafe { self.sink.put(self.at, value) };
        self.at += size_of::<T>();
        value
    }

    /// Loads the next `N` values of 32 bytes each, and stores the values to the sink. Returns `None` if fewer
    /// bytes are left.
    #[inline]
    #[target_feature(enable = "avx")]
    pub(super) fn next_256<const N: usize>(&mut self) -> Option<[__m256i; N]> {
        const BYTES: usize = size_of::<__m256i>();
        if self.left() < N * BYTES {
            return None;
        }
        // SAFETY: the caller of `new` promised that the bytes of `from` up to `len` are readable while `self`
        // exists. At least `N` times 32 of these bytes are left.
        let values = unsafe { load_256(self.from, self.at) };
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the caller of `new` promised that the sink has room for `len` bytes, which no other
            // code accesses. At least `N` times 32 of these bytes are left.
            unsafe { self.sink.put(self.at + i * BYTES, *value) };
        }
        self.at += N * BYTES;
        Some(values)
    }

    /// Loads the next `N` values of 64 bytes each. Returns `None` if fewer bytes are left.
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
            // SAFETY: the caller of `new` promised that the bytes of `from` up to `len` are readable while
            // `self` exists. At least `N` times 64 of these bytes are left.
            *value = unsafe { load_512(self.from.wrapping_add(at)) };
            // SAFETY: the caller of `new` promised that the sink has room for `len` bytes, which no other
            // code accesses. At least `N` times 64 of these bytes are left.
            unsafe { self.sink.put(at, *value) };
        }
        self.at += N * BYTES;
        Some(values)
    }
}

/// Loads the bytes before the next address that is a multiple of 8, but at most `len` bytes, in steps of one,
/// two and four bytes. Adds these bytes to the CRC and stores them. Returns the state of the CRC and the
/// number of these bytes.
///
/// # Safety
/// `from..from + len` is mapped and readable, and other threads access it only through atomics and raw
/// copies. `sink` has room for `len` bytes, which no other code accesses during the call.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn append_head(state: u32, from: *const u8, sink: impl Sink, len: usize) -> (u32, usize) {
    if from.cast::<u64>().is_aligned() {
        return (state, 0);
    }
    let mut state = state;
    let head = from.align_offset(8).min(len);
    // SAFETY: `head` is at most `len`, and the caller promises for `len` bytes what `new` requires.
    let mut bytes = unsafe { Loader::new(from, sink, 0, head) };
    if head & 1 != 0 {
        // SAFETY: `head` includes this byte, and no byte was loaded before it.
        state = _mm_crc32_u8(state, unsafe { bytes.take() });
    }
    if head & 2 != 0 {
        // SAFETY: `head` includes these two bytes and the byte that may have been loaded before.
        state = _mm_crc32_u16(state, unsafe { bytes.take() });
    }
    if head & 4 != 0 {
        // SAFETY: `head` includes these four bytes and the bytes that were loaded before (at most three).
        state = _mm_crc32_u32(state, unsafe { bytes.take() });
    }
    (state, bytes.at())
}

/// Continues the CRC `state` with the bytes of `front`.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn append_front(state: u32, front: &Front) -> u32 {
    let Front { words: [first, second], rest } = *front;
    let state = _mm_crc32_u64(_mm_crc32_u64(u64::from(state), first), second) as u32;
    rest.map_or(state, |rest| _mm_crc32_u32(state, rest))
}

/// Continues the CRC `state` with `zeros` zero bytes.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn append_zeros(state: u32, zeros: usize) -> u32 {
    (0..zeros).fold(state, |state, _| _mm_crc32_u8(state, 0))
}

/// Loads the bytes that are left: first whole words, then the last bytes in steps of four, two and one bytes.
/// Adds these bytes to the CRC and stores them. Returns the state of the CRC. If `TALLY` is set, also returns
/// the partial Internet checksum of these bytes.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn append_tail<const TALLY: bool>(state: u32, mut bytes: Loader<impl Sink>) -> (u32, u64) {
    let (mut state, mut checksum) = (u64::from(state), 0);
    let mut tally = |value| {
        if TALLY {
            checksum += value;
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
    (state, checksum)
}
