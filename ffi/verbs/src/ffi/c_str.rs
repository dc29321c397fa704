//! Strings in structs of C.

use std::ffi::c_char;

/// Copies at most `N - 1` bytes of a string into a field of a C struct. The last byte of the field is not
/// written: it is the terminating zero.
pub(crate) fn copy_str<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (place, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}
