//! Copies the middle part of a range on x86-64. This processor makes stores visible in program order, and
//! stores 16 aligned bytes in a single access (Intel and AMD guarantee the latter for processors with AVX).

use std::arch::asm;

use super::{WORD, place_word};
use crate::memory::stride::{Runs, Stride};

/// Number of bytes of a vector. Stores of a vector are aligned to this number.
pub(super) const ALIGN: usize = 16;

/// Number of bytes of a block.
pub(super) const BLOCK: usize = 4 * ALIGN;

/// 16 bytes with all bits set, then 16 zero bytes: in a vector that is loaded at `16 - n`, all bits of the
/// first `n` bytes are set.
static MASK: [u8; 2 * ALIGN] = {
    let mut mask = [0; 2 * ALIGN];
    mask.split_at_mut(ALIGN).0.copy_from_slice(&[0xff; ALIGN]);
    mask
};

/// Copies the front of `bytes` to `to`, a multiple of 8. Returns the number of copied bytes, which is a
/// multiple of 8. If `bytes` is not empty, at least one byte is not copied.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies. If `bytes` is not empty, `to` is a multiple of 8.
#[inline]
pub(super) unsafe fn place(to: *mut u8, bytes: &[u8]) -> usize {
    let head = to.align_offset(ALIGN);
    let len = bytes.len().saturating_sub(head + 1) / ALIGN * ALIGN;
    if len == 0 {
        return 0;
    }
    if let (true, Some(word)) = (head == WORD, bytes.first_chunk()) {
        // SAFETY: the word is the front of `bytes`, and is copied to the front of the caller's range. `to` is
        // a multiple of 8, since `bytes` is not empty.
        unsafe { place_word(to, *word) };
    }
    let (to, from) = (to.wrapping_add(head), bytes.as_ptr().wrapping_add(head));
    // SAFETY: `head` is 0 or 8, and after these bytes `to` is a multiple of 16. `head + len` is less than the
    // length of `bytes`, so `from` points to at least `len` bytes, and the caller's range has room for them.
    // `len` is a multiple of 16.
    unsafe { whole_vectors(to, from, len) };
    head + len
}

/// Copies the front of the `len` bytes at `from` to `to`. Returns the number of copied bytes, which is a
/// multiple of 16, and 0 if `to` is not a multiple of 16. If `len` is not 0, at least one byte is not copied.
///
/// # Safety
/// `to..to + len` is mapped and writable, `from..from + len` is mapped and readable, and the two ranges do
/// not overlap. Other threads and processes access both only through atomics and raw copies.
#[inline]
pub(super) unsafe fn place_raw(to: *mut u8, from: *const u8, len: usize) -> usize {
    let vectors = len.saturating_sub(1) / ALIGN * ALIGN;
    if vectors == 0 || !to.addr().is_multiple_of(ALIGN) {
        return 0;
    }
    // SAFETY: `vectors` is a multiple of 16 and less than `len`. `to` was just checked to be a multiple of
    // 16. The caller promises the rest.
    unsafe { whole_vectors(to, from, vectors) };
    vectors
}

/// Copies the `len` bytes at `from` to `to`.
///
/// # Safety
/// `len` and `to` are multiples of 16. `to..to + len` is mapped and writable, and other threads access it
/// only through atomics and raw copies. `from..from + len` is mapped and readable, and other code accesses it
/// only through atomics and raw copies.
#[inline]
unsafe fn whole_vectors(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller promises that `len` bytes at `from` are readable and `len` bytes at `to` are
    // writable. `to` is a multiple of 16, as `movdqa` requires. `len` is a multiple of 16. First the assembly
    // copies `len` modulo 128 bytes, in pieces of 16, 32 and 64 bytes. Then it copies blocks of 128 bytes
    // until no byte is left. The assembly accesses no other memory, and changes only the registers that it
    // names.
    unsafe {
        asm!(
            // `len` is negated, and then increased until it is 0.
            "add {from}, {len}",
            "add {to}, {len}",
            "neg {len}",
            "test {len:l}, 16",
            "jz 2f",
            "movdqu {x0}, [{from} + {len}]",
            "movdqa [{to} + {len}], {x0}",
            "add {len}, 16",
            "2:",
            "test {len:l}, 32",
            "jz 3f",
            "movdqu {x0}, [{from} + {len}]",
            "movdqu {x1}, [{from} + {len} + 16]",
            "movdqa [{to} + {len}], {x0}",
            "movdqa [{to} + {len} + 16], {x1}",
            "add {len}, 32",
            "3:",
            "test {len:l}, 64",
            "jz 4f",
            "movdqu {x0}, [{from} + {len}]",
            "movdqu {x1}, [{from} + {len} + 16]",
            "movdqu {x2}, [{from} + {len} + 32]",
            "movdqu {x3}, [{from} + {len} + 48]",
            "movdqa [{to} + {len}], {x0}",
            "movdqa [{to} + {len} + 16], {x1}",
            "movdqa [{to} + {len} + 32], {x2}",
            "movdqa [{to} + {len} + 48], {x3}",
            "add {len}, 64",
            "4:",
            "test {len}, {len}",
            "jz 6f",
            "5:",
            "movdqu {x0}, [{from} + {len}]",
            "movdqu {x1}, [{from} + {len} + 16]",
            "movdqu {x2}, [{from} + {len} + 32]",
            "movdqu {x3}, [{from} + {len} + 48]",
            "movdqa [{to} + {len}], {x0}",
            "movdqa [{to} + {len} + 16], {x1}",
            "movdqa [{to} + {len} + 32], {x2}",
            "movdqa [{to} + {len} + 48], {x3}",
            "movdqu {x0}, [{from} + {len} + 64]",
            "movdqu {x1}, [{from} + {len} + 80]",
            "movdqu {x2}, [{from} + {len} + 96]",
            "movdqu {x3}, [{from} + {len} + 112]",
            "movdqa [{to} + {len} + 64], {x0}",
            "movdqa [{to} + {len} + 80], {x1}",
            "movdqa [{to} + {len} + 96], {x2}",
            "movdqa [{to} + {len} + 112], {x3}",
            "sub {len}, -128",
            "jnz 5b",
            "6:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            x0 = out(xmm_reg) _,
            x1 = out(xmm_reg) _,
            x2 = out(xmm_reg) _,
            x3 = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies vectors of `runs` to `to`. Returns the address after the copied vectors. If `runs` is not empty, at
/// least one byte is not copied.
///
/// # Safety
/// `to..to + runs.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies. If `runs` is not empty, `to` is a multiple of 16.
pub(super) unsafe fn place_runs(to: *mut u8, runs: &mut Runs<'_>) -> *mut u8 {
    let count = runs.len().saturating_sub(1) / ALIGN;
    let (bytes, front) = runs.parts();
    if count == 0 {
        return to;
    }
    // SAFETY: `runs` has more than `16 * count` bytes of content. The content starts at `bytes`, and the
    // first gap follows `front` bytes of content. The caller's range at `to`, a multiple of 16, has room for
    // these bytes. `count` is not 0.
    let (from, front) = unsafe { vectors(to, bytes.as_ptr(), count, front) };
    runs.advance(from.addr() - bytes.as_ptr().addr(), front);
    to.wrapping_add(count * ALIGN)
}

/// Copies `count` vectors of content at `from` to `to`. A vector with a gap inside is assembled from the
/// bytes on both sides of the gap. Returns the address after the last copied source byte, and the number of
/// bytes before the next gap.
///
/// # Safety
/// `count` is at least 1, and `to` a multiple of 16. `to..to + 16 * count` is mapped and writable, and other
/// threads access it only through atomics and raw copies. `from` points to initialised memory that nobody
/// writes, with `16 * count` bytes of content. The first `front` bytes of content are followed by a gap of
/// `Stride::GAP` bytes, and each further `Stride::RUN` bytes of content are followed by another gap.
unsafe fn vectors(to: *mut u8, mut from: *const u8, count: usize, mut front: usize) -> (*const u8, usize) {
    let mask = MASK.as_ptr().wrapping_add(ALIGN);
    // SAFETY: the caller promises `count` vectors of content at `from`. Vectors before a gap are loaded in
    // one piece. If a vector has a gap inside, its first `front` bytes are before the gap and its other bytes
    // are after the gap. So neither of the two loads reads beyond the vector's last byte. A run is at least
    // as long as a vector, so a vector has no second gap. The mask is loaded at most 16 bytes before the
    // middle of `MASK`, since `front` is below 16 there. The caller promises `16 * count` writable bytes at
    // `to`, a multiple of 16, as `movdqa` requires. The assembly stores to no other memory, and changes only
    // the registers that it names.
    unsafe {
        asm!(
            "2:",
            // `here`: the number of vectors before the gap, but at most the number of remaining vectors.
            "mov {here}, {front}",
            "shr {here}, 4",
            "cmp {here}, {count}",
            "cmova {here}, {count}",
            "sub {count}, {here}",
            "shl {here}, 4",
            "sub {front}, {here}",
            // These vectors are copied as in `whole_vectors`.
            "add {from}, {here}",
            "add {to}, {here}",
            "neg {here}",
            "test {here:l}, 16",
            "jz 3f",
            "movdqu {x0}, [{from} + {here}]",
            "movdqa [{to} + {here}], {x0}",
            "add {here}, 16",
            "3:",
            "test {here:l}, 32",
            "jz 4f",
            "movdqu {x0}, [{from} + {here}]",
            "movdqu {x1}, [{from} + {here} + 16]",
            "movdqa [{to} + {here}], {x0}",
            "movdqa [{to} + {here} + 16], {x1}",
            "add {here}, 32",
            "4:",
            "test {here:l}, 64",
            "jz 5f",
            "movdqu {x0}, [{from} + {here}]",
            "movdqu {x1}, [{from} + {here} + 16]",
            "movdqu {x2}, [{from} + {here} + 32]",
            "movdqu {x3}, [{from} + {here} + 48]",
            "movdqa [{to} + {here}], {x0}",
            "movdqa [{to} + {here} + 16], {x1}",
            "movdqa [{to} + {here} + 32], {x2}",
            "movdqa [{to} + {here} + 48], {x3}",
            "add {here}, 64",
            "5:",
            "test {here}, {here}",
            "jz 7f",
            "6:",
            "movdqu {x0}, [{from} + {here}]",
            "movdqu {x1}, [{from} + {here} + 16]",
            "movdqu {x2}, [{from} + {here} + 32]",
            "movdqu {x3}, [{from} + {here} + 48]",
            "movdqa [{to} + {here}], {x0}",
            "movdqa [{to} + {here} + 16], {x1}",
            "movdqa [{to} + {here} + 32], {x2}",
            "movdqa [{to} + {here} + 48], {x3}",
            "movdqu {x0}, [{from} + {here} + 64]",
            "movdqu {x1}, [{from} + {here} + 80]",
            "movdqu {x2}, [{from} + {here} + 96]",
            "movdqu {x3}, [{from} + {here} + 112]",
            "movdqa [{to} + {here} + 64], {x0}",
            "movdqa [{to} + {here} + 80], {x1}",
            "movdqa [{to} + {here} + 96], {x2}",
            "movdqa [{to} + {here} + 112], {x3}",
            "sub {here}, -128",
            "jnz 6b",
            "7:",
            "test {count}, {count}",
            "jz 8f",
            // The vector with the gap inside: its first `front` bytes come from before the gap, its other
            // bytes from after the gap.
            "movdqu {x0}, [{from}]",
            "movdqu {x1}, [{from} + {GAP}]",
            "mov {here}, {mask}",
            "sub {here}, {front}",
            "movdqu {x2}, [{here}]",
            "pand {x0}, {x2}",
            "pandn {x2}, {x1}",
            "por {x0}, {x2}",
            "movdqa [{to}], {x0}",
            "add {from}, {GAP} + 16",
            "add {to}, 16",
            "add {front}, {RUN} - 16",
            "dec {count}",
            "jnz 2b",
            "8:",
            from = inout(reg) from,
            to = inout(reg) to => _,
            count = inout(reg) count => _,
            front = inout(reg) front,
            RUN = const Stride::RUN,
            GAP = const Stride::GAP,
            mask = in(reg) mask,
            here = out(reg) _,
            x0 = out(xmm_reg) _,
            x1 = out(xmm_reg) _,
            x2 = out(xmm_reg) _,
            x3 = out(xmm_reg) _,
            options(nostack),
        );
    }
    (from, front)
}

/// Copies the `out.len()` bytes at `from` to `out`.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies. The length is a multiple of 64. If the length is not 0, `from` is a multiple of 8.
pub(super) unsafe fn fetch(from: *mut u8, out: &mut [u8]) {
    if out.len() < BLOCK {
        return;
    }
    if is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has AVX. The caller promises what `fetch` requires. `out` has at least one block of
        // 64 bytes.
        unsafe { fetch_avx(from, out) };
    } else {
        // SAFETY: the caller promises what `fetch` requires. `out` has at least one block of 64 bytes.
        unsafe { fetch_sse(from, out) };
    }
}

/// Does what [`fetch`] does, by vectors of 32 bytes. The vectors need not be aligned to 32 bytes: `from` is a
/// multiple of 8, so no aligned word of 8 bytes lies in two cache lines, and each word is loaded in a single
/// access.
///
/// # Safety
/// The requirements of [`fetch`]. The CPU has AVX, and `out` has at least 64 bytes.
#[inline]
pub(super) unsafe fn fetch_avx(from: *mut u8, out: &mut [u8]) {
    let len = out.len() / BLOCK * BLOCK;
    // SAFETY: `len` is a multiple of 64, at least 64 and at most `out.len()`. The caller promises that
    // `out.len()` bytes at `from` are readable. The assembly reads `len` bytes at `from`, writes `len` bytes
    // to `out`, and changes only the registers that it names. The assembly also clears the upper halves of
    // all vector registers, so that later SSE instructions do not wait for these registers.
    unsafe {
        asm!(
            "test {len:l}, 64",
            "jz 2f",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            "add {from}, 64",
            "add {to}, 64",
            "2:",
            "and {len}, -128",
            "jz 4f",
            "add {from}, {len}",
            "add {to}, {len}",
            "neg {len}",
            "3:",
            "vmovdqu ymm0, [{from} + {len}]",
            "vmovdqu ymm1, [{from} + {len} + 32]",
            "vmovdqu ymm2, [{from} + {len} + 64]",
            "vmovdqu ymm3, [{from} + {len} + 96]",
            "vmovdqu [{to} + {len}], ymm0",
            "vmovdqu [{to} + {len} + 32], ymm1",
            "vmovdqu [{to} + {len} + 64], ymm2",
            "vmovdqu [{to} + {len} + 96], ymm3",
            "sub {len}, -128",
            "jnz 3b",
            "4:",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) out.as_mut_ptr() => _,
            len = inout(reg) len => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// Does what [`fetch`] does, by vectors of 16 bytes.
///
/// # Safety
/// The requirements of [`fetch`]. `out` has at least 64 bytes.
pub(super) unsafe fn fetch_sse(from: *mut u8, out: &mut [u8]) {
    let blocks = out.len() / BLOCK;
    // SAFETY: `blocks` is not 0, and `blocks * 64` is at most `out.len()`. The caller promises that
    // `out.len()` bytes at `from` are readable. The assembly reads `blocks * 64` bytes at `from`, writes them
    // to `out`, and changes only the registers that it names.
    unsafe {
        asm!(
            "2:",
            "movdqu {x0}, [{from}]",
            "movdqu {x1}, [{from} + 16]",
            "movdqu {x2}, [{from} + 32]",
            "movdqu {x3}, [{from} + 48]",
            "movdqu [{to}], {x0}",
            "movdqu [{to} + 16], {x1}",
            "movdqu [{to} + 32], {x2}",
            "movdqu [{to} + 48], {x3}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {blocks}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) out.as_mut_ptr() => _,
            blocks = inout(reg) blocks => _,
            x0 = out(xmm_reg) _,
            x1 = out(xmm_reg) _,
            x2 = out(xmm_reg) _,
            x3 = out(xmm_reg) _,
            options(nostack),
        );
    }
}
