//! Memory brought to the cache ahead of its use.

/// Bytes of a line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Has the lines of `value` fetched while its thread goes on. For what is known to be used soon, and was not
/// lately.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of::<T>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither reads nor writes; the address is inside `value`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>().add(at)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
