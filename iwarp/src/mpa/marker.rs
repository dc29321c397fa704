//! Computes the positions of markers and of the length fields to which they point (RFC 5044 section 4.3).
//!
//! A marker occupies the positions `512 k .. 512 k + 4` of its direction. Between two markers there are 508
//! bytes of content. Positions have 64 bits and never wrap. FPDUs and markers begin at multiples of 4.

use super::fpdu_bytes;
use crate::memory::Stride;

/// Number of bytes from the start of one marker to the start of the next marker.
pub const INTERVAL: u64 = 512;

/// Number of bytes of a marker.
pub const MARKER_BYTES: u64 = 4;

/// Number of content bytes between two markers.
const CONTENT: u64 = INTERVAL - MARKER_BYTES;

const _: () = assert!(
    INTERVAL == Stride::PERIOD as u64 && MARKER_BYTES == Stride::GAP as u64,
    "copies go around gaps where markers are"
);

/// Whether a marker begins at `position`.
pub const fn begins_at(position: u64) -> bool {
    // RFC 5044 section 4.3 (MPA-059, MPA-065): a marker begins at position 0 and at every multiple of 512.
    position.is_multiple_of(INTERVAL)
}

/// Returns the position of the first marker at or after `position`.
pub const fn at_or_after(position: u64) -> u64 {
    position.next_multiple_of(INTERVAL)
}

/// Returns the number of markers that begin in `from..to`.
pub const fn count(from: u64, to: u64) -> u64 {
    to.div_ceil(INTERVAL) - from.div_ceil(INTERVAL)
}

/// Returns the position of the length field of the FPDU that starts at `start`. A marker at `start` comes
/// before the length field.
pub const fn length_field_of(start: u64, markers: bool) -> u64 {
    // RFC 5044 section 4.3 (MPA-064): a marker between two FPDUs is part of the second FPDU.
    if markers && begins_at(start) { start + MARKER_BYTES } else { start }
}

/// Returns the start of the FPDU whose length field is at `length_at`. A marker directly before the length
/// field is part of the FPDU.
pub const fn start_of(length_at: u64, markers: bool) -> u64 {
    if markers && length_at % INTERVAL == MARKER_BYTES { length_at - MARKER_BYTES } else { length_at }
}

/// Returns the position of content byte number `index`. The content byte at `from` has number 0. Markers are
/// not content, so `from` is not inside a marker: `from % INTERVAL` must be at least [`MARKER_BYTES`].
pub const fn nth_content(from: u64, index: u64, markers: bool) -> u64 {
    if markers {
        from + index + MARKER_BYTES * ((from % INTERVAL - MARKER_BYTES + index) / CONTENT)
    } else {
        from + index
    }
}

/// Returns the position after the last of `bytes` content bytes (at least 1) that begin at `from`. A marker
/// that is due at that position belongs to the next content.
pub const fn end_of_content(from: u64, bytes: u64, markers: bool) -> u64 {
    nth_content(from, bytes - 1, markers) + 1
}

/// Returns the position after the last byte of the FPDU that starts at `start`. If the FPDU begins with a
/// marker, `start` is the position of this marker.
pub const fn fpdu_end(start: u64, ulpdu_bytes: usize, markers: bool) -> u64 {
    end_of_content(length_field_of(start, markers), fpdu_bytes(ulpdu_bytes) as u64, markers)
}

/// Returns the FPDUPTR of the marker at `marker` in the FPDU whose length field is at `length_at`: the
/// distance back to the length field. The FPDUPTR is 0 if the marker is before the length field. The FPDUPTR
/// fits into 16 bits for every ULPDU that may be sent.
pub const fn pointer(marker: u64, length_at: u64) -> u64 {
    // RFC 5044 section 4.3 (MPA-060, MPA-069, MPA-070): all markers in an FPDU point to its length field; a
    // marker between two FPDUs has 0.
    marker.saturating_sub(length_at)
}

/// Returns the four bytes of a marker with this FPDUPTR.
pub const fn encode(pointer: u64) -> [u8; 4] {
    // RFC 5044 section 4.2 (MPA-049, MPA-050): a marker has 16 reserved zero bits, then FPDUPTR in network
    // order.
    // RFC 5044 section 4.2 (MPA-053): the two low bits of FPDUPTR are zero, since markers and length fields
    // are at multiples of 4.
    let [high, low] = (pointer as u16).to_be_bytes();
    [0, 0, high, low]
}

/// Returns the FPDUPTR of a received marker.
pub const fn decode(marker: [u8; 4]) -> u64 {
    // RFC 5044 section 4.2 (MPA-051, MPA-054): the reserved bytes are ignored, and the two low bits count as
    // 0.
    (u32::from_be_bytes(marker) & 0xfffc) as u64
}

/// Returns the position of the length field that the marker at `marker` points to, or `None` if no length
/// field can be at that position.
pub const fn target(marker: u64, pointer: u64) -> Option<u64> {
    if pointer == 0 {
        return Some(marker + MARKER_BYTES);
    }
    match marker.checked_sub(pointer) {
        Some(length_at) if length_at % INTERVAL >= MARKER_BYTES => Some(length_at),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
